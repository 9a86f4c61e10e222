// What of a timeline is on the path: the chain of activities that decides how long the steps take.
// Its bars in the order of time.
function pathOf(rows) {
  const bars = rows.flatMap((row) => row.bars.flatMap(([start, , , on], place) => on ? [{ row, place, start }] : []));
  return bars.sort((a, b) => a.start - b.start);
}
// In which lanes it is, of all ranks.
const pathShares = (lanes) => lanes.map(([rank, lane, percent]) => `rank ${rank} ${LANES[lane] ?? lane} ${percent} %`).join(", ");
const pathKey = () => element("li", {}, element("i", { class: "path", "aria-hidden": "true" }), "on the path");
