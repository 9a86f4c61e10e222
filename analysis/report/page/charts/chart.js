// A figure that answers. `paint(svg, width)` draws it and returns its height, a note, and its marks: boxes ({x, y, w, h}) of
// points with texts to tell. What is nearest to the pointer, or where the arrow keys are, is told; a click or Enter picks it.
const NEAR = 40;
document.getElementById("explore").hidden = !DATA;
let kept = new Set(places.values());
document.addEventListener("kept", ({ detail }) => { kept = new Set(detail.map((id) => places.get(id))); });
// Of very many points every second one, or third, or so on: more dots than MOST_DOTS cannot be told apart.
const MOST_DOTS = 3000;
function thinned(points) {
  const every = Math.ceil(points.length / MOST_DOTS);
  return [points.filter((_, i) => i % every === 0), every > 1 ? ` One of ${every} points is shown.` : ""];
}
const shown = (rows, point) => rows.filter((row) => kept.has(point(row)));

function chart(id, paint) {
  const figure = document.getElementById(`figure-${id}`), box = figure.querySelector(".chart");
  const note = figure.querySelector(".note"), tip = element("div", { class: "tip", role: "status", hidden: "" });
  const svg = d3.create("svg").attr("aria-hidden", "true");
  let marks = [], at = -1, width = 0, waiting = 0;
  box.append(svg.node(), tip);
  figure.hidden = false;

  function draw() {
    waiting = 0;
    width = box.clientWidth;
    if (!width) return; // a point's page is shown
    svg.selectAll("*").remove();
    const made = paint(svg, width);
    svg.attr("viewBox", [0, 0, width, made.height]);
    marks = made.marks;
    note.textContent = marks.length ? made.note ?? "" : "None of the points that the filter keeps has these numbers.";
    tell(-1);
  }
  const later = () => { waiting ||= requestAnimationFrame(draw); };

  function ring({ x, y, w = 0, h = 0 }, kind) {
    svg.append("rect").attr("class", `ring ${kind}`).attr("rx", 6)
      .attr("x", x - 6).attr("y", y - 6).attr("width", w + 12).attr("height", h + 12);
  }
  function tell(place) {
    at = place;
    svg.selectAll(".ring").remove();
    marks.filter(({ point }) => picked.includes(point)).forEach((mark) => ring(mark, "picked"));
    tip.hidden = at < 0;
    if (at < 0) return;
    const mark = marks[at], { x, y, w = 0, h = 0, texts } = mark;
    ring(mark, "at");
    tip.replaceChildren(...texts.map((text, i) => element(i ? "div" : "strong", {}, text)));
    tip.style.left = `${Math.max(0, Math.min(x + w / 2 - tip.offsetWidth / 2, width - tip.offsetWidth))}px`;
    tip.style.top = `${y + h + 14}px`;
  }
  function nearest({ clientX, clientY }) {
    const frame = svg.node().getBoundingClientRect(), px = clientX - frame.x, py = clientY - frame.y;
    let best = -1, least = NEAR;
    marks.forEach(({ x, y, w = 0, h = 0 }, i) => {
      const far = Math.hypot(Math.max(x - px, 0, px - x - w), Math.max(y - py, 0, py - y - h));
      if (far < least) [best, least] = [i, far];
    });
    return best;
  }
  const last = () => marks.length - 1;
  const keys = {
    ArrowRight: () => tell(Math.min(at + 1, last())), ArrowDown: () => tell(Math.min(at + 1, last())),
    ArrowLeft: () => tell(Math.max(at - 1, 0)), ArrowUp: () => tell(Math.max(at - 1, 0)),
    Home: () => tell(0), End: () => tell(last()), Escape: () => tell(-1),
    Enter: () => at >= 0 && pick(marks[at].point), " ": () => at >= 0 && pick(marks[at].point),
  };
  box.addEventListener("keydown", (event) => {
    if (!keys[event.key] || !marks.length || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    keys[event.key]();
  });
  box.addEventListener("pointermove", (event) => {
    const place = nearest(event);
    if (place !== at) tell(place);
  });
  box.addEventListener("pointerleave", () => tell(-1));
  box.addEventListener("blur", () => tell(-1));
  box.addEventListener("click", (event) => {
    const place = nearest(event);
    if (place < 0) return;
    pick(marks[place].point);
    tell(place);
  });
  figure.querySelectorAll("select").forEach((select) => select.addEventListener("change", draw));
  document.addEventListener("kept", later);
  document.addEventListener("picked", () => tell(at));
  new ResizeObserver(() => { if (box.clientWidth !== width) later(); }).observe(box);
}
