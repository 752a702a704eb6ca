// The chosen head, large. The weights are a canvas of one pixel each; around and over them lies a drawing with words,
// lines between documents, the colour bar and the cross-hair.

const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Noto Sans CJK SC", "PingFang SC", sans-serif';
const BAR = 34; // pixels for the colour bar
const TEXT_HIGH = 205; // of tokens and readout, where they stand below the map
const ROOMY = 240; // from this side on, the empty half has room for words and the colour bar
const pen = document.createElement("canvas").getContext("2d"); // it measures words

// Where everything is, in pixels, for a map that is `wide` pixels wide.
function layoutMap(labels, wide) {
  const length = labels.length;
  const most = wide < 420 ? 62 : 96;
  const size = clamp((wide - most) / length - 1.5, 7, 12);
  pen.font = `${size}px ${FONT}`;
  const texts = labels.map((label) => shortened(label, most - 8));
  const margin = Math.ceil(Math.max(...texts.map((text) => pen.measureText(text).width))) + 8;
  const cell = Math.min((wide - margin - 4) / length, 48);
  const side = cell * length;
  const every = Math.max(1, Math.ceil((size + 1) / cell)); // as many labels as there is room for
  const high = 6 + side + margin + (side > ROOMY ? 0 : BAR + 8);
  return { length, size, texts, left: margin, top: 6, cell, side, every, wide, high };
}

function shortened(label, most) {
  if (pen.measureText(label).width <= most) return label;
  const letters = Array.from(label); // not units: a character outside the first 65,536 has two
  while (letters.length > 1 && pen.measureText(`${letters.join("")}…`).width > most) letters.pop();
  return `${letters.join("")}…`;
}

function drawMap(pane) {
  const { view, run } = pane;
  const maps = mapsOf(view);
  const name = headName(run, view.layer, view.head);
  const group = run.grouped ? ` · reads key/value head ${run.group(run.heads[view.head])}` : "";
  pane.find(".map-title").textContent = `${name}${group}`;
  pane.find(".map").hidden = !maps;
  pane.map = null;
  if (!maps) return;
  const head = headOf(view);
  const place = layoutMap(head.text.labels, Math.max(200, Math.min(pane.find(".map-side").clientWidth, roomFor(pane))));
  const canvas = pane.find(".picture");
  paintHead(canvas, head, head.length);
  Object.entries({ left: place.left, top: place.top, width: place.side, height: place.side })
    .forEach(([side, pixels]) => { canvas.style[side] = `${pixels}px`; });
  const svg = pane.find(".around");
  Object.entries({ width: place.wide, height: place.high, viewBox: `0 0 ${place.wide} ${place.high}` })
    .forEach(([side, value]) => svg.setAttribute(side, value));
  svg.setAttribute("aria-label", `Attention of ${name} at step ${stepOf(view).step} over ${place.length} tokens`);
  svg.replaceChildren(...aroundMap(head, place), drawn("g", { class: "cross" }));
  pane.map = { head, place };
}

// How wide the map may be: all of it is on the screen where it stands beside the heads, the enlarged one may be scrolled.
function roomFor(pane) {
  const [heads, side] = [".grid-side", ".map-side"].map((part) => pane.find(part));
  if (heads.offsetTop !== side.offsetTop) return Math.max(380, innerHeight * (state.wide ? 1.2 : 0.86));
  const above = pane.find(".map").getBoundingClientRect().top + scrollY;
  return Math.max(340, innerHeight - above - 12 - (viewCount() === 2 ? TEXT_HIGH : 0));
}

function aroundMap(head, { length, left, top, side, cell, every, texts, size, high }) {
  const parts = [];
  for (let i = 0; i < length; i += every) {
    const middle = (i + 0.5) * cell;
    parts.push(write(texts[i], left - 5, top + middle + size / 3, "end", { "font-size": size }));
    const turned = `translate(${left + middle + size / 3} ${top + side + 5}) rotate(-90)`;
    parts.push(write(texts[i], 0, 0, "end", { "font-size": size, transform: turned }));
  }
  head.text.starts.forEach((start, i) => {
    if (start !== i || i === 0) return;
    parts.push(drawn("path", { class: "between", d: `M${left} ${top + i * cell}h${i * cell}V${top + side}` }));
  });
  if (side <= ROOMY) return [...parts, ...colourBar(left, high - BAR, side)];
  const bar = Math.min(side * 0.45, 200);
  return [
    ...parts, ...["row: the token that looks", "column: what it looks at"].map((words, i) => (
      write(words, left + side - 10, top + 20 + 16 * i, "end", { class: "word" }))),
    ...colourBar(left + side - 12 - bar, top + 48, bar),
  ];
}

function colourBar(left, top, wide) {
  const parts = Array.from({ length: 40 }, (_, i) => drawn("rect", {
    x: left + (i * wide) / 40, y: top, width: wide / 40 + 0.5, height: 9, fill: css(magma(i / 39)),
  }));
  pen.font = `10px ${FONT}`;
  let taken = -Infinity; // a number that would run into the one before is left out
  (state.rowMax ? [0, 1] : SCALE_TICKS[state.scale]).forEach((value) => {
    const words = state.rowMax ? (value ? "row's largest" : "0") : String(value);
    const { width } = pen.measureText(words);
    const from = clamp(SCALES[state.scale](value) * wide - width / 2, 0, wide - width);
    if (from < taken + 5) return;
    parts.push(write(words, left + from, top + 21, "start", { class: "word", "font-size": 10 }));
    taken = from + width;
  });
  return parts;
}

// Row and column under the mouse; null where there is no entry.
function entryAt(pane, event) {
  if (!pane.map) return null;
  const box = pane.find(".around").getBoundingClientRect();
  const { left, top, cell, length } = pane.map.place;
  const k = Math.floor((event.clientX - box.left - left) / cell);
  const q = Math.floor((event.clientY - box.top - top) / cell);
  if (q < 0 || q >= length || k >= length) return null;
  if (k < 0) return { token: q, key: null }; // over the labels: the row alone
  return k <= q ? { token: q, key: k } : null;
}

function drawCross(pane) {
  const tip = pane.find(".tip");
  const here = pane.map ? pointedIn(pane) : null;
  const isThere = here !== null && here < pane.map.head.length;
  tip.hidden = !isThere || state.key === null;
  pane.find(".cross")?.replaceChildren(...(isThere ? crossParts(pane.map.place, here, state.key ?? here) : []));
  if (!tip.hidden) showTip(pane, tip, here, state.key);
}

function crossParts({ left, top, cell, side, size, texts }, row, column) {
  const frame = (kind, out, x, y, width, height) => drawn("rect", {
    class: kind, x: x - out, y: y - out, width: width + 2 * out, height: height + 2 * out,
  });
  const boxes = {
    seen: [left + column * cell, top + column * cell, cell, side - column * cell],
    looks: [left, top + row * cell, (row + 1) * cell, cell],
  };
  const label = (words, kind, transform) => {
    pen.font = `bold ${Math.max(size, 10)}px ${FONT}`;
    const wide = pen.measureText(words).width + 4;
    const made = drawn("g", { transform });
    made.append(drawn("rect", { class: "behind", x: -wide, y: -7, width: wide, height: 14 }),
      write(words, -2, 3.5, "end", { class: kind, "font-size": Math.max(size, 10) }));
    return made;
  };
  return [
    ...(cell < 5 ? [] : Object.values(boxes).map((box) => frame("halo", 2.2, ...box))), // visible on any colour
    ...Object.entries(boxes).map(([kind, box]) => frame(kind, 0.8, ...box)),
    label(texts[row], "looks", `translate(${left - 3} ${top + (row + 0.5) * cell})`),
    label(texts[column], "seen", `translate(${left + (column + 0.5) * cell} ${top + side + 3}) rotate(-90)`),
  ];
}

function showTip(pane, tip, q, k) {
  const { head, place: { left, top, cell, wide } } = pane.map;
  const { labels } = head.text;
  tip.replaceChildren(
    element("span", "looks", `${labels[q]} (${q})`), " looks at ", element("span", "seen", `${labels[k]} (${k})`), ": ",
    element("b", "", number(head.weight(q, k))),
  );
  tip.style.left = `${clamp(left + (k + 1) * cell + 8, 0, Math.max(0, wide - tip.offsetWidth - 2))}px`;
  const y = top + q * cell - tip.offsetHeight - 8;
  tip.style.top = `${y < 0 ? top + (q + 1) * cell + 8 : y}px`;
}
