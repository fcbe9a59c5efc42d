// What every part of the page needs: the sign that scripts run, the data, and the button that copies.
"use strict";

document.documentElement.classList.add("js");

function embedded(name) {
  const element = document.getElementById(name);
  return element ? JSON.parse(element.textContent) : null;
}

function element(name, attributes, ...content) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  made.append(...content);
  return made;
}

function select(node) {
  const range = document.createRange();
  range.selectNodeContents(node);
  const selection = window.getSelection();
  selection.removeAllRanges();
  selection.addRange(range);
}

async function copy(button) {
  const source = document.getElementById(button.dataset.copies);
  let copied = false;
  try {
    await navigator.clipboard.writeText(source.textContent);
    copied = true;
  } catch {
    // a page from disk may not be trusted with the clipboard: the older way, or at least a selection
    select(source);
    copied = document.execCommand("copy");
  }
  button.textContent = copied ? "Copied" : "Selected";
  setTimeout(() => { button.textContent = "Copy"; }, 1600);
}

for (const button of document.querySelectorAll("[data-copies]")) {
  button.addEventListener("click", () => copy(button));
}
