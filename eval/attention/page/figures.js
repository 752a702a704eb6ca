// The figures of a run over training: its log, read piece by piece, and what the charts show of it.

// What is drawn of a line of metrics.jsonl, one chart each. isNoisy: smoothing is for it
const FIGURES = [
  { name: "loss", title: "Training loss", unit: "nats a token", split: "train", isNoisy: true, of: (line) => line.loss },
  { name: "val", title: "Validation loss", unit: "nats a token", split: "val", of: (line) => line.loss },
  { name: "gap", title: "Gap to the floor", unit: "bits a byte above the best there is", split: "floor",
    of: (line) => line.model - line.floor },
  { name: "lr", title: "Learning rate", unit: "", split: "train", of: (line) => line.lr },
  { name: "speed", title: "Tokens a second", unit: "", split: "train", isNoisy: true, of: (line) => line.tokens_per_s },
  { name: "induction", title: "Best induction head", unit: "share of its attention", split: "attention",
    of: (line) => line.induction_max },
];

const AXES = { // words -> of a line
  step: (line) => line.step,
  tokens: (line) => line.tokens,
  seconds: (line) => line.time_s,
};

// metrics.jsonl of one run, as far as it is known here.
class Log {
  constructor(name) {
    Object.assign(this, { name, offset: 0, mark: 0, splits: {}, written: null, isReading: false });
  }

  // Read what is new. written: what tells whether there is more, which may grow while it is read.
  async follow(written, signal) {
    if (this.isReading) return;
    this.isReading = true;
    try {
      while (this.written !== written()) {
        this.written = written();
        await this.read(signal);
      }
    } catch (error) {
      this.written = null;
      if (!signal.aborted) console.warn(`${this.name}: ${error.message}`);
    } finally {
      this.isReading = false;
    }
  }

  async read(signal) {
    for (let isWhole = false; !isWhole;) {
      const query = `offset=${this.offset}&mark=${this.mark}`;
      const { start, offset, mark, lines, is_whole: isEnd } = await ask(`/live/runs/${part(this.name)}/metrics?${query}`, { signal });
      if (start !== this.offset) this.splits = {}; // another file, or a shorter one
      lines.forEach((line) => this.add(line));
      isWhole = isEnd || offset === this.offset;
      Object.assign(this, { offset, mark });
    }
  }

  // A run that is resumed takes the lines after its checkpoint off its log, and writes them again.
  add(line) {
    const lines = this.splits[line.split] ??= [];
    while (lines.length && lines.at(-1).step >= line.step) lines.pop();
    lines.push(line);
  }

  points({ split, of }, axis) {
    return (this.splits[split] ?? []).map((line) => [AXES[axis](line), of(line)])
      .filter(([x, y]) => Number.isFinite(x) && Number.isFinite(y));
  }
}
