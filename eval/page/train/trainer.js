// Training: rows of text, Adam, scores of the heads, and the way back in time.

const TOKENS = 48; // of a row
const ROWS = 16; // of a step
const LENGTH = 17; // of the block that the probe repeats
const PROBE_TOKENS = 2 * LENGTH;
const PROBE_ROWS = 4;
const RATE = 0.01;
const WARM_UP = 20; // steps in which the learning rate rises
const BETA1 = 0.9;
const BETA2 = 0.95;
const ADAM_EPSILON = 1e-8;
const START = 0; // the token with which each row begins
const [CLOSE, FAR] = [5, 100]; // steps from one stored state to the next: at first, and later
const EARLY = 400; // until this step

// A row of random tokens: START, then one block again and again. Its length is from 2 to 20, and
// short ones are as likely as long ones (2 to 4 as likely as 8 to 16). Short blocks teach a head to
// look at the token before, because there it is often the next one, too. An induction head needs it.
// Between two copies there may be one to three other tokens. Without them, a head that always looks
// 15 tokens back is right for blocks of 2, 4, 8 and 16. Some models learn this first, and are late.
function repeated(random, tokens) {
  const size = Math.floor(2 * exp(random() * log(10.5)));
  const symbols = shuffled(random, size);
  const row = [START];
  while (row.length < tokens) {
    row.push(...symbols.slice(0, size));
    const others = Math.max(0, Math.floor(8 * random()) - 4); // none in five of eight gaps
    for (let i = 0; i < others; i++) {
      row.push(symbols[size + Math.floor(random() * (symbols.length - size))]);
    }
  }
  return row.slice(0, tokens);
}

// All tokens but START; the first `size` of them are drawn at random.
function shuffled(random, size) {
  const symbols = Array.from({ length: VOCABULARY - 1 }, (_, i) => i + 1);
  for (let i = 0; i < size; i++) {
    const j = i + Math.floor(random() * (symbols.length - i));
    [symbols[i], symbols[j]] = [symbols[j], symbols[i]];
  }
  return symbols;
}

// A row from a random place of a text (token numbers).
function piece(random, text, tokens) {
  const from = Math.floor(random() * text.length);
  return Array.from({ length: tokens }, (_, i) => (i === 0 ? START : text[(from + i - 1) % text.length]));
}

// The characters of a text as tokens: the most frequent 63 of them; the others are left out.
function characters(text) {
  const all = [...text.replace(/\s+/g, " ")];
  const equals = [...Map.groupBy(all, (character) => character).values()];
  equals.sort((a, b) => b.length - a.length || (a[0] < b[0] ? -1 : 1));
  const names = ["·", ...equals.slice(0, VOCABULARY - 1).map(([character]) => character)];
  return { names, text: all.map((character) => names.indexOf(character)).filter((id) => id > 0) };
}

// Inputs and targets of several rows, which have one token more than the model reads.
function batchOf(rows) {
  const inputs = rows.flatMap((row) => row.slice(0, -1));
  const targets = rows.flatMap((row) => row.slice(1));
  return [Int32Array.from(inputs), Int32Array.from(targets)];
}

// settings: layers, heads, groups, seed, text (token numbers; too few of them: random repeats)
class Trainer {
  constructor(settings) {
    this.settings = settings;
    const { layers, heads, groups, seed } = settings;
    this.text = settings.text?.length >= 100 ? settings.text : null;
    this.switches = { off: new Uint8Array(layers * heads), scaled: true, masked: true };
    this.parameters = new Parameters(settings);
    const size = this.parameters.values.length;
    this.mean = new Float32Array(size); // Adam's running mean of the gradient, and of its square
    this.square = new Float32Array(size);
    const shape = { layers, heads, groups };
    this.pass = new Pass(this.parameters, { ...shape, rows: ROWS, tokens: TOKENS }, this.switches);
    this.probe = new Pass(this.parameters, { ...shape, rows: PROBE_ROWS, tokens: PROBE_TOKENS }, this.switches);
    const random = stream(seed, 1);
    this.probeRows = Array.from({ length: PROBE_ROWS }, () => {
      const block = this.text ? piece(random, this.text, LENGTH + 1).slice(1) : shuffled(random, LENGTH).slice(0, LENGTH);
      return [START, ...block, ...block]; // a block of the reader's text, or of random tokens, written twice
    });
    [this.probeIds, this.probeTargets] = batchOf(this.probeRows);
    this.step = 0;
    this.states = new Map(); // step -> the three arrays above
    this.store();
  }

  // The rows of a step depend on the seed and the step alone: whoever goes back meets them again.
  batch(step) {
    const random = stream(this.settings.seed, step + 2);
    const rows = Array.from({ length: ROWS }, () =>
      this.text ? piece(random, this.text, TOKENS + 1) : repeated(random, TOKENS + 1));
    return batchOf(rows);
  }

  // One training step. Returns the loss before it, in nats a token.
  train() {
    const [ids, targets] = this.batch(this.step);
    const losses = this.pass.forward(ids, targets);
    this.pass.backward(ids, targets);
    this.step += 1;
    this.adam(RATE * Math.min(1, this.step / WARM_UP));
    for (const step of this.states.keys()) {
      if (step > this.step) this.states.delete(step); // it belongs to another past
    }
    if (this.step % (this.step < EARLY ? CLOSE : FAR) === 0) this.store();
    return losses.reduce((sum, loss) => sum + loss, 0) / losses.length;
  }

  adam(rate) {
    const { values, gradients } = this.parameters;
    const [first, second] = [BETA1, BETA2].map((beta) => exp(this.step * log(beta))); // powers
    for (let i = 0; i < values.length; i++) {
      const g = gradients[i];
      this.mean[i] = BETA1 * this.mean[i] + (1 - BETA1) * g;
      this.square[i] = BETA2 * this.square[i] + (1 - BETA2) * g * g;
      const root = Math.sqrt(this.square[i] / (1 - second)) + ADAM_EPSILON;
      values[i] -= (rate * (this.mean[i] / (1 - first))) / root;
    }
  }

  // What the heads do on the probe: pictures of its first row, and scores on all rows.
  look() {
    const { layers, heads } = this.settings;
    const losses = this.probe.forward(this.probeIds, this.probeTargets);
    let firstCopy = 0;
    let secondCopy = 0;
    for (let i = 0; i < losses.length; i++) {
      const t = i % PROBE_TOKENS;
      if (t > 0 && t < LENGTH) firstCopy += losses[i] / (LENGTH - 1) / PROBE_ROWS;
      if (t > LENGTH) secondCopy += losses[i] / (LENGTH - 1) / PROBE_ROWS;
    }
    const induction = new Float64Array(layers * heads);
    const previous = new Float64Array(layers * heads);
    const pictures = new Uint8Array(layers * heads * PROBE_TOKENS ** 2);
    const square = PROBE_TOKENS ** 2;
    for (let head = 0; head < layers * heads; head++) {
      const { attention } = this.probe.layers[Math.floor(head / heads)];
      for (let row = 0; row < PROBE_ROWS; row++) {
        const at = (row * heads + (head % heads)) * square;
        for (let t = 2; t < PROBE_TOKENS; t++) {
          const weights = at + t * PROBE_TOKENS;
          previous[head] += attention[weights + t - 1] / (PROBE_TOKENS - 2) / PROBE_ROWS;
          // the token after the same token's first place is LENGTH - 1 tokens back
          if (t > LENGTH) induction[head] += attention[weights + t - LENGTH + 1] / (LENGTH - 1) / PROBE_ROWS;
        }
      }
      const first = (head % heads) * square; // of row 0
      for (let i = 0; i < square; i++) {
        pictures[head * square + i] = Math.round(255 * Math.sqrt(attention[first + i]));
      }
    }
    const surprise = Array.from(losses.subarray(0, PROBE_TOKENS));
    return { step: this.step, gain: firstCopy - secondCopy, induction, previous, pictures, surprise };
  }

  // Keeps weights and Adam's means of this step, half a megabyte.
  store() {
    const copy = [this.parameters.values, this.mean, this.square].map((array) => array.slice());
    this.states.set(this.step, copy);
  }

  // Back to the last stored step at or before this one, or forth to the first at or after it.
  goTo(step) {
    const stored = [...this.states.keys()]; // in order
    const later = stored.find((other) => other >= step) ?? stored.at(-1);
    this.step = step > this.step ? later : stored.findLast((other) => other <= step);
    const arrays = [this.parameters.values, this.mean, this.square];
    this.states.get(this.step).forEach((copy, i) => arrays[i].set(copy));
  }
}
