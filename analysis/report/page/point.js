// A point's own page, drawn from the data when the address names it (#point-ID).
if (DATA) {
  const report = document.getElementById("report"), page = document.getElementById("point"), title = document.title;
  const inWords = (name, number) => name.endsWith("_bytes") ? ` (${(number / 2 ** 30).toFixed(2)} GiB)` : "";

  function results(place) {
    const rows = DATA.results.map(([name, meaning, column]) => [name, value(column, place), meaning]);
    const facts = rows.filter(([, number]) => number !== null).map(([name, number, meaning]) => {
      const long = String(number).includes("\n");
      return [name, long ? element("pre", {}, number) : said(number) + inWords(name, number), meaning];
    });
    return section("Record", sheet(facts));
  }
  function parts(id) {
    const own = DATA.parts[id];
    if (!own) return section("Parts of a step", soft("This point has no trace."));
    const bars = own.rows.map(([rank, ...sums]) => {
      const total = sums.reduce((a, b) => a + b, 0), share = (ns) => `${(100 * ns / total).toFixed(1)} %`;
      const bar = element("div", { class: "bar", "aria-hidden": "true" }, ...sums.map((ns, i) => {
        const piece = element("span", {});
        piece.style.cssText = `width: ${100 * ns / total}%; background: ${DATA.colours[DATA.part_names[i]]}`;
        return piece;
      }));
      const ms = (ns) => (ns / own.steps / 1e6).toFixed(3);
      return [String(rank), bar, ...sums.map((ns) => `${ms(ns)} (${share(ns)})`), ms(total)];
    });
    const heads = DATA.part_names.map((part) => element("span", {}, swatch(DATA.colours[part]), part.replace("_", " ")));
    const more = own.ranks > bars.length ? ` The first ${bars.length} of ${own.ranks} ranks.` : "";
    return section("Parts of a step",
      soft(`ms per step, mean over ${own.steps} traced step${own.steps === 1 ? "" : "s"}; the parts add up to the step.${more}`),
      grid(["rank", "", ...heads, "step"], bars, [2, 3, 4, 5, 6, 7]));
  }
  function steps(id) {
    const own = DATA.lanes[id], whole = perfetto(id);
    if (!own) return whole && section("Timeline", whole);
    const drawn = new Set(own.lanes.map(([rank]) => rank)).size;
    const more = own.ranks > drawn ? ` The first ${drawn} of ${own.ranks} ranks.` : "";
    return section("Timeline",
      soft(`${own.steps.length} step${own.steps.length === 1 ? "" : "s"} of the traced run; upright lines: a step starts. Drag to move; the wheel zooms once the timeline is selected. Events that follow each other closely are one bar with the name of the longest.${more}`),
      own.path.length ? soft(`Bold edges: the path, the chain of activities that decides how long the steps take, each because of the one before. What is not on it could take longer, and the steps would not. Of the path: ${pathShares(own.path)}.`) : null,
      timeline(id), whole);
  }
  function causes(id) {
    const own = DATA.causes[id];
    if (!own) return null;
    const rows = own.map((row) => row.map((place) => DATA.texts[place])).map(([kind, share, advice, remedy, method, gain, verdict]) =>
      [kind, share, element("span", {}, advice, element("br", {}), element("span", { class: "soft" }, method)), remedy, gain, verdict]);
    return section("Causes", grid(["cause", "share of the step", "advice, and how the share was computed", "remedy", "measured saving", "outcome"], rows, []));
  }
  function trouble(id) {
    const own = document.getElementById(`trouble-${id}`);
    if (!own) return null;
    const copy = own.cloneNode(true);
    copy.removeAttribute("id");
    return section("What failed", copy);
  }
  function settings(place) {
    const rowsOf = (names) => names.map((name) => [name, value(DATA.settings[name], place)])
      .filter(([, set]) => set !== null).map(([name, set]) => [name, said(set)]);
    const vary = DATA.vary[value(DATA.settings.workload, place)];
    const rest = rowsOf(Object.keys(DATA.settings).filter((name) => !vary.includes(name)));
    return section("Settings", vary.length ? sheet(rowsOf(vary)) : null,
      element("details", {}, element("summary", {}, `${rest.length} settings that do not vary within this workload`), sheet(rest)));
  }
  function facts(id) {
    const own = DATA.facts[id];
    if (!own) return null;
    const [names, ...values] = own.map((place) => DATA.texts[place].replaceAll("{point}", id));
    return section("Hosts and software", sheet(names.split("\n").map((name, i) => [name, values[i]])));
  }
  function log(id) {
    const own = DATA.logs[id];
    if (!own) return section("End of the log", soft("There is no log of this point."));
    return section("End of the log", soft(own[0]), element("pre", { tabindex: "0" }, own[1]));
  }

  function compareLink(place) {
    const made = element("a", { href: "#compare" }, "compare it with another point");
    made.addEventListener("click", () => { if (!picked.includes(place)) pick(place); });
    return made;
  }
  function draw(place) {
    const id = DATA.ids[place], status = result("status", place);
    const others = DATA.ids.filter((_, other) => other !== place && config(other) === config(place));
    return [
      element("nav", { "aria-label": "Back" }, element("a", { href: "#all" }, "All points")),
      element("h1", { tabindex: "-1" }, config(place)),
      element("p", {}, `Point ${id}, `, element("span", { class: status }, status.replace("_", " ")),
        "; ", compareLink(place),
        ...(others.length ? ["; repeats: ", ...others.flatMap((other) => [link(other), " "])] : [])),
      trouble(id), causes(id), parts(id), steps(id), results(place), settings(place), facts(id), log(id),
    ].filter((part) => part !== null);
  }

  let left = 0, last = null;
  function route() {
    const id = location.hash.startsWith("#point-") ? decodeURIComponent(location.hash.slice(7)) : null;
    const place = places.get(id);
    if (!report.hidden) left = scrollY;
    report.hidden = place !== undefined;
    page.hidden = place === undefined;
    if (place !== undefined) {
      page.replaceChildren(...draw(place));
      document.title = `${id}: ${title}`;
      scrollTo(0, 0);
      page.querySelector("h1").focus({ preventScroll: true });
      last = id;
    } else if (last !== null) {
      page.replaceChildren();
      document.title = title;
      if (["", "#all"].includes(location.hash)) {
        scrollTo(0, left);
        document.querySelector(`#points a[href="#point-${last}"]`)?.focus({ preventScroll: true });
      } else {
        document.getElementById(location.hash.slice(1))?.scrollIntoView();
      }
      last = null;
    }
  }
  addEventListener("hashchange", route);
  route();
}
