// What the chosen head looks at, in a sentence and in numbers; one score for every head, and over training.

const STANDS_OUT = 0.25; // a pattern is named from this score on, and
const TIMES_CHANCE = 3; // from so many times what an even spread would score
const NO_PATTERN = "This head shows no pattern that has a name.";

// The pattern that the head shows: rather one that is measured on the text that is shown, then the strongest.
function patternOf(run, view) {
  const place = run.shown[view.at];
  const patterns = about.scores
    .map((info) => ({ info, value: run.score(info.name, place, view.layer, view.head), chance: run.chance[info.name] }))
    .filter(({ info, value, chance }) => info.looks_at && value >= Math.max(STANDS_OUT, TIMES_CHANCE * (chance ?? 0)));
  const here = ({ info }) => Number(isMeasuredOn(info, state.probe));
  return patterns.sort((a, b) => here(b) - here(a) || b.value - a.value)[0] ?? null;
}

function drawCaption(pane) {
  const { run, view } = pane;
  const box = pane.find(".caption");
  if (run.mixture) {
    const [words, worth] = expertsInWords(run, stepOf(view));
    box.replaceChildren(element("b", "", words), " ", element("span", "soft", worth));
    return;
  }
  box.hidden = !about.scores.some((info) => info.looks_at);
  if (box.hidden) return;
  const pattern = patternOf(run, view);
  const info = pattern?.info ?? scoreInfo();
  const where = isMeasuredOn(info, state.probe) ? "This" : `On ${info.measured_on}, this`; // not on the map that is shown
  const words = pattern ? `${where} head looks at ${info.looks_at}.` : NO_PATTERN;
  const value = run.score(info.name, run.shown[view.at], view.layer, view.head);
  const chance = run.chance[info.name];
  const numbers = `Its score for ${info.title}: ${withUnit(value, info)}${chance === null ? "" : `, chance ${number(chance)}`}.`;
  box.replaceChildren(element("b", "", words), " ", element("span", "soft", numbers));
}

const withUnit = (value, info) => (value === null ? "undefined" : `${number(value)}${info.unit ? ` ${info.unit}` : ""}`);

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
    row.querySelector(".here").textContent = withUnit(value, info);
    row.querySelector(".chance").textContent = chance === null ? "–" : number(chance);
    gauge(row.querySelector(".gauge"), value, chance, range(info));
  });
}

function scoreRow(info) {
  const name = button(info.title, () => chooseScore(info.name), { class: "score-name" });
  return element("tr", "", "", {}, [
    element("th", "", "", { scope: "row" }, [name, element("span", "meaning", info.meaning)]),
    element("td", "here number"), element("td", "chance number"),
    element("td", "gauge-cell", "", {}, [element("div", "gauge", "", {}, [element("span", "fill"), element("span", "tick")])]),
  ]);
}

function gauge(bar, value, chance, [low, high]) {
  const share = (x) => `${(100 * Math.min(1, Math.max(0, (x - low) / (high - low || 1)))).toFixed(1)}%`;
  bar.querySelector(".fill").style.width = value === null ? "0" : share(value);
  const tick = bar.querySelector(".tick");
  tick.hidden = chance === null;
  if (chance !== null) tick.style.left = share(chance);
  bar.title = `from ${number(low)} to ${number(high)}${chance === null ? "" : `; the line is chance, ${number(chance)}`}`;
}

let ranges = {};

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
  box.style.maxWidth = `${30 + run.heads.length * 64}px`;
  pane.cells = buildGrid(box, layerNames(run), headNames(run), "cell", (layer, head) => chooseHead(pane.number, layer, head));
}

function drawScoreMap(pane) {
  const { view, run } = pane;
  const info = scoreInfo();
  pane.find(".scores").hidden = !info;
  if (!info) return;
  const [low, high] = range(info);
  pane.find(".score-title").textContent = `${info.title}: every ${run.mixture ? "expert" : "head"}`;
  const measured = info.measured_on ? ` Measured on “${info.measured_on}”.` : "";
  pane.find(".score-note").textContent = `${info.meaning}${info.paper ? ` (${info.paper})` : ""}${measured}`;
  const isNarrow = pane.cells[0][0].clientWidth < 34;
  pane.cells.forEach((row, layer) => row.forEach((cell, head) => {
    const value = run.score(info.name, run.shown[view.at], layer, head);
    const back = value === null ? ABSENT() : magma((value - low) / (high - low));
    fillCell(cell, back, isNarrow ? "" : brief(value, [low, high]));
    const share = run.mixture ? stepOf(view).share[layer][head] : 1;
    cell.classList.toggle("starved", share < (run.mixture?.starved ?? 0));
    const alarm = share < run.mixture?.dead ? ", dead" : share < run.mixture?.starved ? `, under ${run.mixture.starved} of a fair share` : "";
    drawCell(cell, layer === view.layer && head === view.head, `${headName(run, layer, head)}: ${withUnit(value, info)}${alarm}`);
  }));
  drawLegend(pane.find(".legend"), info, run.chance[info.name]);
}

function drawLegend(box, info, chance) {
  const [low, high] = range(info);
  const bar = element("span", "legend-bar");
  bar.style.background = `linear-gradient(to right, ${Array.from({ length: 9 }, (_, i) => css(magma(i / 8))).join(", ")})`;
  box.replaceChildren(element("span", "", number(low)), bar, element("span", "", withUnit(high, info)),
    element("span", "soft", chance === null ? "(no chance level)" : `line: ${state.tab === "experts" ? "fair share" : "chance"} ${number(chance)}`));
  if (chance === null) return;
  bar.append(element("span", "tick"));
  bar.firstChild.style.left = `${(100 * (chance - low)) / (high - low)}%`;
}

function drawScoreCurve(pane) {
  const { run, view } = pane;
  const info = scoreInfo();
  if (!info) return;
  const lineOf = (layer, head) => run.steps.map((_, i) => run.score(info.name, i, layer, head));
  const { step } = stepOf(view);
  const svg = pane.find(".curve");
  drawCurve(svg, {
    steps: run.steps, lines: run.layers.flatMap((_, layer) => run.heads.map((__, head) => lineOf(layer, head))),
    chosen: lineOf(view.layer, view.head), range: range(info), level: run.chance[info.name], levelName: run.mixture ? "fair share" : "chance", now: step,
    marks: info.name === "induction" && run.formed ? [[run.formed.step, "forms"]] : [],
    go: (at) => chooseStep(pane.number, run.nearest(at)),
  });
  const value = run.score(info.name, run.shown[view.at], view.layer, view.head);
  const words = `${headName(run, view.layer, view.head)} at step ${step}: ${withUnit(value, info)}`;
  pane.find(".curve-note").textContent = `Thick: ${words}. Thin: the other ${state.tab}. Click to go to a step.`;
  svg.setAttribute("aria-label", `${info.title} over training. ${words}`);
}
