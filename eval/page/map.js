// The chosen head, large. The weights are a canvas of one pixel each; around and over them lies a drawing with words,
// lines between documents, the colour bar and the cross-hair.

const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Noto Sans CJK SC", "PingFang SC", sans-serif';
const TEXT_HIGH = 205; // of tokens and readout, where they stand below the map
const CELL_HIGH = 150; // of the numbers of one place, below the map
const ROOMY = 240; // from this side on, the empty half has room for words
const TICKS_WIDE = 90; // a narrower colour bar has room for its ends alone
const TICKS = [0, 0.05, 0.25, 1]; // of the colour bar
const pen = document.createElement("canvas").getContext("2d"); // it measures words

// Where everything is, in pixels, for a map that is `wide` pixels wide.
function layoutMap({ labels }, wide) {
  const { length } = labels;
  const most = wide < 420 ? 62 : 96; // for the words
  const size = clamp((wide - most) / length - 1.5, 7, 12);
  pen.font = `${size}px ${FONT}`;
  const texts = labels.map((label) => shortened(label, most - 8));
  const margin = Math.ceil(Math.max(...texts.map((text) => pen.measureText(text).width))) + 8;
  const cell = Math.min((wide - margin - 4) / length, 48);
  const every = Math.max(1, Math.ceil((size + 1) / cell)); // as many labels as there is room for
  return { length, size, texts, left: margin, top: 6, cell, side: cell * length, every, wide, high: 6 + cell * length + margin };
}

function shortened(label, most) {
  const letters = Array.from(label); // not units: a character outside the first 65,536 has two
  let text = label;
  while (letters.length > 1 && pen.measureText(text).width > most) {
    letters.pop();
    text = `${letters.join("")}…`;
  }
  return text;
}

function drawMap(pane) {
  const { view, run } = pane;
  const maps = mapsOf(view);
  const name = shownName(pane);
  const group = run.grouped ? t(" · reads key/value head {0}", run.group(run.heads[view.head])) : "";
  pane.find(".map-title").textContent = `${name}${group}`;
  pane.find(".map").hidden = !maps;
  pane.find(".picture").classList.toggle("off", isOff(view));
  pane.map = null;
  if (!maps) return;
  const head = headOf(view);
  const layout = layoutMap(head.text, roomFor(pane));
  const { left, top, side, wide, high } = layout;
  const canvas = pane.find(".picture");
  paintHead(canvas, head, head.length);
  const place = { left, top, width: side, height: side };
  Object.entries(place).forEach(([name, size]) => { canvas.style[name] = `${size}px`; });
  const svg = filled(pane.find(".around"), { width: wide, height: high, viewBox: `0 0 ${wide} ${high}` }, "", []);
  svg.ariaLabel = t("Attention of {0} at step {1} over {2} tokens", name, stepOf(view).step, head.length);
  svg.replaceChildren(...aroundMap(head.text, layout), drawn("g", { class: "cross" }));
  pane.map = { head, layout };
}

// How wide the map may be: all of it is on the screen where it stands beside the heads.
function roomFor(pane) {
  const [heads, side] = [pane.find(".grid-side"), pane.find(".map-side")];
  const above = pane.find(".map").getBoundingClientRect().top + scrollY;
  const most = heads.offsetTop !== side.offsetTop ? innerHeight * 0.86
    : innerHeight - above - 12 - (viewCount() === 2 ? TEXT_HIGH : isOwn() ? CELL_HIGH : 0);
  return clamp(side.clientWidth, 200, Math.max(360, most));
}

function aroundMap(text, { length, left, top, side, cell, every, texts, size }) {
  const parts = [];
  for (let i = 0; i < length; i += every) {
    const middle = (i + 0.5) * cell + size / 3;
    const turned = `translate(${left + middle} ${top + side + 5}) rotate(-90)`;
    parts.push(write(texts[i], left - 5, top + middle, "end", { "font-size": size }),
      write(texts[i], 0, 0, "end", { "font-size": size, transform: turned }));
  }
  text.starts.forEach((start, i) => {
    const line = `M${left} ${top + i * cell}h${i * cell}V${top + side}`;
    if (start === i && i) parts.push(drawn("path", { class: "between", d: line }));
  });
  const words = side > ROOMY ? [t("row: the token that looks"), t("column: what it looks at")] : [];
  const bar = Math.min(side * 0.45, 200);
  return [
    ...parts, ...words.map((line, i) => write(line, left + side - 10, top + 20 + 16 * i, "end", { class: "word" })),
    ...colourBar(left + side - 10 - bar, top + 14 + 17 * words.length, bar),
  ];
}

function colourBar(left, top, wide) {
  const colours = Array.from({ length: 40 }, (_, i) => drawn("rect", {
    x: left + (i * wide) / 40, y: top, width: wide / 40 + 0.5, height: 9, fill: css(magma(i / 39)),
  }));
  const values = TICKS.filter((_, i, { length }) => wide >= TICKS_WIDE || i === 0 || i === length - 1);
  const ticks = values.map((value, i, { length }) => {
    const anchor = i === 0 ? "start" : i === length - 1 ? "end" : "middle";
    return write(value, left + brightness(value) * wide, top + 21, anchor, { class: "word", "font-size": 10 });
  });
  return [...colours, ...ticks];
}

// Row and column under the mouse; null where there is no entry.
function entryAt(pane, event) {
  if (!pane.map) return null;
  const { left, top, cell, length } = pane.map.layout;
  const box = pane.find(".around").getBoundingClientRect();
  const k = Math.floor((event.clientX - box.left - left) / cell);
  const q = Math.floor((event.clientY - box.top - top) / cell);
  if (q < 0 || q >= length || k > q) return null;
  return { token: q, key: k < 0 ? null : k }; // over the labels: the row alone
}

// What the token that is pointed at looks at, what looks at it, and the weight of the entry under the mouse.
function drawCross(pane) {
  const row = pane.map ? pointedIn(pane) : null;
  const parts = row === null || row >= pane.map.head.length ? [] : crossParts(pane.map, row, state.key ?? row);
  pane.find(".cross")?.replaceChildren(...parts);
}

function crossParts({ head, layout: { left, top, cell, side, size, texts } }, row, column) {
  const boxes = {
    seen: [left + column * cell, top + column * cell, cell, side - column * cell],
    looks: [left, top + row * cell, (row + 1) * cell, cell],
  };
  const frame = (kind, out, [x, y, width, height]) => drawn("rect", {
    class: kind, x: x - out, y: y - out, width: width + 2 * out, height: height + 2 * out,
  });
  const large = Math.max(size, 10);
  const words = (text, kind, more) => write(text, 0, 0, "end", { class: kind, "font-size": large, ...more });
  const [middle, below] = [top + (row + 0.5) * cell, left + (column + 0.5) * cell];
  const isLeft = column * cell < side / 2;
  return [
    ...(cell < 5 ? [] : Object.values(boxes).map((box) => frame("halo", 2.2, box))), // visible on any colour
    ...Object.entries(boxes).map(([kind, box]) => frame(kind, 0.8, box)),
    words(texts[row], "looks", { transform: `translate(${left - 5} ${middle + large / 3})` }),
    words(texts[column], "seen", { transform: `translate(${below + large / 3} ${top + side + 5}) rotate(-90)` }),
    ...(state.key === null ? [] : [words(number(head.weight(row, column)), "weight", {
      x: below + (isLeft ? 1 : -1) * (cell / 2 + 6), y: top + row * cell - 5,
      "text-anchor": isLeft ? "start" : "end", "font-size": 13,
    })]),
  ];
}
