// A result by the values of a setting, for each model.
if (DATA) {
  const MOST = 40, ROW = 22;
  const measure = document.getElementById("measure"), by = document.getElementById("by");
  const { measures, chosen } = DATA.charts;
  const name = (place) => setting(by.value, place), text = (set) => set === null ? "not set" : said(set);
  // How many points have another value than most of their model: the setting that the sweep is about.
  function varied(one) {
    const groups = Map.groupBy(places.values(), model);
    return [...groups.values()].reduce((sum, own) => {
      const counts = [...Map.groupBy(own, (place) => setting(one, place)).values()].map((some) => some.length);
      return sum + own.length - Math.max(...counts);
    }, 0);
  }
  measure.append(...measures.map(([heading], i) => element("option", { value: i }, heading)));
  by.append(...chosen.map((one) => element("option", {}, one)));
  by.value = chosen.toSorted((a, b) => varied(b) - varied(a))[0] ?? "";
  const order = (a, b) => typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });

  if (chosen.length && measures.length) chart("by_setting", (svg, width) => {
    const [heading, column, divisor, decimals] = measures[measure.value];
    const [some, thin] = thinned([...kept]);
    const found = some.map((point) => ({ point, number: result(column, point) }))
      .filter(({ number }) => typeof number === "number").map((each) => ({ ...each, number: each.number / divisor }));
    const groups = [...Map.groupBy(found, ({ point }) => JSON.stringify([model(point), name(point)]))].map(([id, own]) => [...JSON.parse(id), own]);
    const most = groups.toSorted((a, b) => b[2].length - a[2].length).slice(0, MOST);
    const rows = groups.filter((row) => most.includes(row)).sort((a, b) => order(a[0], b[0]) || order(a[1], b[1]));
    const left = gutter(rows.map(([, set]) => text(set)), width), x = scaleOf(found.map(({ number }) => number), [left + 8, width - 12]), marks = [];
    let y = 6, before = null;
    for (const [owner, set, own] of rows) {
      if (owner !== before) svg.append("text").attr("class", "head").attr("x", 0).attr("y", (y += ROW) - 8).text(owner);
      before = owner;
      svg.append("text").attr("x", left).attr("y", y + 15).attr("text-anchor", "end").text(fitted(text(set), left - 10));
      svg.append("line").attr("class", "rule").attr("x1", left + 8).attr("x2", width - 12).attr("y1", y + ROW / 2).attr("y2", y + ROW / 2);
      own.sort((a, b) => a.number - b.number).forEach(({ point, number }, i) => {
        const mark = { x: x(number), y: y + ROW / 2 + (i % 3 - 1) * 3, point };
        svg.append("circle").attr("class", "dot").attr("r", 4).attr("cx", mark.x).attr("cy", mark.y).attr("fill", colourOf(owner));
        marks.push({ ...mark, texts: [`${heading} ${number.toFixed(decimals)}`, `${DATA.ids[point]} ${config(point)}`] });
      });
      const middle = own.length % 2 ? own[(own.length - 1) / 2].number : (own[own.length / 2 - 1].number + own[own.length / 2].number) / 2;
      svg.append("line").attr("class", "median").attr("x1", x(middle)).attr("x2", x(middle)).attr("y1", y + 2).attr("y2", y + ROW - 2);
      y += ROW;
    }
    axes(svg, x, y + 6, heading);
    const cut = groups.length > rows.length ? ` The ${rows.length} rows with most points, of ${groups.length}.` : "";
    return { height: y + 46, marks, note: `${found.length} points; upright lines are medians.${cut}${thin}` };
  });
}
