// One chart: a figure of several runs over training, as SVG. Where the mouse or the arrow keys are, the legend has the
// values of that place; otherwise the last ones.

import { element } from "./dom.js";
import { brief, smoothed, thinned } from "./figures.js";

const SVG = "http://www.w3.org/2000/svg";
const HIGH = 230;
const EDGE = { left: 54, right: 22, top: 10, bottom: 34 };

export function drawn(tag, attributes, words = "") {
  const made = document.createElementNS(SVG, tag);
  Object.entries(attributes).forEach(([name, value]) => made.setAttribute(name, value));
  if (words !== "") made.textContent = words;
  return made;
}

export class Chart {
  constructor(figure, buttons) {
    this.figure = figure;
    this.svg = drawn("svg", { class: "chart", role: "img", tabindex: 0, height: HIGH });
    this.legend = element("ul", "chart-legend");
    this.title = element("h2", "", figure.title);
    if (figure.unit) this.title.append(" ", element("span", "soft", figure.unit));
    const head = element("div", "chart-head", "", {}, [this.title, ...buttons(this)]);
    this.root = element("figure", "chart-box", "", {}, [head, this.svg, this.legend]);
    this.lines = [];
    this.cursor = null; // a place on the horizontal axis
    this.listen();
  }

  // runs: [{name, number, points}]; how: {axis, axisTitle, logX, logY, smooth}
  draw(runs, how) {
    this.how = how;
    this.runs = runs.filter(({ points }) => points.length);
    this.root.hidden = !this.runs.length;
    if (this.root.hidden) return;
    this.smooth = this.figure.isNoisy ? how.smooth : 0;
    const isThere = ([x, y]) => (!how.logX || x > 0) && (!how.logY || y > 0);
    this.lines = this.runs.map((run) => {
      const raw = run.points.filter(isThere);
      return { ...run, raw, points: smoothed(raw, this.smooth) };
    }).filter(({ raw }) => raw.length);
    this.wide = Math.max(240, this.root.clientWidth || 600);
    const across = this.lines.flatMap((line) => extent(line.raw, 0));
    this.x = scale(how.logX ? across : [0, ...across], how.logX, EDGE.left, this.wide - EDGE.right, 0);
    this.y = scale(this.lines.flatMap((line) => extent(line.raw, 1)), how.logY, HIGH - EDGE.bottom, EDGE.top, 0.06);
    this.paint();
  }

  paint() {
    this.svg.setAttribute("viewBox", `0 0 ${this.wide} ${HIGH}`);
    this.svg.setAttribute("width", this.wide);
    const last = this.lines.map((line) => `${line.name} ${brief(line.points.at(-1)[1])}`).join(", ");
    this.svg.setAttribute("aria-label", `${this.figure.title} over ${this.how.axisTitle}. Newest: ${last}. Arrow keys move along.`);
    this.svg.replaceChildren(...this.axes(), ...this.lines.flatMap((line) => this.curve(line)), this.pointer());
    this.drawLegend();
  }

  axes() {
    const { x, y, wide } = this;
    const made = [drawn("title", {}, `${this.figure.title}${this.figure.unit ? ` (${this.figure.unit})` : ""}`)];
    y.ticks.forEach((value) => made.push(
      drawn("path", { class: "grid-line", d: `M${EDGE.left} ${y.at(value)}H${wide - EDGE.right}` }),
      drawn("text", { x: EDGE.left - 6, y: y.at(value) + 4, "text-anchor": "end" }, tick(value)),
    ));
    x.ticks.forEach((value) => made.push(
      drawn("text", { x: x.at(value), y: HIGH - EDGE.bottom + 15, "text-anchor": "middle" }, tick(value)),
    ));
    made.push(drawn("text", { x: wide - EDGE.right, y: HIGH - 4, "text-anchor": "end" }, this.how.axisTitle));
    return made;
  }

  curve({ raw, points, number }) {
    const { x, y } = this;
    const shape = (list) => thinned(list, x.at, this.wide)
      .map((point, i) => `${i ? "L" : "M"}${x.at(point[0]).toFixed(1)} ${y.at(point[1]).toFixed(1)}`).join("");
    const kind = `run-${number % 8}${number >= 8 ? " dashed" : ""}`;
    if (raw.length === 1) return [drawn("circle", { class: `dot ${kind}`, cx: x.at(raw[0][0]), cy: y.at(raw[0][1]), r: 4 })];
    const faint = this.smooth ? [drawn("path", { class: `curve-line faint ${kind}`, d: shape(raw) })] : [];
    return [...faint, drawn("path", { class: `curve-line ${kind}`, d: shape(points) })];
  }

  pointer() {
    const group = drawn("g", { class: "pointer" });
    if (this.cursor === null) return group;
    const at = this.x.at(this.cursor);
    group.append(drawn("path", { class: "cursor", d: `M${at} ${EDGE.top}V${HIGH - EDGE.bottom}` }));
    this.lines.forEach((line) => {
      const [x, y] = nearest(line.points, this.cursor);
      group.append(drawn("circle", { class: `dot run-${line.number % 8}`, cx: this.x.at(x), cy: this.y.at(y), r: 3.5 }));
    });
    return group;
  }

  drawLegend() {
    this.legend.replaceChildren(...this.lines.map((line) => {
      const [x, y] = this.cursor === null ? line.points.at(-1) : nearest(line.points, this.cursor);
      return element("li", `run-${line.number % 8}`, "", {}, [
        element("span", "swatch", "", { "aria-hidden": "true" }), element("span", "legend-name", line.name), " ",
        element("b", "", brief(y)), element("span", "soft", ` at ${this.how.axisTitle} ${brief(x)}`),
      ]);
    }));
  }

  point(place) {
    this.cursor = place;
    this.svg.querySelector(".pointer")?.replaceWith(this.pointer());
    this.drawLegend();
  }

  listen() {
    this.svg.addEventListener("pointermove", (event) => {
      const box = this.svg.getBoundingClientRect();
      this.point(this.x.from(((event.clientX - box.left) * this.wide) / box.width));
    });
    this.svg.addEventListener("pointerleave", () => this.point(null));
    this.svg.addEventListener("blur", () => this.point(null));
    this.svg.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
      if (!by) return;
      event.preventDefault();
      const all = this.lines[0].points;
      const here = this.cursor === null ? all.length - 1 : all.indexOf(nearest(all, this.cursor));
      this.point(all[Math.max(0, Math.min(all.length - 1, here + by))][0]);
    });
  }
}

function extent(points, side) {
  let [low, high] = [Infinity, -Infinity];
  points.forEach((point) => {
    low = Math.min(low, point[side]);
    high = Math.max(high, point[side]);
  });
  return [low, high];
}

function nearest(points, x) {
  let [from, to] = [0, points.length - 1];
  while (to - from > 1) {
    const middle = (from + to) >> 1;
    if (points[middle][0] <= x) from = middle;
    else to = middle;
  }
  return Math.abs(points[from][0] - x) <= Math.abs(points[to][0] - x) ? points[from] : points[to];
}

// From values to pixels, and the values that are written beside the axis. room: share that is left free at both ends.
export function scale(values, isLog, start, end, room) {
  const put = isLog ? Math.log10 : (value) => value;
  const out = isLog ? (value) => 10 ** value : (value) => value;
  let [low, high] = [Math.min(...values), Math.max(...values)].map(put);
  if (!(high > low)) [low, high] = [low - (isLog ? 0.5 : Math.abs(low) / 2 || 1), high + (isLog ? 0.5 : Math.abs(high) / 2 || 1)];
  const free = (high - low) * room;
  [low, high] = [low - free, high + free];
  const at = (value) => start + ((put(value) - low) / (high - low)) * (end - start);
  const from = (pixel) => out(low + ((pixel - start) / (end - start)) * (high - low));
  return { at, from, ticks: isLog ? logTicks(low, high) : ticks(low, high, Math.abs(end - start) / (end > start ? 70 : 42)) };
}

// Beside an axis: no zeros at the end.
const tick = (value) => brief(value).replace(/^-?\d+\.\d+$/, (digits) => String(Number(digits)));

export function ticks(low, high, wanted) {
  const rough = (high - low) / Math.max(1, wanted);
  const size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * size).find((one) => one >= rough);
  const found = [];
  for (let i = Math.ceil(low / step); i * step <= high; i++) found.push(Number((i * step).toPrecision(12)));
  return found;
}

function logTicks(low, high) {
  const few = high - low > 2.2 ? [1] : high - low > 0.8 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9];
  const found = [];
  for (let power = Math.floor(low); power <= high; power++) {
    few.forEach((factor) => found.push(Number((factor * 10 ** power).toPrecision(6))));
  }
  const inside = found.filter((value) => Math.log10(value) >= low && Math.log10(value) <= high);
  return inside.length > 1 ? inside : ticks(10 ** low, 10 ** high, 3);
}
