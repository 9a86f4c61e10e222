// Efficiency over ranks: speed-up over the fewest ranks of the same settings, as a share of what is ideal.
if (DATA && DATA.charts.scaling.length) {
  const figure = document.getElementById("figure-scaling"), HEIGHT = 300, LEFT = 48;
  const name = ([ranks, nodes]) => nodes > 1 ? `${ranks} on ${nodes} nodes` : String(ranks);
  chart("scaling", (svg, width) => {
    const groups = DATA.charts.scaling.map((group) => ({ ...group, shapes: group.shapes.filter(([, , , , , own]) => own.some((point) => kept.has(point))) }))
      .filter(({ shapes }) => shapes.length > 1);
    const all = groups.flatMap(({ shapes }) => shapes).toSorted((a, b) => a[0] - b[0] || a[1] - b[1]);
    const x = d3.scalePoint().domain(new Set(all.map(name))).range([LEFT, width - 12]).padding(0.4);
    const shares = all.flatMap((shape) => shape.slice(2, 5)).concat(1);
    const y = d3.scaleLinear().domain([Math.min(...shares) * 95, Math.max(...shares) * 105]).range([HEIGHT, 10]).nice();
    modelKey(figure, new Set(groups.map((group) => group.model)));
    svg.append("g").attr("transform", `translate(${LEFT},0)`).call(d3.axisLeft(y).ticks(6));
    svg.append("g").attr("transform", `translate(0,${HEIGHT})`).call(d3.axisBottom(x).tickSizeOuter(0));
    svg.append("text").attr("class", "label").attr("x", width - 12).attr("y", HEIGHT + 34).attr("text-anchor", "end").text("ranks");
    svg.append("text").attr("class", "label").attr("x", LEFT + 6).attr("y", 14).text("efficiency (%)");
    svg.append("line").attr("class", "rule").attr("x1", LEFT).attr("x2", width - 12).attr("y1", y(100)).attr("y2", y(100));
    const room = Math.min(80, x.step() * 0.5);
    const marks = groups.flatMap(({ model: owner, label, shapes }, i) => {
      const aside = groups.length > 1 ? (i / (groups.length - 1) - 0.5) * room : 0;
      const spots = shapes.map((shape) => ({ shape, x: x(name(shape)) + aside, y: y(100 * shape[2]) }));
      svg.append("path").attr("class", "line").attr("stroke", colourOf(owner)).attr("d", `M${spots.map((spot) => [spot.x, spot.y]).join("L")}`);
      return spots.slice(1).map(({ shape, ...spot }) => {
        const [, , share, least, most, own] = shape, percent = (part) => (100 * part).toFixed(1);
        svg.append("line").attr("class", "spread").attr("stroke", colourOf(owner)).attr("x1", spot.x).attr("x2", spot.x).attr("y1", y(100 * least)).attr("y2", y(100 * most));
        svg.append("path").attr("class", "dot").attr("d", symbolOf(owner)).attr("fill", colourOf(owner)).attr("transform", `translate(${spot.x},${spot.y})`);
        const spread = own.length > 1 ? ` (${percent(least)} to ${percent(most)}; ${own.length} points)` : "";
        return { ...spot, point: own.find((point) => kept.has(point)), texts: [`${percent(share)} %${spread}`, `${owner}: ${label}, ${name(shape)} ranks over ${name(shapes[0])}`] };
      });
    });
    return { height: HEIGHT + 40, marks, note: `${groups.length} groups of points that differ in ranks alone.` };
  });
}
