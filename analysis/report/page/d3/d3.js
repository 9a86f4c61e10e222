// The parts of D3 that the page uses. After a change, with Node.js:
//   npm install --no-save esbuild d3-axis@3 d3-scale@4 d3-selection@3 d3-shape@3 d3-zoom@3
//   npx esbuild d3.js --bundle --minify --format=iife --global-name=d3 --outfile=d3.min.js --banner:js="/*! $(cat LICENSE) */"
export { axisBottom, axisLeft } from "d3-axis";
export { scaleLinear, scaleLog, scalePoint } from "d3-scale";
export { create, select } from "d3-selection";
export { symbol, symbolsFill } from "d3-shape";
export { zoom, zoomIdentity } from "d3-zoom";
