// Curves over training, as SVG: scores of heads, figures of runs.

const EDGE = { left: 54, right: 22, top: 10, bottom: 34 };
const HIGH = 220;

// Draw lines into an <svg> of its parent's width. Gives the scales, from values to pixels.
//   lines   {points: [[x, y or null]], kind: a class, dots: a radius}
//   x, y    {range}
//   level   [y, words]; marks: [[x, words, a class]]; now: an x
//   band    [[x, low, high]], an area behind the lines
function drawChart(svg, lines, { title, x: across, y: upwards, level, marks = [], now = null, band = [], high = HIGH }) {
  const wide = Math.max(220, svg.parentElement.clientWidth);
  const [right, bottom] = [wide - EDGE.right, high - EDGE.bottom];
  const x = scale(across.range, EDGE.left, right);
  const y = scale(upwards.range, bottom, EDGE.top);
  const flat = (value, kind) => drawn("path", { class: kind, d: `M${EDGE.left} ${y.at(value)}H${right}` });
  const upright = (value, kind) => drawn("path", { class: kind, d: `M${x.at(value)} ${EDGE.top}V${bottom}` });
  const edge = [...band.map(([a, low]) => [a, low]), ...band.map(([a, , top]) => [a, top]).reverse()];
  const parts = [
    drawn("path", { class: "band", d: shape(edge, x, y) }),
    ...y.ticks.map((value) => flat(value, "grid-line")),
    ...labels(y.ticks).map((text, i) => write(text, EDGE.left - 6, y.at(y.ticks[i]) + 4, "end")),
    ...labels(x.ticks).map((text, i) => write(text, x.at(x.ticks[i]), bottom + 15, "middle")),
    write(title, right, high - 4, "end"),
  ];
  lines.forEach(({ points, kind = "", dots = 0 }) => {
    parts.push(drawn("path", { class: `curve-line ${kind}`, d: shape(points, x, y) }));
    const places = dots ? points.filter(([, value]) => value !== null) : [];
    parts.push(...places.map(([a, b]) => drawn("circle", { class: `dot ${kind}`, cx: x.at(a), cy: y.at(b), r: dots })));
  });
  if (now !== null) parts.push(upright(now, "now"));
  if (level) {
    const beside = y.at(level[0]) < EDGE.top + 14 ? 12 : -4;
    parts.push(flat(level[0], "level"), write(level[1], right, y.at(level[0]) + beside, "end", { class: "seen" }));
  }
  marks.forEach(([value, words, kind = ""], i) => {
    // words are to the left, because curves rise after what is marked
    const [by, anchor] = x.at(value) > EDGE.left + 70 ? [-4, "end"] : [4, "start"];
    const name = write(words, x.at(value) + by, EDGE.top + 9 + 13 * i, anchor, { class: `seen ${kind}` });
    parts.push(upright(value, `level ${kind}`), name);
  });
  filled(svg, { viewBox: `0 0 ${wide} ${high}`, width: wide, height: high }, "", []).replaceChildren(...parts);
  return { x, y, valueAt: ({ clientX }) => x.from(clientX - svg.getBoundingClientRect().left), upright };
}

// From values to pixels and back, and the values that are written beside the axis.
function scale([least, most], start, end) {
  const free = most > least ? 0 : Math.abs(most) / 2 || 1; // around a value that stays
  const [low, high] = [least - free, most + free];
  return {
    at: (value) => start + ((value - low) / (high - low)) * (end - start),
    from: (pixel) => low + ((pixel - start) / (end - start)) * (high - low),
    ticks: ticks(low, high, Math.abs(end - start) / (end > start ? 70 : 42)),
  };
}

// Numbers beside an axis, with so many digits that no two of them look alike.
function labels(values) {
  const texts = [3, 4, 5, 6, 8].map((digits) => values.map((value) => number(value, digits)));
  return texts.find((all) => new Set(all).size === all.length) ?? texts[0];
}

function ticks(low, high, count) {
  const size = 10 ** Math.floor(Math.log10((high - low) / count));
  const step = size * [1, 2, 5, 10].find((factor) => factor * size * count >= high - low);
  const first = Math.ceil(low / step);
  return Array.from({ length: Math.floor(high / step) - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

// The points as a path; an undefined value interrupts it.
function shape(points, x, y) {
  return points.map(([a, b], i) => {
    if (b === null) return "";
    const isFirst = i === 0 || points[i - 1][1] === null;
    return `${isFirst ? "M" : "L"}${x.at(a).toFixed(1)} ${y.at(b).toFixed(1)}`;
  }).join("");
}

// The least and the largest, and around them a share of what lies between.
function extent(values, share = 0) {
  const wider = ([low, high], value) => [Math.min(low, value), Math.max(high, value)];
  const [low, high] = values.reduce(wider, [Infinity, -Infinity]);
  const free = high > low ? (high - low) * share : 0;
  return [low - free, high + free];
}

// A figure of several runs over training. Where the mouse or the arrow keys are, the legend has the values of that
// place; otherwise the last ones.
class Chart {
  constructor(about, save) {
    this.about = about;
    this.svg = drawn("svg", { class: "chart", role: "img", tabindex: 0 });
    this.legend = element("ul", "chart-legend");
    const title = element("h2", "", `${about.title} `, {}, [element("span", "soft", about.unit)]);
    const line = element("div", "head-line", "", {}, [title, save(this)]);
    this.root = element("figure", "chart-box", "", {}, [line, this.svg, this.legend]);
    this.place = null; // on the horizontal axis
    this.listen();
  }

  // runs: [{name, number, points}]; how: {axis, smooth}
  draw(runs, { axis, smooth }) {
    this.axis = axis;
    this.lines = runs.filter(({ points }) => points.length);
    this.root.hidden = !this.lines.length;
    if (this.root.hidden) return;
    const all = this.lines.flatMap(({ points }) => points);
    const x = { range: extent([0, ...all.map((point) => point[0])]) };
    const y = { range: extent(all.map((point) => point[1]), 0.06) };
    const drawnLines = this.lines.flatMap((line) => {
      const kind = `run-${line.number % 8}`;
      const raw = { points: line.points, kind };
      if (line.points.length === 1) return { ...raw, dots: 4 };
      if (!smooth || !this.about.isNoisy) return raw;
      line.points = smoothed(line.points, smooth);
      return [{ ...raw, kind: `faint ${kind}` }, { points: line.points, kind }];
    });
    this.scales = drawChart(this.svg, drawnLines, { title: AXIS_NAMES[axis], x, y });
    this.pointer = drawn("g");
    this.svg.append(this.pointer);
    const last = this.lines.map(({ name, points }) => `${name} ${figure(points.at(-1)[1])}`).join(", ");
    this.svg.setAttribute("aria-label", t("{0} over {1}. Newest: {2}. Arrow keys move along.", this.about.title, AXIS_NAMES[axis], last));
    this.point(this.place);
  }

  point(place) {
    this.place = place;
    const values = this.lines.map(({ points, ...line }) => [line, place === null ? points.at(-1) : nearest(points, place)]);
    this.legend.replaceChildren(...values.map(([line, [x, y]]) => element("li", `run-${line.number % 8}`, "", {}, [
      element("span", "swatch"), `${line.name} `, element("b", "", figure(y)),
      element("span", "soft", t(" at {0} {1}", AXIS_NAMES[this.axis], figure(x))),
    ])));
    const { x: across, y: upwards, upright } = this.scales;
    this.pointer.replaceChildren(...(place === null ? [] : [upright(place, "now"), ...values.map(([line, [x, y]]) => (
      drawn("circle", { class: `dot run-${line.number % 8}`, cx: across.at(x), cy: upwards.at(y), r: 3.5 })))]));
  }

  listen() {
    this.svg.addEventListener("pointermove", (event) => this.point(this.scales.valueAt(event)));
    ["pointerleave", "blur"].forEach((name) => this.svg.addEventListener(name, () => this.point(null)));
    this.svg.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
      if (!by) return;
      event.preventDefault();
      const [{ points }] = this.lines;
      const here = this.place === null ? points.length - 1 : points.indexOf(nearest(points, this.place));
      this.point(points[clamp(here + by, 0, points.length - 1)][0]);
    });
  }
}

const nearest = (points, x) => points.reduce((best, point) => (Math.abs(point[0] - x) < Math.abs(best[0] - x) ? point : best));

// A moving average in which each point has `share` of the one before; the first ones are weighted so that they count.
function smoothed(points, share) {
  let [mean, weight] = [0, 0];
  return points.map(([x, y]) => {
    [mean, weight] = [share * mean + (1 - share) * y, share * weight + (1 - share)];
    return [x, mean / weight];
  });
}
