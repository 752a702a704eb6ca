// The view of heads: of a file (file.js), or of a run that a server watches (server.js).

let render = () => {};
let keeping = 0;

// Show the heads of these runs. frameOf: as Run has it. signal: aborted when something else is shown.
function startHeads(box, to, data, frameOf, signal) {
  [address, about] = [to, data];
  runs = about.runs.map((run) => new Run(run, frameOf));
  box.replaceChildren(byId("heads-view").content.cloneNode(true));
  const names = runs.map((run) => run.name).join(t(" and "));
  byId("heading").textContent = t("What the attention heads of {0} look at", names);
  byId("notes").textContent = about.notes.map(translated).join(" ");
  byId("notes").hidden = !about.notes.length;
  const computes = runs.some((run) => run.own);
  byId("of-own").hidden = byId("of-model").hidden = !computes;
  byId("keep").replaceChildren();
  if (computes) {
    byId("keep").prepend(button(t("Tour"), () => {
      chooseText(OWN);
      showTour();
    }));
  }
  byId("keep").prepend(button(t("Save picture"), savePicture));
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
    showTour(STOPS.length);
    stopPlaying();
    clearTimeout(keeping);
    [render, panes] = [() => {}, []];
  });
  window.headlight = { state, runs, about, panes, Head, cellOf, drawToken }; // for the console, and for tests
  isReady(true);
  const isSeen = !storage || storage.getItem("headlight-tour"); // where nothing can be stored it does not come by itself
  if (isSeen || !isOwn()) return;
  storage.setItem("headlight-tour", "yes");
  showTour();
}

// A new look. The address keeps what was chosen; whoever stands at the last look goes along, and who chose no head
// gets the strongest one of now.
function growHeads(data) {
  const [run] = runs;
  const { token, key, pinned, active } = state;
  const wasFormed = run.formed;
  keepState();
  about = data;
  run.update(about.runs[0]);
  startState();
  change({ token, key, pinned, active });
  const last = run.shown.length - 1;
  const { formed } = run;
  const words = formed && !wasFormed ? t(" Layer {0}, head {1} became an induction head.", formed.layer, formed.head) : "";
  announce(t("A new snapshot of the heads, step {0}.", run.steps[run.shown[last]].step) + words);
}

// How far a run is, above its heads, and the story below them: what its heads came to do, and what changed at which step.
class Progress {
  constructor() {
    this.line = element("p", "line state");
    this.bar = element("progress", "", "", { "aria-label": t("training steps"), hidden: true });
    this.note = element("p", "quiet", "", { hidden: true });
    this.seen = element("p", "findings");
    this.moments = element("details", "moments", "", {}, [element("summary"), element("ol")]);
    this.root = element("section", "progress", "", { "aria-label": t("The run") }, [this.line, this.bar, this.note]);
    this.story = element("section", "history", "", {}, [this.seen, this.moments]);
  }

  // now: {state, step, total, loss, seconds}; nothing for a file that only shows what there was
  draw(now) {
    this.line.hidden = !now;
    this.bar.hidden = !now?.total || now.state === "finished";
    if (!now) return;
    const isDone = now.total && now.step >= now.total; // evaluated and drawn last; that can take minutes
    const words = { finished: t("Finished"), stopped: t("Stopped early"),
      training: isDone ? t("Trained: evaluating once more, then drawing") : t("Training: new snapshots appear by themselves") }[now.state];
    const loss = now.state === "training" && Number.isFinite(now.loss) && t("training loss {0}", figure(now.loss));
    const step = now.total ? t("step {0} of {1}", now.step ?? 0, now.total) : t("step {0}", now.step ?? 0);
    this.line.className = `line state ${now.state}`;
    this.line.textContent = [words, step, loss, now.seconds && duration(now.seconds)].filter(Boolean).join(" · ");
    Object.assign(this.bar, { max: now.total ?? 1, value: now.step ?? 0 });
  }

  // Why it stopped, or that it may have been killed, and the command that continues.
  say(words, command) {
    this.note.hidden = !words;
    this.note.replaceChildren(words, t(" This command continues from the newest checkpoint: "), element("code", "", command));
  }

  drawRun({ seen = "", moments = [] }) {
    const sentences = seen.split(/(?<=\.) (?=[A-Z])/).map(translated);
    this.seen.textContent = seen && [t("Measured on random words:"), ...sentences].join(isChinese ? "" : " ");
    this.moments.hidden = !moments.length;
    this.moments.firstChild.textContent = t("What changed ({0})", moments.length);
    this.moments.lastChild.replaceChildren(...moments.toReversed().map(({ step, what }) => {
      const go = button(t("step {0}", step), () => goTo(state.active, runs[0].nearest(step)), { class: "link" });
      return element("li", "", "", {}, [go, ` ${translated(what)}`]);
    }));
  }
}

// The grid and the large map of each view.
function savePicture() {
  const { run, view } = panes[0];
  const text = about.probes.find((probe) => probe.name === state.probe).title;
  const title = visiblePanes().map((pane) => `${pane.run.name}, ${t("step {0}", stepOf(pane.view).step)}`).join(" · ");
  const boxes = visiblePanes().map((pane) => pane.find(".maps"));
  savePng(pictureOf(boxes, `${title} · ${translated(text)}`), `${run.name} step ${stepOf(view).step}.png`);
}
