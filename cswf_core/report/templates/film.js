// The flow over time: one slider for the frames of one run or of several.
"use strict";

const PACE = 170; // milliseconds that a frame stays

function makePlayer(player) {
  const films = [...player.querySelectorAll(".film")].map((film) =>
    [...film.querySelectorAll(".frame")].map((frame) => ({ frame, step: Number(frame.dataset.step) })));
  const steps = [...new Set(films.flat().map((moment) => moment.step))].sort((a, b) => a - b);
  const slider = player.querySelector("input");
  const output = player.querySelector("output");
  const button = player.querySelector("button");
  let timer = 0;

  function show(index) {
    const step = steps[index];
    for (const film of films) {
      const past = film.filter((moment) => moment.step <= step);
      const now = past.length ? past[past.length - 1] : film[0];
      for (const moment of film) moment.frame.classList.toggle("now", moment === now);
    }
    const text = `step ${step.toLocaleString("en")}`;
    slider.value = String(index);
    slider.setAttribute("aria-valuetext", text);
    output.textContent = text;
  }

  function stop() {
    clearInterval(timer);
    timer = 0;
    button.textContent = "Play";
    button.setAttribute("aria-label", "Play the flow");
  }

  function play() {
    if (Number(slider.value) === steps.length - 1) show(0);
    button.textContent = "Pause";
    button.setAttribute("aria-label", "Pause the flow");
    timer = setInterval(() => {
      const next = Number(slider.value) + 1;
      show(next);
      if (next >= steps.length - 1) stop();
    }, PACE);
  }

  slider.max = String(steps.length - 1);
  slider.addEventListener("input", () => { stop(); show(Number(slider.value)); });
  button.addEventListener("click", () => (timer ? stop() : play()));
  show(steps.length - 1);
}

for (const player of document.querySelectorAll(".player")) makePlayer(player);
