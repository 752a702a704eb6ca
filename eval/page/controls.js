// The keys, and the bar above the heads.

// keys as the help names them, what they do, {key: act}, and where: on every page, in both tabs, or only where maps are
const KEYS = [
  ["← →", t("one training step back, forward"), { ArrowLeft: () => move(-1), ArrowRight: () => move(1) }, "tabs"],
  ["Home End", t("first, last step"), { Home: () => move(-Infinity), End: () => move(Infinity) }, "tabs"],
  [t("Space"), t("play, pause"), { " ": () => togglePlay(state.active) }, "tabs"],
  ["Shift + ← →", t("head or expert to the left, to the right"),
    { "Shift ArrowLeft": () => moveHead(0, -1), "Shift ArrowRight": () => moveHead(0, 1) }, "tabs"],
  ["Shift + ↑ ↓", t("layer above, below"),
    { "Shift ArrowUp": () => moveHead(-1, 0), "Shift ArrowDown": () => moveHead(1, 0) }, "tabs"],
  ["[ ]", t("token before, after (in the row of tokens also ↑ ↓)"),
    { "[": () => moveToken(state.active, -1), "]": () => moveToken(state.active, 1) }, "maps"],
  ["Escape", t("release the token"), { Escape: () => letGo() }, "maps"],
  ["X", t("switch the head off, or on"), { x: () => isOwn() && toggleHead(state.views[state.active]) }, "maps"],
  ["T", t("next text"), { t: () => chooseText(after(about.probes.map((probe) => probe.name), state.probe)) }, "maps"],
  ["H", t("hide the first token"), { h: () => change({ hideSink: !state.hideSink }) }, "maps"],
  ["V", t("one view, two steps, two runs"), { v: () => chooseCompare(after(comparisons(), state.compare)) }, "tabs"],
  ["Tab", t("to the next control"), {}],
  ["S", t("save a picture (PNG)"), { s: () => savePicture() }, "maps"],
  ["D", t("light or dark"), { d: () => changeTheme() }, "page"],
  ["?", t("this help"), { "?": () => byId("help").showModal() }, "page"],
];

document.addEventListener("keydown", (event) => {
  const { target, key, shiftKey } = event;
  if (event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
  if (target.matches("select, textarea, input:not([type=range], [type=checkbox])")) return; // there keys choose, or write
  if (key === " " && target.matches("button, summary, [type=checkbox]")) return; // it presses
  const isOn = { page: true, tabs: panes.length > 0, maps: panes.length > 0 && state.tab === "heads" };
  const letter = key.length === 1 ? key.toLowerCase() : key;
  const name = shiftKey && key.length > 1 ? `Shift ${key}` : letter;
  const row = KEYS.find(([,, acts, where]) => isOn[where] && acts[name]);
  const inTokens = target.matches(".tokens") && { ArrowUp: -1, ArrowDown: 1 }[name];
  const act = inTokens ? () => moveToken(state.active, inTokens) : row?.[2][name];
  if (!act) return;
  event.preventDefault();
  act();
});

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
  byId("type-own").addEventListener("click", () => {
    chooseText(OWN);
    byId("words").focus();
  });
  buildOwn();
}

function drawBar() {
  document.querySelectorAll("#bar select, #hideSink, #words").forEach((control) => {
    control[control.type === "checkbox" ? "checked" : "value"] = state[control.id];
  });
  byId("own-text").hidden = !isOwn();
  byId("own-name").hidden = !isOwn() || tries() !== TRIES || !runs[0].own?.about.merges; // letters are no such tokens
  byId("type-own").hidden = isOwn() || !about.probes.some(({ name }) => name === OWN);
}
