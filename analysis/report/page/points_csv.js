// All points as CSV, made when it is asked for. A text that a spreadsheet would compute is marked as one.
if (DATA) {
  const cell = (set) => {
    if (set === null) return "";
    const text = typeof set === "string" ? set.replace(/^\s*[=+\-@]|^[\t\r]/, "'$&") : String(set);
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  document.getElementById("points-csv").addEventListener("click", () => {
    const known = [...Object.entries(DATA.settings), ...DATA.results.map(([name, , column]) => [name, column])]
      // Tables of many lines stand on the points' own pages.
      .filter(([, column]) => column.same !== null && !column.values?.some((set) => String(set).includes("\n")));
    const lines = DATA.ids.map((id, place) => [id, ...known.map(([, column]) => cell(value(column, place)))]);
    const text = [["point_id", ...known.map(([name]) => name)], ...lines].map((line) => `${line.join(",")}\n`).join("");
    const made = element("a", { href: URL.createObjectURL(new Blob([text], { type: "text/csv" })), download: "points.csv" });
    made.click();
    setTimeout(() => URL.revokeObjectURL(made.href), 60000);
  });
}
