// Sheets of samples, of which one is visible: buttons and keys turn over.
"use strict";

function makePager(pager) {
  const sheets = [...pager.querySelectorAll(".sheet")];
  const output = pager.querySelector("output");
  const [back, on] = pager.querySelectorAll("button");
  let now = 0;

  function show(number) {
    now = Math.min(Math.max(number, 0), sheets.length - 1);
    sheets.forEach((sheet, i) => { sheet.hidden = i !== now; });
    output.textContent = `${(now + 1).toLocaleString("en")} of ${sheets.length.toLocaleString("en")}`;
    // not `disabled`, which would take the keys from whoever has just clicked
    back.setAttribute("aria-disabled", String(now === 0));
    on.setAttribute("aria-disabled", String(now === sheets.length - 1));
  }

  const keys = {
    ArrowLeft: () => now - 1,
    PageUp: () => now - 1,
    ArrowRight: () => now + 1,
    PageDown: () => now + 1,
    Home: () => 0,
    End: () => sheets.length - 1,
  };
  pager.addEventListener("keydown", (event) => {
    const number = keys[event.key];
    if (!number || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    show(number());
  });
  back.addEventListener("click", () => show(now - 1));
  on.addEventListener("click", () => show(now + 1));
  show(0);
}

for (const pager of document.querySelectorAll(".pager")) makePager(pager);
