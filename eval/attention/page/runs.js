// All runs of the folder, alive or finished: their figures over training, and in what they differ.

const QUIET = 10_000; // milliseconds between two announcements of what changes by itself
const COLUMNS = [
  // heading, what it says of a run, whether it is left out where there is little room
  ["state", (run) => run.state, false],
  ["step", (run) => `${run.step ?? "–"}${run.total ? ` of ${run.total}` : ""}`, false],
  ["loss", (run) => figure(run.loss), false],
  ["validation", (run) => figure(run.val_loss), true],
  ["gap to the floor", (run) => figure(run.gap), true],
  ["tokens/s", (run) => figure(run.tokens_per_s), true],
];

class Runs {
  constructor(root, address) {
    Object.assign(this, { address, all: new Map(), logs: new Map(), settings: new Map(), announced: 0, chosen: null, differ: "" });
    this.table = this.newTable();
    this.charts = FIGURES.map((about) => new Chart(about, (chart) => [this.saves(chart)]));
    this.none = element("p", "card", "This folder holds no run yet. Train one, for example with: make demo");
    this.differences = element("section", "differences");
    byId("heading").textContent = "Every run of this folder";
    byId("keep").append(saveMenu("Save the data of all charts", {
      "Data (JSON)": () => saveJson(this.data(), "runs.json"),
      "Data (CSV)": () => saveCsv(this.rows(FIGURES), "runs.csv"),
    }), copyLink());
    root.append(this.none, element("div", "scroll", "", {}, [this.table]), this.bar(),
      element("div", "charts", "", {}, this.charts.map((chart) => chart.root)), this.differences);
    const { signal } = address;
    document.addEventListener("theme", () => this.draw(), { signal });
    addEventListener("resize", () => this.draw(), { signal });
    followRuns((changed, all) => this.hear(changed, all), signal);
  }

  // ------------------------------------------------------------------ what is known

  async hear(changed, all) {
    this.all = all;
    this.none.hidden = all.size > 0;
    this.chosen ??= this.fromAddress();
    this.drawTable();
    const run = changed.find(({ name, state: now }) => this.chosen.has(name) && now === "training");
    if (run && Date.now() - this.announced >= QUIET) {
      this.announced = Date.now();
      announce(`${run.name}: step ${run.step}, training loss ${figure(run.loss)}`);
    }
    await this.readLogs();
    isReady(true);
  }

  fromAddress() {
    const named = this.address.get("runs").split(",").filter(Boolean).map(decodeURIComponent);
    if (named.length) return new Set(named);
    const ordered = [...this.all.values()].sort(byNewest);
    const alive = ordered.filter((run) => run.state === "training");
    return new Set((alive.length ? alive : ordered.slice(0, 1)).map((run) => run.name));
  }

  get shown() {
    return [...this.all.keys()].filter((name) => this.chosen.has(name)); // in the order of the table
  }

  async readLogs() {
    const { signal } = this.address;
    await Promise.all(this.shown.map((name) => {
      if (!this.logs.has(name)) this.logs.set(name, new Log(name));
      return this.logs.get(name).follow(() => String(this.all.get(name)?.log), signal);
    }));
    this.draw();
    await this.compareSettings();
  }

  // ------------------------------------------------------------------ the table of runs

  newTable() {
    const titles = ["run", ...COLUMNS.map(([title]) => title), ""];
    const late = (i) => (COLUMNS[i - 1]?.[2] ? "late" : "");
    return element("table", "run-table", "", {}, [
      element("caption", "unseen", "The runs of this folder. A ticked run is drawn below."),
      element("thead", "", "", {}, [element("tr", "", "", {}, titles.map((words, i) => element("th", late(i), words, { scope: "col" })))]),
      element("tbody"),
    ]);
  }

  drawTable() {
    this.table.hidden = !this.all.size;
    const body = this.table.tBodies[0];
    const known = new Map([...body.rows].map((row) => [row.dataset.run, row]));
    const rows = [...this.all.keys()].map((name) => known.get(name) ?? this.newRow(name));
    if (rows.length !== body.rows.length || rows.some((row, i) => row !== body.rows[i])) body.replaceChildren(...rows);
    rows.forEach((row) => this.fillRow(row, this.all.get(row.dataset.run), this.shown.indexOf(row.dataset.run)));
  }

  newRow(name) {
    const box = element("input", "", "", { type: "checkbox" });
    box.addEventListener("change", () => {
      if (box.checked) this.chosen.add(name);
      else this.chosen.delete(name);
      this.address.set({ runs: this.shown.map(encodeURIComponent).join(",") });
      this.drawTable();
      this.readLogs();
    });
    const label = element("label", "run-name", "", {}, [box, element("span", "swatch", "", { "aria-hidden": "true" }), element("span", "", name)]);
    return element("tr", "", "", { "data-run": name }, [
      element("th", "", "", { scope: "row" }, [label]), ...COLUMNS.map(([, , isLate]) => element("td", isLate ? "late" : "")), element("td"),
    ]);
  }

  fillRow(row, run, at) {
    row.className = at < 0 ? "" : `run-${at % 8}`;
    row.querySelector("input").checked = at >= 0;
    COLUMNS.forEach(([title, of], i) => {
      const cell = row.cells[i + 1];
      if (cell.textContent !== of(run)) cell.textContent = of(run);
      if (title === "state") cell.className = `state ${run.state}`;
    });
    const last = row.cells[row.cells.length - 1];
    if (!run.looks[0] || last.children.length) return;
    last.append(element("a", "", "heads", { href: link("heads", run.name), "aria-label": `Heads of ${run.name}` }));
  }

  // ------------------------------------------------------------------ the charts

  bar() {
    const { address } = this;
    const keep = (name) => (value) => {
      address.set({ [name]: value === true ? "1" : value || "" });
      this.draw();
    };
    const smooth = element("input", "", "", { type: "range", min: 0, max: 0.98, step: 0.02, "aria-label": "Smoothing" });
    smooth.value = address.get("smooth", "0");
    smooth.addEventListener("input", () => keep("smooth")(smooth.value === "0" ? "" : smooth.value));
    const form = element("form", "bar", "", { "aria-label": "How the charts are drawn" }, [
      choice("Over", Object.keys(AXES).map((name) => [name, name]), this.axis, keep("x")),
      check("log across", Boolean(address.get("logx")), keep("logx")),
      check("log upwards", Boolean(address.get("logy")), keep("logy")),
      element("label", "smooth", "Smoothing ", {}, [smooth]),
    ]);
    form.addEventListener("submit", (event) => event.preventDefault());
    return form;
  }

  get axis() {
    return AXES[this.address.get("x")] ? this.address.get("x") : "step";
  }

  draw() {
    const { address, axis } = this;
    const smooth = clamp(Number(address.get("smooth", "0")) || 0, 0, 0.98);
    const how = { axisTitle: axis, smooth, logX: Boolean(address.get("logx")), logY: Boolean(address.get("logy")) };
    this.charts.forEach((chart) => chart.draw(this.shown.map((name, i) => {
      return { name, number: i, points: this.logs.get(name)?.points(chart.figure, axis) ?? [] };
    }), how));
  }

  saves(chart) {
    const name = (ending) => `${chart.figure.name} ${this.shown.join(" ")}`.slice(0, 100) + ending;
    return saveMenu(`Save the chart ${chart.figure.title}`, {
      PNG: () => savePng(chart.svg, name(".png")),
      SVG: () => saveSvg(chart.svg, name(".svg")),
      CSV: () => saveCsv(this.rows([chart.figure]), name(".csv")),
    });
  }

  rows(figures) {
    return [["run", "figure", "step", "tokens", "seconds", "value"], ...figures.flatMap(({ name: title, split, of }) => (
      this.shown.flatMap((name) => (this.logs.get(name)?.splits[split] ?? []).filter((line) => Number.isFinite(of(line)))
        .map((line) => [name, title, line.step, line.tokens, line.time_s, of(line)]))))];
  }

  data() {
    return this.shown.map((name) => ({ ...this.all.get(name), page: link("runs", "", { runs: name }), log: this.logs.get(name)?.splits }));
  }

  // ------------------------------------------------------------------ settings side by side, but for those that are equal

  async compareSettings() {
    const names = this.shown;
    if (this.differ === names.join("\n")) return;
    this.differ = names.join("\n");
    await Promise.all(names.filter((name) => !this.settings.has(name)).map(async (name) => {
      const values = await ask(`/live/runs/${part(name)}/config`, { signal: this.address.signal }).catch(() => ({}));
      this.settings.set(name, values); // they do not change while a page is open, but for the steps it may train
    }));
    if (this.differ !== names.join("\n")) return; // others were chosen meanwhile
    this.differences.replaceChildren();
    if (names.length < 2) return;
    const settings = names.map((name) => this.settings.get(name));
    const keys = [...new Set(settings.flatMap((one) => Object.keys(one)))].filter((key) => key !== "name" && !key.startsWith("rungs"));
    const rows = keys.map((key) => [key, ...settings.map((one) => one[key] ?? "")]).filter(([, ...values]) => new Set(values).size > 1);
    const title = element("div", "head-line", "", {}, [element("h2", "", "In what their settings differ")]);
    this.differences.append(title);
    if (!rows.length) {
      this.differences.append(element("p", "soft", "In nothing but their names."));
      return;
    }
    const head = ["setting", ...names];
    title.append(saveMenu("Save the settings that differ", { CSV: () => saveCsv([head, ...rows], "settings.csv") }));
    const table = element("table", "difference-table", "", {}, [
      element("thead", "", "", {}, [element("tr", "", "", {}, head.map((words) => element("th", "", words, { scope: "col" })))]),
      element("tbody", "", "", {}, rows.map(([key, ...values]) => element("tr", "", "", {}, [
        element("th", "", key, { scope: "row" }), ...values.map((value) => element("td", "", value || "–")),
      ]))),
    ]);
    this.differences.append(element("div", "scroll low", "", { tabindex: 0, role: "region", "aria-label": "Settings that differ" }, [table]));
  }
}

VIEWS.runs = { title: "Runs", show: (root, address) => new Runs(root, address) };
