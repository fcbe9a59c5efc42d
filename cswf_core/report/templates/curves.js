// Curves: every chart shares one range of steps; drag, wheel, pinch and keys change it.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
const MARGIN = { left: 62, right: 14, top: 10, bottom: 40 };
const QUANTITIES = [
  { name: "sliced_distance", title: "Sliced distance", unit: "SW₂ from particles to data", height: 300 },
  { name: "displacement", title: "Displacement", unit: "mean distance moved in a step", height: 230 },
  { name: "milliseconds", title: "Time per step", unit: "milliseconds", height: 230 },
];

class Charts {
  constructor(place, runs) {
    this.runs = runs;
    this.hidden = new Set();
    const steps = runs.flatMap((run) => run.step);
    this.whole = [Math.min(...steps), Math.max(...steps)];
    if (this.whole[0] === this.whole[1]) this.whole[1] += 1;
    this.range = [...this.whole];
    if (runs.length > 1) place.append(this.legend());
    this.charts = QUANTITIES
      .filter((quantity) => runs.some((run) => run[quantity.name].some((value) => value !== null)))
      .map((quantity) => new Chart(this, quantity));
    place.append(...this.charts.map((chart) => chart.figure));
    new ResizeObserver(() => this.draw()).observe(place);
    this.draw();
  }

  get shown() {
    return this.runs.filter((run) => !this.hidden.has(run));
  }

  legend() {
    const buttons = this.runs.map((run) => {
      const chip = element("span", { class: `chip run-${run.colour}`, "aria-hidden": "true" });
      const button = element("button", { type: "button", "aria-pressed": "true" }, chip, run.label);
      button.addEventListener("click", () => {
        if (!this.hidden.delete(run)) this.hidden.add(run);
        button.setAttribute("aria-pressed", String(!this.hidden.has(run)));
        this.draw();
      });
      return button;
    });
    return element("div", { class: "legend", role: "group", "aria-label": "Runs to show" }, ...buttons);
  }

  zoom(low, high) {
    const [first, last] = this.whole;
    const least = Math.min(last - first, Math.max(2, (last - first) / 2000));
    let width = Math.min(Math.max(high - low, least), last - first);
    let from = Math.min(Math.max((low + high) / 2 - width / 2, first), last - width);
    this.range = [from, from + width];
    this.draw();
  }

  scale(factor, about) {
    const [low, high] = this.range;
    this.zoom(about - (about - low) * factor, about + (high - about) * factor);
  }

  reset() {
    this.range = [...this.whole];
    this.draw();
  }

  draw() {
    for (const chart of this.charts) chart.draw();
  }
}

class Chart {
  constructor(charts, quantity) {
    this.charts = charts;
    this.quantity = quantity;
    this.pointers = new Map();
    const values = charts.runs.flatMap((run) => run[quantity.name]).filter((value) => value > 0);
    this.log = Math.max(...values) > 20 * Math.min(...values);
    this.svg = drawn("svg", { tabindex: 0, role: "img", height: quantity.height });
    this.tip = element("div", { class: "tip", hidden: "" });
    const title = element("h3", {}, quantity.title, element("span", { class: "unit" }, quantity.unit));
    const top = element("div", { class: "top" }, title, this.scales());
    this.back = element("button", { type: "button", class: "reset", hidden: "" }, "Reset zoom");
    this.back.addEventListener("click", () => charts.reset());
    const plot = element("div", { class: "plot" }, this.svg, this.back, this.tip);
    this.figure = element("figure", { class: "chart", id: `curve-${quantity.name}`, "data-quantity": quantity.name }, top, plot);
    this.listen();
  }

  scales() {
    const kinds = [["linear", false], ["log", true]].map(([text, log]) => {
      const button = element("button", { type: "button", "aria-pressed": String(this.log === log) }, text);
      button.addEventListener("click", () => {
        this.log = log;
        for (const kind of kinds) kind.setAttribute("aria-pressed", String(kind === button));
        this.draw();
      });
      return button;
    });
    return element("div", { class: "switch", role: "group", "aria-label": "Vertical scale" }, ...kinds);
  }

  x(step) {
    const [low, high] = this.charts.range;
    return MARGIN.left + ((step - low) / (high - low)) * (this.width - MARGIN.left - MARGIN.right);
  }

  stepAt(x) {
    const [low, high] = this.charts.range;
    return low + ((x - MARGIN.left) / (this.width - MARGIN.left - MARGIN.right)) * (high - low);
  }

  y(value) {
    const [low, high] = this.extent;
    const share = this.log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
    return MARGIN.top + (1 - share) * (this.quantity.height - MARGIN.top - MARGIN.bottom);
  }

  has(value) {
    return value !== null && (!this.log || value > 0);
  }

  measure() {
    const [from, to] = this.charts.range;
    const values = [];
    for (const run of this.charts.shown) {
      run.step.forEach((step, i) => {
        const value = run[this.quantity.name][i];
        if (step >= from && step <= to && this.has(value)) values.push(value);
      });
    }
    if (!values.length) return this.log ? [0.1, 1] : [0, 1];
    const low = Math.min(...values);
    const high = Math.max(...values);
    if (this.log) return [low / Math.max(1.05, (high / low) ** 0.06), high * Math.max(1.05, (high / low) ** 0.06)];
    const edge = (high - low || Math.abs(high) || 1) * 0.07;
    return [low >= 0 ? Math.max(0, low - edge) : low - edge, high + edge];
  }

  draw() {
    this.width = this.figure.clientWidth || 600;
    this.extent = this.measure();
    const { height, title } = this.quantity;
    const [from, to] = this.charts.range;
    const right = this.width - MARGIN.right;
    const bottom = height - MARGIN.bottom;
    this.back.hidden = from === this.charts.whole[0] && to === this.charts.whole[1];
    this.svg.dataset.from = String(from);
    this.svg.dataset.to = String(to);
    const steps = `steps ${number(Math.round(from))} to ${number(Math.round(to))}`;
    this.svg.setAttribute("aria-label", `${title}, ${steps}, ${this.log ? "logarithmic" : "linear"} scale`);
    const parts = [drawn("rect", { x: 0, y: 0, width: this.width, height, fill: "transparent" })];
    const clip = `clip-${this.quantity.name}`;
    const window = drawn("clipPath", { id: clip });
    window.append(drawn("rect", { x: MARGIN.left, y: 0, width: Math.max(0, right - MARGIN.left), height: bottom + 2 }));
    parts.push(window);
    for (const tick of this.log ? logTicks(...this.extent) : roundTicks(...this.extent, height / 55)) {
      const y = this.y(tick);
      parts.push(drawn("line", { class: "grid", x1: MARGIN.left, x2: right, y1: y, y2: y }));
      parts.push(drawn("text", { x: MARGIN.left - 9, y: y + 4, "text-anchor": "end" }, number(tick)));
    }
    for (const tick of roundTicks(from, to, Math.max(2, this.width / 85))) {
      parts.push(drawn("text", { x: this.x(tick), y: bottom + 19, "text-anchor": "middle" }, number(tick)));
    }
    parts.push(drawn("text", { x: right, y: height - 4, "text-anchor": "end" }, "step"));
    const inner = drawn("g", { "clip-path": `url(#${clip})` });
    for (const run of this.charts.shown) inner.append(...this.boundaries(run, bottom));
    for (const run of this.charts.shown) inner.append(...this.curve(run));
    this.cross = drawn("line", { class: "cross", y1: MARGIN.top, y2: bottom, visibility: "hidden" });
    this.span = drawn("rect", { class: "span", y: MARGIN.top, height: bottom - MARGIN.top, visibility: "hidden" });
    inner.append(this.cross, this.span);
    this.svg.replaceChildren(...parts, inner);
    this.tip.hidden = true;
  }

  boundaries(run, bottom) {
    const lines = [];
    let last = -Infinity;
    for (let i = 1; i < run.step.length; i += 1) {
      const x = this.x(run.step[i - 1]);
      if (run.stage[i] === run.stage[i - 1] || x - last < 6) continue; // closer ones come with the zoom
      lines.push(drawn("line", { class: `stage run-${run.colour}`, x1: x, x2: x, y1: MARGIN.top, y2: bottom }));
      last = x;
    }
    return lines;
  }

  curve(run) {
    const values = run[this.quantity.name];
    let path = "";
    let broken = true;
    const dots = [];
    const dotted = run.step.length <= 80;
    run.step.forEach((step, i) => {
      if (!this.has(values[i])) { broken = true; return; }
      const [x, y] = [this.x(step).toFixed(1), this.y(values[i]).toFixed(1)];
      path += `${broken ? "M" : "L"}${x} ${y}`;
      broken = false;
      if (dotted) dots.push(drawn("circle", { class: `dot run-${run.colour}`, cx: x, cy: y, r: 2.2 }));
    });
    return [drawn("path", { class: `curve run-${run.colour}`, d: path || "M0 0" }), ...dots];
  }

  nearest(run, step) {
    let best = -1;
    run.step.forEach((known, i) => {
      if (!this.has(run[this.quantity.name][i])) return;
      if (best < 0 || Math.abs(known - step) < Math.abs(run.step[best] - step)) best = i;
    });
    return best;
  }

  point(x) {
    const found = this.charts.shown.map((run) => [run, this.nearest(run, this.stepAt(x))]).filter(([, i]) => i >= 0);
    if (!found.length || x < MARGIN.left || x > this.width - MARGIN.right) { this.leave(); return; }
    const [first, at] = found[0];
    const place = this.x(first.step[at]);
    this.cross.setAttribute("x1", place);
    this.cross.setAttribute("x2", place);
    this.cross.setAttribute("visibility", "visible");
    const several = this.charts.runs.length > 1;
    const stages = new Set(first.stage).size > 1 ? `, stage ${first.stage[at] + 1}` : "";
    const lines = [element("div", { class: "when" }, `step ${first.step[at].toLocaleString("en")}${stages}`)];
    for (const [run, i] of found) {
      const value = element("b", {}, number(run[this.quantity.name][i]));
      const chip = element("span", { class: `chip run-${run.colour}` });
      lines.push(several ? element("div", {}, chip, value, ` ${run.label}`) : element("div", {}, value));
    }
    this.tip.replaceChildren(...lines);
    this.tip.hidden = false;
    const left = place + 14 + this.tip.offsetWidth > this.width ? place - 14 - this.tip.offsetWidth : place + 14;
    this.tip.style.left = `${Math.max(0, left)}px`;
  }

  leave() {
    this.tip.hidden = true;
    this.cross.setAttribute("visibility", "hidden");
  }

  listen() {
    const { svg, pointers, charts } = this;
    const at = (event) => event.clientX - svg.getBoundingClientRect().left;
    svg.addEventListener("pointerdown", (event) => {
      pointers.set(event.pointerId, { from: at(event), to: at(event), step: this.stepAt(at(event)) });
      svg.setPointerCapture(event.pointerId);
    });
    svg.addEventListener("pointermove", (event) => {
      const pointer = pointers.get(event.pointerId);
      if (!pointer) { this.point(at(event)); return; }
      pointer.to = at(event);
      if (pointers.size === 1) this.stretch(pointer);
      else this.pinch([...pointers.values()]);
    });
    svg.addEventListener("pointerup", (event) => {
      const pointer = pointers.get(event.pointerId);
      const alone = pointers.size === 1;
      pointers.delete(event.pointerId);
      if (!pointer || !alone || pointer.pinched) return;
      const [low, high] = [pointer.from, pointer.to].sort((a, b) => a - b);
      this.span.setAttribute("visibility", "hidden");
      if (high - low > 8) charts.zoom(this.stepAt(low), this.stepAt(high));
      else this.point(pointer.to);
    });
    svg.addEventListener("pointercancel", (event) => {
      pointers.delete(event.pointerId);
      this.span.setAttribute("visibility", "hidden");
    });
    svg.addEventListener("pointerleave", () => this.leave());
    svg.addEventListener("dblclick", () => charts.reset());
    svg.addEventListener("wheel", (event) => {
      if (!(event.ctrlKey || event.metaKey || document.activeElement === svg)) return;
      event.preventDefault(); // elsewhere the wheel scrolls the page, as one expects
      charts.scale(1.0015 ** event.deltaY, this.stepAt(at(event)));
    }, { passive: false });
    svg.addEventListener("keydown", (event) => this.key(event));
  }

  stretch(pointer) {
    const low = Math.max(MARGIN.left, Math.min(pointer.from, pointer.to));
    const high = Math.min(this.width - MARGIN.right, Math.max(pointer.from, pointer.to));
    this.tip.hidden = true;
    this.span.setAttribute("x", low);
    this.span.setAttribute("width", Math.max(0, high - low));
    this.span.setAttribute("visibility", "visible");
  }

  pinch([one, other]) {
    one.pinched = other.pinched = true;
    const inner = this.width - MARGIN.left - MARGIN.right;
    const gap = one.to - other.to;
    if (Math.abs(gap) < 12) return;
    const perPixel = Math.abs((one.step - other.step) / gap);
    const low = one.step - (one.to - MARGIN.left) * perPixel;
    this.charts.zoom(low, low + inner * perPixel);
  }

  key(event) {
    const [low, high] = this.charts.range;
    const middle = (low + high) / 2;
    const shift = (high - low) * 0.2;
    const actions = {
      "+": () => this.charts.scale(0.7, middle),
      "=": () => this.charts.scale(0.7, middle),
      "-": () => this.charts.scale(1 / 0.7, middle),
      ArrowLeft: () => this.charts.zoom(low - shift, high - shift),
      ArrowRight: () => this.charts.zoom(low + shift, high + shift),
      0: () => this.charts.reset(),
      Escape: () => this.charts.reset(),
    };
    if (!actions[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    actions[event.key]();
  }
}

function drawn(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function number(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 1e-3 || size >= 1e6) return value.toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e");
  return Number(value.toPrecision(4)).toLocaleString("en", { maximumSignificantDigits: 4 });
}

function roundTicks(low, high, count) {
  const raw = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= raw * 0.999) * power;
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i += 1) ticks.push(i * step);
  return ticks;
}

function logTicks(low, high) {
  const decades = Math.log10(high / low);
  const factors = decades > 4 ? [1] : decades > 1.5 ? [1, 3] : [1, 2, 3, 5, 7];
  const ticks = [];
  const every = Math.max(1, Math.ceil(decades / 7));
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += every) {
    for (const factor of factors) ticks.push(factor * 10 ** power);
  }
  const inside = ticks.filter((tick) => tick >= low * 0.999 && tick <= high * 1.001);
  return inside.length >= 2 ? inside : roundTicks(low, high, 4).filter((tick) => tick > 0);
}

const place = document.querySelector(".charts");
if (place) new Charts(place, embedded("curves-data").runs.filter((run) => run.step.length > 1));
