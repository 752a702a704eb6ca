// A text of the reader's own: the model of each step reads it here, in the page, and says what comes next.

const OWN = "own"; // the name of this text among the probes
const MOST_OWN = 64; // tokens
const MOST_NEXT = 6; // tokens that may come next
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
      const ids = this.tokenizer.encode(words);
      const shown = ids.slice(0, MOST_OWN);
      const labels = shown.map((id) => this.tokenizer.label(id));
      const left_out = ids.length > MOST_OWN ? t("tokens {0} to {1} of {2}", MOST_OWN, ids.length - 1, ids.length) : "";
      const note = labels.includes("\ufffd") ? t("�: a part of a character that this model never learned") : "";
      const text = { labels, documents: null, left_out, note };
      text.starts = documentStarts(text);
      const { weights, hidden } = this.network(step).forward(shown, new Set(off));
      if (this.read.size > 200) this.read.clear();
      this.read.set(key, { text, codes: codesOf(weights, shown.length), hidden });
    }
    return this.read.get(key);
  }

  // The tokens that may follow place `at`, likeliest first, as [label, share]; after each layer, the embedding first.
  next(step, words, off, at) {
    const { hidden } = this.look(step, words, off);
    const size = this.about.config.hidden_size;
    return hidden.map((x) => {
      const shares = softmax(this.network(step).logits(x.subarray(at * size, (at + 1) * size)));
      const best = Array.from(shares.keys()).sort((a, b) => shares[b] - shares[a]).slice(0, MOST_NEXT);
      return best.map((id) => [this.tokenizer.label(id), shares[id]]);
    });
  }
}

// Weights (heads, T, T) as the maps of a file are: lower triangles of square roots.
function codesOf(weights, length) {
  const heads = weights.length / length ** 2;
  const codes = new Float32Array(heads * triangle(length));
  for (let head = 0, at = 0; head < heads; head++) {
    for (let q = 0; q < length; q++) {
      for (let k = 0; k <= q; k++) codes[at++] = LEVELS * Math.sqrt(weights[(head * length + q) * length + k]);
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

function toggleHead({ layer, head }) {
  const name = nameOf({ layer, head });
  change({ off: state.off.includes(name) ? state.off.filter((other) => other !== name) : [...state.off, name].sort() });
}

// The field of the reader's text, and texts to begin with.
function buildOwn() {
  byId("words").addEventListener("input", ({ target }) => change({ words: target.value, ...NO_TOKEN }));
  byId("of-name").hidden = tries() !== TRIES;
  document.querySelector(".tries").append(...tries().map((words) => button(words, () => change({ words, ...NO_TOKEN }), { class: "link" })));
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

function gauge(share) {
  const bar = element("div", "gauge");
  bar.style.setProperty("--value", share);
  bar.style.setProperty("--chance", -1);
  return bar;
}

function drawNext(pane) {
  const maps = isOwn() && mapsOf(pane.view);
  if (!maps) return;
  const at = pointedIn(pane) ?? maps.text.labels.length - 1;
  const layers = pane.run.own.next(stepOf(pane.view).step, state.words, state.off, at);
  pane.find(".next-title").textContent = t("What comes after {0}?", maps.text.labels[at]);
  pane.find(".next").replaceChildren(...layers.at(-1).map(([label, share]) => element("tr", "", "", {}, [
    element("td", "", label), element("td", "number", percent(share)),
    element("td", "gauge-cell", "", {}, [gauge(share)]),
  ])));
  pane.find(".lens").replaceChildren(...layers.map((best, i) => element("li", "",
    `${i ? t("after layer {0}", i - 1) : t("before layer 0")}: ${best.slice(0, 3).map(([label, share]) => `${label} ${percent(share)}`).join(" · ")}`)));
}
