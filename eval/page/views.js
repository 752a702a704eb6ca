// Which view is shown? The address says it: #/VIEW/RUN?name=value. Every state of every view has an address. The run and
// every value are percent-encoded: any name may be there.

const VIEWS = {}; // name -> {title, show(root, address)}; each view enters itself here
let closing = new AbortController();

function link(view, run = "", values = {}) {
  const query = new URLSearchParams(Object.entries(values).filter(([, value]) => value !== "" && value !== null));
  return `#/${view}${run && `/${encodeURIComponent(run)}`}${query.size ? `?${query}` : ""}`;
}

// As decodeURIComponent does, but whatever is no letter is shown as such: an address may be cut.
const decoded = (text) => new URLSearchParams(`text=${text.replaceAll("+", "%2B").replaceAll("&", "%26")}`).get("text");

// What a view is given. signal: aborted when the view is left; the view then ends whatever it began.
class Address {
  constructor(signal) {
    const [path, query = ""] = location.hash.replace(/^#\/?/, "").split(/\?(.*)/s);
    const [view, run = ""] = path.split("/");
    this.view = VIEWS[view] ? view : Object.keys(VIEWS)[0];
    Object.assign(this, { run: decoded(run), query: new URLSearchParams(query), signal });
  }

  get(name, otherwise = "") {
    return this.query.get(name) ?? otherwise;
  }

  // Keep these values in the address; one that is "" or null leaves it. The view is not opened again.
  set(values) {
    Object.entries(values).forEach(([name, value]) => {
      if (value === "" || value === null) this.query.delete(name);
      else this.query.set(name, value);
    });
    if (this.signal.aborted || location.protocol === "about:") return; // within a notebook
    history.replaceState(null, "", link(this.view, this.run, Object.fromEntries(this.query)));
  }

  // Another run in the same view: a new entry in the browser's history.
  open(run, values = {}) {
    location.hash = link(this.view, run, values);
  }
}

async function open() {
  closing.abort(); // what the view before began
  closing = new AbortController();
  const { signal } = closing;
  const root = byId("root");
  say("");
  byId("heading").textContent = "";
  [byId("keep"), root].forEach((box) => box.replaceChildren());
  isReady(false);
  try {
    const address = new Address(signal);
    drawViews(address);
    await VIEWS[address.view].show(root, address);
  } catch (error) {
    if (signal.aborted) return;
    say(t("This page cannot be shown: {0}", error.message));
    throw error;
  }
}

function drawViews({ view, run }) {
  if (Object.keys(VIEWS).length < 2) return; // a file
  byId("views").replaceChildren(...Object.entries(VIEWS).map(([name, { title }]) => (
    element("a", "", title, { href: link(name, name === "runs" ? "" : run), "aria-current": name === view && "page" }))));
  document.title = `${run ? t("{0} of the run {1}", VIEWS[view].title, run) : VIEWS[view].title} · Headlight`;
}

// Keys as the help names them, what they do, {key: act}, and whether they act now
const KEYS = [
  ["D", t("light or dark"), { d: () => changeTheme() }, () => true],
  ["?", t("this help"), { "?": () => byId("help").showModal() }, () => true],
];

document.addEventListener("keydown", (event) => {
  const { target, key, shiftKey } = event;
  if (event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
  if (target.matches("select, textarea, input:not([type=range], [type=checkbox])")) return; // there keys choose, or write
  if (key === " " && target.matches("button, summary, [type=checkbox]")) return; // it presses
  const letter = key.length === 1 ? key.toLowerCase() : key;
  const name = shiftKey && key.length > 1 ? `Shift ${key}` : letter;
  const row = KEYS.find(([,, acts, isOn]) => acts[name] && isOn(target));
  if (!row) return;
  event.preventDefault();
  row[2][name]();
});

document.addEventListener("DOMContentLoaded", () => { // the other scripts are there
  translatePage();
  followTheme();
  byId("language").hidden = !storage;
  byId("language").addEventListener("click", changeLanguage);
  byId("keys").append(...KEYS.flatMap(([keys, words]) => [element("dt", "", keys), element("dd", "", words)]));
  byId("keys").before(byId("help-words").content);
  byId("help-button").addEventListener("click", () => byId("help").showModal());
  addEventListener("hashchange", open);
  open();
});
