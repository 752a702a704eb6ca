// Colours of weights: magma, which keeps its order in greyscale and for colour-blind eyes.

const MAGMA = [
  [0, 0, 4], [12, 8, 38], [33, 12, 74], [58, 15, 110], [81, 18, 124], [105, 28, 129], [130, 38, 129], [156, 46, 127],
  [183, 55, 121], [208, 65, 111], [228, 79, 100], [243, 104, 92], [251, 135, 97], [254, 167, 115], [254, 198, 139],
  [253, 229, 167], [252, 253, 191],
];

// Small weights are seen, too.
const brightness = (weight) => weight ** 0.4;

// Light or dark: as the system has it, or the button and D. Views that paint hear of it: document's "theme".
const isDark = () => document.documentElement.dataset.theme === "dark";

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  byId("theme").textContent = isDark() ? t("Light") : t("Dark");
  document.dispatchEvent(new Event("theme"));
}

const changeTheme = () => setTheme(isDark() ? "light" : "dark");

function followTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  setTheme(dark.matches ? "dark" : "light");
  dark.addEventListener("change", () => setTheme(dark.matches ? "dark" : "light"));
  byId("theme").addEventListener("click", changeTheme);
}

// share 0 … 1 -> [r, g, b]; nothing is the page's own colour: light in the light, dark in the dark
function magma(share) {
  const place = clamp(isDark() ? share : 1 - share, 0, 1) * (MAGMA.length - 1);
  const low = Math.min(Math.floor(place), MAGMA.length - 2);
  return MAGMA[low].map((from, i) => Math.round(from + (place - low) * (MAGMA[low + 1][i] - from)));
}

const css = ([r, g, b]) => `rgb(${r}, ${g}, ${b})`;
const inkOn = ([r, g, b]) => (0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#111" : "#fff");
const absent = () => (isDark() ? [42, 46, 54] : [236, 236, 238]);
const packed = ([r, g, b]) => (0xff000000 | (b << 16) | (g << 8) | r) >>> 0; // ImageData's bytes, little-endian

const LEVELS = 255; // of a weight
const tables = {};

// 256 colours, one for each code, for the theme that is on
function colourTable() {
  const shares = () => Array.from({ length: LEVELS + 1 }, (_, code) => brightness((code / LEVELS) ** 2));
  return tables[isDark()] ??= Uint32Array.from(shares(), (share) => packed(magma(share)));
}

// A head as size x size pixels. Where several entries fall into one pixel the largest counts: a diagonal, which is
// what a previous-token or induction head is, would vanish in an average. codes: of the lower triangle, or of the
// whole square, where a head without a mask also looks at later tokens.
function paintHead(canvas, { length, codes }, size) {
  if (canvas.width !== size) canvas.width = canvas.height = size;
  const largest = new Uint8Array(size * size);
  const cells = Uint16Array.from({ length }, (_, i) => Math.floor((i * size) / length));
  const isSquare = codes.length === length ** 2;
  for (let q = 0, at = 0; q < length; q++) {
    for (let k = 0; k < (isSquare ? length : q + 1); k++, at++) {
      const pixel = cells[q] * size + cells[k];
      largest[pixel] = Math.max(largest[pixel], Math.min(LEVELS, Math.round(codes[at])));
    }
  }
  const image = new ImageData(size, size);
  const pixels = new Uint32Array(image.data.buffer);
  const table = colourTable();
  const above = packed(absent());
  largest.forEach((code, at) => {
    const isSeen = code > 0 || at % size <= Math.floor(at / size);
    pixels[at] = isSeen ? table[code] : above;
  });
  canvas.getContext("2d").putImageData(image, 0, 0);
}
