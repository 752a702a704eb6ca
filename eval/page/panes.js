// A view: one run at one step, with all of its heads. There are two of them side by side, or one.

const STACKED = 640; // as in page.css: no room for a map beside the heads
let panes = [];
const visiblePanes = () => panes.slice(0, viewCount());

class Pane {
  constructor(number) {
    this.number = number;
    this.root = byId("pane").content.firstElementChild.cloneNode(true);
    this.root.setAttribute("aria-label", number ? t("Second view") : t("First view"));
    this.tokens = [];
    runs.forEach((run, i) => this.find(".run-choice").add(new Option(run.name, i)));
    this.find(".run").hidden = runs.length < 2;
    this.find(".run-choice").addEventListener("change", (event) => chooseRun(number, Number(event.target.value)));
    ["pointerdown", "focusin"].forEach((name) => this.root.addEventListener(name, () => this.activate()));
    this.find(".step").addEventListener("input", ({ target }) => goTo(number, Number(target.value)));
    this.find(".play").addEventListener("click", () => togglePlay(number));
    listenTokens(this);
    this.find(".own-off").addEventListener("click", () => toggleHead(this.view));
    this.find(".own-all").addEventListener("click", () => change({ off: [] }));
    this.find(".next-layers").addEventListener("toggle", () => drawNext(this));
  }

  find(selector) {
    return this.root.querySelector(selector);
  }

  get view() {
    return state.views[this.number];
  }

  get run() {
    return runOf(this.view);
  }

  activate() {
    state.active = this.number;
    panes.forEach((pane) => pane.root.classList.toggle("active", pane === this && viewCount() > 1));
  }

  draw() {
    this.find(".run-choice").value = this.view.run;
    drawSteps(this);
    drawMarks(this);
    drawCaption(this);
    drawHeads(this);
    drawOwn(this);
    drawMap(this);
    drawTokens(this);
    drawCross(this);
    drawCell(this);
    drawScoreTable(this);
    drawScoreCurve(this);
  }
}

function drawPanes() {
  const box = byId("panes");
  box.classList.toggle("two", viewCount() === 2);
  box.classList.toggle("many", visiblePanes().some((pane) => pane.run.heads.length > 6)); // too many for beside the map
  panes[1].root.hidden = viewCount() === 1;
  visiblePanes().forEach((pane) => pane.draw());
  panes[state.active].activate();
}

const FRAME_MS = 450;
let timer = 0;

function goTo(number, at) {
  stopPlaying();
  chooseStep(number, clamp(at, 0, lastOf(state.views[number])));
}

const move = (by) => goTo(state.active, state.views[state.active].at + by);

function togglePlay(number) {
  const wasPlaying = state.playing === number;
  stopPlaying();
  if (wasPlaying) return render();
  const view = () => state.views[number];
  state.playing = number;
  timer = setInterval(() => {
    if (view().at + 1 >= lastOf(view())) stopPlaying();
    chooseStep(number, Math.min(view().at + 1, lastOf(view())));
  }, FRAME_MS);
  return chooseStep(number, view().at === lastOf(view()) ? 0 : view().at);
}

function stopPlaying() {
  clearInterval(timer);
  state.playing = null;
}

function drawSteps(pane) {
  const { run, view } = pane;
  const { step, tokens, seconds } = stepOf(view);
  const last = lastOf(view);
  const isPlaying = state.playing === pane.number;
  pane.find(".slider").hidden = pane.find(".play").hidden = last === 0;
  Object.assign(pane.find(".step"), { max: last, value: view.at, ariaValueText: t("step {0}", step) });
  const words = [step >= 0 ? t("step {0}", step) : t("of no step"), tokens && t("{0} tokens", number(tokens)), seconds && duration(seconds)];
  pane.find(".when").textContent = words.filter(Boolean).join(" · ");
  pane.find(".play").textContent = isPlaying ? t("❙❙ Pause") : t("▶ Play");
}

function fillCell(cell, back, words) {
  cell.style.backgroundColor = css(back);
  cell.style.color = inkOn(back);
  cell.textContent = words;
}

const GROUP_WORDS = {
  mha: t("MHA: every head has keys and values of its own"),
  gqa: t("GQA: heads of one colour share one key/value head"),
  mqa: t("MQA: all heads of a layer share one key/value head"),
  mla: t("MLA: every head makes its own keys and values, all from one small vector per token"),
};

function attentionKind(run) {
  if (run.attention === "mla") return "mla";
  if (!run.grouped) return "mha";
  return run.num_key_value_heads === 1 ? "mqa" : "gqa";
}

const groupColour = (run, head) => (run.grouped ? about.colours[run.group(head) % about.colours.length] : "transparent");

// Layers downwards, heads of a layer to the right.
function buildHeads(pane) {
  const { run } = pane;
  const box = pane.find(".heads");
  pane.gridOf = run;
  box.style.setProperty("--layers", run.layers.length);
  box.style.setProperty("--heads", run.heads.length);
  const columns = run.heads.map((head) => `H${head}`);
  pane.cells = buildGrid(box, run.layers.map((layer) => `L${layer}`), columns, "thumbnail", (layer, head) => {
    chooseHead(pane.number, layer, head);
    if (innerWidth <= STACKED && !isOwn()) pane.find(".map-side").scrollIntoView({ block: "start" }); // it is below, out of sight
  });
  pane.cells.flat().forEach((cell) => cell.append(element("canvas"), element("span", "badge")));
}

// A small map of every head, and its score.
function drawHeads(pane) {
  const { view, run } = pane;
  const info = scoreInfo();
  if (pane.gridOf !== run) buildHeads(pane);
  drawGridNote(pane, info);
  const maps = mapsOf(view);
  const length = maps?.text.labels.length;
  const hasScore = info && !isOwn() && maps && isMeasuredOn(info, state.probe);
  const wide = pane.cells[0][0].clientWidth; // 0 while the grid is hidden
  pane.cells.forEach((row, layer) => row.forEach((cell, head) => {
    const value = hasScore ? scoreOf(view, info, layer, head) : null;
    const score = hasScore ? `: ${translated(info.title)} ${withUnit(value, info)}` : "";
    markCell(cell, layer === view.layer && head === view.head, headTitle(pane, layer, head) + score);
    cell.style.borderColor = groupColour(run, run.heads[head]);
    cell.classList.toggle("off", isOff({ layer, head }));
    const badge = cell.querySelector(".badge");
    badge.hidden = !hasScore;
    if (hasScore) fillCell(badge, value === null ? absent() : magma(shareOf(value, info)), number(value, 2));
    if (maps && wide) {
      paintHead(cell.firstChild, new Head(run, maps, layer, head, state), Math.min(length, Math.round(wide * devicePixelRatio)));
    } else cell.firstChild.width = 0;
  }));
}

function headTitle(pane, layer, head) {
  const { run } = pane;
  const group = run.grouped ? t(", KV group {0}", run.group(run.heads[head])) : "";
  return `${headName(run, layer, head)}${group}${isOff({ layer, head }) ? t("; switched off") : ""}`;
}

function drawGridNote(pane, info) {
  const { run } = pane;
  const shared = run.attention === "mla" ? "" : t(", {0} key/value heads", run.num_key_value_heads);
  const words = isMeasuredOn(info, state.probe) ? t(" The number in a square is its score for {0}; choose another score below.", translated(info?.title))
    : t(" This text has no score for {0}; choose another score below.", translated(info?.title));
  pane.find(".push-note").textContent = "";
  const { layer, head } = pane.view;
  pane.find(".grid-note").textContent = t("L{0} H{1}: layer {0}, head {1}, counted from 0. ", run.layers[layer], run.heads[head])
    + t("{0} heads a layer{1}. {2}. ", run.num_attention_heads, shared, GROUP_WORDS[attentionKind(run)])
    + (info && !isOwn() ? words : "");
}
