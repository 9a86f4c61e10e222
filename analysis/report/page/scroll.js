// A box that scrolls is reached by the Tab key, and named by the heading above it; one that does not is no stop.
const boxes = new ResizeObserver((entries) => entries.forEach(({ target }) => {
  const scrolls = target.scrollWidth > target.clientWidth || target.scrollHeight > target.clientHeight;
  if (!scrolls) return ["tabindex", "role", "aria-label"].forEach((name) => target.removeAttribute(name));
  let above = target;
  while (above && !/^(H[1-4]|SUMMARY)$/.test(above.tagName)) above = above.previousElementSibling ?? above.parentElement;
  target.tabIndex = 0;
  target.setAttribute("role", "region");
  target.setAttribute("aria-label", `Table: ${above?.textContent ?? document.title}`);
}));
document.querySelectorAll(".wide").forEach((box) => boxes.observe(box));
