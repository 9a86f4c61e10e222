// What of a timeline is on the path: the chain of activities that decides how long the steps take.
// Its bars in the order of time.
function pathOf(rows) {
  const bars = rows.flatMap((row) => row.bars.flatMap(([start, , , on], place) => on ? [{ row, place, start }] : []));
  return bars.sort((a, b) => a.start - b.start);
}
// How much of it is in which lane, the most first.
function pathShares(rows) {
  const sums = rows.map(({ rank, lane, bars }) => [`rank ${rank} ${LANES[lane] ?? lane}`, bars.reduce((sum, [start, stop, , on]) => sum + (on ? stop - start : 0), 0)]);
  const all = sums.reduce((sum, [, own]) => sum + own, 0);
  const shown = sums.filter(([, own]) => own >= 0.01 * all && own).sort(([, a], [, b]) => b - a);
  return shown.map(([lane, own]) => `${lane} ${Math.round(100 * own / all)} %`).join(", ");
}
const pathKey = () => element("li", {}, element("i", { class: "path", "aria-hidden": "true" }), "on the path");
