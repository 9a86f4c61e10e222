// Two points that are picked, A and B, and how they differ.
const picked = [null, null];
let pick = () => {};
if (DATA) {
  const fields = ["pick-a", "pick-b"].map((id) => document.getElementById(id));
  const verdict = document.getElementById("verdict"), details = document.getElementById("differences");
  document.getElementById("ids").append(...DATA.ids.map((id) => element("option", { value: id })));

  function show() {
    const [a, b] = picked, both = a !== null && b !== null;
    fields.forEach((field, i) => {
      field.value = picked[i] === null ? "" : DATA.ids[picked[i]];
      field.removeAttribute("aria-invalid");
    });
    document.getElementById("compare").classList.toggle("on", a !== null || b !== null);
    document.getElementById("pick-more").hidden = !both;
    verdict.replaceChildren(...(both ? comparisonLines(a, b).map((line) => element("p", {}, line))
      : [soft(a === null && b === null ? "Pick two points in the figures, or name them here." : "One more point to compare it with.")]));
    details.replaceChildren(...(both ? differences(a, b) : []));
    document.dispatchEvent(new Event("picked"));
  }
  function differences(a, b) {
    const text = (set) => set === null ? "" : said(set);
    const settings = settingChanges(a, b).map(([name, one, other]) => [name, text(one), text(other)]);
    const way = DATA.charts.times[0], row = (point) => way?.rows.find(([place]) => place === point);
    const [one, other] = [row(a), row(b)], signed = (ms) => `${ms < 0 ? "" : "+"}${ms.toFixed(3)}`;
    const parts = one && other ? way.kinds.map((kind, i) => [kind.replace("_", " "), ...[one, other].map((own) => own[i + 2].toFixed(3)), signed(other[i + 2] - one[i + 2])]) : [];
    const sides = [["A", a], ["B", b]];
    const ends = [a, b].map((point) => DATA.lanes[DATA.ids[point]]).map((own) => own && own.end * own.unit_ns);
    const lines = ends.every(Boolean) ? sides.flatMap(([name, point]) => [element("h4", {}, `Timeline of ${name}`), timeline(DATA.ids[point], Math.max(...ends))]) : [];
    return [
      ...sides.map(([name, point]) => element("p", {}, element("strong", {}, name), " ", link(DATA.ids[point]), ` ${config(point)}`)),
      ...(settings.length ? [element("h4", {}, "Settings that differ"), grid(["setting", "A", "B"], settings, [])] : [soft("Their settings are the same.")]),
      ...(parts.length ? [element("h4", {}, "Parts of a traced step"), grid(["part", "A (ms)", "B (ms)", "B - A (ms)"], parts, [1, 2, 3])] : []),
      ...lines,
    ];
  }
  pick = (point) => {
    const at = picked.indexOf(point);
    if (at >= 0) picked[at] = null;
    else picked[picked[0] === null ? 0 : 1] = point;
    show();
  };
  fields.forEach((field, i) => field.addEventListener("change", () => {
    const id = field.value.trim(), place = places.get(id) ?? null;
    if (id && place === null) return field.setAttribute("aria-invalid", "true");
    picked[i] = place;
    show();
  }));
  document.getElementById("pick-swap").addEventListener("click", () => { picked.reverse(); show(); });
  document.getElementById("pick-none").addEventListener("click", () => { picked.fill(null); show(); });
  show();
}
