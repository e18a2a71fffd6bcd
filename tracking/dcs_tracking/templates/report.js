"use strict";
// Sort a table by a column when its header is clicked; cells by their leading number.
const value = (row, column) => row.cells[column].textContent.trim();
const number = (text) => {
  const found = text.replace(/,/g, "").replace("\u2212", "-").match(/^<?([+-]?\d+(\.\d+)?)/);
  return found ? parseFloat(found[1]) : NaN;
};
const compare = (a, b) => {
  const [x, y] = [number(a), number(b)];
  if (!Number.isNaN(x) && !Number.isNaN(y) && x !== y) return x - y;
  if (Number.isNaN(x) !== Number.isNaN(y)) return Number.isNaN(x) ? 1 : -1;
  return a.localeCompare(b);
};
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  const body = table.tBodies[0];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const up = head.getAttribute("aria-sort") !== "ascending";
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const rows = [...body.rows];
    // Empty cells stay at the end in both directions.
    const filled = rows.filter((row) => value(row, column) !== "");
    const empty = rows.filter((row) => value(row, column) === "");
    filled.sort((a, b) => (up ? 1 : -1) * compare(value(a, column), value(b, column)));
    body.append(...filled, ...empty);
  }));
}
