// Keep what is shown: as a picture, as data, or as a link.

const STYLES = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "opacity", "font-family", "font-size",
  "font-weight", "image-rendering", "paint-order", "dominant-baseline"];
const BOXED = ".thumbnail, .badge, .token, .word-token, .gauge"; // their boxes are drawn, too
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

// The words in a box as they stand on the screen: {words, x, y, style}, one for each line of each text.
function linesOf(box) {
  const lines = [];
  const range = document.createRange();
  const walker = document.createTreeWalker(box, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const parent = node.parentElement;
    if (parent.closest("svg, summary, .own-heads") || !parent.checkVisibility()) continue;
    let line = { y: -Infinity };
    let end = 0;
    for (const letter of node.data) {
      range.setStart(node, end);
      end += letter.length;
      range.setEnd(node, end);
      const [rect] = range.getClientRects();
      if (!rect || (!rect.width && !letter.trim())) continue; // a space where a line ends
      const y = rect.y + rect.height / 2;
      if (Math.abs(line.y - y) > rect.height / 2) {
        line = { words: "", x: rect.x, y, style: getComputedStyle(parent) };
        lines.push(line);
      }
      line.words += letter;
      line.x = Math.min(line.x, rect.x); // where it goes from right to left
    }
  }
  return lines;
}

// What is shown of these boxes as one drawing: words, pictures and drawings at their places.
function pictureOf(boxes, title) {
  const frames = boxes.map((box) => box.getBoundingClientRect());
  const [left, top] = [Math.min(...frames.map(({ x }) => x)), Math.min(...frames.map(({ y }) => y)) - TITLE_HIGH];
  const [right, bottom] = ["right", "bottom"].map((side) => Math.max(...frames.map((frame) => frame[side])));
  const svg = drawn("svg", { viewBox: `0 0 ${right - left} ${bottom - top}` });
  svg.append(write(title, 0, 18, "start", { "font-size": 15, "font-weight": "bold" }));
  boxes.flatMap((box) => [...box.querySelectorAll(`canvas, svg, ${BOXED}`)]).forEach((node) => {
    const style = getComputedStyle(node);
    [...node.getClientRects()].forEach((rect) => { // one a line; of what is hidden none
      const { width, height } = rect;
      const [x, y] = [rect.x - left, rect.y - top];
      if (node.matches("canvas")) svg.append(drawn("image", { x, y, width, height, href: node.toDataURL(), class: "pixels" }));
      if (node.matches("svg")) svg.append(filled(node.cloneNode(true), { x, y }, "", []));
      if (!node.matches(BOXED)) return;
      const stroke = style.outlineStyle === "none" ? style.borderTopColor : style.outlineColor;
      const below = parseFloat(style.borderBottomWidth); // what a chat says of a token by a line below it
      svg.append(drawn("rect", { x, y, width, height, fill: style.backgroundColor, stroke, "stroke-width": style.borderTopWidth }),
        drawn("rect", { x, y: y + height - below, width, height: below, fill: style.borderBottomColor }));
      const value = width * style.getPropertyValue("--value"); // of a bar; else 0
      svg.append(drawn("rect", { x, y, width: value, height, fill: "var(--accent)" }));
    });
  });
  boxes.flatMap(linesOf).forEach(({ words, x, y, style }) => {
    const font = { "font-size": style.fontSize, "font-weight": style.fontWeight, "dominant-baseline": "central" };
    const text = write(words.replaceAll(" ", "\u00a0"), x - left, y - top, "start", font);
    text.style.fill = style.color;
    svg.append(text);
  });
  return svg;
}

// An <svg> as a file of its own: with the styles that the page gives it. One that is not in the page is put there for it.
function asFile(svg) {
  const isApart = !svg.isConnected;
  if (isApart) document.body.append(element("div", "apart", "", {}, [svg]));
  const copy = filled(svg.cloneNode(true), { xmlns: "http://www.w3.org/2000/svg" }, "", []);
  const [from, to] = [svg, copy].map((root) => [root, ...root.querySelectorAll("*")]);
  from.forEach((node, i) => {
    const style = getComputedStyle(node);
    STYLES.forEach((name) => to[i].setAttribute(name, style.getPropertyValue(name)));
  });
  copy.prepend(drawn("rect", { width: "100%", height: "100%", fill: getComputedStyle(document.body).backgroundColor }));
  if (isApart) svg.parentElement.remove();
  return new XMLSerializer().serializeToString(copy);
}

const saveSvg = (svg, name) => saveText(asFile(svg), name, "image/svg+xml");

async function savePng(svg, name) {
  const image = new Image();
  image.src = `data:image/svg+xml,${encodeURIComponent(asFile(svg))}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  const { width, height } = svg.viewBox.baseVal;
  [canvas.width, canvas.height] = [2 * width, 2 * height];
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

// The address of what is shown, with all of its state.
function copyLink() {
  return button(t("Copy link"), async ({ target }) => {
    const isCopied = await navigator.clipboard.writeText(location.href).then(() => true, () => false);
    target.textContent = isCopied ? t("Copied") : t("It is in the address bar");
    announce(target.textContent);
    setTimeout(() => { target.textContent = t("Copy link"); }, 2000);
  });
}
