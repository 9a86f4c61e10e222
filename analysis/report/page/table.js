// The table of points: sorting, which rows are shown, at most SHOWN at a time, and the filter, which the figures share. Of
// many points the rows are in a file beside the page.
{
  const table = document.getElementById("points"), body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells], names = heads.map((head) => head.textContent.toLowerCase());
  const filter = document.getElementById("filter"), status = document.getElementById("status");
  const previous = document.getElementById("previous"), next = document.getElementById("next");
  const count = document.getElementById("count");
  const has = (cells, row) => ({ row, cells, text: cells.join(" ").toLowerCase() });
  const rows = typeof BESIDE === "undefined"
    ? [...body.rows].map((row) => has([...row.cells].map((cell) => cell.textContent), row))
    : BESIDE.rows.map((cells) => has(cells));
  let kept = rows, first = 0;

  function rowOf(each) {
    if (each.row) return each.row;
    each.row = document.createElement("tr");
    each.cells.forEach((text) => { each.row.insertCell().textContent = text; });
    const link = document.createElement("a");
    link.href = `#point-${each.cells[0]}`;
    link.textContent = each.cells[0];
    each.row.cells[0].replaceChildren(link);
    each.row.cells[1].className = each.cells[1];
    return each.row;
  }
  // The rows from a place on.
  function turn(to) {
    first = to;
    const last = Math.min(first + SHOWN, kept.length), several = kept.length > SHOWN;
    body.replaceChildren(...kept.slice(first, last).map(rowOf));
    document.getElementById("pages").hidden = !several;
    previous.disabled = first === 0;
    next.disabled = last === kept.length;
    count.textContent = several ? `${first + 1} to ${last} of ${kept.length} points`
      : `${kept.length} of ${rows.length} points shown`;
    if (SCRIPT && typeof BESIDE === "undefined") count.textContent = `${SCRIPT} is not beside this page: it has the points`;
  }

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
    show();
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
    kept = rows.filter((each) => tests.every((passes) => passes(each)) && (status.value === "" || each.cells[1] === status.value));
    document.dispatchEvent(new CustomEvent("kept", { detail: kept.map(({ cells }) => cells[0]) }));
    turn(0);
  }
  heads.forEach((head, column) => head.firstChild.addEventListener("click", () => sortBy(column)));
  const settings = document.getElementById("settings"), columns = () => table.classList.toggle("brief", !settings.checked);
  settings.addEventListener("change", columns);
  columns();
  previous.addEventListener("click", () => turn(Math.max(0, first - SHOWN)));
  next.addEventListener("click", () => turn(first + SHOWN));
  filter.addEventListener("input", show);
  status.addEventListener("change", show);
  show();
}
