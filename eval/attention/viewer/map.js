// The chosen head, large: labels, the map, lines between documents, a colour bar; and above it the cross-hair.

const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Noto Sans CJK SC", "PingFang SC", sans-serif';
const BAR = 34; // pixels for the colour bar
const TEXT_HIGH = 205; // of tokens and readout, where they stand below the map
const ROOMY = 240; // from this side on, the empty half has room for words and the colour bar

// Where everything is, in CSS pixels, for a map that is `wide` pixels wide.
function layoutMap(context, labels, wide) {
  const length = labels.length;
  const narrow = wide < 420;
  const most = narrow ? 62 : 96;
  const size = Math.max(7, Math.min(12, (wide - most) / length - 1.5));
  context.font = `${size}px ${FONT}`;
  const texts = labels.map((label) => shortened(context, label, most - 8));
  const margin = Math.ceil(Math.max(...texts.map((text) => context.measureText(text).width))) + 8;
  const cell = Math.min((wide - margin - 4) / length, 48);
  const every = Math.max(1, Math.ceil((size + 1) / cell)); // as many labels as there is room for
  const side = cell * length;
  const below = side > ROOMY ? 0 : BAR + 8;
  return { length, size, texts, left: margin, top: 6, cell, side, every, wide, high: 6 + side + margin + below };
}

function shortened(context, label, most) {
  if (context.measureText(label).width <= most) return label;
  const letters = Array.from(label); // not units: a character outside the first 65,536 has two
  while (letters.length > 1 && context.measureText(`${letters.join("")}…`).width > most) letters.pop();
  return `${letters.join("")}…`;
}

function sizedContext(canvas, wide, high) {
  const ratio = devicePixelRatio || 1;
  canvas.style.width = `${wide}px`;
  canvas.style.height = `${high}px`;
  canvas.width = Math.round(wide * ratio);
  canvas.height = Math.round(high * ratio);
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}

function drawMap(pane) {
  const { view, run } = pane;
  const maps = mapsOf(view);
  const box = pane.find(".map");
  const canvas = pane.find(".picture");
  const name = headName(run, view.layer, view.head);
  const group = run.grouped ? ` · reads key/value head ${run.group(run.heads[view.head])}` : "";
  pane.find(".map-title").textContent = `${name}${group}`;
  pane.map = null;
  box.classList.toggle("missing", !maps);
  if (!maps) {
    sizedContext(canvas, 1, 1);
    sizedContext(pane.find(".cross"), 1, 1);
    return;
  }
  const wide = Math.max(200, Math.min(pane.find(".map-side").clientWidth, roomFor(pane)));
  const head = headOf(view);
  const place = layoutMap(canvas.getContext("2d"), head.text.labels, wide);
  const context = sizedContext(canvas, place.wide, place.high);
  paintMap(context, head, place);
  canvas.setAttribute("aria-label", `Attention of ${name} at step ${stepOf(view).step} over ${place.length} tokens`);
  pane.map = { head, place };
  sizedContext(pane.find(".cross"), place.wide, place.high);
}

function paintMap(context, head, place) {
  const { length, left, top, side, cell, every, texts, size } = place;
  const source = new OffscreenCanvas(length, length);
  source.getContext("2d").putImageData(headPixels(head, length, state.scale, new ImageData(length, length)), 0, 0);
  context.imageSmoothingEnabled = cell * (devicePixelRatio || 1) < 1;
  context.drawImage(source, left, top, side, side);
  context.fillStyle = colour("--text");
  context.font = `${size}px ${FONT}`;
  for (let i = 0; i < length; i += every) {
    label(context, texts[i], left - 5, top + (i + 0.5) * cell, "right", 0);
    label(context, texts[i], left + (i + 0.5) * cell, top + side + 5, "right", -Math.PI / 2);
  }
  documentLines(context, head.text.starts, place);
  if (side <= ROOMY) {
    colourBar(context, left, place.high - BAR, side);
    return;
  }
  context.fillStyle = colour("--soft");
  context.font = `11px ${FONT}`;
  label(context, "row: the token that looks", left + side - 10, top + 16, "right", 0);
  label(context, "column: what it looks at", left + side - 10, top + 32, "right", 0);
  const bar = Math.min(side * 0.45, 200);
  colourBar(context, left + side - 12 - bar, top + 48, bar);
}

// How wide the map may be: all of it is on the screen where it stands beside the heads, the enlarged one may be scrolled.
function roomFor(pane) {
  const [heads, map] = [".grid-side", ".map-side"].map((side) => pane.find(side));
  if (heads.offsetTop !== map.offsetTop) return Math.max(380, innerHeight * (state.wide ? 1.2 : 0.86));
  const above = pane.find(".map").getBoundingClientRect().top + scrollY;
  return Math.max(340, innerHeight - above - 12 - (viewCount() === 2 ? TEXT_HIGH : 0));
}

function label(context, text, x, y, align, angle) {
  context.save();
  context.translate(x, y);
  context.rotate(angle);
  context.textAlign = align;
  context.textBaseline = "middle";
  context.fillText(text, 0, 0);
  context.restore();
}

function documentLines(context, starts, { left, top, cell, side }) {
  context.strokeStyle = colour("--line-strong");
  context.lineWidth = 1;
  starts.forEach((start, i) => {
    if (start !== i || i === 0) return;
    const at = i * cell;
    context.beginPath();
    context.moveTo(left, top + at);
    context.lineTo(left + at, top + at);
    context.lineTo(left + at, top + side);
    context.stroke();
  });
}

function colourBar(context, left, top, wide) {
  for (let x = 0; x < wide; x++) {
    context.fillStyle = css(magma(x / (wide - 1)));
    context.fillRect(left + x, top, 1.5, 9);
  }
  context.fillStyle = colour("--soft");
  context.font = `10px ${FONT}`;
  context.textBaseline = "top";
  const ticks = state.rowMax ? [0, 1] : SCALE_TICKS[state.scale];
  let taken = -Infinity; // a number that would run into the one before is left out
  ticks.forEach((tick) => {
    const share = SCALES[state.scale](tick);
    const words = state.rowMax ? (tick ? "row's largest" : "0") : String(tick);
    const width = context.measureText(words).width;
    const from = Math.min(Math.max(0, share * wide - width / 2), wide - width);
    if (from < taken + 5) return;
    context.textAlign = "left";
    context.fillText(words, left + from, top + 12);
    taken = from + width;
  });
}

// row and column under the mouse; null where there is no entry
function entryAt(pane, event) {
  if (!pane.map) return null;
  const box = pane.find(".picture").getBoundingClientRect();
  const { left, top, cell, length } = pane.map.place;
  const k = Math.floor((event.clientX - box.left - left) / cell);
  const q = Math.floor((event.clientY - box.top - top) / cell);
  if (q < 0 || q >= length || k >= length) return null;
  if (k < 0) return { place: q, key: null }; // over the labels: the row alone
  return k <= q ? { place: q, key: k } : null;
}

function drawCross(pane) {
  const canvas = pane.find(".cross");
  const tip = pane.find(".tip");
  const context = canvas.getContext("2d");
  context.clearRect(0, 0, canvas.width, canvas.height);
  const here = pane.map ? pointedIn(pane) : null;
  tip.hidden = here === null || state.key === null;
  if (here === null || here >= pane.map.head.length) return;
  const { left, top, cell, side } = pane.map.place;
  const column = state.key ?? here;
  const frames = [
    ["--seen", left + column * cell, top + column * cell, cell, side - column * cell],
    ["--looks", left, top + here * cell, (here + 1) * cell, cell],
  ];
  const frame = (out, x, y, wide, high) => context.strokeRect(x - out, y - out, wide + 2 * out, high + 2 * out);
  context.lineWidth = 1.5;
  context.strokeStyle = colour("--page"); // a halo keeps the frames visible on any colour; all of it lies around cells
  if (cell >= 5) frames.forEach(([, ...box]) => frame(2.2, ...box));
  frames.forEach(([name, ...box]) => {
    context.strokeStyle = colour(name);
    frame(0.8, ...box);
  });
  markLabel(context, pane.map.place, here, true);
  markLabel(context, pane.map.place, column, false);
  if (state.key !== null) showTip(pane, tip, here, state.key);
}

// the label of the row or column in full, on the page's colour, over what is written there
function markLabel(context, place, i, isRow) {
  const { left, top, cell, side, size, texts } = place;
  context.save();
  context.font = `bold ${Math.max(size, 10)}px ${FONT}`;
  const wide = context.measureText(texts[i]).width + 4;
  context.translate(isRow ? left - 3 : left + (i + 0.5) * cell, isRow ? top + (i + 0.5) * cell : top + side + 3);
  if (!isRow) context.rotate(-Math.PI / 2);
  context.fillStyle = colour("--page");
  context.fillRect(-wide, -7, wide, 14);
  context.fillStyle = colour(isRow ? "--looks" : "--seen");
  context.textAlign = "right";
  context.textBaseline = "middle";
  context.fillText(texts[i], -2, 0);
  context.restore();
}

function showTip(pane, tip, q, k) {
  const { head, place } = pane.map;
  const { labels } = head.text;
  tip.replaceChildren(
    element("span", "looks", `${labels[q]} (${q})`), " looks at ", element("span", "seen", `${labels[k]} (${k})`), ": ",
    element("b", "", number(head.weight(q, k))),
  );
  const x = place.left + (k + 1) * place.cell + 8;
  const most = place.wide - tip.offsetWidth - 2;
  tip.style.left = `${Math.max(0, Math.min(x, most))}px`;
  const y = place.top + q * place.cell - tip.offsetHeight - 8;
  tip.style.top = `${y < 0 ? place.top + (q + 1) * place.cell + 8 : y}px`;
}
