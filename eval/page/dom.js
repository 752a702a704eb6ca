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

// Buttons with the names of rows (words or elements) and columns: cells[row][column].
// choose(row, column) is called at a click.
function buildGrid(box, rows, columns, kind, choose, width = "minmax(0, 1fr)") {
  box.style.gridTemplateColumns = `max-content repeat(${columns.length}, ${width})`;
  box.replaceChildren(element("span"), ...columns.map((name) => element("span", "column-name", name)));
  return rows.map((name, row) => {
    box.append(element("span", "row-name", "", {}, [name]));
    return columns.map((_, column) => {
      const cell = button("", () => choose(row, column), { class: kind });
      box.append(cell);
      return cell;
    });
  });
}

// What every cell says; the chosen one is where the keyboard comes to.
function markCell(cell, isChosen, title) {
  cell.setAttribute("aria-pressed", isChosen);
  cell.tabIndex = isChosen ? 0 : -1;
  cell.title = cell.ariaLabel = title;
}

// Tokens that can be pointed at and chosen, each with its place in data-place.
function listenPlaces(box, point, choose) {
  const placeOf = ({ target }) => (target.dataset?.place ? Number(target.dataset.place) : null);
  box.addEventListener("pointerover", (event) => point(placeOf(event)));
  box.addEventListener("pointerleave", () => point(null));
  box.addEventListener("click", (event) => placeOf(event) !== null && choose(placeOf(event)));
}

// A bar of a share from 0 to 1, and a line at a mark, where there is one.
function setGauge(bar, share, mark = -1) {
  bar.style.setProperty("--value", share);
  bar.style.setProperty("--chance", mark);
  return bar;
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
  return value.toLocaleString(isChinese ? "zh" : "en", { notation: "compact", minimumSignificantDigits: 2, maximumSignificantDigits: digits });
}

const quoted = (token) => `“${token}”`;
const figure = (value) => number(value, 4); // of a log: enough to see a loss move
const duration = (seconds) => (seconds < 100 ? t("{0} s", seconds.toFixed(0)) : t("{0} min", number(seconds / 60, 2)));
const percent = (share) => (share >= 0.9995 ? "100%" : share < 0.0005 ? "< 0.1%" : `${(100 * share).toFixed(1)}%`);
const nats = (value) => (value <= -0.005 ? `−${Math.abs(value).toFixed(2)}` : Math.abs(value).toFixed(2));
const signed = (value) => (value >= 0.005 ? `+${nats(value)}` : nats(value));
