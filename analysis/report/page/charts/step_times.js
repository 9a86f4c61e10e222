// Where the time of a traced step goes.
if (DATA && DATA.charts.times.length) {
  const MOST = 30, ROW = 20;
  const select = document.getElementById("way"), figure = document.getElementById("figure-step_times");
  select.append(...DATA.charts.times.map(({ title }, i) => element("option", { value: i }, title)));

  chart("step_times", (svg, width) => {
    const { kinds, colours, rows } = DATA.charts.times[select.value], last = kinds.indexOf("idle");
    const label = (point) => config(point).replace(/^\w+: /, "");
    const total = ([, , ...ms]) => ms.reduce((a, b) => a + b, 0);
    // What idles most first, or what calls and works most.
    const weight = (row) => (last < 0 ? total(row) : row[last + 2]) / row[1];
    const all = shown(rows, ([point]) => point).sort((a, b) => weight(b) - weight(a)), some = all.slice(0, MOST);
    figure.querySelector(".kinds").replaceChildren(...key(kinds.map((kind, i) => [kind.replace("_", " "), colours[i]])).children);
    const left = gutter(some.map(([point]) => label(point)), width), most = Math.max(1, ...some.map((row) => total(row) / row[1]));
    const x = d3.scaleLinear().domain([0, 100 * most]).range([left + 8, width - 12]);
    const marks = some.map((row, i) => {
      const [point, step, ...ms] = row, y = 4 + i * ROW, percent = (part) => 100 * part / step;
      svg.append("text").attr("x", left).attr("y", y + 13).attr("text-anchor", "end").text(fitted(label(point), left - 4));
      let from = 0;
      ms.forEach((part, k) => {
        svg.append("rect").attr("class", "part").attr("fill", colours[k]).attr("height", ROW - 5).attr("y", y)
          .attr("x", x(from)).attr("width", x(from + percent(part)) - x(from));
        from += percent(part);
      });
      const told = kinds.map((kind, k) => `${kind.replace("_", " ")} ${percent(ms[k]).toFixed(1)} % (${ms[k].toFixed(3)} ms)`);
      return { x: x(0), y, w: x(from) - x(0), h: ROW - 5, point, texts: [`${DATA.ids[point]} ${config(point)}`, `traced step ${step.toFixed(3)} ms`, ...told] };
    });
    const height = 4 + some.length * ROW;
    axes(svg, x, height + 4, "% of the step");
    const order = last < 0 ? "with most of it" : "that idle most";
    return { height: height + 44, marks, note: all.length > MOST ? `The ${MOST} points ${order}, of ${all.length}.` : `${all.length} points.` };
  });
}
