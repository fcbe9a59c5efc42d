// Returns the page's background, and every text whose contrast with what is behind it is below 4.5.
const light = (colour) => {
  const [r, g, b] = colour.match(/[\d.]+/g).slice(0, 3).map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = (node) => {
  for (let n = node; n; n = n.parentElement) {
    const colour = getComputedStyle(n).backgroundColor;
    if (!/, 0\)$/.test(colour)) return colour;
  }
  return "rgb(255, 255, 255)";
};
const poor = [];
for (const node of document.querySelectorAll("main *")) {
  const text = [...node.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
  if (!text || !node.getClientRects().length) continue;
  const style = getComputedStyle(node);
  const [a, b] = [light(node.closest("svg") ? style.fill : style.color), light(behind(node))];
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (ratio < 4.5) poor.push(`${node.tagName} ${node.className} ${node.textContent.slice(0, 30)} ${ratio}`);
}
return [getComputedStyle(document.body).backgroundColor, poor];
