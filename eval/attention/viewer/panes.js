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
    this.find(".formed").addEventListener("click", () => goToFormed(this.number));
    this.find(".play").addEventListener("click", () => togglePlay(this.number));
    this.find(".all-numbers").addEventListener("toggle", (event) => { // both views or none
      panes.forEach((pane) => { pane.find(".all-numbers").open = event.target.open; });
    });
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
    drawCaption(this);
    drawGrid(this);
    drawMap(this);
    drawTokens(this);
    drawCross(this);
    drawScoreTable(this);
    drawScoreMap(this);
    drawCurve(this);
    this.drawScalars();
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
    play.textContent = playing ? "❙❙ Pause" : "▶ Play";
    play.setAttribute("aria-label", playing ? "Pause" : "Play");
    play.disabled = run.shown.length < 2;
    play.hidden = this.find(".slider").hidden = play.disabled;
    this.drawFormed();
  }

  // The moment when the induction head formed: a mark below the slider, and a button that goes there.
  drawFormed() {
    const { run } = this;
    const at = run.formed ? run.nearest(run.formed.step) : -1;
    const mark = this.find(".formed-mark");
    mark.hidden = this.find(".formed").hidden = at < 0 || run.shown.length < 2;
    if (mark.hidden) return;
    const share = at / (run.shown.length - 1);
    mark.style.left = `calc(8px + (100% - 16px) * ${share})`; // the thumb is 16 pixels wide
    this.find(".formed").textContent = `L${run.formed.layer} H${run.formed.head} forms at step ${run.formed.step}`;
  }

  drawScalars() {
    const scalars = Object.entries(stepOf(this.view).scalars).filter(([, value]) => value !== null);
    this.find(".all-numbers").hidden = !scalars.length;
    this.find(".scalars").replaceChildren(...scalars.map(([name, value]) => {
      const pair = element("div", "");
      pair.append(element("dt", "", name.replaceAll("_", " ")), " ", element("dd", "", number(value)));
      return pair;
    }));
  }

  drawPointed() {
    drawCross(this);
    drawAttention(this);
  }
}

function duration(seconds) {
  return seconds < 100 ? `${seconds.toFixed(0)} s` : `${(seconds / 60).toFixed(seconds < 6000 ? 1 : 0)} min`;
}
