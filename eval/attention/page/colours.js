// Colours of weights: magma, which keeps its order in greyscale and for colour-blind eyes.

const MAGMA = [
  [0, 0, 4], [12, 8, 38], [33, 12, 74], [58, 15, 110], [81, 18, 124], [105, 28, 129], [130, 38, 129], [156, 46, 127],
  [183, 55, 121], [208, 65, 111], [228, 79, 100], [243, 104, 92], [251, 135, 97], [254, 167, 115], [254, 198, 139],
  [253, 229, 167], [252, 253, 191],
];

const SCALES = {
  linear: (weight) => weight,
  power: (weight) => weight ** 0.4,
  log: (weight) => (weight <= 0.001 ? 0 : 1 + Math.log10(weight) / 3),
};

const SCALE_TICKS = {
  linear: [0, 0.25, 0.5, 0.75, 1],
  power: [0, 0.01, 0.05, 0.25, 1],
  log: [0.001, 0.01, 0.1, 1],
};

const isDark = () => document.documentElement.dataset.theme === "dark";

// share 0 … 1 -> [r, g, b]; nothing is the page's own colour: light in the light, dark in the dark
function magma(share) {
  const place = Math.min(1, Math.max(0, isDark() ? share : 1 - share)) * (MAGMA.length - 1);
  const low = Math.min(Math.floor(place), MAGMA.length - 2);
  return MAGMA[low].map((from, i) => Math.round(from + (place - low) * (MAGMA[low + 1][i] - from)));
}

const css = ([r, g, b]) => `rgb(${r}, ${g}, ${b})`;
const ABSENT = () => (isDark() ? [42, 46, 54] : [236, 236, 238]);
const packed = ([r, g, b]) => (0xff000000 | (b << 16) | (g << 8) | r) >>> 0; // ImageData's bytes, little-endian

const tables = {};

// 256 colours, one for each code, for the scale and theme that are on
function colourTable(scale) {
  const key = `${scale} ${isDark()}`;
  if (!tables[key]) {
    const shares = Array.from({ length: LEVELS + 1 }, (_, code) => SCALES[scale]((code / LEVELS) ** 2));
    tables[key] = Uint32Array.from(shares, (share) => packed(magma(share)));
  }
  return tables[key];
}

function inkOn([r, g, b]) {
  return 0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#111" : "#fff";
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// A head as size x size pixels. Where several entries fall into one pixel the largest counts: a diagonal, which is
// what a previous-token or induction head is, would vanish in an average.
const largest = new Uint8Array(1 << 20);
function paintHead(canvas, head, size) {
  if (canvas.width !== size) canvas.width = canvas.height = size;
  const image = new ImageData(size, size);
  const pixels = new Uint32Array(image.data.buffer);
  const table = colourTable(state.scale);
  const { length, codes, factors, text, hideSink } = head;
  const cells = Uint16Array.from({ length }, (_, i) => Math.floor((i * size) / length));
  largest.fill(0, 0, size * size);
  for (let q = 0, at = 0; q < length; q++) {
    const row = cells[q] * size;
    const factor = factors.colour[q];
    const sink = hideSink ? text.starts[q] : -1;
    for (let k = 0; k <= q; k++, at++) {
      const code = k === sink ? 0 : Math.min(LEVELS, codes[at] * factor + 0.5) | 0;
      if (code > largest[row + cells[k]]) largest[row + cells[k]] = code;
    }
  }
  const absent = packed(ABSENT());
  for (let y = 0, at = 0; y < size; y++) {
    for (let x = 0; x < size; x++, at++) pixels[at] = x <= y ? table[largest[at]] : absent;
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}

// Light or dark: as the system has it, until the button or D is pressed. Views that paint hear of it: document's "theme".
let themeIsChosen = false;

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  byId("theme").textContent = theme === "dark" ? "Light" : "Dark";
  document.dispatchEvent(new Event("theme"));
}

function chooseTheme() {
  themeIsChosen = true;
  setTheme(isDark() ? "light" : "dark");
}

function followSystemTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const follow = () => themeIsChosen || setTheme(dark.matches ? "dark" : "light");
  follow();
  dark.addEventListener("change", follow);
}
