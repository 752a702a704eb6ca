// Keep what the view of heads shows: a picture of it, the large map, or its numbers.

const CELL = 84; // of a small head in the picture, in pixels
const BESIDE = 8;
const LARGE = 620;

function savePicture() {
  const parts = visiblePanes().map((pane) => pictureOf(pane));
  const wide = parts.reduce((sum, part) => sum + part.wide, 0);
  const svg = drawn("svg", { class: "apart", viewBox: `0 0 ${wide} ${Math.max(...parts.map((part) => part.high))}` });
  let x = 0;
  parts.forEach((part) => {
    part.group.setAttribute("transform", `translate(${x} 0)`);
    svg.append(part.group);
    x += part.wide;
  });
  savePng(svg, `${runOf(state.views[0]).name} step ${stepOf(state.views[0]).step}.png`);
}

// A view: a line that says what it is, every head, and the chosen one large.
function pictureOf({ run, view }) {
  const group = drawn("g");
  const maps = mapsOf(view);
  const text = about.probes.find((probe) => probe.name === state.probe).title;
  const title = `${run.name} · step ${stepOf(view).step} · ${headName(run, view.layer, view.head)} · ${text}`;
  group.append(write(title, 18, 28, "start", { "font-size": 15, "font-weight": "bold" }));
  const step = CELL + BESIDE;
  const right = 44 + run.heads.length * step + 10;
  run.heads.forEach((name, i) => group.append(write(`H${name}`, 44 + i * step + CELL / 2, 54, "middle", { class: "word" })));
  run.layers.forEach((name, i) => group.append(write(`L${name}`, 36, 64 + i * step + CELL / 2, "end", { class: "word" })));
  const canvas = document.createElement("canvas");
  const image = (head, size, x, y, side) => {
    paintHead(canvas, head, Math.min(head.length, size));
    return drawn("image", { href: canvas.toDataURL(), x, y, width: side, height: side, class: "pixels" });
  };
  if (maps) {
    run.layers.forEach((_, layer) => run.heads.forEach((name, i) => {
      const [x, y] = [44 + i * step, 62 + layer * step];
      const isChosen = layer === view.layer && i === view.head;
      const stroke = isChosen ? colour("--text") : state.groups && run.grouped ? groupColour(run, name) : "none";
      group.append(image(new Head(run, maps, layer, i, state), 2 * CELL, x, y, CELL),
        drawn("rect", { x: x - 1, y: y - 1, width: CELL + 2, height: CELL + 2, fill: "none", stroke, "stroke-width": 2 }));
    }));
    const { svg } = largeMap(headOf(view));
    svg.setAttribute("x", right);
    svg.setAttribute("y", 44);
    group.append(svg);
  }
  return { group, wide: Math.max(right + LARGE + 18, 640), high: Math.max(62 + run.layers.length * step, 44 + LARGE + 60) };
}

function largeMap(head) {
  const place = layoutMap(head.text.labels, LARGE);
  const canvas = document.createElement("canvas");
  paintHead(canvas, head, head.length);
  const { left: x, top: y, side, wide, high } = place;
  const svg = drawn("svg", { class: "apart around", viewBox: `0 0 ${wide} ${high}`, width: wide, height: high });
  svg.append(drawn("image", { href: canvas.toDataURL(), x, y, width: side, height: side, class: "pixels" }), ...aroundMap(head, place));
  return { svg };
}

function headMenu() {
  const withMap = (act, ending) => () => {
    const pane = panes[state.active];
    if (!pane.map) return;
    const { run, view } = pane;
    act(pane.map.head, `${run.name} ${headName(run, view.layer, view.head)} step ${stepOf(view).step}${ending}`, pane);
  };
  return saveMenu("Save what is shown", {
    "Picture (PNG)": savePicture,
    "Map (SVG)": withMap((head, name) => saveSvg(largeMap(head).svg, name), ".svg"),
    "Map (CSV)": withMap((head, name) => saveCsv(weightsOf(head), name), ".csv"),
    "Map and scores (JSON)": withMap((head, name, pane) => saveJson(numbersOf(head, pane), name), ".json"),
  });
}

const rounded = (weight) => Number(weight.toFixed(5));

function weightsOf(head) {
  const { labels } = head.text;
  return [["row", "token that looks", "column", "token it looks at", "weight"], ...labels.flatMap((words, q) => (
    labels.slice(0, q + 1).map((other, k) => [q, words, k, other, rounded(head.weight(q, k))])))];
}

function numbersOf(head, { run, view }) {
  const scores = about.scores.map(({ name }) => [name, run.score(name, run.shown[view.at], view.layer, view.head)]);
  return {
    run: run.name, step: stepOf(view).step, layer: run.layers[view.layer], head: run.heads[view.head],
    text: state.probe, tokens: head.text.labels, scores: Object.fromEntries(scores),
    weights: head.text.labels.map((_, q) => Array.from({ length: q + 1 }, (__, k) => rounded(head.weight(q, k)))),
  };
}
