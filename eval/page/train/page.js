// The page: settings, one panel for each model in training, curves, and the controls of time.

const KINDS = {
  MHA: (heads) => heads,
  GQA: (heads) => heads / 2,
  MQA: () => 1,
};
const SYMBOLS = ["·", ..."ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789?"];
const BORN = { induction: 0.4, gain: 2 }; // both are needed, gain in nats a token
const LOOKS_BACK = 0.3; // a previous-token head
const GROUP_COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#8c6bb1", "#777777"];
const ENGINE = URL.createObjectURL(new Blob([byId("engine").textContent]));
// A head that looks at all tokens alike has these scores.
const evenly = (from) => {
  const shares = Array.from({ length: PROBE_TOKENS - from }, (_, i) => 1 / (from + i + 1));
  return shares.reduce((sum, share) => sum + share) / shares.length;
};
const CHANCE = { induction: evenly(LENGTH + 1), previous: evenly(2), gain: 0, loss: log(VOCABULARY - 1) };

let panels = [];
let runs = 0;
// They are used again, because Firefox 140 is very slow in a worker that follows another.
const workers = [];
let isRunning = false;

const best = (scores) => scores.indexOf(Math.max(...scores));

// One model: a worker that trains it, what it has reported, and its pictures.
class Panel {
  constructor(name, settings, number) {
    Object.assign(this, { name, settings, number });
    this.heads = settings.heads;
    this.off = new Uint8Array(settings.layers * settings.heads);
    this.history = []; // step -> { loss, gain, induction, previous }
    this.moments = []; // { step, words, isBirth }
    workers[number] ??= new Worker(ENGINE);
    this.worker = workers[number];
    this.worker.onerror = (event) => say(t("The training stopped: {0}. Reload the page.", event.message));
    this.worker.onmessage = ({ data }) => {
      if (data.run === settings.run) this.receive(data); // others are late, of the model before
    };
    this.build();
    this.send("start", { settings });
  }

  send(act, more = {}) {
    this.worker.postMessage({ act, ...more });
  }

  headName(head) {
    return `L${Math.floor(head / this.heads)} H${head % this.heads}`;
  }

  // The squares of the heads, the symbols of the probe, sentences and scores.
  build() {
    const { layers, heads, groups } = this.settings;
    const count = (length) => Array.from({ length }, (_, i) => i);
    this.layerNames = count(layers).map((layer) => {
      const all = count(heads).map((head) => layer * heads + head);
      return button(`L${layer}`, () => this.toggle(all), { title: t("Switch layer {0} off or on", layer) });
    });
    const grid = element("div", "grid", "", { role: "group", "aria-label": t("Heads of {0}", this.name) });
    const names = count(heads).map((head) => `H${head}`);
    const toggle = (layer, head) => this.toggle([layer * heads + head]);
    this.squares = buildGrid(grid, this.layerNames, names, "thumbnail", toggle).flat();
    this.squares.forEach((square, head) => {
      square.style.borderColor = GROUP_COLOURS[Math.floor((head % heads) / (heads / groups))];
      square.append(element("canvas"), element("span", "badge"));
      ["pointerenter", "focus"].forEach((name) => square.addEventListener(name, () => this.choose(head)));
    });
    this.cells = count(PROBE_TOKENS + 1).map((i) => element("span", "symbol", SYMBOLS[0], { "data-place": i }));
    const line = (title, from) =>
      element("div", "copy", "", {}, [element("span", "soft", title), ...this.cells.slice(from, from + LENGTH)]);
    const label = t("The symbols: left and right arrow to see where a head looks from each");
    this.symbols = element("div", "symbols", "", { tabindex: 0, role: "group", "aria-label": label }, [
      line(t("first time"), 1),
      line(t("again"), 1 + LENGTH),
    ]);
    listenPlaces(this.symbols, (place) => this.ask(place), (place) => this.ask(place));
    this.symbols.addEventListener("keydown", ({ key }) => {
      const move = { ArrowLeft: -1, ArrowRight: 1 }[key];
      if (move) this.ask(clamp((this.query ?? 0) + move, 1, PROBE_TOKENS - 1));
    });
    this.readout = element("p", "soft readout");
    const hint = t("Click a head to switch it off, or the name of a layer. How many can the model lose?");
    this.story = element("p", "story");
    this.scores = element("dl", "figures");
    const sharing = element("span", "soft", t("{0} heads, {1} key/value heads", heads, groups));
    const title = element("h2", "", "", {}, [element("span", "swatch"), `${this.name} `, sharing]);
    const parts = [title, grid, element("p", "soft hint", hint), this.symbols, this.readout, this.story, this.scores];
    this.root = element("section", `panel run-${this.number}`, "", {}, parts);
  }

  // Switches heads off, or on if all of them are off.
  toggle(heads) {
    const value = heads.every((head) => this.off[head]) ? 0 : 1;
    heads.forEach((head) => { this.off[head] = value; });
    this.changeSwitches();
  }

  changeSwitches() {
    const [scaled, masked] = ["scaled", "masked"].map((id) => byId(id).checked);
    this.send("change", { switches: { off: this.off, scaled, masked } });
  }

  choose(head) {
    this.chosen = head;
    this.drawLooks();
  }

  // Which token's attention is shown among the symbols.
  ask(token) {
    this.query = token;
    this.drawLooks();
  }

  receive(report) {
    const { step, loss, gain, induction, previous } = report;
    this.report = report;
    if (loss !== null || !this.history[step]) {
      this.history[step] = { loss, gain, induction: Math.max(...induction), previous: Math.max(...previous) };
    }
    if (loss !== null) this.noteMoments(report);
    drawSoon();
  }

  // A moment that a changed past no longer has is forgotten.
  noteMoments({ step, gain, induction, previous }) {
    this.moments = this.moments.filter((moment) => moment.step < step);
    const looksBack = best(previous);
    const copies = best(induction);
    if (previous[looksBack] > LOOKS_BACK) {
      const name = this.headName(looksBack);
      this.note(false, step, t("step {0}: {1} learned to look at the token before", step, name));
    }
    if (induction[copies] > BORN.induction && gain > BORN.gain) {
      const name = this.headName(copies);
      this.note(true, step, t("step {0}: {1} learned to look at what followed the same token before", step, name));
    }
  }

  note(isBirth, step, words) {
    if (this.moments.some((moment) => moment.isBirth === isBirth)) return;
    this.moments.push({ step, isBirth, words });
    announce(`${this.name}: ${words}`);
  }

  draw() {
    if (!this.report) return;
    const { step, ids, induction, previous, gain, surprise } = this.report;
    this.squares.forEach((square, head) => {
      const isOff = this.off[head] === 1;
      paintHead(square.firstChild, { length: PROBE_TOKENS, codes: this.picture(head) }, PROBE_TOKENS);
      square.classList.toggle("off", isOff);
      square.classList.toggle("born", induction[head] > BORN.induction);
      square.ariaPressed = String(!isOff);
      square.ariaLabel = this.headName(head);
      const [back, follows] = [previous, induction].map((scores) => number(scores[head], 2));
      square.title = t("token before: {0}, what followed the same token: {1}", back, follows);
      const score = Math.max(induction[head], previous[head]);
      square.lastChild.textContent = isOff ? t("off") : score > LOOKS_BACK ? number(score, 2) : "";
    });
    this.layerNames.forEach((name, layer) => {
      const all = this.off.subarray(layer * this.heads, (layer + 1) * this.heads);
      name.ariaPressed = String(!all.every((off) => off));
    });
    let right = 0;
    surprise.forEach((loss, i) => {
      const chance = Math.exp(-loss);
      const cell = this.cells[i + 1];
      cell.textContent = this.settings.names[ids[i + 1]] ?? "";
      cell.style.setProperty("--right", `${(100 * chance).toFixed(1)}%`);
      if (i >= LENGTH + 1) right += chance / (LENGTH - 1);
    });
    this.drawLooks();
    const moments = this.moments.filter((moment) => moment.step <= step);
    this.story.replaceChildren(...moments.map(({ words, isBirth }) => element("span", isBirth ? "birth" : "", words)));
    if (!moments.length) this.story.append(t("No head knows where to look."));
    const row = (words, value, chance) => [
      element("dt", "", words),
      element("dd", "", value),
      element("dd", "soft", t("chance {0}", chance)),
    ];
    this.scores.replaceChildren(
      ...row(t("second copy guessed right"), percent(right), percent(1 / (VOCABULARY - 1))),
      ...row(t("best previous-token head"), number(Math.max(...previous), 2), number(CHANCE.previous, 2)),
      ...row(t("best induction head"), number(Math.max(...induction), 2), number(CHANCE.induction, 2)),
      ...row(t("copy gain"), t("{0} nats", nats(gain)), "0"),
    );
  }

  // The codes of one head's picture.
  picture(head) {
    return this.report.pictures.subarray(head * PROBE_TOKENS ** 2, (head + 1) * PROBE_TOKENS ** 2);
  }

  // Rings around the symbols that the chosen head looks at.
  drawLooks() {
    if (!this.report) return;
    const { induction, previous } = this.report;
    const head = this.chosen ?? (Math.max(...induction) > BORN.induction ? best(induction) : best(previous));
    const query = this.query ?? null;
    const codes = this.picture(head);
    const weights = this.cells.map((_, key) => {
      const isSeen = query !== null && query < PROBE_TOKENS && key <= query;
      return isSeen ? (codes[query * PROBE_TOKENS + key] / LEVELS) ** 2 : 0;
    });
    this.cells.forEach((cell, i) => {
      cell.style.setProperty("--look", weights[i].toFixed(2));
      cell.classList.toggle("query", i === query);
    });
    const most = best(weights);
    this.readout.textContent = weights[most]
      ? t("{0} at {1}: most attention, {2}, to {3}", this.headName(head), this.cells[query].textContent,
        percent(weights[most]), this.cells[most].textContent)
      : t("Blue: the model expects this symbol. Point at one to see where a head looks from there.");
  }
}

let isAsked = false;

// Draws once before the browser's next picture, however many reports come.
function drawSoon() {
  if (isAsked) return;
  isAsked = true;
  requestAnimationFrame(() => {
    isAsked = false;
    draw();
  });
}

function draw() {
  panels.forEach((panel) => panel.draw());
  const steps = panels.map((panel) => panel.report?.step ?? 0);
  const last = Math.max(1, ...panels.map((panel) => panel.history.length - 1));
  byId("when").max = last;
  byId("when").value = Math.max(...steps);
  byId("now").textContent = t("step {0}", steps.join(" · "));
  byId("play").textContent = isRunning ? t("❙❙ Pause") : t("▶ Train");
  drawCurves("loss", [0, 5], last);
  drawCurves("induction", [0, 1], last);
  drawCurves("gain", [-0.5, 5], last);
  document.documentElement.toggleAttribute("data-ready", panels.every((panel) => panel.report));
}

// One curve for each model. What is after the present step is faint: it is a future that may change.
function drawCurves(field, [low, high], last) {
  const lines = panels.flatMap(({ report, history, number }) => {
    const now = report?.step ?? 0;
    const points = history.map((figures, step) => [step, figures[field]]).filter(([, value]) => Number.isFinite(value));
    const curve = (isIn, kind) => ({
      points: points.filter(([step]) => isIn(step)).map(([step, value]) => [step, clamp(value, low, high)]),
      kind: `run-${number} ${kind}`,
    });
    return [curve((step) => step >= now, "faint"), curve((step) => step <= now, "")];
  });
  // in the other charts the words would cross the curves
  const nameOf = (step) => (field === "induction" ? t("step {0}", step) : "");
  const marks = panels.flatMap(({ moments, number }) => {
    const births = moments.filter(({ isBirth }) => isBirth);
    return births.map(({ step }) => [step, nameOf(step), `run-${number}`]);
  });
  const x = { range: [0, Math.max(300, last)] };
  const y = { range: [low, high] };
  drawChart(byId(field), lines, { title: "", x, y, level: [CHANCE[field], t("chance")], marks, high: 140 });
}

// New models with random weights, from what the form says.
function startOver() {
  const form = byId("settings");
  const { kinds, source, text, ...sizes } = Object.fromEntries(new FormData(form));
  const [heads, layers, seed] = [sizes.heads, sizes.layers, sizes.seed].map(Number);
  form.elements.text.hidden = source !== "own";
  const own = characters(text);
  const isOwn = source === "own" && own.ids.length >= 100;
  say(source === "own" && !isOwn ? t("Write at least 100 characters.") : "");
  const words = isOwn ? { names: own.names, text: own.ids } : { names: SYMBOLS, text: [] };
  setRunning(false);
  runs += 1;
  panels = kinds.split(" ").map((name, i) => (
    new Panel(name, { heads, layers, seed, ...words, groups: KINDS[name](heads), run: runs }, i)));
  byId("panels").replaceChildren(...panels.map((panel) => panel.root));
  byId("stage").classList.toggle("three", panels.length > 1);
  panels.forEach((panel) => panel.changeSwitches());
  drawSoon();
}

function setRunning(yes) {
  isRunning = yes;
  panels.forEach((panel) => panel.send(yes ? "run" : "pause"));
  drawSoon();
}

function showTraining(root, { signal }) {
  byId("heading").textContent = t("A head is born");
  root.append(byId("train-view").content.cloneNode(true));
  byId("settings").addEventListener("change", startOver);
  byId("settings").addEventListener("submit", (event) => event.preventDefault());
  byId("play").addEventListener("click", () => setRunning(!isRunning));
  byId("one").addEventListener("click", () => {
    setRunning(false);
    panels.forEach((panel) => panel.send("step"));
  });
  byId("again").addEventListener("click", startOver);
  byId("when").addEventListener("input", () => {
    isRunning = false;
    panels.forEach((panel) => panel.send("goTo", { step: Number(byId("when").value) }));
  });
  for (const id of ["scaled", "masked"]) {
    byId(id).addEventListener("change", () => panels.forEach((panel) => panel.changeSwitches()));
  }
  document.addEventListener("theme", drawSoon, { signal });
  window.addEventListener("resize", drawSoon, { signal });
  startOver();
}

KEYS.unshift([t("Space"), t("train, pause"), { " ": () => setRunning(!isRunning) }, () => true]);
VIEWS.train = { show: showTraining };
