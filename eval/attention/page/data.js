// The numbers of runs: what is known of each look, and its maps, of which every line is packed by itself.

const LEVELS = 255;
let runs = []; // that are shown
let about = null; // scores, texts and colours of all of them

async function unpack(line) {
  const raw = Uint8Array.from(atob(line), (letter) => letter.charCodeAt(0));
  const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// One run: `steps` are all scored steps, `shown` the places among them of those that have maps. frameOf: the codes of
// all heads for what a step names its map; nothing while they are on their way.
class Run {
  constructor(fields, frameOf) {
    this.frameOf = frameOf;
    this.update(fields);
  }

  // What is known of it by now. A text that is the same as before stays the same object.
  update(fields) {
    const key = ({ labels, documents, left_out: leftOut }) => JSON.stringify([labels, documents, leftOut]);
    const before = new Map((this.texts ?? []).map((text) => [key(text), text]));
    Object.assign(this, fields);
    this.texts = fields.texts.map((text) => before.get(key(text)) ?? text);
    this.shown = this.steps.flatMap((step, i) => (this.mixture || Object.keys(step.maps).length ? [i] : []));
    this.perGroup = this.num_attention_heads / this.num_key_value_heads;
    this.grouped = this.num_key_value_heads < this.num_attention_heads;
    this.texts.forEach((text) => {
      text.starts = documentStarts(text); // for each token, the first of its document
    });
  }

  group(head) {
    return Math.floor(head / this.perGroup);
  }

  // The maps of one text at steps[shown[at]], or null where that text was not looked at then.
  maps(at, probe) {
    const found = this.steps[this.shown[at]].maps[probe];
    const codes = found && this.frameOf(found[1]);
    return codes ? { text: this.texts[found[0]], codes } : null;
  }

  // Whether there are such maps, which are on their way.
  isWaiting(at, probe) {
    const found = this.steps[this.shown[at]].maps[probe];
    return Boolean(found) && !this.frameOf(found[1]);
  }

  // score of one head at a place among all scored steps; null where it is undefined
  score(name, place, layer, head) {
    const values = this.scores[name]?.[place];
    return values ? values[layer * this.heads.length + head] : null;
  }

  nearest(step) {
    let best = 0;
    this.shown.forEach((place, at) => {
      const distance = Math.abs(this.steps[place].step - step);
      if (distance < Math.abs(this.steps[this.shown[best]].step - step)) best = at;
    });
    return best;
  }
}

function documentStarts(text) {
  const starts = [];
  text.labels.forEach((_, i) => {
    const same = i > 0 && (!text.documents || text.documents[i] === text.documents[i - 1]);
    starts.push(same ? starts[i - 1] : i);
  });
  return starts;
}

const triangle = (length) => (length * (length + 1)) / 2;

// One head of one step: codes of the lower triangle, and what the switches make of them.
class Head {
  constructor(run, maps, layer, head, options) {
    this.text = maps.text;
    this.length = maps.text.labels.length;
    const size = triangle(this.length);
    const start = (layer * run.heads.length + head) * size;
    this.codes = maps.codes.subarray(start, start + size);
    this.hideSink = options.hideSink;
    this.factors = this.rowFactors(options);
  }

  // For each row what its codes are multiplied by, for the value and for the colour. Codes are square roots of
  // weights, so a row divided by s has its codes divided by the root of s.
  rowFactors({ hideSink, rowMax }) {
    const value = new Float32Array(this.length).fill(1);
    const colour = new Float32Array(this.length).fill(1);
    if (!hideSink && !rowMax) return { value, colour };
    for (let q = 0, at = 0; q < this.length; q++) {
      const sink = hideSink ? this.text.starts[q] : -1;
      let sum = 0;
      let top = 0;
      for (let k = 0; k <= q; k++, at++) {
        if (k === sink) continue;
        sum += this.codes[at] ** 2;
        top = Math.max(top, this.codes[at]);
      }
      // a row with next to nothing beside its first token stays empty: its rest would be rounding, blown up
      if (hideSink) value[q] = sum > 0.004 * LEVELS ** 2 ? LEVELS / Math.sqrt(sum) : 0;
      colour[q] = rowMax ? (value[q] && top ? LEVELS / top : 0) : value[q];
    }
    return { value, colour };
  }

  weight(q, k) {
    if (k > q || (this.hideSink && k === this.text.starts[q])) return 0;
    return ((this.codes[triangle(q) + k] * this.factors.value[q]) / LEVELS) ** 2;
  }
}
