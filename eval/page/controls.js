// The keys, and the bar above the heads.

const onMaps = () => panes.length > 0;
const inTokens = (target) => target.matches(".tokens");

KEYS.unshift(
  ["← →", t("one training step back, forward"), { ArrowLeft: () => move(-1), ArrowRight: () => move(1) }, onMaps],
  ["Home End", t("first, last step"), { Home: () => move(-Infinity), End: () => move(Infinity) }, onMaps],
  [t("Space"), t("play, pause"), { " ": () => togglePlay(state.active) }, onMaps],
  ["Shift + ← →", t("head to the left, to the right"),
    { "Shift ArrowLeft": () => moveHead(0, -1), "Shift ArrowRight": () => moveHead(0, 1) }, onMaps],
  ["Shift + ↑ ↓", t("layer above, below"),
    { "Shift ArrowUp": () => moveHead(-1, 0), "Shift ArrowDown": () => moveHead(1, 0) }, onMaps],
  ["[ ]", t("token before, after"),
    { "[": () => moveToken(state.active, -1), "]": () => moveToken(state.active, 1) }, onMaps],
  ["↑ ↓", t("the same, in the row of tokens"),
    { ArrowUp: () => moveToken(state.active, -1), ArrowDown: () => moveToken(state.active, 1) }, inTokens],
  ["Escape", t("release the token"), { Escape: () => letGo() }, onMaps],
  ["X", t("switch the head off, or on"), { x: () => isOwn() && toggleHead(state.views[state.active]) }, onMaps],
  ["T", t("next text"), { t: () => chooseText(after(about.probes.map((probe) => probe.name), state.probe)) }, onMaps],
  ["H", t("hide the first token"), { h: () => change({ hideSink: !state.hideSink }) }, onMaps],
  ["V", t("one view, two steps, two runs"), { v: () => chooseCompare(after(comparisons(), state.compare)) }, onMaps],
  ["S", t("save a picture (PNG)"), { s: () => savePicture() }, onMaps],
);

function moveHead(layers, heads) {
  const { run, cells } = panes[state.active];
  const view = state.views[state.active];
  const layer = clamp(view.layer + layers, 0, run.layers.length - 1);
  const head = clamp(view.head + heads, 0, run.heads.length - 1);
  const isInGrid = document.activeElement.matches(".thumbnail");
  chooseHead(state.active, layer, head);
  if (isInGrid) cells[layer][head].focus();
}

// Each control of the bar is called as the field of the state that it shows.
function buildBar() {
  about.probes.forEach((probe) => byId("probe").add(new Option(translated(probe.title), probe.name)));
  if (runs.length < 2) byId("compare").remove(2);
  byId("bar").addEventListener("change", ({ target: { id, value, checked } }) => {
    if (id === "probe") chooseText(value);
    else if (id === "compare") chooseCompare(value);
    else if (id === "hideSink") change({ hideSink: checked });
  });
  buildOwn();
}

function drawBar() {
  document.querySelectorAll("#bar select, #hideSink, #words").forEach((control) => {
    control[control.type === "checkbox" ? "checked" : "value"] = state[control.id];
  });
  byId("own-text").hidden = !isOwn();
  byId("of-name").hidden = state.words !== TRIES[0];
}
