// What is shown of heads. Every change goes through change(), which draws again, and into the address.

let runs = []; // that are shown
let about = null; // scores, texts and colours of all of them
let address = null; // of what is shown
let usual = {}; // what the address need not say

const NO_TOKEN = { token: null, key: null, pinned: false, target: null };
const state = {
  probe: "",
  compare: "none", // none | steps | runs
  hideSink: false,
  words: "", // the reader's own text
  off: [], // heads that are switched off there: "layer.head", places
  score: "",
  active: 0, // the view that keys act on
  playing: null, // the view that plays
  views: [0, 1].map(() => ({ run: 0, at: 0, layer: 0, head: 0 })), // at: place among the run's shown steps; layer, head: places
  // token: {view, place} of what the mouse is over or was clicked; key: in the large map, the column, too;
  // target: the id of the token whose logit the heads push, if not the likeliest
  ...NO_TOKEN,
};

function change(fields) {
  Object.assign(state, fields);
  render();
}

const viewCount = () => (state.compare === "none" ? 1 : 2);
const runOf = (view) => runs[view.run];
const lastOf = (view) => runOf(view).shown.length - 1;
const stepOf = (view) => runOf(view).steps[runOf(view).shown[view.at]];
const mapsOf = (view) => runOf(view).maps(view.at, state.probe);
const headOf = (view) => new Head(runOf(view), mapsOf(view), view.layer, view.head, state);
const scoreOf = (view, info, layer = view.layer, head = view.head) => (
  runOf(view).score(info.name, runOf(view).shown[view.at], layer, head));
const scoreInfo = () => about.scores.find((score) => score.name === state.score);
// A number in a square belongs to the map in it: it is shown only if the score is measured on the text that is shown.
const isMeasuredOn = (info, probe) => Boolean(info) && (!info.probe || info.probe === probe);
const headName = (run, layer, head) => `L${run.layers[layer]} H${run.heads[head]}`;
const comparisons = () => (runs.length > 1 ? ["none", "steps", "runs"] : ["none", "steps"]);

function chooseText(probe) {
  const other = about.scores.find((score) => score.probe === probe);
  const score = isMeasuredOn(scoreInfo(), probe) || !other ? state.score : other.name;
  changeText({ probe, score });
}

// Texts have steps of their own: each view goes to the nearest.
function changeText(fields) {
  const steps = state.views.map((view) => stepOf(view).step);
  Object.assign(state, fields);
  change({ views: state.views.map((view, i) => ({ ...view, at: runOf(view).nearest(steps[i]) })), ...NO_TOKEN });
}

function chooseScore(score) {
  const { probe } = about.scores.find((info) => info.name === score);
  const isElsewhere = probe !== state.probe && about.probes.some(({ name }) => name === probe);
  if (isElsewhere) changeText({ score, probe });
  else change({ score });
}

// Views in which one has other fields.
const withView = (number, fields) => state.views.map((view, i) => (i === number ? { ...view, ...fields } : view));

// The second view shows the same head where it shows the same run; another run's heads are others.
function chooseHead(number, layer, head) {
  const { run } = state.views[number];
  const views = state.views.map((view, i) => (i === number || view.run === run ? { ...view, layer, head } : view));
  change({ views, active: number });
}

function chooseStep(number, at) {
  const views = withView(number, { at });
  const [moved, other] = [views[number], views[1 - number]];
  if (state.compare === "runs") other.at = runOf(other).nearest(stepOf(moved).step); // two runs stand at the same step
  // of two steps the early one stays on the left: the view that moves takes the other one along
  if (state.compare === "steps" && views[0].at > views[1].at) other.at = at;
  change({ views, active: number });
}

function chooseRun(number, run) {
  const view = state.views[number];
  const { layers, heads } = runs[run];
  const fitting = { layer: Math.min(view.layer, layers.length - 1), head: Math.min(view.head, heads.length - 1) };
  const at = runs[run].nearest(stepOf(view).step);
  change({ views: withView(number, { run, at, ...fitting }), active: number, ...NO_TOKEN });
}

// The view that was used last stays, beside an earlier or later step of its run, or beside another run.
function chooseCompare(compare) {
  const view = state.views[state.active];
  const last = lastOf(view);
  let views = [view, state.views[1 - state.active]];
  if (compare === "steps") views = view.at === last ? [{ ...view, at: 0 }, view] : [view, { ...view, at: last }];
  if (compare === "runs") views = besideAnotherRun(view);
  stopPlaying();
  change({ compare, views, active: views.indexOf(view), ...NO_TOKEN });
}

function besideAnotherRun(view) {
  const run = (view.run + 1) % runs.length;
  const other = { run, at: runs[run].nearest(stepOf(view).step), ...strongestHead(runs[run]) };
  return view.run < run ? [view, other] : [other, view];
}

// layer and head with the largest value of the chosen score at the end
function strongestHead(run) {
  const values = run.layers.flatMap((_, layer) => run.heads.map((__, head) => (
    run.score(state.score, run.shown.at(-1), layer, head) ?? -Infinity)));
  const best = Math.max(0, values.indexOf(Math.max(...values)));
  return { layer: Math.floor(best / run.heads.length), head: best % run.heads.length };
}

// What a page opens on: the strongest head of the newest step, or what the address says.
function startState() {
  const names = about.scores.map((score) => score.name);
  const texts = about.probes.map((probe) => probe.name);
  Object.assign(state, { compare: "none", hideSink: false, active: 0, words: tries()[0], off: [], ...NO_TOKEN });
  state.score = names.includes("induction") ? "induction" : names[0] ?? "";
  state.probe = texts[0] === OWN ? OWN : texts.find((name) => isMeasuredOn(scoreInfo(), name)) ?? texts[0];
  const view = { run: 0, at: runs[0].shown.length - 1, ...(about.head ?? strongestHead(runs[0])) };
  state.views = [view, { ...view }];
  if (runs.length > 1) { // a page of several runs is there to compare them
    state.compare = "runs";
    state.views = besideAnotherRun(view);
  }
  usual = inAddress();
  fromAddress();
}

const FIELDS = { probe: "text", words: "words", off: "off", score: "score", compare: "side", hideSink: "nofirst" };

// A head by its true numbers, and its step, if that is not the newest: "1.2.400"; of several runs also which.
function inAddress() {
  const at = state.views.slice(0, viewCount()).map((view) => {
    const { layers, heads } = runOf(view);
    const step = view.at === lastOf(view) ? "" : stepOf(view).step;
    return [layers[view.layer], heads[view.head], step, ...(runs.length > 1 ? [view.run] : [])].join(".");
  });
  const values = Object.entries(FIELDS).map(([field, name]) => [name, state[field] === true ? "1" : String(state[field] || "")]);
  return Object.fromEntries([...values, ["at", at.join("_")]]);
}

function keepState() {
  address.set(Object.fromEntries(Object.entries(inAddress()).map(([name, value]) => [name, value === usual[name] ? "" : value])));
}

function fromAddress() {
  const named = (list) => list.map(({ name }) => name);
  const places = runs[0].layers.flatMap((_, layer) => runs[0].heads.map((__, head) => nameOf({ layer, head })));
  const allowed = {
    probe: named(about.probes), score: named(about.scores), compare: comparisons(), hideSink: ["1"],
  };
  Object.entries(FIELDS).forEach(([field, name]) => {
    const value = address.get(name);
    if (field === "off") state.off = value.split(",").filter((place) => places.includes(place));
    else if (field === "words" ? value : allowed[field].includes(value)) state[field] = typeof state[field] === "boolean" || value;
  });
  state.views.forEach((view) => { view.at = Math.min(view.at, lastOf(view)); }); // the text has steps of its own
  address.get("at").split("_").filter(Boolean).slice(0, 2).forEach((text, i) => {
    const [layer, head, step = "", run = ""] = text.split(".");
    const view = state.views[i];
    if (runs[run]) view.run = Number(run);
    const { layers, heads } = runOf(view);
    view.at = /^\d+$/.test(step) ? runOf(view).nearest(Number(step)) : lastOf(view);
    if (layers.includes(Number(layer))) view.layer = layers.indexOf(Number(layer));
    if (heads.includes(Number(head))) view.head = heads.indexOf(Number(head));
  });
}
