// All runs of the folder, alive or finished: their figures over training, and in what they differ.

import { link } from "./address.js";
import { Chart } from "./chart.js";
import { differences } from "./differences.js";
import { announce, check, choice, element } from "./dom.js";
import { AXES, brief, byNewest, FIGURES, Log } from "./figures.js";
import { copyLink, saveCsv, saveJson, saveMenu, savePng, saveSvg } from "./save.js";
import { followRuns } from "./server.js";
import { drawTable } from "./run_table.js";

const QUIET = 10_000; // milliseconds between two announcements of what changes by itself

export async function show(root, address) {
  const view = new Runs(root, address);
  followRuns((changed, all) => view.hear(changed, all), address.signal);
}

class Runs {
  constructor(root, address) {
    Object.assign(this, { root, address, all: new Map(), logs: new Map(), said: 0, chosen: null });
    this.table = element("table", "run-table");
    this.bar = element("form", "bar", "", { "aria-label": "How the charts are drawn" });
    this.bar.addEventListener("submit", (event) => event.preventDefault());
    this.charts = FIGURES.map((figure) => new Chart(figure, (chart) => [this.saves(chart)]));
    this.box = element("div", "charts", "", {}, this.charts.map(({ root: one }) => one));
    this.none = element("p", "card", "This folder holds no run yet. Train one, for example with: make demo");
    this.differences = element("section", "differences");
    root.append(element("h1", "", "Runs"), this.none, element("div", "scroll", "", {}, [this.table]), this.bar, this.box,
      this.differences);
    const redraw = () => this.draw();
    document.addEventListener("theme", redraw, { signal: address.signal });
    addEventListener("resize", redraw, { signal: address.signal });
    this.drawBar();
  }

  // ------------------------------------------------------------------ what is known

  async hear(changed, all) {
    this.all = all;
    this.none.hidden = all.size > 0;
    this.chosen ??= this.fromAddress();
    this.drawTable();
    this.announce(changed);
    await this.readLogs();
    document.documentElement.dataset.ready = "yes";
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
    await Promise.all(this.shown.map((name) => this.readLog(name)));
    this.draw();
    differences(this.differences, this.shown, this.address.signal);
  }

  async readLog(name) {
    const log = this.logs.get(name) ?? this.logs.set(name, new Log(name)).get(name);
    const newest = () => String(this.all.get(name)?.log);
    if (log.isReading) return;
    log.isReading = true;
    try {
      while (log.written !== newest()) { // it may grow while it is read
        log.written = newest();
        await log.read(this.address.signal);
      }
    } catch (error) {
      log.written = null;
      if (!this.address.signal.aborted) console.warn(`${name}: ${error.message}`);
    } finally {
      log.isReading = false;
    }
  }

  announce(changed) {
    const run = changed.find(({ name, state }) => this.chosen.has(name) && state === "training");
    if (!run || Date.now() - this.said < QUIET) return;
    this.said = Date.now();
    announce(`${run.name}: step ${run.step}, training loss ${brief(run.loss)}`);
  }

  // ------------------------------------------------------------------ what is shown

  drawTable() {
    drawTable(this.table, [...this.all.values()], this.shown, (name, isOn) => {
      if (isOn) this.chosen.add(name);
      else this.chosen.delete(name);
      this.address.set({ runs: this.shown.map(encodeURIComponent).join(",") });
      this.drawTable();
      this.readLogs();
    });
  }

  drawBar() {
    const keep = (name) => (value) => {
      this.address.set({ [name]: value === true ? "1" : value || "" });
      this.draw();
    };
    const { address } = this;
    const smooth = element("input", "", "", { type: "range", min: 0, max: 0.98, step: 0.02, "aria-label": "Smoothing" });
    smooth.value = address.get("smooth", "0");
    smooth.addEventListener("input", () => keep("smooth")(smooth.value === "0" ? "" : smooth.value));
    const axes = Object.entries(AXES).map(([name, { title }]) => [name, title]);
    this.bar.append(
      choice("Over", axes, this.axis, keep("x")),
      check("log across", Boolean(address.get("logx")), keep("logx")),
      check("log upwards", Boolean(address.get("logy")), keep("logy")),
      element("label", "smooth", "Smoothing ", {}, [smooth]),
      saveMenu("Save the data of all charts", {
        "Data (JSON)": () => saveJson(this.data(), "runs.json"),
        "Data (CSV)": () => saveCsv(this.rows(FIGURES), "runs.csv"),
      }),
      copyLink(),
    );
  }

  get axis() {
    return AXES[this.address.get("x")] ? this.address.get("x") : "step";
  }

  draw() {
    const smooth = Math.min(0.98, Math.max(0, Number(this.address.get("smooth", "0")) || 0));
    const how = {
      axis: this.axis, axisTitle: AXES[this.axis].title, smooth,
      logX: Boolean(this.address.get("logx")), logY: Boolean(this.address.get("logy")),
    };
    this.charts.forEach((chart) => chart.draw(this.shown.map((name, number) => {
      return { name, number, points: this.logs.get(name)?.points(chart.figure, this.axis) ?? [] };
    }), how));
  }

  // ------------------------------------------------------------------ what is kept

  saves(chart) {
    const name = (ending) => `${chart.figure.name} ${this.shown.join(" ")}`.slice(0, 100) + ending;
    return saveMenu(`Save the chart ${chart.figure.title}`, {
      PNG: () => savePng(chart.svg, name(".png")),
      SVG: () => saveSvg(chart.svg, name(".svg")),
      CSV: () => saveCsv(this.rows([chart.figure]), name(".csv")),
    });
  }

  rows(figures) {
    const rows = figures.flatMap((figure) => this.shown.flatMap((name) => (this.logs.get(name)?.splits[figure.split] ?? [])
      .filter((line) => Number.isFinite(figure.of(line)))
      .map((line) => [name, figure.name, line.step, line.tokens, line.time_s, figure.of(line)])));
    return [["run", "figure", "step", "tokens", "seconds", "value"], ...rows];
  }

  data() {
    return this.shown.map((name) => ({ ...this.all.get(name), page: link("runs", "", { runs: name }), log: this.logs.get(name)?.splits }));
  }
}
