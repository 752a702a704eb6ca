// What the chosen head does: in a sentence, in numbers, and over training.

const STANDS_OUT = 0.25; // a pattern is named from this score on, and
const TIMES_CHANCE = 3; // from so many times what an even spread would score

const withUnit = (value, info) => (value === null ? t("undefined") : `${number(value)}${info.unit && ` ${translated(info.unit)}`}`);

// Of a score over all runs, steps and heads, and with its chance level, so that colours and curves of two views compare.
function range(info) {
  if (info.range) return info.range;
  const values = runs.flatMap((run) => [run.chance[info.name], ...(run.scores[info.name] ?? []).flat()]);
  const [low, high] = extent([info.low, ...values].filter(Number.isFinite));
  if (high > low) info.range = [low, high];
  else info.range = Number.isFinite(low) ? [low, info.high ?? low + 1] : [0, 1];
  return info.range;
}

// Bars of all shares of attention have one scale; what has no bounds has that of its own values.
const gaugeRange = (info) => ([info.low, info.high].every(Number.isFinite) ? [info.low, info.high] : range(info));

function shareOf(value, info, [low, high] = range(info)) {
  return (value - low) / (high - low);
}

// The pattern that the head shows: rather one that is measured on the text that is shown, then the strongest.
function patternOf({ run, view }) {
  const patterns = about.scores.map((info) => ({ info, value: scoreOf(view, info) }))
    .filter(({ info, value }) => info.looks_at && value >= Math.max(STANDS_OUT, TIMES_CHANCE * (run.chance[info.name] ?? 0)));
  const here = ({ info }) => Number(isMeasuredOn(info, state.probe));
  return patterns.sort((a, b) => here(b) - here(a) || b.value - a.value)[0]?.info;
}

function drawCaption(pane) {
  const { run, view } = pane;
  const sentence = (words, soft) => {
    pane.find(".caption").replaceChildren(element("b", "", words), isChinese ? "" : " ", element("span", "soft", soft));
  };
  const pattern = patternOf(pane);
  if (isOwn() && mapsOf(view)) {
    const [words, all] = hereInWords(pane);
    const measured = pattern && t("On {0}, this head looks at {1}.", translated(pattern.measured_on), translated(pattern.looks_at));
    return sentence(words, [all, measured].filter(Boolean).join(isChinese ? "" : " "));
  }
  const info = pattern ?? scoreInfo();
  if (!info) return sentence("", "");
  const here = isMeasuredOn(info, state.probe) ? t("This head looks at {0}.", translated(info.looks_at))
    : t("On {0}, this head looks at {1}.", translated(info.measured_on), translated(info.looks_at)); // not on the map that is shown
  const words = pattern ? here : t("This head shows no pattern that has a name.");
  const value = withUnit(scoreOf(view, info), info);
  return sentence(words, t("Its score for {0}: {1}, chance {2}.", translated(info.title), value, number(run.chance[info.name])));
}

function drawScoreTable(pane) {
  const { view, run } = pane;
  pane.find(".score-head").textContent = headName(run, view.layer, view.head);
  const body = pane.find(".score-table tbody");
  if (!body.rows.length) body.append(...about.scores.map(scoreRow)); // they stay, and keep the focus
  about.scores.forEach((info, i) => {
    const [row, value, chance] = [body.rows[i], scoreOf(view, info), run.chance[info.name]];
    row.classList.toggle("chosen", info.name === state.score);
    row.querySelector("button").setAttribute("aria-pressed", info.name === state.score);
    row.querySelector(".here").textContent = withUnit(value, info);
    row.querySelector(".chance").textContent = number(chance);
    const [bar, ends] = [row.querySelector(".gauge"), gaugeRange(info)];
    bar.title = t("from {0} to {1}; the line is chance", ...ends.map((end) => number(end)));
    const share = value === null ? 0 : clamp(shareOf(value, info, ends), 0, 1);
    setGauge(bar, share, chance === null ? -1 : shareOf(chance, info, ends));
  });
}

function scoreRow(info) {
  const name = button(translated(info.title), () => chooseScore(info.name), { class: "link score-name" });
  return element("tr", "", "", {}, [
    element("th", "", "", { scope: "row" }, [name, element("span", "soft meaning", translated(info.meaning))]),
    element("td", "here number"), element("td", "chance number"), element("td", "gauge-cell", "", {}, [element("div", "gauge")]),
  ]);
}

function drawScoreCurve(pane) {
  const { run, view } = pane;
  const info = scoreInfo();
  pane.find(".scores").hidden = !info;
  if (!info) return;
  const measured = info.measured_on ? t(" Measured on “{0}”.", translated(info.measured_on)) : "";
  pane.find(".score-title").textContent = t("{0} over training", translated(info.title));
  pane.find(".score-note").textContent = `${translated(info.meaning)}${measured}`;
  const lineOf = (layer, head) => run.steps.map(({ step }, i) => [step, run.score(info.name, i, layer, head)]);
  const others = run.layers.flatMap((_, layer) => run.heads.map((__, head) => ({ points: lineOf(layer, head), kind: "thin" })));
  const steps = run.steps.map(({ step }) => step);
  const { tokens } = run.steps.at(-1);
  const svg = pane.find(".curve");
  const chance = run.chance[info.name];
  const band = (info.name === "induction" && run.band?.points) || [];
  const { valueAt } = drawChart(svg, [...others, { points: lineOf(view.layer, view.head), dots: 2 }], {
    title: tokens ? t("training step (to {0} tokens)", number(tokens)) : t("training step"),
    x: { range: [steps[0], Math.max(steps[0] + 1, steps.at(-1))] }, y: { range: range(info) }, now: stepOf(view).step,
    level: chance !== null && [chance, t("chance")],
    band,
    marks: info.name === "induction" && run.formed ? [[run.formed.step, t("forms")]] : [],
  });
  svg.onclick = (event) => chooseStep(pane.number, run.nearest(valueAt(event)));
  const words = t("{0} at step {1}: {2}", headName(run, view.layer, view.head), stepOf(view).step, withUnit(scoreOf(view, info), info));
  pane.find(".curve-note").textContent = t("Thick: {0}. Thin: the other heads. Click to go to a step.", words)
    + (band.length ? t(" Grey: the best head of {0} recorded runs like this one.", run.band.seeds) : "");
  svg.ariaLabel = `${t("{0} over training", translated(info.title))}. ${words}`;
}
