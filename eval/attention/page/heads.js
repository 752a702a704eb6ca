// The view of heads and experts: of a file (file.js), or of a run that a server watches (server.js).

let render = () => {};
let keeping = 0;

// Show these runs: their heads, or in the other tab their experts. frameOf: as Run has it. signal: aborted when something
// else is shown.
function startHeads(box, to, told, frameOf, signal) {
  let tab = null; // what ends the tab that is shown
  const open = (name) => {
    tab?.abort();
    tab = new AbortController();
    state.tab = name;
    openTab(box, to, told, frameOf, AbortSignal.any([tab.signal, signal]));
    byId("tabs").hidden = !toldOfExperts(told);
    Object.keys(TABS).forEach((other) => {
      byId(`tab-${other}`).setAttribute("aria-selected", other === name);
      byId(`tab-${other}`).addEventListener("click", () => {
        to.set({ tab: other === "experts" ? other : "", at: "", score: "", text: "", side: "" });
        open(other);
      });
    });
  };
  open(to.get("tab") === "experts" && toldOfExperts(told) ? "experts" : "heads");
}

const toldInTab = (told) => (state.tab === "experts" ? toldOfExperts(told) : told);

function openTab(box, to, told, frameOf, signal) {
  [address, about] = [to, toldInTab(told)];
  runs = about.runs.map((run) => new Run(run, frameOf));
  box.replaceChildren(byId("heads-view").content.cloneNode(true));
  document.body.dataset.tab = state.tab; // page.css hides what belongs to the other
  const names = runs.map((run) => run.name).join(" and ");
  byId("heading").textContent = state.tab === "experts" ? `Which experts the tokens go to in ${names}`
    : `What the attention heads of ${names} look at`;
  byId("notes").textContent = about.notes.join(" ");
  byId("notes").hidden = !about.notes.length;
  byId("keep").replaceChildren(headMenu(), copyLink(), button("Enlarge", () => change({ wide: !state.wide }), {
    id: "wide", title: "Give the large map the whole width (F)",
  }));
  startState();
  buildBar();
  panes = [new Pane(0), new Pane(1)];
  byId("panes").replaceChildren(...panes.map((pane) => pane.root));
  render = () => {
    drawBar();
    drawPanes();
    clearTimeout(keeping);
    keeping = setTimeout(keepState, 300);
  };
  render();
  document.addEventListener("theme", render, { signal });
  let wide = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === wide) return; // a phone's address bar comes and goes
    wide = innerWidth;
    render();
  }, { signal });
  signal.addEventListener("abort", () => {
    stopPlaying();
    clearTimeout(keeping);
    [render, panes] = [() => {}, []];
  });
  window.headlight = { state, runs, about, panes, Head }; // for the console, and for tests
  isReady(true);
}

// A new look: whoever stands at the last one goes along.
function growHeads(told) {
  const [run] = runs;
  const before = state.views.map((view) => (view.at === lastOf(view) ? Infinity : stepOf(view).step));
  const wasFormed = run.formed;
  about = toldInTab(told);
  run.update(about.runs[0]);
  const last = run.shown.length - 1;
  change({ views: state.views.map((view, i) => ({ ...view, at: before[i] === Infinity ? last : run.nearest(before[i]) })) });
  const { formed } = run;
  const words = formed && !wasFormed ? ` Layer ${formed.layer}, head ${formed.head} became an induction head.` : "";
  announce(`A new look at the heads, step ${run.steps[run.shown[last]].step}.${words}`);
}

// How far a run is, what its heads came to do, and what changed at which step.
class Progress {
  constructor() {
    this.line = element("p", "line state");
    this.bar = element("progress", "", "", { "aria-label": "training steps", hidden: true });
    this.note = element("p", "quiet", "", { hidden: true });
    this.seen = element("p", "said-of-heads");
    this.moments = element("details", "moments", "", {}, [element("summary"), element("ol")]);
    this.root = element("section", "progress", "", { "aria-label": "The run" }, [this.line, this.moments, this.bar, this.note, this.seen]);
  }

  // now: {state, step, total, loss, seconds}; nothing for a file that only shows what there was
  draw(now) {
    this.line.hidden = !now;
    this.bar.hidden = !now?.total || now.state === "finished";
    if (!now) return;
    const isDone = now.total && now.step >= now.total; // evaluated and drawn last; that can take minutes
    const words = { training: isDone ? "Trained: evaluating once more, then drawing" : "Training: new looks arrive by themselves",
      finished: "Finished", stopped: "Stopped before its end" }[now.state];
    const loss = now.state === "training" && Number.isFinite(now.loss) && `training loss ${figure(now.loss)}`;
    const step = `step ${now.step ?? 0}${now.total ? ` of ${now.total}` : ""}`;
    this.line.className = `line state ${now.state}`;
    this.line.textContent = [words, step, loss, now.seconds && duration(now.seconds)].filter(Boolean).join(" · ");
    Object.assign(this.bar, { max: now.total ?? 1, value: now.step ?? 0 });
  }

  // Why it stopped, or that it may have been killed, and the command that continues.
  say(words, command) {
    this.note.hidden = !words;
    this.note.replaceChildren(words, " This command continues from the newest checkpoint: ", element("code", "", command));
  }

  drawRun({ seen = "", moments = [] }) {
    this.seen.textContent = seen;
    this.moments.hidden = !moments.length;
    this.moments.firstChild.textContent = `What changed (${moments.length})`;
    this.moments.lastChild.replaceChildren(...moments.toReversed().map(({ step, what }) => {
      const go = button(`step ${step}`, () => goTo(state.active, runs[0].nearest(step)), { class: "link" });
      return element("li", "", "", {}, [go, ` ${what}`]);
    }));
  }
}

// ------------------------------------------------------------------ keep what is shown

const rounded = (weight) => Number(weight.toFixed(5));

// The grid and the large map of each view.
function savePicture() {
  const { run, view } = panes[0];
  const text = about.probes.find((probe) => probe.name === state.probe).title;
  const title = visiblePanes().map((pane) => `${pane.run.name}, step ${stepOf(pane.view).step}`).join(" · ");
  savePng(pictureOf(visiblePanes().map((pane) => pane.find(".maps")), `${title} · ${text}`), `${run.name} step ${stepOf(view).step}.png`);
}

function headMenu() {
  const ofMap = (save) => () => {
    const { map, run, view } = panes[state.active];
    const name = `${run.name} ${headName(run, view.layer, view.head)} step ${stepOf(view).step}`;
    if (map) save(panes[state.active], name);
  };
  return saveMenu("Save what is shown", {
    "Picture (PNG)": savePicture,
    "Map (SVG)": ofMap((pane, name) => saveSvg(pictureOf([pane.find(".map")], name), `${name}.svg`)),
    "Map (CSV)": ofMap(({ map }, name) => saveCsv(weightsOf(map.head), `${name}.csv`)),
    "Map and scores (JSON)": ofMap((pane, name) => saveJson(numbersOf(pane), `${name}.json`)),
  });
}

function weightsOf(head) {
  const { labels } = head.text;
  return [["row", "token that looks", "column", "token it looks at", "weight"], ...labels.flatMap((words, q) => (
    labels.slice(0, q + 1).map((other, k) => [q, words, k, other, rounded(head.weight(q, k))])))];
}

function numbersOf({ run, view, map: { head } }) {
  return {
    run: run.name, step: stepOf(view).step, layer: run.layers[view.layer], head: run.heads[view.head],
    text: state.probe, tokens: head.text.labels, scores: Object.fromEntries(about.scores.map((info) => [info.name, scoreOf(view, info)])),
    weights: head.text.labels.map((_, q) => Array.from({ length: q + 1 }, (__, k) => rounded(head.weight(q, k)))),
  };
}
