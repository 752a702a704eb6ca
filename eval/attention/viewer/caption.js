// One sentence about the chosen head: what it looks at, at the step that is shown.

const STANDS_OUT = 0.25; // a pattern is named from this score on, and
const TIMES_CHANCE = 3; // from so many times what an even spread would score
const NO_PATTERN = "This head shows no pattern that has a name.";

// The pattern that the head shows: rather one that is measured on the text that is shown, then the strongest.
function patternOf(run, view) {
  const place = run.shown[view.at];
  const found = about.scores
    .map((info) => ({ info, value: run.score(info.name, place, view.layer, view.head), chance: run.chance[info.name] }))
    .filter(({ info, value, chance }) => info.looks_at && value >= Math.max(STANDS_OUT, TIMES_CHANCE * (chance ?? 0)));
  const here = ({ info }) => Number(isMeasuredOn(info, state.probe));
  return found.sort((a, b) => here(b) - here(a) || b.value - a.value)[0] ?? null;
}

function drawCaption(pane) {
  const { run, view } = pane;
  const box = pane.find(".caption");
  box.hidden = !about.scores.some((info) => info.looks_at);
  if (box.hidden) return;
  const pattern = patternOf(run, view);
  const words = pattern ? `${where(pattern.info)} head looks at ${pattern.info.looks_at}.` : NO_PATTERN;
  const canPlay = run.shown.length > 1 && state.playing < 0;
  const numbers = evidence(pattern?.info ?? scoreInfo(), run, view);
  box.replaceChildren(element("b", "", words), canPlay ? " Press play. " : " ", element("span", "soft", numbers));
}

// A score that is measured on another text says nothing of the map that is shown.
const where = (info) => (isMeasuredOn(info, state.probe) ? "This" : `On ${info.measured_on}, this`);

function evidence(info, run, view) {
  const value = run.score(info.name, run.shown[view.at], view.layer, view.head);
  const chance = run.chance[info.name];
  return `Its score for ${info.title}: ${withUnit(value, info)}${chance === null ? "" : `, chance ${number(chance)}`}.`;
}
