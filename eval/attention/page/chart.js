// Curves over training, as SVG: scores of heads, shares of experts, figures of runs.

const EDGE = { left: 54, right: 22, top: 10, bottom: 34 };

// From values to pixels, and the values that are written beside the axis. room: share that is left free at both ends.
function scale(values, isLog, start, end, room) {
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

function ticks(low, high, wanted) {
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

// Beside an axis: no zeros at the end.
const tick = (value) => figure(value).replace(/^-?\d+\.\d+$/, (digits) => String(Number(digits)));

// Size a drawing, and give what every chart begins with. The title lies below, to the right.
function axes(svg, { x, y, wide, high, title }) {
  svg.setAttribute("viewBox", `0 0 ${wide} ${high}`);
  svg.setAttribute("width", wide);
  const low = high - EDGE.bottom;
  return [
    ...y.ticks.flatMap((value) => [
      drawn("path", { class: "grid-line", d: `M${EDGE.left} ${y.at(value)}H${wide - EDGE.right}` }),
      write(tick(value), EDGE.left - 6, y.at(value) + 4, "end"),
    ]),
    ...x.ticks.map((value) => write(tick(value), x.at(value), low + 15, "middle")),
    write(title, wide - EDGE.right, high - 4, "end"),
  ];
}

// The points as a path; null interrupts it.
function shape(points, x, y) {
  let before = null;
  return points.map((point) => {
    const way = before ? "L" : "M";
    before = point;
    return point ? `${way}${x.at(point[0]).toFixed(1)} ${y.at(point[1]).toFixed(1)}` : "";
  }).join("");
}

// One score over training. lines: values at each step, the chosen one also in `chosen`. marks: [step, words] of moments.
// go(step) is called at a click.
function drawCurve(svg, { steps, lines, chosen, range: [low, high], level, levelName, now, marks = [], go }) {
  const wide = clamp(svg.parentElement.clientWidth, 220, 640);
  const tall = 200;
  const x = scale([steps[0].step, Math.max(steps[0].step + 1, steps.at(-1).step)], false, EDGE.left, wide - EDGE.right, 0);
  const y = scale([low, high], false, tall - EDGE.bottom, EDGE.top, 0);
  const { tokens } = steps.at(-1);
  const title = `training step${tokens ? ` (to ${quantity(tokens)} tokens)` : ""}`;
  const points = (values) => steps.map(({ step }, i) => (values[i] === null ? null : [step, values[i]]));
  const upright = (step, kind) => drawn("path", { class: kind, d: `M${x.at(step)} ${EDGE.top}V${tall - EDGE.bottom}` });
  svg.replaceChildren(
    ...axes(svg, { x, y, wide, high: tall, title }),
    drawn("path", { class: "curve-line thin", d: lines.map((values) => shape(points(values), x, y)).join("") }),
    drawn("path", { class: "curve-line", d: shape(points(chosen), x, y) }),
    ...points(chosen).filter(Boolean).map(([at, value]) => drawn("circle", { class: "dot", cx: x.at(at), cy: y.at(value), r: 2 })),
    upright(now, "now"),
  );
  if (level !== null) {
    const beside = y.at(level) < EDGE.top + 14 ? 12 : -4;
    svg.append(
      drawn("path", { class: "level", d: `M${EDGE.left} ${y.at(level)}H${wide - EDGE.right}` }),
      write(levelName, wide - EDGE.right, y.at(level) + beside, "end", { class: "seen" }),
    );
  }
  marks.forEach(([step, words]) => {
    const isRight = x.at(step) > wide - 70;
    svg.append(upright(step, "level"), write(words, x.at(step) + (isRight ? -4 : 4), EDGE.top + 9, isRight ? "end" : "start", { class: "seen" }));
  });
  svg.onclick = (event) => go(x.from(((event.clientX - svg.getBoundingClientRect().left) * wide) / svg.clientWidth));
}

// A figure of several runs over training. Where the mouse or the arrow keys are, the legend has the values of that
// place; otherwise the last ones.
class Chart {
  constructor(about, buttons) {
    this.figure = about;
    this.svg = drawn("svg", { class: "chart", role: "img", tabindex: 0, height: 230 });
    this.legend = element("ul", "chart-legend");
    const title = element("h2", "", about.title, {}, about.unit ? [" ", element("span", "soft", about.unit)] : []);
    this.root = element("figure", "chart-box", "", {}, [element("div", "head-line", "", {}, [title, ...buttons(this)]), this.svg, this.legend]);
    this.lines = [];
    this.cursor = null; // a place on the horizontal axis
    this.listen();
  }

  // runs: [{name, number, points}]; how: {axis, axisTitle, logX, logY, smooth}
  draw(runs, how) {
    this.how = how;
    this.smooth = this.figure.isNoisy ? how.smooth : 0;
    const isThere = ([x, y]) => (!how.logX || x > 0) && (!how.logY || y > 0);
    this.lines = runs.map((run) => {
      const raw = run.points.filter(isThere);
      return { ...run, raw, points: smoothed(raw, this.smooth) };
    }).filter(({ raw }) => raw.length);
    this.root.hidden = !this.lines.length;
    if (this.root.hidden) return;
    const wide = Math.max(240, this.root.clientWidth || 600);
    const high = 230;
    const across = this.lines.flatMap((line) => extent(line.raw, 0));
    this.x = scale(how.logX ? across : [0, ...across], how.logX, EDGE.left, wide - EDGE.right, 0);
    this.y = scale(this.lines.flatMap((line) => extent(line.raw, 1)), how.logY, high - EDGE.bottom, EDGE.top, 0.06);
    this.size = { x: this.x, y: this.y, wide, high, title: how.axisTitle };
    const last = this.lines.map((line) => `${line.name} ${figure(line.points.at(-1)[1])}`).join(", ");
    this.svg.setAttribute("aria-label", `${this.figure.title} over ${how.axisTitle}. Newest: ${last}. Arrow keys move along.`);
    this.svg.replaceChildren(...axes(this.svg, this.size), ...this.lines.flatMap((line) => this.curve(line)), drawn("g", { class: "pointer" }));
    this.point(this.cursor);
  }

  curve({ raw, points, number: run }) {
    const { x, y } = this;
    const kind = `run-${run % 8}${run >= 8 ? " dashed" : ""}`;
    if (raw.length === 1) return [drawn("circle", { class: `dot ${kind}`, cx: x.at(raw[0][0]), cy: y.at(raw[0][1]), r: 4 })];
    const faint = this.smooth ? [drawn("path", { class: `curve-line faint ${kind}`, d: shape(raw, x, y) })] : [];
    return [...faint, drawn("path", { class: `curve-line ${kind}`, d: shape(points, x, y) })];
  }

  point(at) {
    this.cursor = at;
    const values = this.lines.map((line) => [line, at === null ? line.points.at(-1) : nearest(line.points, at)]);
    this.legend.replaceChildren(...values.map(([{ name, number: run }, [x, y]]) => element("li", `run-${run % 8}`, "", {}, [
      element("span", "swatch", "", { "aria-hidden": "true" }), element("span", "", name), " ",
      element("b", "", figure(y)), element("span", "soft", ` at ${this.how.axisTitle} ${figure(x)}`),
    ])));
    const pointer = this.svg.querySelector(".pointer");
    pointer?.replaceChildren(...(at === null ? [] : [
      drawn("path", { class: "now", d: `M${this.x.at(at)} ${EDGE.top}V${this.size.high - EDGE.bottom}` }),
      ...values.map(([line, [x, y]]) => drawn("circle", { class: `dot run-${line.number % 8}`, cx: this.x.at(x), cy: this.y.at(y), r: 3.5 })),
    ]));
  }

  listen() {
    this.svg.addEventListener("pointermove", (event) => {
      const box = this.svg.getBoundingClientRect();
      this.point(this.x.from(((event.clientX - box.left) * this.size.wide) / box.width));
    });
    ["pointerleave", "blur"].forEach((name) => this.svg.addEventListener(name, () => this.point(null)));
    this.svg.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
      if (!by) return;
      event.preventDefault();
      const all = this.lines[0].points;
      const here = this.cursor === null ? all.length - 1 : all.indexOf(nearest(all, this.cursor));
      this.point(all[clamp(here + by, 0, all.length - 1)][0]);
    });
  }
}

function extent(points, side) {
  return points.reduce(([low, high], point) => [Math.min(low, point[side]), Math.max(high, point[side])], [Infinity, -Infinity]);
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

// A moving average in which each point has `share` of the one before; the first ones are weighted so that they count.
function smoothed(points, share) {
  if (!share) return points;
  let [mean, weight] = [0, 0];
  return points.map(([x, y]) => {
    mean = share * mean + (1 - share) * y;
    weight = share * weight + (1 - share);
    return [x, mean / weight];
  });
}

// A number of a log: enough digits to see a loss move.
function figure(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  const short = (part) => (Math.abs(part) >= 100 ? part.toFixed(0) : Number(part.toFixed(1)).toString());
  if (size >= 1e9) return `${short(value / 1e9)} G`;
  if (size >= 1e6) return `${short(value / 1e6)} M`;
  if (size >= 10_000) return `${short(value / 1e3)} k`;
  if (size >= 100 || Number.isInteger(value)) return value.toFixed(0);
  if (size >= 1) return value.toFixed(size >= 10 ? 1 : 3);
  return size >= 0.001 ? value.toPrecision(3) : value.toExponential(1);
}
