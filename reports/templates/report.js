// Sorts a table by the column whose heading is pressed; cells without a value stay at the end in both directions.
const valueOf = (row, column) => {
  const cell = row.cells[column];
  const given = cell.dataset.sort;
  if (given === "") return null;
  return given === undefined ? cell.textContent.trim().toLowerCase() : Number.isNaN(Number(given)) ? given : Number(given);
};

const sortBy = (heading) => {
  const table = heading.closest("table");
  const column = Number(heading.dataset.column);
  const descending = heading.getAttribute("aria-sort") === "ascending";
  table.querySelectorAll("th[aria-sort]").forEach((other) => other.removeAttribute("aria-sort"));
  heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row) => [valueOf(row, column), row]);
  rows.sort(([a], [b]) => {
    if (a === null || b === null) return (a === null) - (b === null);
    const order = a < b ? -1 : a > b ? 1 : 0;
    return descending ? -order : order;
  });
  body.append(...rows.map(([, row]) => row));
};

document.querySelectorAll("th[data-column] button").forEach((button) => {
  button.addEventListener("click", () => sortBy(button.closest("th")));
});

// Keeps the rows that hold every word typed into the field above a table.
const filterRows = (field) => {
  const words = field.value.trim().toLowerCase().split(/\s+/);
  const rows = [...document.getElementById(field.dataset.filters).tBodies[0].rows];
  for (const row of rows) {
    const text = row.textContent.toLowerCase();
    row.hidden = !words.every((word) => text.includes(word));
  }
  const shown = rows.filter((row) => !row.hidden).length;
  field.closest(".filter").querySelector("[role=status]").textContent = shown < rows.length ? `${shown} of ${rows.length} rows` : "";
};

document.querySelectorAll("input[data-filters]").forEach((field) => {
  field.closest(".filter").hidden = false;
  field.addEventListener("input", () => filterRows(field));
});
