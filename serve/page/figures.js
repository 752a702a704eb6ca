// The figures of a run over training: its log, read piece by piece, and what the charts show of it.

import { ask, part } from "./server.js";

// What is drawn of a line of metrics.jsonl, one chart each. isNoisy: smoothing is for it
export const FIGURES = [
  { name: "loss", title: "Training loss", unit: "nats a token", split: "train", isNoisy: true, of: (line) => line.loss },
  { name: "val", title: "Validation loss", unit: "nats a token", split: "val", of: (line) => line.loss },
  { name: "gap", title: "Gap to the floor", unit: "bits a byte above the best there is", split: "floor",
    of: (line) => line.model - line.floor },
  { name: "lr", title: "Learning rate", unit: "", split: "train", of: (line) => line.lr },
  { name: "speed", title: "Tokens a second", unit: "", split: "train", isNoisy: true,
    of: (line) => line.tokens_per_s },
  { name: "induction", title: "Best induction head", unit: "share of its attention", split: "attention",
    of: (line) => line.induction_max },
];

export const AXES = {
  step: { title: "step", of: (line) => line.step },
  tokens: { title: "tokens", of: (line) => line.tokens },
  time: { title: "seconds", of: (line) => line.time_s },
};

// metrics.jsonl of one run, as far as it is known here.
export class Log {
  constructor(name) {
    Object.assign(this, { name, file: 0, offset: 0, mark: 0, splits: {} });
  }

  // Read what is new.
  async read(signal) {
    for (let isWhole = false; !isWhole;) {
      const query = `file=${this.file}&offset=${this.offset}&mark=${this.mark}`;
      const found = await ask(`/live/runs/${part(this.name)}/metrics?${query}`, { signal });
      if (found.file !== this.file || found.start !== this.offset) this.splits = {}; // another file, or a shorter one
      found.lines.forEach((line) => this.add(line));
      isWhole = found.is_whole || found.offset === this.offset;
      Object.assign(this, { file: found.file, offset: found.offset, mark: found.mark });
    }
  }

  // A run that is resumed takes the lines after its checkpoint off its log, and writes them again.
  add(line) {
    const lines = this.splits[line.split] ??= [];
    while (lines.length && lines.at(-1).step >= line.step) lines.pop();
    lines.push(line);
  }

  points(figure, axis) {
    return (this.splits[figure.split] ?? []).map((line) => [AXES[axis].of(line), figure.of(line)])
      .filter(([x, y]) => Number.isFinite(x) && Number.isFinite(y));
  }
}

// A moving average in which each point has `share` of the one before; the first ones are weighted so that they count.
export function smoothed(points, share) {
  if (!share) return points;
  let [mean, weight] = [0, 0];
  return points.map(([x, y]) => {
    mean = share * mean + (1 - share) * y;
    weight = share * weight + (1 - share);
    return [x, mean / weight];
  });
}

// At most two points a column of the drawing, the lowest and the highest in it, so that no peak is lost.
export function thinned(points, x, columns) {
  if (points.length <= 2 * columns) return points;
  const found = [];
  let [column, low, high] = [null, null, null];
  const flush = () => low && found.push(...(low === high ? [low] : [low, high].sort((a, b) => a[0] - b[0])));
  points.forEach((point) => {
    const here = Math.round(x(point[0]));
    if (here !== column) {
      flush();
      [column, low, high] = [here, point, point];
    }
    if (point[1] < low[1]) low = point;
    if (point[1] > high[1]) high = point;
  });
  flush();
  return found;
}

export const byNewest = (a, b) => (b.state === "training") - (a.state === "training") || b.written - a.written;

// A number for people.
export function brief(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e9) return `${short(value / 1e9)} G`;
  if (size >= 1e6) return `${short(value / 1e6)} M`;
  if (size >= 10_000) return `${short(value / 1e3)} k`;
  if (size >= 100 || Number.isInteger(value)) return value.toFixed(0);
  if (size >= 1) return value.toFixed(size >= 10 ? 1 : 3);
  return size >= 0.001 ? value.toPrecision(3) : value.toExponential(1);
}

const short = (value) => (Math.abs(value) >= 100 ? value.toFixed(0) : Number(value.toFixed(1)).toString());
