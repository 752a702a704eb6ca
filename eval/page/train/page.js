// The page: settings, one panel for each model in training, curves, and the controls of time.

const KINDS = {
  MHA: (heads) => heads,
  GQA: (heads) => heads / 2,
  MQA: () => 1,
};
const ALL = "three at once";
const SYMBOLS = ["·", ..."ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789?"];
const EXAMPLE =
  "A head looks at the letters before it and wants to know which one comes next. At first it knows " +
  "nothing, and looks everywhere. Then it learns that the letter before helps most. Then another head " +
  "learns to find the same letter further back, and to look at what came after it. It copies. A head is born.";
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

let kind = "MHA";
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

  place(head) {
    return [Math.floor(head / this.heads), head % this.heads];
  }

  headName(head) {
    return t("layer {0}, head {1}", ...this.place(head));
  }

  // The squares of the heads, the symbols of the probe, sentences and scores.
  build() {
    const { layers, heads, groups } = this.settings;
    this.layerNames = [];
    this.canvases = [];
    this.squares = [];
    const grid = element("div", "grid", "", { role: "group", "aria-label": t("Heads of {0}", this.name) });
    grid.style.gridTemplateColumns = `auto repeat(${heads}, minmax(0, 1fr))`;
    for (let layer = 0; layer < layers; layer++) {
      const title = t("Switch layer {0} off or on", layer);
      const all = Array.from({ length: heads }, (_, h) => layer * heads + h);
      const name = button(t("layer {0}", layer), () => this.toggle(all), { class: "row-name", title });
      this.layerNames.push(name);
      grid.append(name);
      for (const head of all) {
        const group = Math.floor((head % heads) / (heads / groups));
        const canvas = element("canvas", "", "", { width: PROBE_TOKENS, height: PROBE_TOKENS });
        const square = button("", () => this.toggle([head]), { class: "thumbnail" });
        square.style.borderColor = GROUP_COLOURS[group];
        square.append(canvas, element("span", "badge"));
        square.addEventListener("pointerenter", () => this.choose(head));
        square.addEventListener("focus", () => this.choose(head));
        grid.append(square);
        this.canvases.push(canvas);
        this.squares.push(square);
      }
    }
    const cell = (i) => {
      const made = element("span", "symbol", SYMBOLS[0]);
      made.addEventListener("pointerenter", () => this.ask(i));
      return made;
    };
    this.cells = Array.from({ length: PROBE_TOKENS + 1 }, (_, i) => cell(i));
    const line = (title, from) =>
      element("div", "copy", "", {}, [element("span", "soft", title), ...this.cells.slice(from, from + LENGTH)]);
    const label = t("The symbols: left and right arrow to see where a head looks from each");
    this.symbols = element("div", "symbols", "", { tabindex: 0, role: "group", "aria-label": label }, [
      line(t("first time"), 1),
      line(t("again"), 1 + LENGTH),
    ]);
    this.symbols.addEventListener("pointerleave", () => this.ask(null));
    this.symbols.addEventListener("keydown", ({ key }) => {
      const move = { ArrowLeft: -1, ArrowRight: 1 }[key];
      if (move) this.ask(clamp((this.query ?? 0) + move, 1, PROBE_TOKENS - 1));
    });
    this.readout = element("p", "soft readout");
    const hint = t("Click a head to switch it off, or the name of a layer. How many can the model lose?");
    this.news = element("p", "story");
    this.scores = element("dl", "figures");
    const sharing = t("{0} heads, {1} key/value heads", heads, groups);
    const title = element("h2", "", "", {}, [
      element("span", "swatch"),
      `${this.name} `,
      element("span", "soft", sharing),
    ]);
    const parts = [title, grid, element("p", "soft hint", hint), this.symbols, this.readout, this.news, this.scores];
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
    this.ids = report.ids;
    if (loss !== null || !this.history[step]) {
      this.history[step] = { loss, gain, induction: Math.max(...induction), previous: Math.max(...previous) };
      this.history.length = Math.max(this.history.length, step + 1);
    }
    if (loss !== null) this.noteMoments(report);
    drawSoon();
  }

  // A moment that a changed past no longer has is forgotten.
  noteMoments({ step, gain, induction, previous }) {
    this.moments = this.moments.filter((moment) => moment.step < step);
    const note = (isBirth, head, words) => {
      if (this.moments.some((moment) => moment.isBirth === isBirth)) return;
      const place = this.place(head);
      this.moments.push({ step, isBirth, place, words: t(words, step, ...place) });
      announce(`${this.name}: ${this.moments.at(-1).words}`);
    };
    const looksBack = best(previous);
    if (previous[looksBack] > LOOKS_BACK) {
      note(false, looksBack, "step {0}: layer {1}, head {2} learned to look at the token before");
    }
    const copies = best(induction);
    if (induction[copies] > BORN.induction && gain > BORN.gain) {
      const words = "step {0}: layer {1}, head {2} learned to look at what followed the same token before";
      note(true, copies, words);
    }
  }

  draw() {
    if (!this.report) return;
    const { step, induction, previous, gain, surprise, pictures } = this.report;
    this.canvases.forEach((canvas, head) => {
      paint(canvas, pictures.subarray(head * PROBE_TOKENS ** 2, (head + 1) * PROBE_TOKENS ** 2));
      const isOff = this.off[head] === 1;
      const square = this.squares[head];
      square.classList.toggle("off", isOff);
      square.ariaPressed = String(!isOff);
      square.ariaLabel = this.headName(head);
      const [back, follows] = [previous, induction].map((scores) => scores[head].toFixed(2));
      square.title = t("token before: {0}, what followed the same token: {1}", back, follows);
      square.classList.toggle("born", induction[head] > BORN.induction);
      const score = Math.max(induction[head], previous[head]);
      square.lastChild.textContent = isOff ? t("off") : score > LOOKS_BACK ? score.toFixed(2) : "";
    });
    this.layerNames.forEach((name, layer) => {
      const all = this.off.subarray(layer * this.heads, (layer + 1) * this.heads);
      name.ariaPressed = String(!all.every((off) => off));
    });
    let right = 0;
    surprise.forEach((loss, i) => {
      const chance = Math.exp(-loss);
      const cell = this.cells[i + 1];
      cell.textContent = this.settings.names[this.ids[i + 1]] ?? "";
      cell.style.setProperty("--right", `${(100 * chance).toFixed(1)}%`);
      if (i >= LENGTH + 1) right += chance / (LENGTH - 1);
    });
    this.drawLooks();
    const moments = this.moments.filter((moment) => moment.step <= step);
    const percent = `${(100 * right).toFixed(0)} %`;
    this.news.replaceChildren(...moments.map(({ words, isBirth }) => element("span", isBirth ? "birth" : "", words)));
    if (!moments.length) this.news.append(t("No head knows where to look."));
    const row = (words, value, chance) => [
      element("dt", "", words),
      element("dd", "", value),
      element("dd", "soft", t("chance {0}", chance)),
    ];
    this.scores.replaceChildren(
      ...row(t("second copy guessed right"), percent, `${(100 / (VOCABULARY - 1)).toFixed(0)} %`),
      ...row(t("best previous-token head"), Math.max(...previous).toFixed(2), CHANCE.previous.toFixed(2)),
      ...row(t("best induction head"), Math.max(...induction).toFixed(2), CHANCE.induction.toFixed(2)),
      ...row(t("copy gain"), t("{0} nats", gain.toFixed(2)), "0"),
    );
  }

  // Rings around the symbols that the chosen head looks at.
  drawLooks() {
    if (!this.report) return;
    const { induction, previous, pictures } = this.report;
    const head = this.chosen ?? (Math.max(...induction) > BORN.induction ? best(induction) : best(previous));
    const query = this.query ?? null;
    const weights = this.cells.map((_, key) => {
      if (query === null || query >= PROBE_TOKENS || key > query) return 0;
      return (pictures[head * PROBE_TOKENS ** 2 + query * PROBE_TOKENS + key] / 255) ** 2;
    });
    this.cells.forEach((cell, i) => {
      cell.style.setProperty("--look", weights[i].toFixed(2));
      cell.classList.toggle("query", i === query);
    });
    const most = best(weights);
    this.readout.textContent = weights[most]
      ? t("{0} at {1}: most attention, {2} %, to {3}", this.headName(head), this.cells[query].textContent,
        (100 * weights[most]).toFixed(0), this.cells[most].textContent)
      : t("Blue: the model expects this symbol. Point at one to see where a head looks from there.");
  }
}

function paint(canvas, codes) {
  const image = new ImageData(PROBE_TOKENS, PROBE_TOKENS);
  const pixels = new Uint32Array(image.data.buffer);
  codes.forEach((code, at) => {
    const isLater = at % PROBE_TOKENS > Math.floor(at / PROBE_TOKENS);
    pixels[at] = packed(isLater && code === 0 ? absent() : magma((code / 255) ** 2));
  });
  canvas.getContext("2d").putImageData(image, 0, 0);
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
  const { x, y } = drawChart(byId(field), lines, {
    title: "", x: { range: [0, Math.max(300, last)] }, y: { range: [low, high] }, level: [CHANCE[field], t("chance")], high: 140,
  });
  const births = panels.flatMap(({ moments, history, number }) => (
    moments.filter((moment) => moment.isBirth).map((birth) => ({ ...birth, number, value: history[birth.step]?.[field] ?? 0 }))));
  for (const { step, place, words, number, value } of births) {
    const at = { cx: x.at(step), cy: y.at(value), r: 5 };
    byId(field).append(drawn("circle", { class: `dot run-${number}`, ...at }, "", [drawn("title", {}, words)]));
    if (field !== "induction") continue;
    // what happened, to the left of the dot; of three models only the step, one below the other
    const what = panels.length > 1 ? t("step {0}", step) : t("step {0}: layer {1}, head {2}", step, ...place);
    const left = x.at(Math.min(...births.map((birth) => birth.step))) - 12;
    byId(field).append(write(what, left, at.cy - 6 - 15 * number, "end", { class: `mark run-${number}` }));
  }
}

const CHARTS = [
  ["induction", "Induction: the best head's attention to what followed the same token"],
  ["gain", "Copy gain: nats won on the second copy"],
  ["loss", "Loss on the training text, in nats a token"],
];

// New models with random weights, from what the form says.
function startOver() {
  const form = byId("settings");
  const number = (name) => Number(form.elements[name].value);
  const source = form.elements.source.value;
  form.elements.text.hidden = source !== "own";
  const own = characters(form.elements.text.value);
  const isOwn = source === "own" && own.ids.length >= 100;
  say(source === "own" && !isOwn ? t("Write at least 100 characters.") : "");
  const words = isOwn ? { names: own.names, text: own.ids } : { names: SYMBOLS, text: [] };
  setRunning(false);
  runs += 1;
  byId("panels").replaceChildren();
  const shape = { heads: number("heads"), layers: number("layers"), seed: number("seed") };
  panels = (kind === ALL ? Object.keys(KINDS) : [kind]).map((name, i) => {
    const groups = KINDS[name](shape.heads);
    return new Panel(name, { ...shape, ...words, groups, run: runs }, i);
  });
  byId("panels").append(...panels.map((panel) => panel.root));
  byId("stage").classList.toggle("three", panels.length > 1);
  panels.forEach((panel) => panel.changeSwitches());
  drawSoon();
}

function setRunning(yes) {
  isRunning = yes;
  panels.forEach((panel) => panel.send(yes ? "run" : "pause"));
  drawSoon();
}

function begin() {
  byId("root").replaceWith(element("main", "", "", { id: "root" }, [byId("view").content.cloneNode(true)]));
  for (const [id, words] of CHARTS) {
    const svg = drawn("svg", { id, role: "img", "aria-label": t(words) });
    byId("charts").append(element("figure", "chart-box", "", {}, [element("figcaption", "", t(words)), svg]));
  }
  for (const name of [...Object.keys(KINDS), ALL]) {
    const input = element("input", "", "", { type: "radio", name: "kind", value: name, checked: name === kind });
    input.addEventListener("change", () => { kind = name; });
    document.querySelector(".kinds").append(element("label", "kind", "", {}, [input, t(name)]));
  }
  byId("settings").elements.text.value = t(EXAMPLE);
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
  byId("language").addEventListener("click", changeLanguage);
  document.addEventListener("theme", drawSoon);
  window.addEventListener("resize", drawSoon);
  followTheme();
  startOver();
}

translatePage();
begin();
