// Figures in full size. The dialog is the browser's own: it keeps the focus, and Escape closes it.
{
  const dialog = document.getElementById("zoom"), picture = dialog.querySelector("img");
  const pane = dialog.querySelector(".pane"), size = document.getElementById("zoom-size");
  function full(on) {
    pane.classList.toggle("full", on);
    size.setAttribute("aria-pressed", String(on));
  }
  for (const button of document.querySelectorAll(".zoom")) {
    button.addEventListener("click", () => {
      const image = button.querySelector("img");
      picture.src = image.currentSrc;
      picture.alt = image.alt;
      document.getElementById("zoom-title").textContent = button.closest("figure").querySelector("h3").textContent;
      full(innerWidth <= 600); // fitted to a phone, its text could not be read
      dialog.showModal();
    });
  }
  size.addEventListener("click", () => full(!pane.classList.contains("full")));
  picture.addEventListener("click", () => full(!pane.classList.contains("full")));
  document.getElementById("zoom-close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => picture.removeAttribute("src"));
}
