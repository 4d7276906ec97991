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

// The pointer over a panel of curves shows the values of the nearest step. Names are set as text, never as markup.
const tip = document.querySelector(".tip");
for (const panel of document.querySelectorAll("[data-pointer]")) {
  const lines = JSON.parse(panel.dataset.pointer);
  const mark = panel.querySelector(".pointer");
  const hide = () => {
    tip.hidden = true;
    mark.setAttribute("visibility", "hidden");
  };
  const show = (event) => {
    const box = panel.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * panel.viewBox.baseVal.width;
    const nearest = (points) => points.reduce((a, b) => (Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a));
    const all = lines.flatMap((line) => line.points);
    if (!all.length) return;
    const [at, , step] = nearest(all);
    const rows = lines
      .map((line) => [line, line.points.find((point) => point[2] === step)])
      .filter(([, point]) => point)
      .sort((a, b) => a[1][1] - b[1][1]);
    const title = document.createElement("strong");
    title.textContent = `step ${step}`;
    tip.replaceChildren(title, ...rows.map(([line, point]) => {
      const row = document.createElement("span");
      const curve = [...panel.querySelectorAll(".learning-curve")][lines.indexOf(line)];
      row.className = [...curve.classList].filter((name) => /^c\d$/.test(name)).join(" ");
      row.textContent = `${line.method}: ${point[3]}`;
      return row;
    }));
    tip.hidden = false;
    const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
    tip.style.left = `${Math.max(8, Math.min(event.clientX + 14, room)) + scrollX}px`;
    tip.style.top = `${event.clientY + 16 + scrollY}px`;
    for (const end of ["x1", "x2"]) mark.setAttribute(end, at);
    mark.setAttribute("visibility", "visible");
  };
  panel.addEventListener("pointermove", show);
  panel.addEventListener("pointerdown", show);
  panel.addEventListener("pointerleave", hide);
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
