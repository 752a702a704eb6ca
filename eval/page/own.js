// A text of the reader's own: the model of each step reads it here, in the page, and says what comes next.

const OWN = "own"; // the name of this text among the probes
const MOST_READ = 256; // tokens: more take half a second a key
const MOST_OWN = 64; // of them are shown, the last ones
const MOST_NEXT = 6; // tokens that may come next
const MOST_WRITTEN = 60; // tokens by which the model continues a text
const MOST_AT_ALL_STEPS = 32; // of a text that every step reads at every key
const TRIES = ["A fox named Belna met a bird. Then Bel", "zim bora kel fum zim bora kel", "Once there was"];

// The networks of one run, which are unpacked when their step is shown. frameOf: the bytes of a line of the file.
class OwnReader {
  constructor(about, frameOf) {
    Object.assign(this, { about, frameOf, networks: new Map(), read: new Map() });
    this.tokenizer = new Tokenizer(about);
  }

  network(step) {
    const { config, shapes, lines } = this.about;
    if (!this.networks.has(step)) {
      this.networks.set(step, new Network(config, unpackTensors(this.frameOf(lines[step]), shapes)));
    }
    return this.networks.get(step);
  }

  // What the model of a step finds in a text, without the heads that are off: their maps, as other texts have them,
  // and what is needed to say what comes next.
  look(step, words, off) {
    const key = JSON.stringify([step, words, off]);
    if (!this.read.has(key)) {
      const all = this.tokenizer.encode(words);
      const most = Math.min(MOST_READ, this.about.config.max_position_embeddings);
      const ids = all.length > most ? all.slice(-most) : all;
      const begin = Math.max(0, ids.length - MOST_OWN);
      const labels = ids.slice(begin).map((id) => this.tokenizer.label(id));
      const first = all.length - labels.length; // that is shown
      const left_out = first ? t("tokens {0} to {1} of {2}", 0, first - 1, all.length) : "";
      const note = ids !== all ? t("only the last {0} tokens are read", most)
        : labels.length === 1 ? t("the first token can look only at itself")
        : labels.includes("\ufffd") ? t("�: a part of a character that this model never learned") : "";
      const text = { labels, documents: null, left_out, note, first, starts: labels.map(() => -first) };
      const { weights, hidden, inside } = this.network(step).forward(ids, new Set(off));
      const shown = (x) => x.slice(begin * (x.length / ids.length));
      const parts = inside.map(({ q, k, v, out }) => ({ q: shown(q), k: shown(k), v: shown(v), out: shown(out) }));
      if (this.read.size > 60) this.read.clear();
      this.read.set(key, {
        text, ids: ids.slice(begin), codes: codesOf(weights, ids.length, begin), hidden: hidden.map(shown), inside: parts,
      });
    }
    return this.read.get(key);
  }

  // The share of every token that may follow a place, or the last one. depth: after so many layers, if not after all.
  shares(step, words, off, place = null, depth = -1) {
    const { ids: { length }, hidden } = this.look(step, words, off);
    return softmax(this.network(step).logits(rowOf(hidden.at(depth), place ?? length - 1, length)));
  }

  // What each head adds to the logit of a token after place `at`: [layer][head].
  pushes(step, words, off, place, id) {
    const { ids: { length }, hidden, inside } = this.look(step, words, off);
    const row = (x) => rowOf(x, place ?? length - 1, length);
    return this.network(step).pushes(row(hidden.at(-1)), inside.map(({ out }) => row(out)), id);
  }

  // How unexpected each shown token is, in bits: -log2 of its share. The first one has nothing before it.
  surprise(step, words, off) {
    const look = this.look(step, words, off);
    const before = (i) => this.shares(step, words, off, i - 1);
    look.surprise ??= look.ids.map((id, i) => (i ? -Math.log2(before(i)[id]) : null));
    return look.surprise;
  }

  // The likeliest of them, as [label, share].
  next(step, words, off, place = null, depth = -1) {
    const shares = this.shares(step, words, off, place, depth);
    return likeliest(shares).map((id) => [this.tokenizer.label(id), shares[id]]);
  }
}

// The numbers of one token, where x has as many rows as there are tokens.
const rowOf = (x, at, rows) => x.subarray(at * (x.length / rows), (at + 1) * (x.length / rows));
const likeliest = (shares) => Array.from(shares.keys()).sort((a, b) => shares[b] - shares[a]).slice(0, MOST_NEXT);

// A token drawn with these shares: colder ones favour the likeliest; then only the top_k likeliest stay, and of them as
// many as reach top_p together. In the order of model/generation.py.
function drawToken(shares, { temperature, top_k: most, top_p: enough }) {
  if (!temperature) return likeliest(shares)[0];
  const powers = shares.map((share) => share ** (1 / temperature));
  const order = Array.from(powers.keys()).sort((a, b) => powers[b] - powers[a]).slice(0, most || Infinity);
  const total = (ids) => ids.reduce((sum, id) => sum + powers[id], 0);
  const all = total(order);
  let before = 0;
  const allowed = order.filter((id) => {
    const isIn = before < enough * all;
    before += powers[id];
    return isIn;
  });
  let rest = Math.random() * total(allowed);
  return allowed.find((id) => (rest -= powers[id]) < 0) ?? allowed[0]; // the sum is rounded
}

// Weights (heads, T, T) from place `begin` on, as the maps of a file are: lower triangles of square roots.
function codesOf(weights, length, begin) {
  const heads = weights.length / length ** 2;
  const codes = new Float32Array(heads * triangle(length - begin));
  for (let head = 0, at = 0; head < heads; head++) {
    for (let q = begin; q < length; q++) {
      for (let k = begin; k <= q; k++) codes[at++] = LEVELS * Math.sqrt(weights[(head * length + q) * length + k]);
    }
  }
  return codes;
}

// Texts to begin with; where the model lacks letters of ours, what its text begins with.
function tries() {
  const { own, steps, texts } = runs[0];
  const spelled = TRIES.filter((words) => !own?.tokenizer.encode(words).includes(own.about.unknown));
  const [text] = steps.at(-1).maps.text ?? [];
  if (spelled.length || text === undefined) return TRIES;
  return [texts[text].labels.slice(own.about.first.length).slice(0, 20).join("").replaceAll("␣", " ").split("⏎")[0]];
}

const isOwn = () => state.probe === OWN;
const nameOf = ({ layer, head }) => `${layer}.${head}`; // places, as `off` has them
const isOff = (place) => isOwn() && state.off.includes(nameOf(place));
const shownName = ({ run, view }) => headName(run, view.layer, view.head) + (isOff(view) ? t(" (off)") : "");

function toggleHead({ layer, head }) {
  const name = nameOf({ layer, head });
  change({ off: state.off.includes(name) ? state.off.filter((other) => other !== name) : [...state.off, name].sort() });
}

// The field of the reader's text, how the model continues it, and texts to begin with.
function buildOwn() {
  const offer = (title, words) => button(title, () => change({ words, ...NO_TOKEN }), { class: "link" });
  byId("continue").addEventListener("click", continueText);
  byId("words").addEventListener("input", ({ target }) => change({ words: target.value, ...NO_TOKEN }));
  const { formed } = runs[0];
  byId("of-name").textContent = formed ? t("The model has read Belna once. Can it finish Bel? Switch {0} off and see.", `L${formed.layer} H${formed.head}`) : "";
  byId("examples").append(...tries().map((words) => offer(words, words)));
}

let writing = null; // a timer, while the model continues the text

// The model continues the text, a token at a time, until a text ends, or the button is pressed again.
function continueText() {
  const button = byId("continue");
  const stop = () => {
    clearTimeout(writing);
    writing = null;
    button.textContent = t("Continue the text");
  };
  if (writing) return stop();
  const { words } = state;
  const ids = [];
  const next = () => {
    const { run, view } = panes[state.active];
    const { tokenizer } = run.own;
    const shares = run.own.shares(stepOf(view).step, state.words, state.off);
    const how = ["temperature", "top_k", "top_p"].map((name) => [name, Number(byId(name).value)]);
    const id = drawToken(shares, Object.fromEntries(how));
    if (tokenizer.isSpecial(id) || ids.length === MOST_WRITTEN || !isOwn()) return stop();
    ids.push(id);
    change({ words: words + tokenizer.decode(ids), ...NO_TOKEN });
    writing = setTimeout(next, 30); // so that every step is seen
    return null;
  };
  button.textContent = t("Stop");
  writing = setTimeout(next, 0);
  return null;
}

// The switch of the chosen head, and what the model would say after the token that is pointed at, or the last.
function drawOwn(pane) {
  const { view, run } = pane;
  pane.root.classList.toggle("of-own", isOwn());
  if (!isOwn()) return;
  const name = headName(run, view.layer, view.head);
  pane.find(".own-off").textContent = isOff(view) ? t("Switch {0} on", name) : t("Switch {0} off", name);
  const names = state.off.map((name) => name.split(".").map(Number)).map(([layer, head]) => headName(run, layer, head));
  pane.find(".own-all").hidden = !names.length;
  pane.find(".own-all").textContent = t("All heads on (off: {0})", names.join(", "));
  pane.find(".own-next").hidden = !mapsOf(view);
  drawNext(pane);
}

function drawNext(pane) {
  const maps = isOwn() && mapsOf(pane.view);
  if (!maps) return;
  const at = pointedIn(pane);
  const { own } = pane.run;
  const { step } = stepOf(pane.view);
  const now = own.shares(step, state.words, state.off, at);
  const before = state.off.length ? own.shares(step, state.words, [], at) : null; // with all heads on
  const ids = new Set([...(before ? likeliest(before).slice(0, 1) : []), ...likeliest(now)]);
  const label = maps.text.labels.at(at ?? -1);
  pane.target = state.target ?? [...ids][0]; // the token whose logit the heads push
  pane.find(".next-title").replaceChildren(t("What comes after {0}?", quoted(label)),
    element("span", "soft", before ? t(" before → now; the line: before") : ""));
  pane.find(".next").replaceChildren(...[...ids].slice(0, MOST_NEXT).map((id) => nextRow(pane, id, now, before)));
  const depths = pane.find(".next-layers").open ? [...maps.hidden.keys()] : [];
  pane.find(".lens").replaceChildren(...depths.map((depth) => {
    const best = own.next(step, state.words, state.off, at, depth).slice(0, 3).map(([token, share]) => `${token} ${percent(share)}`);
    return element("li", "", `${depth ? t("after layer {0}", depth - 1) : t("before layer 0")}: ${best.join(" · ")}`);
  }));
  drawPushes(pane, own.pushes(step, state.words, state.off, at, pane.target));
  if (at === null) announceNext(pane, now, before);
}

// A token that may come next: its name chooses it for the numbers in the grid, + writes it.
function nextRow(pane, id, now, before) {
  const { tokenizer } = pane.run.own;
  const label = tokenizer.label(id);
  const choose = () => {
    change({ target: id });
    pane.find('.next [aria-pressed="true"]').focus();
  };
  const name = button(label, choose, { class: "token-name", "aria-pressed": String(id === pane.target), title: t("Show how much each head pushes {0}", label) });
  const write = button(t("Write"), () => change({ words: state.words + tokenizer.decode([id]), ...NO_TOKEN }), {
    class: "link", "aria-label": t("Write {0}", label), title: t("Write {0}", label), hidden: tokenizer.isSpecial(id),
  });
  return element("tr", "", "", {}, [
    element("td", "", "", {}, [name]),
    element("td", "number", before ? `${percent(before[id])} → ${percent(now[id])}` : percent(now[id])),
    // the line is where it was
    element("td", "gauge-cell", "", {}, [setGauge(element("div", "gauge"), now[id], before?.[id])]),
    element("td", "", "", {}, [write]),
  ]);
}

// In each square of the grid: what the head adds to the logit of the chosen token.
function drawPushes(pane, pushes) {
  const label = pane.run.own.tokenizer.label(pane.target);
  const most = Math.max(...pushes.flat().map(Math.abs), 1e-9); // all heads may be off
  pane.cells.forEach((row, layer) => row.forEach((cell, head) => {
    const push = pushes[layer][head];
    const badge = cell.querySelector(".badge");
    badge.hidden = false;
    badge.textContent = signed(push);
    badge.style.color = "";
    badge.style.backgroundColor = signedShade(push / most, 50);
    cell.title = cell.ariaLabel = t("{0}: {1} to the logit of {2}", headTitle(pane, layer, head), signed(push), quoted(label));
  }));
  pane.find(".push-note").textContent =
    t("In the corner of a square: what this head adds to the score (logit) of {0}, directly. Blue: more, orange: less.", quoted(label))
    + (state.off.length ? t(" Without a head the other numbers change, too: later layers read something else, and the sum is scaled anew.") : "");
}

let announcing = 0; // a timer
let lastAnnounced = "";

// For screen readers: what comes next, when it has changed for good.
function announceNext(pane, now, before) {
  const [id] = likeliest(now);
  const was = before ? t(", before {0}", percent(before[id])) : "";
  const words = t("Step {0}: {1} comes next, {2}", stepOf(pane.view).step, quoted(pane.run.own.tokenizer.label(id)), percent(now[id])) + was;
  lastAnnounced ||= words; // where the page opens nothing has changed
  clearTimeout(announcing);
  announcing = setTimeout(() => {
    if (words !== lastAnnounced) announce(words);
    lastAnnounced = words;
  }, 700);
}
