// Elements, numbers and words. What runs and models are called becomes text, never HTML.

const byId = (id) => document.getElementById(id);
const clamp = (value, low, high) => Math.max(low, Math.min(high, value));
const after = (list, item) => list[(list.indexOf(item) + 1) % list.length];

// element("a", "link", "words", { href: "…" }, [children])
function element(tag, className = "", words = "", attributes = {}, children = []) {
  return filled(document.createElement(tag), { class: className || null, ...attributes }, words, children);
}

// The same for a drawing.
function drawn(tag, attributes = {}, words = "", children = []) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, words, children);
}

function filled(made, attributes, words, children) {
  Object.entries(attributes).forEach(([name, value]) => {
    if (value !== false && value !== null) made.setAttribute(name, value === true ? "" : value);
  });
  made.append(...(words === "" ? [] : [words]), ...children);
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
  const box = element("input", "", "", { type: "checkbox", checked: isOn });
  box.addEventListener("change", () => act(box.checked));
  return element("label", "check", "", {}, [box, ` ${words}`]);
}

// For screen readers: the newest of what changes by itself.
function announce(words) {
  byId("news").textContent = words;
}

function say(problem) {
  byId("problem").textContent = problem;
  byId("problem").hidden = !problem;
}

const isReady = (yes) => document.documentElement.toggleAttribute("data-ready", yes);

// A number for people: an undefined one is a dash, a whole one stays whole, others have so many digits that matter.
function number(value, digits = 3) {
  if (!Number.isFinite(value)) return "–";
  if (Number.isInteger(value) && Math.abs(value) < 10_000) return String(value);
  return value.toLocaleString("en", { notation: "compact", minimumSignificantDigits: 2, maximumSignificantDigits: digits });
}

const figure = (value) => number(value, 4); // of a log: enough to see a loss move
const duration = (seconds) => (seconds < 100 ? t("{0} s", seconds.toFixed(0)) : t("{0} min", number(seconds / 60, 2)));
const percent = (share) => (share >= 0.9995 ? "100%" : share < 0.0005 ? "< 0.1%" : `${(100 * share).toFixed(1)}%`);
const nats = (value) => (value <= -0.005 ? `−${Math.abs(value).toFixed(2)}` : Math.abs(value).toFixed(2));
const signed = (value) => (value >= 0.005 ? `+${nats(value)}` : nats(value));
