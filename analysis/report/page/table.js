// The table of points: sorting, filtering, and how many rows are shown.
{
  const table = document.getElementById("points"), body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells], names = heads.map((head) => head.textContent.toLowerCase());
  const filter = document.getElementById("filter"), status = document.getElementById("status");
  const rows = [...body.rows].map((row) => {
    const cells = [...row.cells].map((cell) => cell.textContent);
    return { row, cells, text: cells.join(" ").toLowerCase() };
  });

  function compare(a, b) {
    const x = Number(a), y = Number(b);
    return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b) : x - y;
  }
  function sortBy(column) {
    const up = heads[column].getAttribute("aria-sort") !== "ascending";
    heads.forEach((head) => head.removeAttribute("aria-sort"));
    heads[column].setAttribute("aria-sort", up ? "ascending" : "descending");
    const key = ({ cells }) => cells[column];
    // Rows without a value stay last in both directions.
    rows.sort((a, b) => (key(a) === "") - (key(b) === "") || (up ? 1 : -1) * compare(key(a), key(b)));
    body.append(...rows.map(({ row }) => row));
  }
  // A word of the filter as a test of a row.
  function test(word) {
    const [, name, sign, value] = /^([^=<>]+)([=<>])(.+)$/.exec(word) ?? [];
    const column = name ? [names.indexOf(name), names.findIndex((head) => head.split(" ")[0] === name)].find((i) => i >= 0) : undefined;
    if (column === undefined) return ({ text }) => text.includes(word);
    if (sign === "=") return ({ cells }) => cells[column].toLowerCase() === value;
    const side = sign === "<" ? 1 : -1;
    return ({ cells }) => cells[column] !== "" && side * (Number(value) - Number(cells[column])) > 0;
  }
  function show() {
    const tests = filter.value.toLowerCase().split(/\s+/).filter(Boolean).map(test);
    let shown = 0;
    for (const each of rows) {
      each.row.hidden = !tests.every((passes) => passes(each)) || (status.value !== "" && each.cells[1] !== status.value);
      shown += each.row.hidden ? 0 : 1;
    }
    document.getElementById("count").textContent = `${shown} of ${rows.length} points shown`;
  }
  heads.forEach((head, column) => head.firstChild.addEventListener("click", () => sortBy(column)));
  const settings = document.getElementById("settings"), columns = () => table.classList.toggle("brief", !settings.checked);
  settings.addEventListener("change", columns);
  columns();
  filter.addEventListener("input", show);
  status.addEventListener("change", show);
  show();
}
