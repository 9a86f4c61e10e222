// Elements of HTML, as every part of the page makes them.
function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, text] of Object.entries(attributes)) made.setAttribute(key, text);
  made.append(...children.filter((child) => child !== null));
  return made;
}
const link = (id) => element("a", { href: `#point-${id}` }, id);
function swatch(colour) {
  const made = element("i", { "aria-hidden": "true" });
  made.style.background = colour;
  return made;
}
const key = (entries) => element("ul", { class: "key" }, ...entries.map(([text, colour]) => element("li", {}, swatch(colour), text)));
function wide(table) {
  const box = element("div", { class: "wide" }, table);
  boxes.observe(box);
  return box;
}
const section = (heading, ...children) => element("section", {}, element("h2", {}, heading), ...children);
const soft = (text) => element("p", { class: "soft" }, text);

function said(number) {
  if (typeof number !== "number" || Number.isInteger(number)) return String(number);
  return String(Number(number.toPrecision(5)));
}
// A table of two columns: what, and its value.
function sheet(rows) {
  const lines = rows.map(([name, text, meaning]) =>
    element("tr", {}, element("th", { scope: "row", ...(meaning ? { title: meaning } : {}) }, name), element("td", {}, text)));
  return wide(element("table", { class: "sheet" }, element("tbody", {}, ...lines)));
}
function grid(heads, rows, numbers) {
  const kind = (column) => numbers.includes(column) ? { class: "n" } : {};
  const head = element("tr", {}, ...heads.map((text, i) => element("th", { scope: "col", ...kind(i) }, text)));
  const lines = rows.map((row) => element("tr", {}, ...row.map((cell, i) => element("td", kind(i), cell))));
  return wide(element("table", { class: "text" }, element("thead", {}, head), element("tbody", {}, ...lines)));
}
