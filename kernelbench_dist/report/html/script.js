"use strict";
// Without this script the page is whole, but for sorting, filters and the switch of the theme.

const text = (cell) => cell.textContent.trim();

function compare(a, b) {
  const [x, y] = [a.dataset.key, b.dataset.key];
  if (x !== undefined && y !== undefined) return Number(x) - Number(y);
  return text(a).localeCompare(text(b), undefined, { numeric: true });
}

function sort(table, column, down) {
  const body = table.tBodies[0];
  const isEmpty = (row) => text(row.cells[column]) === "";
  const rows = [...body.rows].sort((p, q) => {
    if (isEmpty(p) !== isEmpty(q)) return isEmpty(p) ? 1 : -1; // always at the end
    const order = compare(p.cells[column], q.cells[column]);
    return down ? -order : order;
  });
  body.append(...rows);
}

for (const table of document.querySelectorAll(".sorts table")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      sort(table, column, down);
    });
  });
}

// Filters: words that a row must hold, and one value of a column that has few.
function addFilters(box) {
  const table = box.querySelector("table");
  const rows = [...table.tBodies[0].rows];
  const heads = [...table.tHead.rows[0].cells].map(text);
  const bar = document.createElement("div");
  bar.className = "filters";
  const words = document.createElement("input");
  words.type = "search";
  words.placeholder = "filter";
  words.setAttribute("aria-label", "rows that hold these words");
  const count = document.createElement("output");
  const chosen = ["problem", "verdict", "speed", "call"].flatMap((name) => {
    const column = heads.indexOf(name);
    if (column < 0) return [];
    const values = [...new Set(rows.map((row) => text(row.cells[column])))].filter(Boolean).sort();
    if (values.length < 2 || values.length > 200) return [];
    const select = document.createElement("select");
    select.setAttribute("aria-label", name);
    select.add(new Option(`every ${name}`, ""));
    for (const value of values) select.add(new Option(value, value));
    return [{ select, column }];
  });
  const apply = () => {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const said = row.textContent.toLowerCase();
      const fits =
        wanted.every((word) => said.includes(word)) &&
        chosen.every(({ select, column }) => !select.value || text(row.cells[column]) === select.value);
      row.hidden = !fits;
      shown += fits;
    }
    count.textContent = `${shown} of ${rows.length}`;
  };
  bar.append(words, ...chosen.map(({ select }) => select), count);
  bar.addEventListener("input", apply);
  box.querySelector(".scroll").before(bar);
  apply();
}
document.querySelectorAll("[data-filters]").forEach(addFilters);

const theme = document.getElementById("theme");
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (document.documentElement.style.colorScheme || (prefersDark.matches ? "dark" : "light")) === "dark";
const name = () => (theme.textContent = isDark() ? "light" : "dark");
theme.hidden = false;
theme.addEventListener("click", () => {
  document.documentElement.style.colorScheme = isDark() ? "light" : "dark";
  name();
});
prefersDark.addEventListener("change", name);
name();
