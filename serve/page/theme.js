// Light or dark: as the system has it, until the button is pressed. Views that paint hear of it: document's "theme".

import { byId } from "./dom.js";

let isChosen = false;

export const isDark = () => document.documentElement.dataset.theme === "dark";

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  byId("page-theme").textContent = theme === "dark" ? "Light" : "Dark";
  document.dispatchEvent(new Event("theme"));
}

function choose() {
  isChosen = true;
  setTheme(isDark() ? "light" : "dark");
}

export function followTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const follow = () => isChosen || setTheme(dark.matches ? "dark" : "light");
  follow();
  dark.addEventListener("change", follow);
  byId("page-theme").addEventListener("click", choose);
  document.addEventListener("keydown", (event) => {
    const isTyping = ["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName) && event.target.type !== "range";
    if (event.key.toLowerCase() !== "d" || isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
    choose();
  });
}
