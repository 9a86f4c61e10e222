// The bars of a timeline, from the data.
const LANES = { range: "phases", call: "API calls", compute: "compute", communication: "comm.", copy: "copies" };

function duration(ns) {
  const [unit, size] = ns >= 1e6 ? ["ms", 1e6] : ns >= 1e3 ? ["us", 1e3] : ["ns", 1];
  return `${said(ns / size)} ${unit}`;
}
// Rows from the data: bars of [start, end, name, whether on the path] in ns.
function lanesOf(own) {
  return own.lanes.map(([rank, lane, numbers]) => {
    const bars = [];
    for (let i = 0, at = 0; i < numbers.length; i += 3) {
      const start = at + numbers[i];
      at = start + numbers[i + 1];
      const text = numbers[i + 2], on = text < 0;
      bars.push([start * own.unit_ns, at * own.unit_ns, DATA.texts[on ? ~text : text], on]);
    }
    return { rank, lane, bars };
  });
}
// The last bar that begins no later.
function barAt(bars, ns) {
  let low = 0, high = bars.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (bars[middle][0] <= ns) low = middle + 1; else high = middle;
  }
  return low - 1;
}
