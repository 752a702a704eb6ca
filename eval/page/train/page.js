// The page: settings, one panel for each model in training, curves, and the controls of time.

const SHARING = { MHA: 1, GQA: 2, MQA: Infinity }; // so many heads share keys and values
const SYMBOLS = ["·", ..."ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789?"];
const LEAST = { previous: 0.3, induction: 0.4 }; // from these scores on a head does its work
const LEAST_GAIN = 2; // nats a token: a birth needs it, too
const GROUP_COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#8c6bb1", "#777777"];
const ENGINE = URL.createObjectURL(new Blob([byId("engine").textContent]));
// A head that looks at all tokens alike gives the second copy 1 / 19, 1 / 20 … 1 / 34 each.
const evenly = Array.from({ length: LENGTH - 1 }, (_, i) => 1 / (LENGTH + 2 + i));
const induction = evenly.reduce((sum, share) => sum + share) / evenly.length;
const CHANCE = { induction, gain: 0, loss: log(VOCABULARY - 1) };

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
    this.query = null; // the symbol that is pointed at
    this.history = []; // { step, loss, gain, induction }
    this.moments = []; // { step, words, isBirth }
    this.whole = {}; // the last report with nothing switched off: { step, right }
    workers[number] ??= new Worker(ENGINE);
    this.worker = workers[number];
    this.worker.onerror = (event) => say(t("The training stopped: {0}. Reload the page.", event.message));
    this.worker.onmessage = ({ data }) => {
      if (data.run === settings.run) this.receive(data); // others are late, of the model before
    };
    this.build();
    this.send("start", { settings });
    this.changeSwitches();
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
    });
    this.cells = count(PROBE_TOKENS + 1).map((i) => element("span", "symbol", SYMBOLS[0], { "data-place": i }));
    const line = (title, from) =>
      element("div", "copy", "", {}, [element("span", "soft", title), ...this.cells.slice(from, from + LENGTH)]);
    const label = t("The symbols: left and right arrow to see where the best head looks from each");
    this.symbols = element("div", "symbols", "", { tabindex: 0, role: "group", "aria-label": label }, [
      line(t("first time"), 1),
      line(t("again"), 1 + LENGTH),
    ]);
    const point = (place) => this.point(place);
    listenPlaces(this.symbols, point, point);
    this.symbols.addEventListener("keydown", ({ key }) => {
      const move = { ArrowLeft: -1, ArrowRight: 1 }[key];
      if (move) point(clamp((this.query ?? 0) + move, 1, PROBE_TOKENS - 1));
    });
    const hint = t("Click a head, or the name of a layer, to switch it off; training pauses. How many can the model lose?");
    const blue = t("The bluer, the surer the model is. Point at a symbol, or tap it: where does the best head look from there?");
    this.story = element("p", "story");
    const sharing = element("span", "soft", t("{0} heads, {1} key/value heads", heads, groups));
    const title = element("h2", "", "", {}, [element("span", "swatch"), `${this.name} `, sharing]);
    const words = [hint, blue].map((sentence) => element("p", "soft hint", sentence));
    const parts = [title, grid, words[0], this.symbols, words[1], this.story];
    this.root = element("section", `panel run-${this.number}`, "", {}, parts);
  }

  // Switches heads off, or on if all of them are off. In training the model would repair itself at once.
  toggle(heads) {
    if (isRunning) setRunning(false);
    const value = heads.every((head) => this.off[head]) ? 0 : 1;
    heads.forEach((head) => { this.off[head] = value; });
    this.changeSwitches();
  }

  changeSwitches() {
    const [scaled, masked] = ["scaled", "masked"].map((id) => byId(id).checked);
    this.send("change", { switches: { off: this.off, scaled, masked } });
  }

  receive(report) {
    const { step, loss, gain, induction, surprise, switches: { off, scaled, masked } } = report;
    this.report = report;
    const shares = surprise.slice(LENGTH + 1).map((nat) => Math.exp(-nat)); // of the second copy
    this.right = shares.reduce((sum, share) => sum + share) / shares.length;
    const heads = [...off.keys()].filter((head) => off[head]).map((head) => this.headName(head));
    this.changed = [...heads, scaled ? "" : "√d", masked ? "" : t("causal mask")].filter(Boolean).join(isChinese ? "、" : ", ");
    if (!this.changed) this.whole = { step, right: this.right };
    if (loss !== null) {
      // whoever went back has another future
      this.history = this.history.filter((figures) => figures.step < step);
      this.history.push({ step, loss, gain, induction: Math.max(...induction) });
      this.noteMoments(report);
    }
    drawSoon();
  }

  noteMoments(report) {
    const { step, gain } = report;
    this.moments = this.moments.filter((moment) => moment.step < step);
    for (const score of ["previous", "induction"]) {
      const isBirth = score === "induction";
      const head = best(report[score]);
      const isKnown = this.moments.some((moment) => moment.isBirth === isBirth);
      if (isKnown || report[score][head] <= LEAST[score] || (isBirth && gain <= LEAST_GAIN)) continue;
      const words = isBirth
        ? t("step {0}: {1} learned to copy: it looks at what followed the same token last time", step, this.headName(head))
        : t("step {0}: {1} learned to look at the token before", step, this.headName(head));
      this.moments.push({ step, isBirth, words });
      announce(`${this.name}: ${words}`);
    }
  }

  draw() {
    if (!this.report) return;
    const { step, ids, induction, previous, surprise } = this.report;
    this.squares.forEach((square, head) => {
      const isOff = this.off[head] === 1;
      paintHead(square.firstChild, { length: PROBE_TOKENS, codes: this.picture(head) }, PROBE_TOKENS);
      square.classList.toggle("off", isOff);
      square.classList.toggle("born", induction[head] > LEAST.induction);
      square.ariaPressed = String(!isOff);
      square.ariaLabel = this.headName(head);
      const [back, follows] = [previous, induction].map((scores) => number(scores[head], 2));
      square.title = t("token before: {0}, what followed the same token: {1}", back, follows);
      const score = head < this.heads ? previous[head] : induction[head];
      square.lastChild.textContent = isOff ? t("off") : score > LEAST.previous ? number(score, 2) : "";
    });
    this.layerNames.forEach((name, layer) => {
      const all = this.off.subarray(layer * this.heads, (layer + 1) * this.heads);
      name.ariaPressed = String(!all.every((off) => off));
    });
    surprise.forEach((loss, i) => {
      const cell = this.cells[i + 1];
      cell.textContent = this.settings.names[ids[i + 1]] ?? "";
      cell.style.setProperty("--right", `${(100 * Math.exp(-loss)).toFixed(1)}%`);
    });
    this.point(this.query);
    const moments = this.changed ? this.effect() : this.moments.filter((moment) => moment.step <= step);
    this.story.replaceChildren(...moments.map(({ words, isBirth }) => element("span", isBirth ? "birth" : "", words)));
    if (!moments.length) this.story.append(t("No head knows where to look."));
    const words = t("second copy guessed right: {0}, chance {1}", percent(this.right), percent(1 / (VOCABULARY - 1)));
    this.story.append(element("span", "soft", words));
  }

  // What the switches change at this very step, if it was seen without them.
  effect() {
    const right = [this.whole.right, this.right].slice(this.whole.step === this.report.step ? 0 : 1).map(percent);
    const moments = [{ words: t("{0} off: guessed right {1}", this.changed, right.join(" → ")), isBirth: true }];
    return isRunning ? [...moments, { words: t("Training goes on: the model repairs itself.") }] : moments;
  }

  // The codes of one head's picture.
  picture(head) {
    return this.report.pictures.subarray(head * PROBE_TOKENS ** 2, (head + 1) * PROBE_TOKENS ** 2);
  }

  // Rings around the symbols that the best head looks at from this one.
  point(query) {
    this.query = query;
    if (!this.report) return;
    const { induction, previous } = this.report;
    const head = Math.max(...induction) > LEAST.induction ? best(induction) : best(previous);
    const codes = this.picture(head);
    this.cells.forEach((cell, key) => {
      const isSeen = query !== null && query < PROBE_TOKENS && key <= query;
      cell.style.setProperty("--look", isSeen ? (codes[query * PROBE_TOKENS + key] / LEVELS) ** 2 : 0);
      cell.classList.toggle("query", key === query);
    });
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
  const last = Math.max(1, ...panels.map(({ history }) => history.at(-1)?.step ?? 0));
  const now = Math.max(...steps);
  Object.assign(byId("when"), { max: last, value: now });
  byId("now").textContent = t("step {0}", steps.join(" · "));
  byId("scale").style.background = `linear-gradient(90deg, ${MAGMA.map((_, i) => css(magma(i / 16))).join()})`;
  byId("play").textContent = isRunning ? t("❙❙ Pause") : t("▶ Train");
  drawCurves("loss", [0, 5], now, last);
  drawCurves("induction", [0, 1], now, last);
  drawCurves("gain", [-0.5, 5], now, last);
  document.documentElement.toggleAttribute("data-ready", panels.every((panel) => panel.report));
}

// One curve for each model, and a line at the step that is shown.
function drawCurves(field, [low, high], now, last) {
  const lines = panels.map(({ history, number }) => ({
    points: history.map((figures) => [figures.step, clamp(figures[field], low, high)]),
    kind: `run-${number}`,
  }));
  // in the other charts the words would cross the curves
  const nameOf = (step) => (field === "induction" ? t("step {0}", step) : "");
  const marks = panels.flatMap(({ moments, number }) => {
    const births = moments.filter(({ isBirth }) => isBirth);
    return births.map(({ step }) => [step, nameOf(step), `run-${number}`]);
  });
  const x = { range: [0, Math.max(300, last)] };
  const y = { range: [low, high] };
  drawChart(byId(field), lines, { title: "", x, y, level: [CHANCE[field], t("chance")], marks, now, high: 140 });
}

// New models with random weights, from what the form says.
function startOver() {
  const form = byId("settings");
  const { kinds, source, text, ...sizes } = Object.fromEntries(new FormData(form));
  const [heads, layers, seed] = [sizes.heads, sizes.layers, sizes.seed].map(Number);
  form.elements.text.hidden = source !== "own";
  byId("wait").hidden = source === "own" || layers === 1;
  const words = source === "own" ? characters(text) : { names: SYMBOLS };
  say(words.text?.length < 100 ? t("Write at least 100 characters.") : "");
  setRunning(false);
  runs += 1;
  panels = kinds.split(" ").map((name, i) => (
    new Panel(name, { heads, layers, seed, ...words, groups: Math.max(1, heads / SHARING[name]), run: runs }, i)));
  byId("panels").replaceChildren(...panels.map((panel) => panel.root));
  byId("stage").classList.toggle("three", panels.length > 1);
  drawSoon();
}

function setRunning(yes) {
  isRunning = yes;
  panels.forEach((panel) => panel.send("run", { yes }));
  drawSoon();
}

function showTraining(root, { signal }) {
  byId("heading").textContent = t("A head is born");
  root.append(byId("train-view").content.cloneNode(true));
  const { text } = byId("settings").elements;
  text.value = text.value.replace(/\s+/g, " ");
  byId("settings").addEventListener("change", ({ target: { type } }) => {
    if (type === "checkbox") panels.forEach((panel) => panel.changeSwitches());
    else startOver();
  });
  byId("settings").addEventListener("submit", (event) => event.preventDefault());
  byId("play").addEventListener("click", () => setRunning(!isRunning));
  byId("one").addEventListener("click", () => {
    setRunning(false);
    panels.forEach((panel) => panel.send("step"));
  });
  byId("again").addEventListener("click", startOver);
  byId("when").addEventListener("input", () => {
    setRunning(false);
    panels.forEach((panel) => panel.send("goTo", { step: Number(byId("when").value) }));
  });
  document.addEventListener("theme", drawSoon, { signal });
  window.addEventListener("resize", drawSoon, { signal });
  startOver();
}

KEYS.unshift([t("Space"), t("train, pause"), { " ": () => setRunning(!isRunning) }, () => true]);
VIEWS.train = { show: showTraining };
