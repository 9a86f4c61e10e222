// A colour and a symbol for each model, for those who tell colours apart and those who do not.
const models = DATA ? [...new Set([...places.values()].map(model))].sort() : [];
const colourOf = (name) => DATA.charts.cycle[models.indexOf(name) % DATA.charts.cycle.length];
const symbolOf = (name) => d3.symbol(d3.symbolsFill[models.indexOf(name) % d3.symbolsFill.length], 48)();
function modelKey(figure, names) {
  figure.querySelector(".models").replaceChildren(...[...names].sort().map((name) => {
    const svg = d3.create("svg").attr("viewBox", "-7 -7 14 14").attr("aria-hidden", "true");
    svg.append("path").attr("d", symbolOf(name)).attr("fill", colourOf(name)).attr("class", "symbol");
    return element("li", {}, svg.node(), name);
  }));
}
