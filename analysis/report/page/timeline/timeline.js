// The traced steps of a point on a canvas, from all of them down to one kernel: by the wheel, pinching, dragging, or keys.
// `end`: of the scale, ns, where two are to have the same one. Null where the point has none.
function timeline(id, end = 0) {
  const own = DATA.lanes[id];
  if (!own) return null;
  end ||= own.end * own.unit_ns;
  const rows = lanesOf(own), steps = own.steps.map((at) => at * own.unit_ns);
  let below = 2;
  rows.forEach((row, i) => {
    row.head = i === 0 || rows[i - 1].rank !== row.rank;
    row.top = below + (row.head ? HEAD : 0);
    below = row.top + ROW;
  });
  const canvas = element("canvas", { tabindex: "0", role: "application" }), paint = canvas.getContext("2d");
  const told = element("p", { class: "told", role: "status" });
  const path = pathOf(rows);
  let width = 0, left = 0, transform = d3.zoomIdentity, chosen = null, over = null, dim = false;
  const base = () => d3.scaleLinear().domain([0, end]).range([left, width - 8]);
  const scale = () => transform.rescaleX(base());

  function draw() {
    if (width) paintTimeline(paint, { rows, steps, x: scale(), width, left, below, bar: chosen ?? over, dim });
  }
  function tell(bar) {
    const [start, stop, name, on] = bar ? bar.row.bars[bar.place] : [];
    const step = bar ? steps.findLastIndex((at) => at <= start) + 1 : 0;
    told.textContent = bar
      ? `rank ${bar.row.rank}, ${LANES[bar.row.lane] ?? bar.row.lane}: ${name}, ${duration(stop - start)} from ${duration(start)} on, traced step ${Math.max(1, step)} of ${steps.length}${on ? "; on the path" : ""}`
      : `${duration(scale().domain()[1] - scale().domain()[0])} of ${duration(end)} shown.`;
    draw();
  }
  const zoom = d3.zoom().on("zoom", (event) => { transform = event.transform; tell(chosen ?? over); })
    // The wheel scrolls the page until the timeline is in use.
    .filter((event) => !event.button && (event.type !== "wheel" || event.ctrlKey || document.activeElement === canvas));
  const selection = d3.select(canvas).call(zoom);
  const by = (factor, around = null) => zoom.scaleBy(selection, factor, [around ?? (left + width) / 2, 0]);
  const whole = () => { chosen = null; zoom.transform(selection, d3.zoomIdentity); };
  function show([start, stop], share) {
    const wanted = Math.max(stop - start, own.unit_ns) / share, middle = (start + stop) / 2, x = base();
    const k = Math.min(end / wanted, zoom.scaleExtent()[1]);
    zoom.transform(selection, d3.zoomIdentity.translate((left + width - 8) / 2 - k * x(middle), 0).scale(k));
  }
  function choose(row, place) {
    chosen = { row, place: Math.max(0, Math.min(place, row.bars.length - 1)) };
    const bar = row.bars[chosen.place], [from, to] = scale().domain();
    if (bar[0] < from || bar[1] > to) show(bar, Math.min(0.5, (bar[1] - bar[0]) / (to - from)) || 0.01);
    tell(chosen);
  }
  function toLane(by) {
    const row = rows[rows.indexOf(chosen.row) + by];
    if (row) choose(row, barAt(row.bars, chosen.row.bars[chosen.place][0]));
  }
  // The bar of the path after (by 1) or before (by -1) the chosen one.
  function along(by) {
    if (!path.length) return;
    const at = chosen ? chosen.row.bars[chosen.place][0] : scale().domain()[0];
    const own = path.findIndex(({ row, place }) => chosen?.row === row && chosen.place === place);
    const next = own >= 0 ? path[own + by] : by > 0 ? path.find(({ start }) => start >= at) : path.findLast(({ start }) => start <= at);
    if (next) choose(next.row, next.place);
  }
  function toggle() {
    if (!path.length) return;
    dim = !dim;
    dimmer.setAttribute("aria-pressed", String(dim));
    draw();
  }
  const middleOf = () => chosen && (scale()(chosen.row.bars[chosen.place][0]) + scale()(chosen.row.bars[chosen.place][1])) / 2;
  const first = () => choose(rows[0], Math.max(0, barAt(rows[0].bars, scale().domain()[0])));
  const keys = {
    ArrowRight: () => chosen ? choose(chosen.row, chosen.place + 1) : first(), ArrowLeft: () => chosen ? choose(chosen.row, chosen.place - 1) : first(),
    ArrowDown: () => chosen ? toLane(1) : first(), ArrowUp: () => chosen ? toLane(-1) : first(),
    "+": () => by(2, middleOf()), "=": () => by(2, middleOf()), "-": () => by(0.5, middleOf()),
    n: () => along(1), b: () => along(-1), p: toggle,
    Enter: () => chosen && show(chosen.row.bars[chosen.place], 0.4), Escape: whole, 0: whole,
  };
  canvas.addEventListener("keydown", (event) => {
    if (!keys[event.key] || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    keys[event.key]();
  });
  function under({ offsetX, offsetY }) {
    const row = rows.find(({ top }) => offsetY >= top && offsetY < top + ROW);
    if (!row || offsetX < left) return null;
    const x = scale(), place = barAt(row.bars, x.invert(offsetX + 1));
    return place >= 0 && x(row.bars[place][1]) >= offsetX - 2 ? { row, place } : null;
  }
  canvas.addEventListener("pointermove", (event) => { over = under(event); tell(over ?? chosen); });
  canvas.addEventListener("pointerleave", () => { over = null; tell(chosen); });
  canvas.addEventListener("click", (event) => { chosen = under(event); tell(chosen); });

  new ResizeObserver(() => {
    if (canvas.clientWidth === width || !canvas.clientWidth) return;
    width = canvas.clientWidth;
    left = 70;
    canvas.width = width * devicePixelRatio;
    canvas.height = (below + AXIS) * devicePixelRatio;
    canvas.style.height = `${below + AXIS}px`;
    const extent = [[left, 0], [width - 8, below]];
    zoom.extent(extent).translateExtent(extent).scaleExtent([1, Math.max(1, end / Math.max(2000, 20 * own.unit_ns))]);
    whole();
  }).observe(canvas);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

  const busy = rows.map(({ rank, lane, bars }) => `rank ${rank} ${LANES[lane] ?? lane} ${Math.round(100 * bars.reduce((sum, [start, stop]) => sum + stop - start, 0) / end)} %`);
  canvas.setAttribute("aria-label", `Timeline; share of it in which each lane is busy: ${busy.join(", ")}. Arrow keys go from bar to bar and lane to lane, plus and minus zoom, Enter shows the bar, Escape all.${path.length ? " N and B follow the path, P dims the rest." : ""}`);
  const button = (text, act) => {
    const made = element("button", { type: "button" }, text);
    made.addEventListener("click", act);
    return made;
  };
  const dimmer = button("Dim all but the path", toggle);
  dimmer.setAttribute("aria-pressed", "false");
  const names = new Map(rows.flatMap((row) => row.lane === "range" ? row.bars.map(([, , name]) => [name, colourOfBar(row, name)]) : [[LANES[row.lane] ?? row.lane, colourOfBar(row)]]));
  const legend = key([...names]);
  if (path.length) legend.append(pathKey());
  return element("div", { class: "timeline" },
    legend,
    element("div", { class: "pages" }, button("Zoom in", () => by(2, middleOf())), button("Zoom out", () => by(0.5, middleOf())), button("Whole", whole), ...(path.length ? [dimmer] : [])),
    canvas, told);
}
