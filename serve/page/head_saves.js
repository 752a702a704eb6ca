// Keep what the viewer shows: a picture of the view, the large map as SVG, or its numbers.

import { drawn } from "./chart.js";
import { saveCsv, saveJson, saveMenu, saveText } from "./save.js";
import * as viewer from "./viewer.js";

const CELL = 12; // of the large map, in pixels
const LABELS = 90; // room for words beside it

export function headMenu() {
  return saveMenu("Save what is shown", {
    "Picture (PNG)": () => viewer.savePicture(),
    "Map (SVG)": () => withMap((map) => saveText(mapAsSvg(map.head), name(map, ".svg"), "image/svg+xml")),
    "Map (CSV)": () => withMap((map) => saveCsv(rows(map.head), name(map, ".csv"))),
    "Map and scores (JSON)": () => withMap((map) => saveJson(numbers(map), name(map, ".json"))),
  });
}

function withMap(act) {
  const pane = viewer.panes[viewer.state.active];
  if (pane.map) act({ head: pane.map.head, run: pane.run, view: pane.view });
}

function name({ run, view }, ending) {
  return `${run.name} ${viewer.headName(run, view.layer, view.head)} step ${viewer.stepOf(view).step}${ending}`;
}

function rows(head) {
  const found = [["row", "token that looks", "column", "token it looks at", "weight"]];
  const { labels } = head.text;
  labels.forEach((words, q) => {
    for (let k = 0; k <= q; k++) found.push([q, words, k, labels[k], rounded(head.weight(q, k))]);
  });
  return found;
}

const rounded = (weight) => Number(weight.toFixed(5));

function numbers({ head, run, view }) {
  const place = run.shown[view.at];
  const scores = viewer.about.scores.map((info) => [info.name, run.score(info.name, place, view.layer, view.head)]);
  return {
    run: run.name, step: viewer.stepOf(view).step, layer: run.layers[view.layer], head: run.heads[view.head],
    text: viewer.state.probe, tokens: head.text.labels, scores: Object.fromEntries(scores),
    weights: head.text.labels.map((_, q) => Array.from({ length: q + 1 }, (__, k) => rounded(head.weight(q, k)))),
  };
}

function mapAsSvg(head) {
  const { labels } = head.text;
  const side = labels.length * CELL;
  const [wide, high] = [LABELS + side + 4, side + LABELS];
  const svg = drawn("svg", { xmlns: "http://www.w3.org/2000/svg", viewBox: `0 0 ${wide} ${high}`, width: wide, height: high,
    "font-family": "system-ui, sans-serif", "font-size": 10, fill: viewer.colour("--text") });
  svg.append(drawn("rect", { width: wide, height: high, fill: viewer.colour("--page") }));
  labels.forEach((words, q) => {
    for (let k = 0; k <= q; k++) {
      const fill = viewer.css(viewer.magma(viewer.SCALES[viewer.state.scale](head.weight(q, k))));
      svg.append(drawn("rect", { x: LABELS + k * CELL, y: q * CELL, width: CELL, height: CELL, fill }));
    }
    const middle = (q + 0.5) * CELL;
    svg.append(drawn("text", { x: LABELS - 4, y: middle + 3.5, "text-anchor": "end" }, words));
    svg.append(drawn("text", { "text-anchor": "end", transform: `translate(${LABELS + middle + 3.5} ${side + 4}) rotate(-90)` }, words));
  });
  return new XMLSerializer().serializeToString(svg);
}
