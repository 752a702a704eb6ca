// A text of the reader's own: the model of each step reads it here, in the page, and says what comes next.

const OWN = "own"; // the name of this text among the probes
const MOST_READ = 256; // tokens: more take half a second a key
const MOST_OWN = 64; // of them are shown, the last ones
const MOST_NEXT = 6; // tokens that may come next
const MOST_WRITTEN = 60; // tokens by which the model continues a text
const MOST_AT_ALL_STEPS = 32; // of a text that every step reads at every key
const [MOST_NAMES, MOST_TRIED] = [3, 12]; // names that are offered, and tried for them
const named = (name, begin) => `A fox named ${name} met a bird. Then ${begin}`;
const TRIES = [named("Belna", "Bel"), "zim bora kel fum zim bora kel", "Once there was"];

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
        : labels.includes("\ufffd") ? t("�: a part of a character that this model never learned") : "";
      const text = { labels, documents: null, left_out, note, first, starts: labels.map(() => -first) };
      const { weights, hidden } = this.network(step).forward(ids, new Set(off));
      const shown = hidden.map((x) => x.slice(begin * (x.length / ids.length)));
      if (this.read.size > 200) this.read.clear();
      this.read.set(key, { text, ids: ids.slice(begin), codes: codesOf(weights, ids.length, begin), hidden: shown });
    }
    return this.read.get(key);
  }

  // The share of every token that may follow place `at`, or the last one: after each layer, the embedding first.
  shares(step, words, off, place = null) {
    const { text, hidden } = this.look(step, words, off);
    const at = place ?? text.labels.length - 1;
    const size = this.about.config.hidden_size;
    return hidden.map((x) => softmax(this.network(step).logits(x.subarray(at * size, (at + 1) * size))));
  }

  // How unexpected each shown token is, in bits: -log2 of its share. The first one has nothing before it.
  surprise(step, words, off) {
    const look = this.look(step, words, off);
    const size = this.about.config.hidden_size;
    const network = this.network(step);
    const before = (i) => look.hidden.at(-1).subarray((i - 1) * size, i * size);
    look.surprise ??= look.ids.map((id, i) => (i ? -Math.log2(softmax(network.logits(before(i)))[id]) : null));
    return look.surprise;
  }

  // The likeliest of them, as [label, share].
  next(step, words, off, place = null) {
    return this.shares(step, words, off, place).map((shares) => likeliest(shares).map((id) => [this.tokenizer.label(id), shares[id]]));
  }
}

const likeliest = (shares) => Array.from(shares.keys()).sort((a, b) => shares[b] - shares[a]).slice(0, MOST_NEXT);

// A token drawn with these shares; the colder, the rather the likeliest.
function drawToken(shares, temperature) {
  if (!temperature) return likeliest(shares)[0];
  const powers = shares.map((share) => share ** (1 / temperature));
  let rest = Math.random() * powers.reduce((sum, power) => sum + power, 0);
  const id = powers.findIndex((power) => (rest -= power) < 0);
  return id < 0 ? likeliest(shares)[0] : id; // the sum is rounded
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

// From which of the shown steps on a short text goes on as at the last one, and with what: {at, label}.
function formedOf({ run, view }) {
  if (mapsOf(view).text.labels.length > MOST_AT_ALL_STEPS) return null;
  const said = run.shown.map((place) => run.own.next(run.steps[place].step, state.words, state.off).at(-1)[0][0]);
  return { label: said.at(-1), at: said.findLastIndex((label) => label !== said.at(-1)) + 1 };
}

// Names near to one, as [begin, end], that the newest model finishes: of two tokens, a syllable and two letters, as those
// that it has read. One that is cut in another way it seldom copies. Near is what has many pairs of letters in common.
function namesNear(name, { own, steps, computed }) {
  const { tokens } = own.tokenizer;
  const pairs = (word) => Array.from(word, (letter, i) => letter + (word[i + 1] ?? " "));
  const letters = pairs(` ${name.toLowerCase()}`);
  const alike = (begin, end) => (
    new Set(pairs(` ${begin.toLowerCase()}${end}`).filter((pair) => letters.includes(pair))).size);
  const begins = tokens.filter((token) => /^Ġ[A-Z][a-z]{2,3}$/.test(token)).map((token) => token.slice(1));
  const ends = tokens.filter((token) => /^[^aeiou\W][aeiou]$/.test(token));
  const best = (begin) => ends.map((end) => [begin, end, alike(begin, end)])
    .reduce((one, other) => (other[2] > one[2] ? other : one), [begin, "", -1]);
  const isCutSo = ([begin, end]) => own.tokenizer.encodeWord(` ${begin}${end}`).length === 2;
  const near = begins.map(best).filter(isCutSo).sort((a, b) => b[2] - a[2]).slice(0, MOST_TRIED);
  const { step } = steps[computed.at(-1)];
  const likeliest = (words) => own.next(step, words, []).at(-1)[0][0];
  return near.filter(([begin, end]) => likeliest(named(begin + end, begin)) === end).slice(0, MOST_NAMES);
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

function toggleHead({ layer, head }) {
  const name = nameOf({ layer, head });
  change({ off: state.off.includes(name) ? state.off.filter((other) => other !== name) : [...state.off, name].sort() });
}

// The field of the reader's text, and texts to begin with.
function buildOwn() {
  const offer = (title, words) => button(title, () => change({ words, ...NO_TOKEN }), { class: "link" });
  [0.5, 1].forEach((heat) => byId("temperature").add(new Option(heat, heat)));
  byId("continue").addEventListener("click", continueText);
  byId("words").addEventListener("input", ({ target }) => change({ words: target.value, ...NO_TOKEN }));
  const hasSteps = Object.keys(runs[0].own?.about.lines ?? {}).length > 1; // a slider to drag back
  byId("of-name").hidden = tries() !== TRIES || !hasSteps;
  byId("own-name").hidden = tries() !== TRIES || !runs[0].own?.about.merges; // letters are no such tokens
  document.querySelector(".tries").append(...tries().map((words) => offer(words, words)));
  byId("name").addEventListener("change", ({ target }) => {
    const found = namesNear(target.value.trim(), runs[0]);
    const offers = found.map(([begin, end]) => offer(`${begin}·${end}`, named(begin + end, begin)));
    byId("near").replaceChildren(...(offers.length ? offers : [t("none")]));
  });
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
    const shares = run.own.shares(stepOf(view).step, state.words, state.off).at(-1);
    const id = drawToken(shares, Number(byId("temperature").value));
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

function listenOwn(pane) {
  pane.find(".own-off").addEventListener("click", () => toggleHead(pane.view));
  pane.find(".own-all").addEventListener("click", () => change({ off: [] }));
}

// The switch of the chosen head, and what the model would say after the token that is pointed at, or the last.
function drawOwn(pane) {
  const { view, run } = pane;
  pane.root.classList.toggle("of-own", isOwn());
  if (!isOwn()) return;
  pane.find(".own-off").textContent = state.off.includes(nameOf(view)) ? t("Switch it on") : t("Switch it off");
  const names = state.off.map((name) => name.split(".").map(Number)).map(([layer, head]) => headName(run, layer, head));
  pane.find(".own-all").hidden = !names.length;
  pane.find(".own-all").textContent = t("All heads on (off: {0})", names.join(", "));
  pane.find(".own-next").hidden = !mapsOf(view);
  drawNext(pane);
}

function gauge(share, mark = -1) {
  const bar = element("div", "gauge");
  bar.style.setProperty("--value", share);
  bar.style.setProperty("--chance", mark);
  return bar;
}

function drawNext(pane) {
  const maps = isOwn() && mapsOf(pane.view);
  if (!maps) return;
  const at = pointedIn(pane);
  const { own } = pane.run;
  const { step } = stepOf(pane.view);
  const now = own.shares(step, state.words, state.off, at).at(-1);
  const before = state.off.length ? own.shares(step, state.words, [], at).at(-1) : null; // with all heads on
  const ids = new Set([...(before ? likeliest(before).slice(0, 1) : []), ...likeliest(now)]);
  pane.find(".next-title").replaceChildren(t("What comes after {0}?", maps.text.labels.at(at ?? -1)),
    element("span", "soft", before ? t(" before → now; the line: before") : ""));
  pane.find(".next").replaceChildren(...[...ids].slice(0, MOST_NEXT).map((id) => element("tr", "", "", {}, [
    element("td", "", own.tokenizer.label(id)),
    element("td", "number", before ? `${percent(before[id])} → ${percent(now[id])}` : percent(now[id])),
    element("td", "gauge-cell", "", {}, [gauge(now[id], before?.[id])]), // the line is where it was
  ])));
  const layers = own.next(step, state.words, state.off, at);
  pane.find(".lens").replaceChildren(...layers.map((best, i) => element("li", "",
    `${i ? t("after layer {0}", i - 1) : t("before layer 0")}: ${best.slice(0, 3).map(([label, share]) => `${label} ${percent(share)}`).join(" · ")}`)));
}
