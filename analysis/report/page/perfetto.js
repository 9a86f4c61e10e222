// The way to a point's whole trace in Perfetto: a file beside the page, or the command that makes it.
function perfetto(id) {
  const bytes = DATA.traces.bytes[id];
  if (bytes === undefined) return null;
  const file = `perfetto/${id}.json.gz`, site = element("a", { href: "https://ui.perfetto.dev", rel: "noreferrer" }, "ui.perfetto.dev");
  const open = ["open ", site, " and drop it there. Perfetto shows it in the browser; nothing is uploaded."];
  const words = bytes
    ? ["The whole trace: save ", element("a", { href: file, download: `${id}.json.gz` }, file), ` (${said(bytes / 1e6)} MB), `, ...open]
    : ["The whole trace: in the folder of this page, run the command below; it writes ", element("code", {}, file), `. Then ${open[0]}`, ...open.slice(1)];
  return element("div", {}, element("p", { class: "soft" }, ...words),
    bytes ? null : element("pre", { tabindex: "0" }, `nightsweep export --to perfetto ${DATA.traces.points}/${id} --out ${file}`));
}
