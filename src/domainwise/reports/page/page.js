"use strict";

// Columns sort by click or key: best first, then worst first. Cells without a number stay below.
for (const button of document.querySelectorAll(".accuracies thead button")) {
  button.addEventListener("click", () => {
    const heading = button.parentElement;
    const column = heading.cellIndex;
    const first = column === 0 ? "ascending" : "descending";
    const second = column === 0 ? "descending" : "ascending";
    const order = heading.getAttribute("aria-sort") === first ? second : first;
    for (const other of heading.parentElement.cells) other.setAttribute("aria-sort", "none");
    heading.setAttribute("aria-sort", order);
    const body = heading.closest("table").tBodies[0];
    const sign = order === "ascending" ? 1 : -1;
    const value = (row) => {
      const text = row.cells[column].dataset.value;
      return text === undefined ? sign * Infinity : Number(text);
    };
    body.append(...[...body.rows].sort((a, b) => {
      const difference = sign * (value(a) - value(b));
      return Number.isNaN(difference) ? 0 : difference;
    }));
  });
}

// A legend's name brings its curves forward; once more, and all are back.
for (const legend of document.querySelectorAll(".legend")) {
  const view = legend.closest(".view");
  legend.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    const shown = button.getAttribute("aria-pressed") === "true" ? null : button.dataset.method;
    for (const other of legend.children) other.setAttribute("aria-pressed", String(other.dataset.method === shown));
    for (const curve of view.querySelectorAll(".learning-curve")) {
      curve.classList.toggle("dimmed", shown !== null && curve.dataset.method !== shown);
    }
  });
}

// The chosen rule is kept in the address, so that it survives reloading and can be shared.
const choose = () => {
  const radio = document.getElementById(`rule-${location.hash.slice(1)}`);
  if (radio) radio.checked = true;
};
for (const radio of document.querySelectorAll('[name="rule"]')) {
  radio.addEventListener("change", () => history.replaceState(null, "", `#${radio.value}`));
}
addEventListener("hashchange", choose);
choose();
