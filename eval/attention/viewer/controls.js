// The bar, the keys, playing, light and dark, help.

const FRAME_MS = 450;
const NARROW = 860; // as in style.css: no room for two views,
const STACKED = 640; // nor for a map beside the heads
let timer = 0;

const KEYS = [
  ["← →", "one step of training back, on"],
  ["Home End", "first, last step"],
  ["Space", "play, pause"],
  ["Shift + ← →", "head or expert to the left, to the right"],
  ["Shift + ↑ ↓", "layer above, below"],
  ["[ ]", "token before, after (in the row of tokens also ↑ ↓)"],
  ["Escape", "let go of the token; back from the large map"],
  ["F", "large map over the whole width"],
  ["T", "next text"],
  ["C", "next colour scale"],
  ["M", "each row to its maximum"],
  ["H", "hide the first token"],
  ["G", "colours of KV groups"],
  ["V", "one view, two steps, two runs"],
  ["Tab", "to the next control"],
  ["D", "light or dark"],
  ["S", "save a picture (PNG)"],
  ["?", "this help"],
];

function togglePlay(number) {
  if (state.playing === number) {
    stopPlaying();
    render();
    return;
  }
  stopPlaying();
  const view = state.views[number];
  state.playing = number;
  chooseStep(number, view.at === runOf(view).shown.length - 1 ? 0 : view.at);
  timer = setInterval(() => {
    const { at } = state.views[number];
    const last = runOf(state.views[number]).shown.length - 1;
    if (at + 1 >= last) stopPlaying();
    chooseStep(number, Math.min(at + 1, last));
  }, FRAME_MS);
}

function stopPlaying() {
  clearInterval(timer);
  state.playing = -1;
}

function moveStep(by) {
  const view = state.views[state.active];
  stopPlaying();
  chooseStep(state.active, Math.max(0, Math.min(runOf(view).shown.length - 1, view.at + by)));
}

function moveHead(layers, heads) {
  const view = state.views[state.active];
  const run = runOf(view);
  const layer = Math.max(0, Math.min(run.layers.length - 1, view.layer + layers));
  const head = Math.max(0, Math.min(run.heads.length - 1, view.head + heads));
  const inGrid = document.activeElement?.className;
  chooseHead(state.active, layer, head);
  const pane = panes[state.active];
  if (inGrid === "thumbnail") pane.thumbnails[layer][head].button.focus();
  if (inGrid === "cell") pane.cells[layer][head].focus();
}

const after = (list, item) => list[(list.indexOf(item) + 1) % list.length];
const comparisons = () => (runs.length > 1 ? ["none", "steps", "runs"] : ["none", "steps"]);

const SHIFTED = {
  ArrowLeft: () => moveHead(0, -1),
  ArrowRight: () => moveHead(0, 1),
  ArrowUp: () => moveHead(-1, 0),
  ArrowDown: () => moveHead(1, 0),
};

const PLAIN = {
  ArrowLeft: () => moveStep(-1),
  ArrowRight: () => moveStep(1),
  Home: () => moveStep(-Infinity),
  End: () => moveStep(Infinity),
  " ": () => togglePlay(state.active),
  "[": () => moveToken(state.active, -1),
  "]": () => moveToken(state.active, 1),
  Escape: () => (state.token ? letGo() : change({ wide: false })),
  f: () => change({ wide: !state.wide }),
  t: () => chooseText(after(about.probes.map((probe) => probe.name), state.probe)),
  c: () => change({ scale: after(Object.keys(SCALES), state.scale) }),
  m: () => change({ rowMax: !state.rowMax }),
  h: () => change({ hideSink: !state.hideSink }),
  g: () => change({ groups: !state.groups }),
  v: () => chooseCompare(after(comparisons(), state.compare)),
  d: () => byId("theme") && chooseTheme(),
  s: () => savePicture(),
  "?": () => byId("help").showModal(),
};

const byId = (id) => document.getElementById(id);

function onKey(event) {
  const { target } = event;
  if (event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
  if (target.tagName === "SELECT") return; // there keys choose
  if (event.key === " " && ["BUTTON", "INPUT"].includes(target.tagName) && target.type !== "range") return; // they press
  if (state.tab === "experts") {
    onExpertsKey(event);
    return;
  }
  const inTokens = target.classList?.contains("tokens") && { ArrowUp: -1, ArrowDown: 1 }[event.key];
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  const act = inTokens && !event.shiftKey ? () => moveToken(state.active, inTokens)
    : event.shiftKey && SHIFTED[key] ? SHIFTED[key] : PLAIN[key];
  if (!act) return;
  event.preventDefault();
  act();
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  byId("theme").textContent = theme === "dark" ? "Light" : "Dark";
  render();
}

let themeIsChosen = false;

function chooseTheme() {
  themeIsChosen = true;
  setTheme(isDark() ? "light" : "dark");
}

function followSystemTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const follow = () => themeIsChosen || setTheme(dark.matches ? "dark" : "light");
  follow();
  dark.addEventListener("change", follow);
}

function buildBar(signal) {
  about.probes.forEach((probe) => byId("probe").add(new Option(probe.title, probe.name)));
  if (runs.length < 2) byId("compare").remove(2);
  KEYS.forEach(([keys, words]) => byId("keys").append(element("dt", "", keys), element("dd", "", words)));
  byId("probe").addEventListener("change", (event) => chooseText(event.target.value));
  byId("compare").addEventListener("change", (event) => chooseCompare(event.target.value));
  byId("scale").addEventListener("change", (event) => change({ scale: event.target.value }));
  const boxes = { "row-max": "rowMax", "hide-sink": "hideSink", groups: "groups", linked: "linked" };
  Object.entries(boxes).forEach(([id, field]) => {
    byId(id).addEventListener("change", (event) => {
      change({ [field]: event.target.checked });
      if (field === "linked" && event.target.checked) chooseStep(state.active, state.views[state.active].at);
    });
  });
  byId("wide").addEventListener("click", PLAIN.f);
  byId("png")?.addEventListener("click", PLAIN.s);
  byId("theme")?.addEventListener("click", chooseTheme);
  byId("help-button").addEventListener("click", PLAIN["?"]);
  byId("bar").addEventListener("submit", (event) => event.preventDefault());
  document.addEventListener("keydown", onKey, { signal });
}

// The switches of colours are out of the way where there is little room.
function showColours() {
  byId("colours").open = innerWidth > NARROW;
}

function drawBar() {
  byId("probe").value = state.probe;
  byId("compare").value = state.compare;
  byId("linked-label").hidden = state.compare !== "runs" || runs.every((run) => run.shown.length < 2);
  byId("linked").checked = state.linked;
  byId("scale").value = state.scale;
  byId("row-max").checked = state.rowMax;
  byId("hide-sink").checked = state.hideSink;
  byId("groups").checked = state.groups;
  byId("groups").disabled = !state.views.slice(0, viewCount()).some((view) => runOf(view).grouped);
  byId("wide").setAttribute("aria-pressed", state.wide);
}
