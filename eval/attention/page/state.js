// What is shown of heads and experts. Every change goes through change(), which draws again, and into the address.

const state = {
  tab: "heads", // heads | experts
  probe: "",
  compare: "none", // none | steps | runs
  linked: true, // the second view follows the first one's step
  scale: "power",
  rowMax: false,
  hideSink: false,
  groups: true,
  wide: false, // the large map over the whole width
  score: "",
  active: 0, // the view that keys act on
  playing: null, // the view that plays
  views: [
    { run: 0, at: 0, layer: 0, head: 0 }, // at: place among the run's shown steps; layer, head: places, not numbers
    { run: 0, at: 0, layer: 0, head: 0 },
  ],
  token: null, // {view, place}: what the mouse is over or was clicked
  key: null, // in the large map, the column too
  pinned: false,
};

let place = null; // the address of what is shown
let usual = {}; // what it need not say

function change(fields) {
  Object.assign(state, fields);
  render();
}

const viewCount = () => (state.compare === "none" ? 1 : 2);
const runOf = (view) => runs[view.run];
const stepOf = (view) => runOf(view).steps[runOf(view).shown[view.at]];
const mapsOf = (view) => runOf(view).maps(view.at, state.probe);
const headOf = (view) => new Head(runOf(view), mapsOf(view), view.layer, view.head, state);
const scoreInfo = () => about.scores.find((score) => score.name === state.score);
// A number in a square belongs to the map in it: it is shown only if the score is measured on the text that is shown.
const isMeasuredOn = (info, probe) => Boolean(info) && (!info.probe || info.probe === probe);
const headName = (run, layer, head) => `L${run.layers[layer]} ${TABS[state.tab]}${run.heads[head]}`;

function chooseText(probe) {
  const info = scoreInfo();
  const other = about.scores.find((score) => score.probe === probe);
  const score = isMeasuredOn(info, probe) || !other ? state.score : other.name;
  change({ probe, score, token: null, key: null, pinned: false });
}

function chooseScore(score) {
  const { probe } = about.scores.find((info) => info.name === score);
  if (probe === state.probe || !about.probes.some((one) => one.name === probe)) change({ score });
  else change({ score, probe, token: null, key: null, pinned: false });
}

// The second view shows the same head where it shows the same run; another run's heads are others.
function chooseHead(number, layer, head) {
  const run = state.views[number].run;
  const views = state.views.map((view, i) => (i === number || view.run === run ? { ...view, layer, head } : view));
  change({ views, active: number });
}

function chooseStep(number, at) {
  const views = state.views.map((view) => ({ ...view }));
  views[number].at = at;
  const follows = state.compare === "runs" && state.linked;
  if (follows) views[1 - number].at = runOf(views[1 - number]).nearest(stepOf(views[number]).step);
  if (state.compare === "steps") pushAside(views, number);
  change({ views, active: number });
}

// Of two steps the early one stays on the left: the view that moves takes the other one along.
function pushAside([left, right], moved) {
  if (left.at <= right.at) return;
  if (moved === 0) right.at = left.at;
  else left.at = right.at;
}

// The moment when the induction head formed, and that head.
function goToFormed(number) {
  const run = runOf(state.views[number]);
  stopPlaying();
  chooseHead(number, run.layers.indexOf(run.formed.layer), run.heads.indexOf(run.formed.head));
  if (state.score !== "induction" && about.scores.some(({ name }) => name === "induction")) chooseScore("induction");
  chooseStep(number, run.nearest(run.formed.step));
}

function chooseRun(number, place) {
  const views = state.views.map((view) => ({ ...view }));
  const step = stepOf(views[number]).step;
  const before = views[number];
  const at = runs[place].nearest(step);
  views[number] = { ...before, run: place, at, ...fitting(runs[place], before) };
  change({ views, token: null, pinned: false, active: number });
}

// a head that the run has
function fitting(run, { layer, head }) {
  return { layer: Math.min(layer, run.layers.length - 1), head: Math.min(head, run.heads.length - 1) };
}

// The view that was used last stays, beside an earlier or later step of its run, or beside another run.
function chooseCompare(compare) {
  const view = state.views[state.active];
  const last = runOf(view).shown.length - 1;
  let views = [view, state.views[1 - state.active]];
  if (compare === "steps") views = view.at === last ? [{ ...view, at: 0 }, view] : [view, { ...view, at: last }];
  if (compare === "runs") views = besideAnotherRun(view);
  stopPlaying();
  change({ compare, views, token: null, pinned: false, active: views.indexOf(view) });
}

function besideAnotherRun(view) {
  const place = (view.run + 1) % runs.length;
  const best = strongestHead(runs[place], runs[place].shown.at(-1));
  const other = { run: place, at: runs[place].nearest(stepOf(view).step), ...best };
  return view.run < place ? [view, other] : [other, view];
}

// layer and head with the largest value of the chosen score
function strongestHead(run, place) {
  let best = { layer: 0, head: 0 };
  let top = -Infinity;
  run.layers.forEach((_, layer) => run.heads.forEach((__, head) => {
    const value = run.score(state.score, place, layer, head);
    if (value !== null && value > top) [top, best] = [value, { layer, head }];
  }));
  return best;
}

// What a page opens on: the strongest head of the newest step, or what the address says.
function startState() {
  Object.assign(state, { compare: "none", wide: false, active: 0, token: null, key: null, pinned: false });
  const names = about.scores.map((score) => score.name);
  state.score = names.includes("induction") ? "induction" : names[0] ?? "";
  const texts = about.probes.map((probe) => probe.name);
  state.probe = texts.find((name) => isMeasuredOn(scoreInfo(), name)) ?? texts[0];
  state.views = state.views.map((view) => {
    const last = runs[0].shown.length - 1;
    return { ...view, at: last, ...(about.head ?? strongestHead(runs[0], runs[0].shown[last])) };
  });
  if (runs.length > 1) { // a page of several runs is there to compare them
    state.compare = "runs";
    state.views = besideAnotherRun(state.views[0]);
  }
  usual = inAddress();
  Object.assign(state, fromAddress());
}

// ------------------------------------------------------------------ in the address

const WORDS = { probe: "text", score: "score", scale: "scale", compare: "side" };
const SWITCHES = { rowMax: "rows", hideSink: "nofirst", wide: "wide" };

// A head by its true numbers, and its step, if that is not the newest: "1.2.400"; of several runs also which.
function inAddress() {
  const values = {};
  Object.entries(WORDS).forEach(([field, name]) => { values[name] = state[field]; });
  Object.entries(SWITCHES).forEach(([field, name]) => { values[name] = state[field] ? "1" : ""; });
  const at = state.views.slice(0, viewCount()).map((view) => {
    const run = runOf(view);
    const step = view.at === run.shown.length - 1 ? "" : stepOf(view).step;
    return [run.layers[view.layer], run.heads[view.head], step, ...(runs.length > 1 ? [view.run] : [])].join(".");
  });
  return { ...values, at: at.join("_") };
}

function keepState() {
  const values = Object.entries(inAddress()).map(([name, value]) => [name, value === usual[name] ? "" : value]);
  place.set(Object.fromEntries(values));
}

function fromAddress() {
  const allowed = {
    probe: about.probes.map(({ name }) => name),
    score: about.scores.map(({ name }) => name), scale: Object.keys(SCALES), compare: comparisons(),
  };
  const fields = {};
  Object.entries(WORDS).forEach(([field, name]) => {
    if (allowed[field].includes(place.get(name))) fields[field] = place.get(name);
  });
  Object.entries(SWITCHES).forEach(([field, name]) => { fields[field] = Boolean(place.get(name)); });
  const heads = place.get("at").split("_").filter(Boolean);
  fields.views = state.views.map((view, i) => (heads[i] ? placed(view, heads[i].split(".")) : view));
  return fields;
}

function placed(view, [layer, head, step = "", number = ""]) {
  const which = runs[number] ? Number(number) : view.run;
  const run = runs[which];
  const find = (list, value, otherwise) => (list.includes(Number(value)) ? list.indexOf(Number(value)) : otherwise);
  const at = /^\d+$/.test(step) ? run.nearest(Number(step)) : run.shown.length - 1;
  return { run: which, at, layer: find(run.layers, layer, view.layer), head: find(run.heads, head, view.head) };
}
