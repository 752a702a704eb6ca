// The bar and the keys of the view of heads.

const NARROW = 860; // as in page.css: no room for two views,
const STACKED = 640; // nor for a map beside the heads

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

function moveHead(layers, heads) {
  const view = state.views[state.active];
  const run = runOf(view);
  const layer = clamp(view.layer + layers, 0, run.layers.length - 1);
  const head = clamp(view.head + heads, 0, run.heads.length - 1);
  const focused = document.activeElement?.className;
  chooseHead(state.active, layer, head);
  const pane = panes[state.active];
  if (focused === "thumbnail") pane.thumbnails[layer][head].focus();
  if (focused === "cell") pane.cells[layer][head].focus();
}

const comparisons = () => (runs.length > 1 ? ["none", "steps", "runs"] : ["none", "steps"]);

const ANYWHERE = { // also among the experts
  ArrowLeft: () => move(-1),
  ArrowRight: () => move(1),
  Home: () => move(-Infinity),
  End: () => move(Infinity),
  " ": () => togglePlay(state.active),
  v: () => chooseCompare(after(comparisons(), state.compare)),
  "Shift ArrowLeft": () => moveHead(0, -1),
  "Shift ArrowRight": () => moveHead(0, 1),
  "Shift ArrowUp": () => moveHead(-1, 0),
  "Shift ArrowDown": () => moveHead(1, 0),
};

const AMONG_HEADS = {
  "[": () => moveToken(state.active, -1),
  "]": () => moveToken(state.active, 1),
  Escape: () => (state.token ? letGo() : change({ wide: false })),
  f: () => change({ wide: !state.wide }),
  t: () => chooseText(after(about.probes.map((probe) => probe.name), state.probe)),
  c: () => change({ scale: after(Object.keys(SCALES), state.scale) }),
  m: () => change({ rowMax: !state.rowMax }),
  h: () => change({ hideSink: !state.hideSink }),
  g: () => change({ groups: !state.groups }),
  s: () => savePicture(),
};

function onKey(event) {
  const { target } = event;
  if (event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
  if (["SELECT", "TEXTAREA"].includes(target.tagName) || target.type === "text") return; // there keys choose, or write
  if (event.key === " " && ["BUTTON", "INPUT", "SUMMARY"].includes(target.tagName) && target.type !== "range") return; // they press
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  const inTokens = target.classList?.contains("tokens") && !event.shiftKey && { ArrowUp: -1, ArrowDown: 1 }[key];
  const act = inTokens ? () => moveToken(state.active, inTokens)
    : ANYWHERE[event.shiftKey ? `Shift ${key}` : key] ?? (state.tab === "heads" ? AMONG_HEADS[key] : undefined);
  if (!act) return;
  event.preventDefault();
  act();
}

function buildBar(signal) {
  about.probes.forEach((probe) => byId("probe").add(new Option(probe.title, probe.name)));
  if (runs.length < 2) byId("compare").remove(2);
  const onChange = (id, act) => byId(id).addEventListener("change", ({ target }) => act(target));
  onChange("probe", ({ value }) => chooseText(value));
  onChange("compare", ({ value }) => chooseCompare(value));
  onChange("scale", ({ value }) => change({ scale: value }));
  onChange("row-max", ({ checked }) => change({ rowMax: checked }));
  onChange("hide-sink", ({ checked }) => change({ hideSink: checked }));
  onChange("groups", ({ checked }) => change({ groups: checked }));
  onChange("linked", ({ checked }) => {
    change({ linked: checked });
    if (checked) chooseStep(state.active, state.views[state.active].at);
  });
  byId("probe").form.addEventListener("submit", (event) => event.preventDefault());
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
