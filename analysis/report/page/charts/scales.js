// Scales, axes, and texts that fit.
const fitted = (text, px) => text.length > px / 6.8 ? `${text.slice(0, Math.max(1, Math.floor(px / 6.8) - 1))}…` : text;
const gutter = (texts, width) => Math.round(Math.min(190, width * 0.36, 12 + 7 * Math.max(4, ...texts.map((text) => text.length))));
const plain = (number) => number.toLocaleString("en-US", { maximumSignificantDigits: 4 });
// Times of steps that differ by more than a few times are told apart on a scale of ratios.
function scaleOf(values, ends) {
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const log = least > 0 && most > 4 * least;
  const domain = log ? [least * 0.9, most * 1.1] : [Math.min(0, least), most > 0 ? most * 1.05 : 1];
  return (log ? d3.scaleLog() : d3.scaleLinear()).domain(domain).range(ends);
}
function axes(svg, x, height, label) {
  const [from, to] = x.range();
  svg.append("g").attr("transform", `translate(0,${height})`).call(d3.axisBottom(x).ticks(Math.max(2, (to - from) / 90), ...(x.base ? [plain] : [])).tickSizeOuter(0));
  svg.append("text").attr("class", "label").attr("x", to).attr("y", height + 34).attr("text-anchor", "end").text(label);
}
