// What the server knows: questions with one answer, what is new of the runs; and the heads of one run.

const EVERY = 700; // milliseconds between two questions for what is new

const NO_SERVER = t("No connection to the server. Is `python -m serve` still running?");

// Raises what the server says, or that there is none.
async function ask(path, { signal, as = "json", ...more } = {}) {
  const answer = await fetch(path, { signal, ...more }).catch((error) => {
    throw error.name === "AbortError" ? error : new Error(NO_SERVER);
  });
  if (answer.ok) return as === "stream" ? answer.body : answer[as]();
  const { error: told } = await answer.json().catch(() => ({}));
  if (answer.status === 401) askForKey();
  throw Object.assign(new Error(told?.message ?? t("the server answered {0}", answer.status)), { status: answer.status });
}

const part = (...names) => names.map(encodeURIComponent).join("/");
const bytesOf = (packed) => Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));

function post(path, body, more) {
  return ask(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), ...more });
}

function askForKey() {
  if (byId("key")) return;
  const field = element("input", "", "", { type: "password", autocomplete: "current-password", required: true });
  const told = element("output");
  const form = element("form", "card", "", { id: "key" }, [
    element("label", "", t("This server has a key: "), {}, [field]), " ", element("button", "", t("Open")), " ", told,
  ]);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    post("/page/key", { key: field.value }).then(() => location.reload(), () => { told.textContent = t("This is not the key."); });
  });
  byId("root").before(form);
  field.focus();
}

// The runs of the folder, by name, as they change. listen(changed, all) is called at once, then at every change, until
// the signal is aborted.
async function followRuns(listen, signal) {
  const all = new Map();
  for (let isNew = true; !signal.aborted; await new Promise((resolve) => { setTimeout(resolve, EVERY); })) {
    try {
      const { runs: now } = await ask("/live/runs", { signal });
      byId("connection").hidden = true;
      const gone = [...all.keys()].filter((name) => !now.some((run) => run.name === name));
      const changed = now.filter((run) => JSON.stringify(run) !== JSON.stringify(all.get(run.name)));
      gone.forEach((name) => all.delete(name));
      changed.forEach((run) => all.set(run.name, run));
      if (isNew || gone.length || changed.length) listen(changed, all);
      isNew = false;
    } catch (error) {
      if (error.status === 401 || signal.aborted) return; // the page asks for the key, and is loaded again
      byId("connection").textContent = `${NO_SERVER} ${t("This page tries again.")}`;
      byId("connection").hidden = false;
    }
  }
}

const byNewest = (a, b) => (b.state === "training") - (a.state === "training") || b.written - a.written;

// The heads of a run, while it trains and afterwards.
class RunHeads {
  // own: a text of one's own, in place of those of the run; shown: it, or the looks of the run that were read
  constructor(root, address) {
    Object.assign(this, { address, own: address.get("own"), shown: "", frames: new Map(), queue: Promise.resolve(), names: "" });
    this.waiting = element("p", "card", t("Looking for runs …"));
    this.progress = new Progress();
    this.live = element("div", "live", "", { hidden: true }, [this.progress.root]);
    this.box = element("div");
    root.append(this.live, this.waiting, this.box, this.progress.story);
    followRuns((_, all) => this.hear(all), address.signal);
  }

  hear(all) {
    const { address, own } = this;
    const known = [...all.values()].sort(byNewest);
    const now = all.get(address.run);
    if (!address.run) {
      const first = known.find((run) => run.looks[0]) ?? known.find((run) => run.state === "training");
      return first ? address.open(first.name) : this.wait(t("No run of this folder has a snapshot of its heads yet."));
    }
    if (!now) return this.wait(t("There is no run “{0}” in this folder.", address.run));
    this.drawLive(now, known);
    const wanted = own || String(now.looks);
    if (!own && !now.looks[0]) this.wait(t("The run “{0}” has no snapshot of its heads yet. The first one appears here by itself.", now.name));
    else if (wanted !== this.shown) {
      this.shown = wanted;
      this.queue = this.queue.then(() => (own ? this.look(own) : this.read(now.name))).catch((error) => {
        if (address.signal.aborted) return;
        this.wait(t("The heads of this run cannot be shown: {0}", error.message));
        this.shown = own; // without one, the next news try again
      });
    }
    return this.queue;
  }

  wait(words) {
    this.waiting.hidden = false;
    this.waiting.textContent = words;
    isReady(true);
  }

  async read(name) {
    const told = await ask(`/live/runs/${part(name)}/attention`, { signal: this.address.signal });
    const [run] = told.runs;
    this.progress.drawRun(run);
    if (this.run && String([run.layers, run.heads]) === String([this.run.layers, this.run.heads])) growHeads(told);
    else this.begin(told, (key) => this.frame(key));
  }

  begin(told, frameOf) {
    this.viewing?.abort();
    this.viewing = new AbortController();
    [this.run] = told.runs;
    this.waiting.hidden = true;
    startHeads(this.box, this.address, told, frameOf, AbortSignal.any([this.viewing.signal, this.address.signal]));
  }

  // The codes of one look on one text; nothing while they are on their way.
  frame(key) {
    if (this.frames.has(key)) return this.frames.get(key);
    this.frames.set(key, null);
    const { signal, run } = this.address;
    ask(`/live/runs/${part(run)}/attention/${part(...key.split("/"))}`, { signal, as: "arrayBuffer" }).then((bytes) => {
      this.frames.set(key, new Uint8Array(bytes));
      if (!signal.aborted) render();
    }, () => this.frames.delete(key));
    return null;
  }

  // A text of one's own, at every checkpoint.
  async look(text) {
    this.wait(t("Every checkpoint of the run reads your text …"));
    const told = await post(`/live/runs/${part(this.address.run)}/look`, { text }, { signal: this.address.signal });
    const frames = new Map(Object.entries(told.frames).map(([key, packed]) => [key, bytesOf(packed)]));
    const title = t("your own text");
    told.probes.forEach((probe) => Object.assign(probe, { title, note: t("your own") }));
    told.scores.forEach((score) => { score.measured_on = score.probe && title; });
    this.begin(told, (key) => frames.get(key));
  }

  drawLive(now, known) {
    const { address, own } = this;
    this.live.hidden = false;
    this.progress.draw(now);
    const names = known.filter((run) => run.looks[0] || run === now).map((run) => run.name);
    if (this.names !== String(names)) {
      this.names = String(names);
      this.pick?.remove();
      this.pick = choice(t("Run"), names.map((name) => [name, name]), now.name, (name) => address.open(name));
      this.live.prepend(this.pick);
    }
    if (!now.has_model || this.form) return;
    const words = t("A text of your own");
    const field = element("textarea", "", own, { rows: 2, maxlength: 2000, placeholder: "Once there was a fox. The fox saw a bird …", "aria-label": words });
    const leave = button(t("Back to the texts of the run"), () => address.open(now.name), { hidden: !own });
    const form = element("form", "own-text", "", {}, [field, element("button", "", t("Look at it")), leave]);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (field.value.trim()) address.open(now.name, { own: field.value });
    });
    this.form = element("details", "own", "", { open: Boolean(own) }, [element("summary", "", words), form]);
    this.live.append(this.form);
  }
}

VIEWS.heads = { title: t("Heads"), show: (root, address) => new RunHeads(root, address) };
