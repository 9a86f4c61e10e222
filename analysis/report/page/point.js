// A point's own page, drawn from the data when the address names it (#point-ID).
if (!SCRIPT || typeof BESIDE !== "undefined") {
  const data = SCRIPT ? BESIDE.data : JSON.parse(document.getElementById("data").textContent);
  const places = new Map(data.ids.map((id, place) => [id, place]));
  const report = document.getElementById("report"), page = document.getElementById("point"), title = document.title;
  const value = (column, place) => "same" in column ? column.same : column.values[column.of ? column.of[place] : place];
  const config = (place) => value(data.configs, place);

  function element(name, attributes, ...children) {
    const made = document.createElement(name);
    for (const [key, text] of Object.entries(attributes)) made.setAttribute(key, text);
    made.append(...children.filter((child) => child !== null));
    return made;
  }
  const link = (id) => element("a", { href: `#point-${id}` }, id);
  const swatch = (what) => {
    const made = element("i", { "aria-hidden": "true" });
    made.style.background = data.colours[what];
    return made;
  };
  function wide(table) {
    const box = element("div", { class: "wide" }, table);
    boxes.observe(box);
    return box;
  }
  const section = (heading, ...children) => element("section", {}, element("h2", {}, heading), ...children);
  const soft = (text) => element("p", { class: "soft" }, text);

  function said(number) {
    if (typeof number !== "number" || Number.isInteger(number)) return String(number);
    return String(Number(number.toPrecision(5)));
  }
  const inWords = (name, number) => name.endsWith("_bytes") ? ` (${(number / 2 ** 30).toFixed(2)} GiB)` : "";
  // A table of two columns: what, and its value.
  function sheet(rows) {
    const lines = rows.map(([name, text, meaning]) =>
      element("tr", {}, element("th", { scope: "row", ...(meaning ? { title: meaning } : {}) }, name), element("td", {}, text)));
    return wide(element("table", { class: "sheet" }, element("tbody", {}, ...lines)));
  }
  function grid(heads, rows, numbers) {
    const kind = (column) => numbers.includes(column) ? { class: "n" } : {};
    const head = element("tr", {}, ...heads.map((text, i) => element("th", { scope: "col", ...kind(i) }, text)));
    const lines = rows.map((row) => element("tr", {}, ...row.map((cell, i) => element("td", kind(i), cell))));
    return wide(element("table", { class: "text" }, element("thead", {}, head), element("tbody", {}, ...lines)));
  }

  function results(place) {
    const rows = data.results.map(([name, meaning, column]) => [name, value(column, place), meaning]);
    const facts = rows.filter(([, number]) => number !== null).map(([name, number, meaning]) => {
      const long = String(number).includes("\n");
      return [name, long ? element("pre", {}, number) : said(number) + inWords(name, number), meaning];
    });
    return section("Record", sheet(facts));
  }
  function parts(id) {
    const own = data.parts[id];
    if (!own) return section("Parts of a step", soft("This point has no trace."));
    const bars = own.rows.map(([rank, ...sums]) => {
      const total = sums.reduce((a, b) => a + b, 0), share = (ns) => `${(100 * ns / total).toFixed(1)} %`;
      const bar = element("div", { class: "bar", "aria-hidden": "true" }, ...sums.map((ns, i) => {
        const piece = element("span", {});
        piece.style.cssText = `width: ${100 * ns / total}%; background: ${data.colours[data.part_names[i]]}`;
        return piece;
      }));
      const ms = (ns) => (ns / own.steps / 1e6).toFixed(3);
      return [String(rank), bar, ...sums.map((ns) => `${ms(ns)} (${share(ns)})`), ms(total)];
    });
    const heads = data.part_names.map((part) => element("span", {}, swatch(part), part.replace("_", " ")));
    const more = own.ranks > bars.length ? ` The first ${bars.length} of ${own.ranks} ranks.` : "";
    return section("Parts of a step",
      soft(`ms per step, mean over ${own.steps} traced step${own.steps === 1 ? "" : "s"}; the parts add up to the step.${more}`),
      grid(["rank", "", ...heads, "step"], bars, [2, 3, 4, 5, 6, 7]));
  }
  // As markup, so that the parser knows the paths for what they are; it is made of numbers and our own colours alone.
  function drawing(own, lanes) {
    const paths = lanes.map(([, , what, spans]) => {
      let at = 0, shape = "";
      for (let i = 0; i < spans.length; i += 2) {
        at += spans[i];
        shape += `M${at} .08h${spans[i + 1]}v.84h${-spans[i + 1]}z`;
        at += spans[i + 1];
      }
      return `<path d="${shape}" fill="${data.colours[what]}"/>`;
    });
    const starts = own.steps.map((at) => `M${at} 0h${own.units / 1000}v1h${-own.units / 1000}z`).join("");
    const made = element("div", {});
    made.innerHTML = `<svg viewBox="0 0 ${own.units} 1" preserveAspectRatio="none" aria-hidden="true">${paths.join("")}<path d="${starts}" fill="currentColor"/></svg>`;
    return made;
  }
  function timeline(id) {
    const own = data.lanes[id];
    if (!own) return null;
    const rows = Map.groupBy(own.lanes, ([rank, lane]) => `rank ${rank} ${lane === "range" ? "phases" : lane}`);
    const shown = new Set(own.lanes.map(([rank]) => rank)).size;
    const more = own.ranks > shown ? ` The first ${shown} of ${own.ranks} ranks.` : "";
    const busy = (lanes) => lanes.reduce((sum, [, , , spans]) => sum + spans.reduce((a, length, i) => a + (i % 2 ? length : 0), 0), 0);
    const cells = [...rows].flatMap(([name, lanes]) => [element("span", {}, name), drawing(own, lanes)]);
    const shares = [...rows].map(([name, lanes]) => `${name} ${Math.round(100 * busy(lanes) / own.units)} %`).join(", ");
    const key = [...new Set(own.lanes.map(([, , what]) => what))].map((what) => element("li", {}, swatch(what), what));
    return section("Timeline",
      soft(`${own.steps.length} steps of the traced run, ${said(own.end_ms)} ms from left to right; upright lines: a step starts. Events closer than a ${own.units}th of the width are merged.${more}`),
      element("ul", { class: "key" }, ...key),
      element("div", { class: "lanes", role: "img", "aria-label": `Share of the window in which each lane is busy: ${shares}` }, ...cells));
  }
  function causes(id) {
    const own = data.causes[id];
    if (!own) return null;
    const rows = own.map((row) => row.map((place) => data.texts[place])).map(([kind, share, advice, remedy, method, gain, verdict]) =>
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
    const rowsOf = (names) => names.map((name) => [name, value(data.settings[name], place)])
      .filter(([, set]) => set !== null).map(([name, set]) => [name, said(set)]);
    const vary = data.vary[value(data.settings.workload, place)];
    const rest = rowsOf(Object.keys(data.settings).filter((name) => !vary.includes(name)));
    return section("Settings", vary.length ? sheet(rowsOf(vary)) : null,
      element("details", {}, element("summary", {}, `${rest.length} settings that do not vary within this workload`), sheet(rest)));
  }
  function facts(id) {
    const own = data.facts[id];
    if (!own) return null;
    const [names, ...values] = own.map((place) => data.texts[place].replaceAll("{point}", id));
    return section("Hosts and software", sheet(names.split("\n").map((name, i) => [name, values[i]])));
  }
  function log(id) {
    const own = data.logs[id];
    if (!own) return section("End of the log", soft("There is no log of this point."));
    return section("End of the log", soft(own[0]), element("pre", { tabindex: "0" }, own[1]));
  }

  function draw(place) {
    const id = data.ids[place], status = value(data.results.find(([name]) => name === "status")[2], place);
    const others = data.ids.filter((_, other) => other !== place && config(other) === config(place));
    return [
      element("nav", { "aria-label": "Back" }, element("a", { href: "#all" }, "All points")),
      element("h1", { tabindex: "-1" }, config(place)),
      element("p", {}, `Point ${id}, `, element("span", { class: status }, status.replace("_", " ")),
        ...(others.length ? ["; repeats: ", ...others.flatMap((other) => [link(other), " "])] : [])),
      trouble(id), causes(id), parts(id), timeline(id), results(place), settings(place), facts(id), log(id),
    ].filter((part) => part !== null);
  }

  let left = 0, last = null;
  function route() {
    const id = location.hash.startsWith("#point-") ? location.hash.slice(7) : null;
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
