// What is shown of the heads, in the address: text, head, step, colours. Without a step it is the newest one.

import * as viewer from "./viewer.js";

const WORDS = { probe: "text", score: "score", scale: "scale", compare: "side" }; // of the viewer's state, in the address
const SWITCHES = { rowMax: "rows", hideSink: "nofirst", wide: "wide" };
const PAUSE = 300; // milliseconds without a change, before the address follows

// signal: aborted when this viewer is no longer shown
export function keepState(address, signal) {
  const usual = { ...viewer.state };
  let timer = 0;
  const keep = () => {
    const { state } = viewer;
    const values = {};
    Object.entries(WORDS).forEach(([field, name]) => { values[name] = state[field]; });
    Object.entries(SWITCHES).forEach(([field, name]) => { values[name] = state[field] ? "1" : ""; });
    const views = state.views.slice(0, viewer.viewCount()).map((view) => {
      const run = viewer.runOf(view);
      const isLast = view.at === run.shown.length - 1;
      return [run.layers[view.layer], run.heads[view.head], isLast ? "" : viewer.stepOf(view).step].join(".");
    });
    if (values.scale === usual.scale && !address.get("scale")) values.scale = "";
    if (values.side === "none") values.side = "";
    address.set({ ...values, at: views.join("_") });
  };
  document.addEventListener("drawn", () => {
    clearTimeout(timer);
    timer = setTimeout(keep, PAUSE);
  }, { signal });
  signal.addEventListener("abort", () => clearTimeout(timer));
}

export function restoreState(address) {
  const fields = {};
  const allowed = {
    probe: viewer.about.probes.map(({ name }) => name), score: viewer.about.scores.map(({ name }) => name),
    scale: Object.keys(viewer.SCALES), compare: ["none", "steps"],
  };
  Object.entries(WORDS).forEach(([field, name]) => {
    if (allowed[field].includes(address.get(name))) fields[field] = address.get(name);
  });
  Object.entries(SWITCHES).forEach(([field, name]) => {
    if (address.get(name)) fields[field] = true;
  });
  const run = viewer.runs[0];
  const asked = address.get("at").split("_").filter(Boolean);
  fields.views = viewer.state.views.map((view, i) => (asked[i] ? placed(run, view, asked[i].split(".")) : view));
  viewer.change(fields);
}

function placed(run, view, [layer, head, step = ""]) {
  const place = (list, number, otherwise) => (list.includes(Number(number)) ? list.indexOf(Number(number)) : otherwise);
  const at = /^\d+$/.test(step) ? run.nearest(Number(step)) : run.shown.length - 1;
  return { ...view, at, layer: place(run.layers, layer, view.layer), head: place(run.heads, head, view.head) };
}
