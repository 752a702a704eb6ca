// The numbers of runs: what is known of each look, and its maps, of which every line is packed by itself.

async function unpack(line) {
  const letters = atob(line);
  const raw = new Uint8Array(letters.length);
  for (let i = 0; i < raw.length; i++) raw[i] = letters.charCodeAt(i); // Uint8Array.from takes ten times as long
  const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// One run: `steps` are all scored steps, `shown` the places among them of those that can be shown. frameOf: the codes of
// all heads for what a step names its map; nothing while they are on their way.
class Run {
  constructor(fields, frameOf) {
    this.frameOf = frameOf;
    this.update(fields);
  }

  // What is known of it by now.
  update(fields) {
    Object.assign(this, fields);
    this.grouped = this.num_key_value_heads < this.num_attention_heads;
    this.own = this.network && new OwnReader(this.network, this.frameOf);
    this.texts.forEach((text) => { text.starts = documentStarts(text); });
    const places = (isThere) => this.steps.flatMap((step, i) => (isThere(step) ? [i] : []));
    this.looks = places((step) => Object.keys(step.maps).length);
    this.computed = places(({ step }) => this.own?.about.lines[step]);
  }

  // With one's own text the slider goes over the steps whose weights are here.
  get shown() {
    return isOwn() && this.own ? this.computed : this.looks;
  }

  group(head) {
    return Math.floor((head * this.num_key_value_heads) / this.num_attention_heads);
  }

  // The maps of one text at steps[shown[at]], or null where that text was not looked at then.
  maps(at, probe) {
    const { step } = this.steps[this.shown[at]];
    if (probe === OWN) return this.own?.about.lines[step] ? this.own.look(step, state.words, state.off) : null;
    const [text, name] = this.steps[this.shown[at]].maps[probe] ?? [];
    const codes = name !== undefined && this.frameOf(name);
    return codes ? { text: this.texts[text], codes } : null;
  }

  // Whether there are such maps, which are on their way.
  isWaiting(at, probe) {
    return Boolean(this.steps[this.shown[at]].maps[probe]) && !this.maps(at, probe);
  }

  // score of one head at a place among all scored steps; null where it is undefined
  score(name, place, layer, head) {
    return this.scores[name]?.[place]?.[layer * this.heads.length + head] ?? null;
  }

  // the place among the shown steps that is nearest to a step
  nearest(step) {
    const distances = this.shown.map((place) => Math.abs(this.steps[place].step - step));
    return distances.indexOf(Math.min(...distances));
  }
}

// For each token, the first of its document.
function documentStarts({ labels, documents }) {
  return labels.map((_, i) => (documents ? documents.indexOf(documents[i]) : 0));
}

const triangle = (length) => (length * (length + 1)) / 2;

// One head of one step: the codes of its lower triangle, square roots of weights.
class Head {
  constructor(run, maps, layer, head, { hideSink }) {
    this.text = maps.text;
    this.length = maps.text.labels.length;
    const size = triangle(this.length);
    const start = (layer * run.heads.length + head) * size;
    this.codes = maps.codes.subarray(start, start + size);
    if (hideSink) this.codes = withoutSink(this.codes, this.text.starts);
  }

  weight(q, k) {
    return k > q ? 0 : (this.codes[triangle(q) + k] / LEVELS) ** 2;
  }
}

// The first token of each document is left out, and the rest of each row adds up to 1 again: codes are divided by the
// root of its sum. A row with next to nothing beside its first token stays empty: its rest would be rounding, blown up.
function withoutSink(codes, starts) {
  const rest = Float32Array.from(codes);
  starts.forEach((start, q) => {
    const row = rest.subarray(triangle(q), triangle(q + 1));
    row[start] = 0;
    const sum = row.reduce((total, code) => total + code ** 2, 0);
    const factor = sum > 0.004 * LEVELS ** 2 ? LEVELS / Math.sqrt(sum) : 0;
    row.forEach((code, k) => { row[k] = code * factor; });
  });
  return rest;
}
