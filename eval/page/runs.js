// All runs of the folder, alive or finished: their figures over training, and in what they differ.

// What is drawn of a line of metrics.jsonl, one chart each. isNoisy: smoothing is for it
const FIGURES = [
  { name: "loss", title: t("Training loss"), unit: t("nats a token"), split: "train", isNoisy: true, of: (line) => line.loss },
  { name: "val", title: t("Validation loss"), unit: t("nats a token"), split: "val", of: (line) => line.loss },
  { name: "gap", title: t("Gap to the floor"), unit: t("bits a byte above the lowest possible"), split: "floor",
    of: (line) => line.model - line.floor },
  { name: "lr", title: t("Learning rate"), unit: "", split: "train", of: (line) => line.lr },
  { name: "speed", title: t("Tokens a second"), unit: "", split: "train", isNoisy: true, of: (line) => line.tokens_per_s },
  { name: "induction", title: t("Best induction head"), unit: t("share of its attention"), split: "attention",
    of: (line) => line.induction_max },
];
const AXES = { step: "step", tokens: "tokens", seconds: "time_s" }; // words -> name in a line
const AXIS_NAMES = { step: t("step"), tokens: t("tokens"), seconds: t("seconds") };
const COLUMNS = {
  [t("state")]: (run) => translated(run.state),
  [t("step")]: (run) => (run.total ? t("{0} of {1}", run.step ?? "–", run.total) : run.step ?? "–"),
  [t("loss")]: (run) => figure(run.loss),
  [t("validation")]: (run) => figure(run.val_loss),
  [t("gap to the floor")]: (run) => figure(run.gap),
  [t("tokens/s")]: (run) => figure(run.tokens_per_s),
};

// metrics.jsonl of one run, as far as it is known here.
class Log {
  constructor(name) {
    Object.assign(this, { name, offset: 0, newest: "", splits: {}, reading: Promise.resolve() });
  }

  // Read what is new, one piece after the other. What goes wrong is tried again at the next news.
  follow(signal) {
    this.reading = this.reading.then(() => this.read(signal)).catch(() => {});
    return this.reading;
  }

  // The newest line comes once more. A run that is resumed takes lines off its log: then all of it is read again.
  async read(signal) {
    const range = { Range: `bytes=${this.offset - this.newest.length}-` };
    const text = await ask(`/live/runs/${part(this.name)}/metrics`, { signal, as: "text", headers: range })
      .catch((error) => (error.status === 416 ? "" : Promise.reject(error))); // it is shorter than what was read
    if (!text.startsWith(this.newest)) {
      Object.assign(this, { offset: 0, newest: "", splits: {} });
      return this.read(signal);
    }
    const lines = text.slice(this.newest.length).split(/(?<=\n)/).filter((line) => line.endsWith("\n"));
    lines.forEach((line) => this.add(line));
    this.offset += lines.join("").length;
    this.newest = lines.at(-1) ?? this.newest;
    return undefined;
  }

  // A line that cannot be read is left out.
  add(text) {
    try {
      const line = JSON.parse(text);
      const lines = this.splits[line.split] ??= [];
      while (lines.length && lines.at(-1).step >= line.step) lines.pop();
      lines.push(line);
    } catch (error) {
      console.warn(`${this.name}: ${error.message}`);
    }
  }

  // The lines that have this figure.
  lines({ split, of }) {
    return (this.splits[split] ?? []).filter((line) => Number.isFinite(of(line)));
  }
}

function showRuns(root, address) {
  const { signal } = address;
  const [logs, rows] = [new Map(), new Map()]; // by the name of the run
  let all = new Map();
  let chosen = null; // names
  let compared = "";
  const shown = () => [...all.keys()].filter((name) => chosen.has(name)); // in the order of the table
  const logOf = (name) => logs.get(name) ?? logs.set(name, new Log(name)).get(name);

  const none = element("p", "card", t("This folder has no run yet. Train one, for example with: make demo"));
  const table = tableOf("run-table", [t("run"), ...Object.keys(COLUMNS), t("heads")], []);
  const charts = FIGURES.map((about) => new Chart(about, saveChart));
  const differences = element("section", "differences");
  byId("heading").textContent = t("Every run of this folder");
  root.append(none, element("div", "scroll", "", {}, [table]), bar(),
    element("div", "charts", "", {}, charts.map((chart) => chart.root)), differences);
  document.addEventListener("theme", draw, { signal });
  addEventListener("resize", draw, { signal });

  followRuns(async (changed, known) => {
    all = known;
    const first = () => [...all.values()].sort(byNewest).slice(0, 1).map(({ name }) => name); // one that trains, or the newest
    if (chosen) changed.filter(({ name }) => !rows.has(name)).forEach(({ name }) => chosen.add(name)); // it began just now
    chosen ??= new Set(address.get("runs") ? address.get("runs").split(",").map(decoded) : first());
    none.hidden = all.size > 0;
    drawTable();
    await readAndDraw();
    isReady(true);
  }, signal);

  async function readAndDraw() {
    await Promise.all(shown().map((name) => logOf(name).follow(signal)));
    draw();
    await compareSettings();
  }

  // A ticked run is drawn below.
  function drawTable() {
    table.hidden = !all.size;
    rows.forEach((row, name) => all.has(name) || (row.remove(), rows.delete(name)));
    all.forEach((run, name) => {
      if (!rows.has(name)) rows.set(name, newRow(name));
      const row = rows.get(name);
      const at = shown().indexOf(name);
      row.className = at < 0 ? "" : `run-${at % 8}`;
      row.querySelector("input").checked = at >= 0;
      if (row.cells[1].matches(".training") && run.state !== "training") announce(t("{0} is {1}", name, translated(run.state)));
      while (row.cells.length > 2) row.cells[1].remove(); // what may have the focus stays
      row.cells[0].after(...Object.values(COLUMNS).map((of) => element("td", "", of(run))));
      row.cells[1].className = `state ${run.state}`;
      row.lastChild.firstChild.hidden = !run.looks[0];
    });
  }

  function newRow(name) {
    const box = element("input", "", "", { type: "checkbox" });
    box.addEventListener("change", () => {
      if (box.checked) chosen.add(name);
      else chosen.delete(name);
      address.set({ runs: shown().map(encodeURIComponent).join(",") });
      drawTable();
      readAndDraw();
    });
    const label = element("label", "", "", {}, [box, element("span", "swatch"), name]);
    const heads = element("a", "", t("heads"), { href: link("heads", name), "aria-label": t("{0} of the run {1}", t("Heads"), name) });
    const row = element("tr", "", "", {}, [element("th", "", "", { scope: "row" }, [label]), element("td", "", "", {}, [heads])]);
    table.tBodies[0].append(row);
    return row;
  }

  function bar() {
    const keep = (name) => (value) => {
      address.set({ [name]: value });
      draw();
    };
    const smooth = element("input", "", "", { type: "range", min: 0, max: 0.98, step: 0.02, value: address.get("smooth", "0") });
    smooth.addEventListener("input", () => keep("smooth")(smooth.value === "0" ? "" : smooth.value));
    return element("div", "bar", "", { role: "group", "aria-label": t("How the charts are drawn") }, [
      choice(t("Over"), Object.entries(AXIS_NAMES), axis(), keep("x")),
      element("label", "", `${t("Smoothing")} `, {}, [smooth]),
    ]);
  }

  function axis() {
    return AXES[address.get("x")] ? address.get("x") : "step";
  }

  function draw() {
    const smooth = clamp(Number(address.get("smooth", "0")) || 0, 0, 0.98);
    const how = { axis: axis(), smooth };
    charts.forEach((chart) => chart.draw(shown().map((name, i) => {
      const points = logOf(name).lines(chart.about).map((line) => [line[AXES[how.axis]], chart.about.of(line)]);
      return { name, number: i, points: points.filter(([x]) => Number.isFinite(x)) };
    }), how));
  }

  function saveChart(chart) {
    const { name, title } = chart.about;
    const save = () => savePng(pictureOf([chart.root], ""), `${[name, ...shown()].join(" ").slice(0, 100)}.png`);
    return button(t("Save picture"), save, { class: "save", "aria-label": `${t("Save picture")}: ${title}` });
  }

  // Settings side by side, without those that are equal.
  async function compareSettings() {
    const names = shown();
    if (compared === names.join("\n")) return;
    compared = names.join("\n");
    const values = await Promise.all(names.map((name) => ask(`/live/runs/${part(name)}/config`, { signal }).catch(() => ({}))));
    if (compared !== names.join("\n")) return; // others were chosen meanwhile
    differences.replaceChildren();
    if (names.length < 2) return;
    const keys = [...new Set(values.flatMap(Object.keys))].filter((key) => key !== "name" && !key.startsWith("rungs"));
    const different = keys.map((key) => [key, ...values.map((setting) => setting[key] ?? "–")])
      .filter(([, ...row]) => new Set(row).size > 1);
    differences.append(element("h2", "", t("Settings that differ")));
    if (!different.length) differences.append(element("p", "soft", t("Only their names differ.")));
    else differences.append(element("div", "scroll", "", { tabindex: 0 }, [tableOf("difference-table", [t("setting"), ...names], different)]));
  }
}

// The first cell of each row is its heading.
function tableOf(kind, titles, rows) {
  return element("table", kind, "", {}, [
    element("thead", "", "", {}, [element("tr", "", "", {}, titles.map((words) => element("th", "", words, { scope: "col" })))]),
    element("tbody", "", "", {}, rows.map(([title, ...values]) => element("tr", "", "", {}, [
      element("th", "", title, { scope: "row" }), ...values.map((words) => element("td", "", words)),
    ]))),
  ]);
}

VIEWS.runs = { title: t("Runs"), show: showRuns };
