// A view: one run at one step. There are two of them side by side, or one.

const panes = [];
const visiblePanes = () => panes.slice(0, viewCount());

class Pane {
  constructor(number) {
    this.number = number;
    this.root = document.getElementById("pane").content.firstElementChild.cloneNode(true);
    this.root.setAttribute("aria-label", number ? "Second view" : "First view");
    this.tokens = [];
    this.gridOf = null; // the run that the grid was built for
    this.textShown = undefined;
    runs.forEach((run, i) => this.find(".run-choice").add(new Option(run.name, i)));
    this.find(".run").hidden = runs.length < 2;
    this.listen();
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

  listen() {
    this.find(".run-choice").addEventListener("change", (event) => chooseRun(this.number, Number(event.target.value)));
    this.find(".step").addEventListener("input", (event) => {
      stopPlaying();
      chooseStep(this.number, Number(event.target.value));
    });
    this.find(".play").addEventListener("click", () => togglePlay(this.number));
    this.root.addEventListener("pointerdown", () => this.activate());
    this.root.addEventListener("focusin", () => this.activate());
    listenTokens(this);
    listenCurve(this);
  }

  activate() {
    state.active = this.number;
    panes.forEach((pane) => pane.root.classList.toggle("active", pane === this && viewCount() > 1));
  }

  draw() {
    const { run } = this;
    if (this.gridOf !== run) {
      buildGrid(this, run);
      buildScoreMap(this, run);
      this.gridOf = run;
    }
    this.root.classList.toggle("active", state.active === this.number && viewCount() > 1);
    this.drawSteps();
    drawGrid(this);
    drawMap(this);
    drawTokens(this);
    drawCross(this);
    drawScoreTable(this);
    drawScoreMap(this);
    drawCurve(this);
  }

  drawSteps() {
    const { run, view } = this;
    const now = stepOf(view);
    this.find(".run-choice").value = view.run;
    const slider = this.find(".step");
    slider.max = run.shown.length - 1;
    slider.value = view.at;
    const words = [now.step >= 0 ? `step ${now.step}` : "of no step", now.tokens && `${quantity(now.tokens)} tokens`, now.seconds && duration(now.seconds)];
    this.find(".when").textContent = words.filter(Boolean).join(" · ");
    slider.setAttribute("aria-valuetext", `step ${now.step}`);
    const playing = state.playing === this.number;
    const play = this.find(".play");
    play.textContent = playing ? "❚❚" : "▶";
    play.setAttribute("aria-label", playing ? "Pause" : "Play");
    play.disabled = run.shown.length < 2;
    const scalars = Object.entries(now.scalars).filter(([, value]) => value !== null);
    this.find(".scalars").textContent = scalars
      .map(([name, value]) => `${name.replaceAll("_", " ")} ${number(value)}`).join(" · ");
  }

  drawPointed() {
    drawCross(this);
    drawAttention(this);
  }
}

function duration(seconds) {
  return seconds < 100 ? `${seconds.toFixed(0)} s` : `${(seconds / 60).toFixed(seconds < 6000 ? 1 : 0)} min`;
}
