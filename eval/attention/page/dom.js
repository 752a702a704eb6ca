// Elements, numbers and words. What runs and models are called becomes text, never HTML.

const byId = (id) => document.getElementById(id);
const clamp = (value, low, high) => Math.max(low, Math.min(high, value));
const after = (list, item) => list[(list.indexOf(item) + 1) % list.length];

// element("a", "link", "words", { href: "…" }, [children])
function element(tag, className = "", words = "", attributes = {}, children = []) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (words !== "") made.textContent = words;
  Object.entries(attributes).forEach(([name, value]) => {
    if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null) made.setAttribute(name, value);
  });
  made.append(...children);
  return made;
}

// The same for a drawing.
function drawn(tag, attributes = {}, words = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  Object.entries(attributes).forEach(([name, value]) => made.setAttribute(name, value));
  if (words !== "") made.textContent = words;
  return made;
}

const write = (words, x, y, anchor = "start", more = {}) => drawn("text", { x, y, "text-anchor": anchor, ...more }, words);

function button(words, act, attributes = {}) {
  const made = element("button", "", words, { type: "button", ...attributes });
  made.addEventListener("click", act);
  return made;
}

// Options are [value, words].
function choice(words, options, chosen, act) {
  const select = element("select", "", "", {}, options.map(([value, title]) => new Option(title, value)));
  select.value = chosen;
  select.addEventListener("change", () => act(select.value));
  return element("label", "", `${words} `, {}, [select]);
}

function check(words, isOn, act) {
  const box = element("input", "", "", { type: "checkbox" });
  box.checked = isOn;
  box.addEventListener("change", () => act(box.checked));
  return element("label", "check", "", {}, [box, ` ${words}`]);
}

// For screen readers: the newest of what changes by itself.
function announce(words) {
  if (byId("news").textContent !== words) byId("news").textContent = words;
}

function say(problem) {
  byId("problem").textContent = problem;
  byId("problem").hidden = !problem;
}

const isReady = (yes) => document.documentElement.toggleAttribute("data-ready", yes);

// A number for people: three digits that matter, an undefined one a dash.
function number(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 100) return value.toFixed(0);
  if (size >= 10) return value.toFixed(1);
  if (size >= 0.1 || size === 0) return value.toFixed(2);
  return size >= 0.001 ? value.toFixed(3) : value.toExponential(0);
}

// Where there is little room: as many digits as the range of its kind needs.
function brief(value, [low, high]) {
  if (value === null) return "–";
  const largest = Math.max(Math.abs(low), Math.abs(high));
  return value.toFixed(largest >= 10 ? 0 : largest >= 0.3 ? 2 : 3);
}

// 5324800 -> "5.3 M"
function quantity(value) {
  const [size, unit] = [[1e9, " G"], [1e6, " M"], [1e3, " k"]].find(([bound]) => value >= bound) ?? [1, ""];
  return `${(value / size).toFixed(size > 1 && value / size < 100 ? 1 : 0)}${unit}`;
}

function duration(seconds) {
  return seconds < 100 ? `${seconds.toFixed(0)} s` : `${(seconds / 60).toFixed(seconds < 6000 ? 1 : 0)} min`;
}
