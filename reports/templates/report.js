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
