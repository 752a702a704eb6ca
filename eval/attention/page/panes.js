// A view: one run at one step. There are two of them side by side, or one.

let panes = [];
const visiblePanes = () => panes.slice(0, viewCount());

class Pane {
  constructor(number) {
    this.number = number;
    this.root = byId("pane").content.firstElementChild.cloneNode(true);
    this.root.setAttribute("aria-label", number ? "Second view" : "First view");
    this.tokens = [];
    this.gridOf = null; // the run that the grids were built for
    this.textShown = undefined;
    runs.forEach((run, i) => this.find(".run-choice").add(new Option(run.name, i)));
    this.find(".run").hidden = runs.length < 2;
    this.find(".run-choice").addEventListener("change", (event) => chooseRun(number, Number(event.target.value)));
    this.find(".formed").addEventListener("click", () => goToFormed(number));
    this.find(".all-numbers").addEventListener("toggle", (event) => { // both views or none
      panes.forEach((pane) => { pane.find(".all-numbers").open = event.target.open; });
    });
    ["pointerdown", "focusin"].forEach((name) => this.root.addEventListener(name, () => this.activate()));
    this.find(".step").addEventListener("input", ({ target }) => goTo(number, Number(target.value)));
    this.find(".play").addEventListener("click", () => togglePlay(number));
    listenTokens(this);
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

  // What stands above the map, whose room depends on it.
  drawHeads() {
    const { run, view } = this;
    if (this.gridOf !== run) {
      if (!run.mixture) buildThumbnails(this, run);
      buildScoreMap(this, run);
      this.gridOf = run;
    }
    this.root.classList.toggle("active", state.active === this.number && viewCount() > 1);
    this.find(".run-choice").value = view.run;
    drawSteps(this);
    this.drawFormed();
    drawCaption(this);
    if (!run.mixture) drawThumbnails(this);
  }

  drawMap() {
    if (this.run.mixture) drawWords(this);
    else {
      drawMap(this);
      drawTokens(this);
      drawCross(this);
    }
    drawScoreTable(this);
    drawScoreMap(this);
    drawScoreCurve(this);
    const scalars = Object.entries(stepOf(this.view).scalars).filter(([, value]) => value !== null);
    this.find(".all-numbers").hidden = !scalars.length;
    this.find(".scalars").replaceChildren(...scalars.map(([name, value]) => element("div", "", "", {}, [
      element("dt", "", name.replaceAll("_", " ")), " ", element("dd", "", number(value)),
    ])));
  }

  // The moment when the induction head formed: a mark below the slider, and a button that goes there.
  drawFormed() {
    const { run } = this;
    const at = run.formed ? run.nearest(run.formed.step) : -1;
    const mark = this.find(".formed-mark");
    mark.hidden = this.find(".formed").hidden = at < 0 || run.shown.length < 2;
    if (mark.hidden) return;
    mark.style.left = `calc(8px + (100% - 16px) * ${at / (run.shown.length - 1)})`; // the thumb is 16 pixels wide
    this.find(".formed").textContent = `L${run.formed.layer} H${run.formed.head} forms at step ${run.formed.step}`;
  }
}

// Side by side, what belongs together stands at the same height, also where one run has more layers.
function align(...parts) {
  parts.forEach((part) => {
    const boxes = panes.map((pane) => pane.find(`.${part}`));
    boxes.forEach((box) => { box.style.minHeight = ""; });
    if (viewCount() === 1 || innerWidth <= NARROW) return;
    const high = Math.ceil(Math.max(...boxes.map((box) => box.getBoundingClientRect().height)));
    boxes.forEach((box) => { box.style.minHeight = `${high}px`; });
  });
}

function drawPanes() {
  const box = byId("panes");
  box.classList.toggle("two", viewCount() === 2);
  box.classList.toggle("many", visiblePanes().some((pane) => pane.run.heads.length > 6)); // too many for beside the map
  box.classList.toggle("wide", state.wide);
  panes[1].root.hidden = viewCount() === 1;
  visiblePanes().forEach((pane) => pane.drawHeads());
  align("steps", "caption", "grid-side");
  visiblePanes().forEach((pane) => pane.drawMap());
  align("map-side", "text-side", "score-all-side");
}

// ------------------------------------------------------------------ steps

const FRAME_MS = 450;
let timer = 0;

const lastOf = (number) => runOf(state.views[number]).shown.length - 1;

function goTo(number, at) {
  stopPlaying();
  chooseStep(number, clamp(at, 0, lastOf(number)));
}

const move = (by) => goTo(state.active, state.views[state.active].at + by);

function togglePlay(number) {
  const wasPlaying = state.playing === number;
  stopPlaying();
  if (wasPlaying) {
    render();
    return;
  }
  state.playing = number;
  chooseStep(number, state.views[number].at === lastOf(number) ? 0 : state.views[number].at);
  timer = setInterval(() => {
    const { at } = state.views[number];
    const last = lastOf(number);
    if (at + 1 >= last) stopPlaying();
    chooseStep(number, Math.min(at + 1, last));
  }, FRAME_MS);
}

function stopPlaying() {
  clearInterval(timer);
  state.playing = null;
}

function drawSteps(pane) {
  const { run, view, number: who } = pane;
  const { step, tokens, seconds } = stepOf(view);
  const slider = pane.find(".step");
  slider.max = lastOf(who);
  slider.value = view.at;
  slider.setAttribute("aria-valuetext", `step ${step}`);
  const words = [step >= 0 ? `step ${step}` : "of no step", tokens && `${quantity(tokens)} tokens`, seconds && duration(seconds)];
  pane.find(".when").textContent = words.filter(Boolean).join(" · ");
  const play = pane.find(".play");
  play.textContent = state.playing === who ? "❙❙ Pause" : "▶ Play";
  play.setAttribute("aria-label", state.playing === who ? "Pause" : "Play");
  play.disabled = play.hidden = pane.find(".slider").hidden = run.shown.length < 2;
}
