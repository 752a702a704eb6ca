// Scores of the chosen head in words and numbers, and one score for every head.

function drawScoreTable(pane) {
  const { view, run } = pane;
  pane.find(".score-head").textContent = headName(run, view.layer, view.head);
  const body = pane.find(".score-table tbody");
  if (!body.rows.length) about.scores.forEach((info) => body.append(scoreRow(info)));
  about.scores.forEach((info, i) => {
    const row = body.rows[i];
    const value = run.score(info.name, run.shown[view.at], view.layer, view.head);
    const chance = run.chance[info.name];
    row.classList.toggle("chosen", info.name === state.score);
    row.querySelector("button").setAttribute("aria-pressed", info.name === state.score);
    row.querySelector(".here").textContent = value === null ? "undefined" : withUnit(value, info);
    row.querySelector(".chance").textContent = chance === null ? "–" : number(chance);
    gauge(row.querySelector(".gauge"), value, chance, range(info));
  });
}

const withUnit = (value, info) => `${number(value)}${info.unit ? ` ${info.unit}` : ""}`;

function scoreRow(info) {
  const row = document.createElement("tr");
  const name = document.createElement("th");
  name.scope = "row";
  const button = element("button", "score-name", info.title);
  button.type = "button";
  button.addEventListener("click", () => chooseScore(info.name));
  name.append(button, element("span", "meaning", info.meaning));
  const bar = element("div", "gauge");
  bar.append(element("span", "fill"), element("span", "tick"));
  const cell = element("td", "gauge-cell");
  cell.append(bar);
  row.append(name, element("td", "here number"), element("td", "chance number"), cell);
  return row;
}

function gauge(bar, value, chance, [low, high]) {
  const share = (x) => `${(100 * Math.min(1, Math.max(0, (x - low) / (high - low || 1)))).toFixed(1)}%`;
  bar.querySelector(".fill").style.width = value === null ? "0" : share(value);
  const tick = bar.querySelector(".tick");
  tick.hidden = chance === null;
  if (chance !== null) tick.style.left = share(chance);
  bar.title = `from ${number(low)} to ${number(high)}${chance === null ? "" : `; the line is chance, ${number(chance)}`}`;
}

const ranges = {};

// Of a score over all runs, steps and heads, and with its chance level, so that colours and curves of two views compare.
function range(info) {
  if (!ranges[info.name]) {
    const values = runs.flatMap((run) => [run.chance[info.name], ...(run.scores[info.name] ?? []).flat()])
      .filter((value) => value !== null && value !== undefined);
    const top = values.reduce((most, value) => Math.max(most, value), -Infinity);
    const bottom = values.reduce((least, value) => Math.min(least, value), info.low ?? Infinity);
    const low = Number.isFinite(bottom) ? bottom : 0;
    ranges[info.name] = [low, Number.isFinite(top) && top > low ? top : info.high ?? low + 1];
  }
  return ranges[info.name];
}

function buildScoreMap(pane, run) {
  const box = pane.find(".score-map");
  box.replaceChildren(element("span", "corner"));
  box.style.gridTemplateColumns = `auto repeat(${run.heads.length}, minmax(0, 1fr))`;
  box.style.maxWidth = `${30 + run.heads.length * 64}px`;
  run.heads.forEach((head) => box.append(element("span", "column-name", `H${head}`)));
  pane.cells = run.layers.map((layerNumber, layer) => {
    box.append(element("span", "row-name", `L${layerNumber}`));
    return run.heads.map((_, head) => {
      const cell = element("button", "cell");
      cell.type = "button";
      cell.addEventListener("click", () => chooseHead(pane.number, layer, head));
      box.append(cell);
      return cell;
    });
  });
}

function drawScoreMap(pane) {
  const { view, run } = pane;
  const info = scoreInfo();
  pane.find(".score-all-side").hidden = pane.find(".score-table-side").hidden = !info;
  if (!info) return;
  const [low, high] = range(info);
  const place = run.shown[view.at];
  pane.find(".score-title").textContent = `${info.title}: every head`;
  drawScoreNote(pane.find(".score-note"), info);
  const narrow = pane.cells[0][0].clientWidth < 34;
  pane.cells.forEach((row, layer) => row.forEach((cell, head) => {
    const value = run.score(info.name, place, layer, head);
    const back = value === null ? ABSENT() : magma((value - low) / (high - low));
    const chosen = layer === view.layer && head === view.head;
    cell.style.backgroundColor = css(back);
    cell.style.color = inkOn(back);
    cell.textContent = narrow ? "" : brief(value, [low, high]);
    cell.setAttribute("aria-pressed", chosen);
    cell.tabIndex = chosen ? 0 : -1;
    cell.title = `${headName(run, layer, head)}: ${value === null ? "undefined" : withUnit(value, info)}`;
    cell.setAttribute("aria-label", cell.title);
  }));
  drawLegend(pane.find(".legend"), info, run.chance[info.name]);
}

function drawScoreNote(note, info) {
  note.textContent = info.paper ? `${info.meaning} (${info.paper})` : info.meaning;
  if (info.measured_on) note.append(` Measured on “${info.measured_on}”.`);
}

function drawLegend(box, info, chance) {
  const [low, high] = range(info);
  const stops = Array.from({ length: 9 }, (_, i) => css(magma(i / 8))).join(", ");
  const bar = element("span", "legend-bar");
  bar.style.background = `linear-gradient(to right, ${stops})`;
  box.replaceChildren(element("span", "", number(low)), bar, element("span", "", withUnit(high, info)));
  if (chance === null) {
    box.append(element("span", "soft", "(no chance level)"));
    return;
  }
  const tick = element("span", "tick");
  tick.style.left = `${(100 * (chance - low)) / (high - low)}%`;
  bar.append(tick);
  box.append(element("span", "soft", `line: chance ${number(chance)}`));
}
