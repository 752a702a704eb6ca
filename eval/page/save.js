// Keep what is shown: as a picture, as data, or as a link.

const STYLES = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "opacity", "font-family", "font-size",
  "font-weight", "image-rendering", "paint-order", "dominant-baseline"];
const MEASURED = "canvas, .grid, .tokens"; // parts of a picture whose size depends on the window
const TITLE_HIGH = 30;

function saveBlob(blob, name) {
  const to = element("a", "", "", { href: URL.createObjectURL(blob), download: name.replace(/[^\p{L}\p{N}._ -]/gu, "_") });
  to.click();
  setTimeout(() => URL.revokeObjectURL(to.href), 10_000);
}

const saveText = (text, name, kind) => saveBlob(new Blob([text], { type: kind }), name);
const saveJson = (value, name) => saveText(JSON.stringify(value, null, 1), name, "application/json");

// Rows of values. A text that a spreadsheet would compute with gets an apostrophe; quotes as RFC 4180 has them.
function saveCsv(rows, name) {
  const cell = (value) => {
    const text = String(value ?? "");
    const safe = /^[=+\-@\t\r]/.test(text) && !Number.isFinite(Number(text)) ? `'${text}` : text;
    return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  saveText(`${rows.map((row) => row.map(cell).join(",")).join("\r\n")}\r\n`, name, "text/csv");
}

// What is shown of these boxes: their HTML, with the page's styles, in an SVG. A canvas becomes a background.
function pictureOf(boxes, title) {
  const frames = boxes.map((box) => box.getBoundingClientRect());
  const [left, top] = ["left", "top"].map((side) => Math.min(...frames.map((frame) => frame[side])));
  const [right, bottom] = ["right", "bottom"].map((side) => Math.max(...frames.map((frame) => frame[side])));
  const [width, height] = [right - left, bottom - top + TITLE_HIGH];
  const rules = [...document.styleSheets].flatMap(({ cssRules }) => [...cssRules].map((rule) => rule.cssText));
  const body = element("body", "", "", {}, [element("h2", "", title), ...boxes.map((box, i) => {
    let copy = box.cloneNode(true);
    copy.style.width = `${frames[i].width}px`;
    const nodes = copy.querySelectorAll(MEASURED);
    box.querySelectorAll(MEASURED).forEach((node, at) => {
      Object.assign(nodes[at].style, { width: `${node.offsetWidth}px`, maxHeight: `${node.offsetHeight}px`, flex: "none" }); // here are no vh
      if (node.width) nodes[at].style.background = `url(${node.toDataURL()}) 0 0 / 100% 100%`;
    });
    copy.querySelectorAll(".own-off, .link, .save").forEach((node) => node.remove());
    for (let { parentElement: around } = box; around !== document.body; around = around.parentElement) {
      const shell = around.cloneNode(false); // styles depend on it
      shell.append(copy);
      copy = shell;
    }
    copy.style.cssText = `position: absolute; left: ${frames[i].left - left}px; top: ${frames[i].top - top + TITLE_HIGH}px; width: ${width}px`;
    return copy;
  })]);
  const { lang, dataset: { theme } } = document.documentElement;
  const size = { width: width + 32, height: height + 32, viewBox: `-16 -16 ${width + 32} ${height + 32}` };
  const svg = drawn("svg", { ...size, class: "saved", lang, "data-theme": theme }, "", [
    drawn("style", {}, rules.join("\n")), drawn("foreignObject", { width, height }, "", [body]),
  ]);
  return new XMLSerializer().serializeToString(svg);
}

// A drawing of the page as a file of its own: with the styles that the page gives it.
function asFile(svg) {
  const copy = filled(svg.cloneNode(true), { xmlns: "http://www.w3.org/2000/svg" }, "", []);
  const [from, to] = [svg, copy].map((root) => [root, ...root.querySelectorAll("*")]);
  from.forEach((node, i) => {
    const style = getComputedStyle(node);
    STYLES.forEach((name) => to[i].setAttribute(name, style.getPropertyValue(name)));
  });
  copy.prepend(drawn("rect", { width: "100%", height: "100%", fill: getComputedStyle(document.body).backgroundColor }));
  return new XMLSerializer().serializeToString(copy);
}

const saveSvg = (svg, name) => saveText(svg, name, "image/svg+xml");

async function savePng(svg, name) {
  const image = new Image();
  image.src = `data:image/svg+xml,${encodeURIComponent(svg)}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [2 * image.width, 2 * image.height];
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  canvas.toBlob((blob) => saveBlob(blob, name), "image/png");
}

// A button that opens a list of ways to keep something: {words: act}.
function saveMenu(title, ways) {
  const close = () => { menu.open = false; };
  const list = element("div", "save-list", "", {}, Object.entries(ways).map(([words, act]) => button(words, () => {
    close();
    act();
  })));
  const menu = element("details", "save", "", {}, [element("summary", "", t("Save"), { "aria-label": title }), list]);
  menu.addEventListener("keydown", ({ key }) => key === "Escape" && close());
  menu.addEventListener("focusout", ({ relatedTarget: to }) => to && !menu.contains(to) && close());
  return menu;
}
