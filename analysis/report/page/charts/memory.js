// Memory against step time.
if (DATA && DATA.charts.measures.some(([, column]) => column === "peak_memory_bytes")) {
  const figure = document.getElementById("figure-memory"), HEIGHT = 300, LEFT = 40;
  chart("memory", (svg, width) => {
    const [some, thin] = thinned([...kept]);
    const found = some.map((point) => [point, result("step_ms_mean", point), result("peak_memory_bytes", point)])
      .filter(([, ms, bytes]) => typeof ms === "number" && typeof bytes === "number").map(([point, ms, bytes]) => [point, ms, bytes / 2 ** 30]);
    const x = scaleOf(found.map(([, ms]) => ms), [LEFT, width - 12]);
    const y = d3.scaleLinear().domain([0, Math.max(1, ...found.map(([, , gib]) => gib)) * 1.05]).range([HEIGHT, 10]);
    modelKey(figure, new Set(found.map(([point]) => model(point))));
    svg.append("g").attr("transform", `translate(${LEFT},0)`).call(d3.axisLeft(y).ticks(6));
    axes(svg, x, HEIGHT, "step (ms)");
    svg.append("text").attr("class", "label").attr("x", LEFT + 6).attr("y", 14).text("peak memory (GiB)");
    const marks = found.sort((a, b) => a[1] - b[1]).map(([point, ms, gib]) => {
      const mark = { x: x(ms), y: y(gib), point };
      svg.append("path").attr("class", "dot").attr("d", symbolOf(model(point))).attr("fill", colourOf(model(point)))
        .attr("transform", `translate(${mark.x},${mark.y})`);
      return { ...mark, texts: [`${gib.toFixed(2)} GiB, step ${ms.toFixed(2)} ms`, `${DATA.ids[point]} ${config(point)}`] };
    });
    return { height: HEIGHT + 40, marks, note: `${found.length} points.${thin}` };
  });
}
