// Keep what is shown: as a picture, as data, or as a link.

import { announce, button, element } from "./dom.js";

const STYLES = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "opacity", "font-family", "font-size"];

export function saveBlob(blob, name) {
  const link = element("a", "", "", { href: URL.createObjectURL(blob), download: name.replace(/[^\p{L}\p{N}._ -]/gu, "_") });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

export const saveText = (text, name, kind) => saveBlob(new Blob([text], { type: kind }), name);
export const saveJson = (value, name) => saveText(JSON.stringify(value, null, 1), name, "application/json");

// Rows of values. A text that a spreadsheet would compute with gets an apostrophe; quotes as RFC 4180 has them.
export function csv(rows) {
  const cell = (value) => {
    if (value === null || value === undefined) return "";
    if (typeof value === "number") return String(value);
    const text = /^[=+\-@\t\r]/.test(value) && !Number.isFinite(Number(value)) ? `'${value}` : value;
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return `${rows.map((row) => row.map(cell).join(",")).join("\r\n")}\r\n`;
}

export const saveCsv = (rows, name) => saveText(csv(rows), name, "text/csv");

// An <svg> of the page as a file of its own: with the styles that the page gives it.
export function asFile(svg) {
  const copy = svg.cloneNode(true);
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  const [from, to] = [svg, copy].map((root) => [root, ...root.querySelectorAll("*")]);
  from.forEach((node, i) => {
    const style = getComputedStyle(node);
    STYLES.forEach((name) => to[i].setAttribute(name, style.getPropertyValue(name)));
  });
  const back = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  const page = getComputedStyle(document.body).backgroundColor;
  Object.entries({ width: "100%", height: "100%", fill: page }).forEach(([name, value]) => back.setAttribute(name, value));
  copy.prepend(back);
  return new XMLSerializer().serializeToString(copy);
}

export const saveSvg = (svg, name) => saveText(asFile(svg), name, "image/svg+xml");

export async function savePng(svg, name) {
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
export function saveMenu(title, ways) {
  const menu = element("details", "save", "", {}, [element("summary", "", "Save", { "aria-label": title })]);
  const list = element("div", "save-list", "", {}, Object.entries(ways).map(([words, act]) => button(words, () => {
    menu.open = false;
    act();
  })));
  menu.append(list);
  menu.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    menu.open = false;
    menu.querySelector("summary").focus();
  });
  menu.addEventListener("focusout", (event) => menu.contains(event.relatedTarget) || !event.relatedTarget || (menu.open = false));
  return menu;
}

// The address of what is shown, with all of its state.
export function copyLink() {
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
