// Keep what is shown: as a picture, as data, or as a link.

const STYLES = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "opacity", "font-family", "font-size",
  "font-weight", "image-rendering"];

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
    if (value === null || value === undefined) return "";
    if (typeof value === "number") return String(value);
    const text = /^[=+\-@\t\r]/.test(value) && !Number.isFinite(Number(value)) ? `'${value}` : value;
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  saveText(`${rows.map((row) => row.map(cell).join(",")).join("\r\n")}\r\n`, name, "text/csv");
}

// An <svg> as a file of its own: with the styles that the page gives it. One that is not in the page is put there for it.
function asFile(svg) {
  const isApart = !svg.isConnected;
  if (isApart) document.body.append(svg);
  const copy = svg.cloneNode(true);
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  const [from, to] = [svg, copy].map((root) => [root, ...root.querySelectorAll("*")]);
  from.forEach((node, i) => {
    const style = getComputedStyle(node);
    STYLES.forEach((name) => to[i].setAttribute(name, style.getPropertyValue(name)));
  });
  copy.prepend(drawn("rect", { width: "100%", height: "100%", fill: getComputedStyle(document.body).backgroundColor }));
  if (isApart) svg.remove();
  return new XMLSerializer().serializeToString(copy);
}

const saveSvg = (svg, name) => saveText(asFile(svg), name, "image/svg+xml");

async function savePng(svg, name) {
  const address = URL.createObjectURL(new Blob([asFile(svg)], { type: "image/svg+xml" }));
  const image = new Image();
  image.src = address;
  await image.decode();
  const canvas = document.createElement("canvas");
  const { width, height } = svg.viewBox.baseVal;
  [canvas.width, canvas.height] = [2 * width, 2 * height];
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  URL.revokeObjectURL(address);
  canvas.toBlob((blob) => saveBlob(blob, name), "image/png");
}

// A button that opens a list of ways to keep something: {words: act}.
function saveMenu(title, ways) {
  const menu = element("details", "save", "", {}, [element("summary", "", "Save", { "aria-label": title })]);
  menu.append(element("div", "save-list", "", {}, Object.entries(ways).map(([words, act]) => button(words, () => {
    menu.open = false;
    act();
  }))));
  menu.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    menu.open = false;
    menu.querySelector("summary").focus();
  });
  menu.addEventListener("focusout", (event) => menu.contains(event.relatedTarget) || !event.relatedTarget || (menu.open = false));
  return menu;
}

// The address of what is shown, with all of its state.
function copyLink() {
  return button("Copy link", async ({ target }) => {
    try {
      await navigator.clipboard.writeText(location.href);
      target.textContent = "Copied";
    } catch {
      target.textContent = "It is in the address bar";
    }
    announce(target.textContent);
    setTimeout(() => { target.textContent = "Copy link"; }, 2000);
  });
}
