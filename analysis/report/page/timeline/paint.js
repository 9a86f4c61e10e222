// A timeline as it is drawn: a lane a row, one above the other, from the pixel `left` on, to the scale x. `dim`: what is
// not on the path.
const ROW = 20, HEAD = 18, AXIS = 22;
const colourOfBar = ({ lane }, name) => DATA.colours[lane === "range" ? name : lane];
// Black or white, whichever is read better on a colour.
function inkOn(colour) {
  const [r, g, b] = [1, 3, 5].map((at) => (parseInt(colour.slice(at, at + 2), 16) / 255) ** 2.2);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.18 ? "#000" : "#fff";
}
function paintTimeline(paint, { rows, steps, x, width, left, below, bar, dim }) {
  const css = getComputedStyle(document.documentElement), ink = (name) => css.getPropertyValue(`--${name}`).trim();
  const [from, to] = x.domain(), height = below + AXIS;
  paint.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
  paint.clearRect(0, 0, width, height);
  paint.font = "12px system-ui, sans-serif";
  paint.textBaseline = "middle";
  for (const row of rows) {
    const middle = row.top + ROW / 2;
    paint.fillStyle = ink("fg");
    if (row.head) paint.fillText(`rank ${row.rank}`, 0, row.top - HEAD / 2 + 1);
    paint.fillStyle = ink("soft");
    paint.fillText(LANES[row.lane] ?? row.lane, 0, middle);
    paint.fillStyle = ink("card");
    paint.fillRect(left, row.top + 1, width - 8 - left, ROW - 2);
    paint.save();
    paint.beginPath();
    paint.rect(left, row.top, width - 8 - left, ROW);
    paint.clip();
    let drawn = -1;
    for (let i = Math.max(0, barAt(row.bars, from)); i < row.bars.length && row.bars[i][0] < to; i++) {
      const [start, stop, name, on] = row.bars[i], at = x(start), wide = Math.max(1, x(stop) - at);
      if (!on && at + wide < drawn + 0.5) continue; // the same pixel
      drawn = at + wide;
      paint.globalAlpha = dim && !on ? 0.2 : 1;
      paint.fillStyle = colourOfBar(row, name);
      paint.fillRect(at, row.top + 1, wide > 3 ? wide - 0.5 : wide, ROW - 2);
      const seen = Math.min(drawn, width - 8) - Math.max(at, left);
      if (seen > 40) {
        const faint = paint.globalAlpha < 1;
        paint.globalAlpha = 1;
        paint.fillStyle = faint ? ink("soft") : inkOn(colourOfBar(row, name));
        paint.fillText(fitted(name, seen - 8), Math.max(at, left) + 4, middle);
      }
      if (!on) continue;
      paint.fillStyle = ink("fg");
      for (const edge of [row.top, row.top + ROW - 2.5]) paint.fillRect(at, edge, wide, 2.5);
    }
    paint.globalAlpha = 1;
    paint.restore();
  }
  paint.fillStyle = ink("fg");
  steps.filter((at) => at >= from && at <= to).forEach((at) => paint.fillRect(x(at) - 0.5, 0, 1, below));
  paint.fillStyle = ink("soft");
  paint.textAlign = "center";
  x.ticks(Math.max(2, width / 140)).filter((at) => x(at) < width - 34).forEach((at) => paint.fillText(duration(at), x(at), below + 12));
  paint.textAlign = "left";
  if (bar) {
    const [start, stop] = bar.row.bars[bar.place], at = Math.max(left, x(start));
    paint.lineWidth = 2;
    paint.strokeStyle = ink("link");
    paint.strokeRect(at - 1, bar.row.top, Math.max(2, Math.min(width - 8, x(stop)) - at) + 2, ROW);
  }
}
