// The data of the points: in the page or, of many points, in a file beside it, without which there is none.
const DATA = !SCRIPT ? JSON.parse(document.getElementById("data").textContent)
  : typeof BESIDE === "undefined" ? null : BESIDE.data;
// A point stands for its place in every column.
const places = new Map(DATA?.ids.map((id, place) => [id, place]));
const value = (column, place) => "same" in column ? column.same : column.values[column.of ? column.of[place] : place];
const config = (place) => value(DATA.configs, place);
const setting = (name, place) => value(DATA.settings[name], place);
const resultColumns = new Map(DATA?.results.map(([name, , column]) => [name, column]));
const result = (name, place) => resultColumns.has(name) ? value(resultColumns.get(name), place) : null;
const model = (place) => setting("model", place) ?? setting("workload", place);
