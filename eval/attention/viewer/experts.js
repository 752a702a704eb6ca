// The tab of a mixture of experts: how many tokens each expert gets, how much it counts, and which tokens those are.

const FAIR = 1;

// The experts of one run. It has what curve.js asks of a run: an expert stands where a head does.
class Mixture {
  constructor(run) {
    Object.assign(this, run.experts);
    this.name = run.name;
    this.heads = Array.from({ length: run.experts.experts }, (_, i) => i);
    const shares = this.steps.flatMap((step) => step.share.flat());
    this.ranges = { share: [0, Math.max(2, ...shares.map((share) => Math.ceil(share)))], weight: [0, 1] };
  }

  score(name, place, layer, expert) {
    return this.steps[place][name][layer][expert];
  }

  expertName(layer, expert) {
    return `L${this.layers[layer]} E${expert}`;
  }

  nearest(step) {
    const distances = this.steps.map((one) => Math.abs(one.step - step));
    return distances.indexOf(Math.min(...distances));
  }
}

let mixtures = []; // of the runs that have experts

const mixture = () => mixtures[state.experts.run];

function changeExperts(fields) {
  const experts = { ...state.experts, ...fields };
  const { layers, heads, steps } = mixtures[experts.run];
  const within = (place, list) => Math.max(0, Math.min(list.length - 1, place));
  experts.at = within(experts.at, steps);
  experts.layer = within(experts.layer, layers);
  experts.expert = within(experts.expert, heads);
  change({ experts });
}

function buildExperts() {
  mixtures = runs.filter((run) => run.experts).map((run) => new Mixture(run));
  byId("tabs").hidden = !mixtures.length;
  if (!mixtures.length) return;
  mixtures.forEach((one, i) => byId("experts-run").add(new Option(one.name, i)));
  byId("experts-run").parentElement.hidden = mixtures.length < 2;
  state.experts.at = mixtures[0].steps.length - 1;
  byId("tab-heads").addEventListener("click", () => chooseTab("heads"));
  byId("tab-experts").addEventListener("click", () => chooseTab("experts"));
  byId("experts-run").addEventListener("change", ({ target }) => {
    stopPlaying();
    changeExperts({ run: Number(target.value), at: Infinity });
  });
  byId("experts-step").addEventListener("input", ({ target }) => goToLook(Number(target.value)));
  byId("experts-play").addEventListener("click", playExperts);
  ["share", "weight"].forEach((name) => byId(`experts-${name}`).addEventListener("click", ({ clientX, target }) => {
    const x = clientX - target.getBoundingClientRect().left;
    goToLook(mixture().nearest(expertAxes(target, name).step(x)));
  }));
}

function chooseTab(tab) {
  stopPlaying();
  change({ tab });
}

function showTab() {
  const isExperts = state.tab === "experts";
  document.documentElement.dataset.tab = state.tab; // style.css hides what belongs to heads
  byId("panes").hidden = byId("bar").hidden = isExperts;
  byId("experts").hidden = !isExperts;
  ["heads", "experts"].forEach((tab) => byId(`tab-${tab}`).setAttribute("aria-selected", state.tab === tab));
  byId("subject").textContent = isExperts ? "Which experts the tokens go to in" : "What the attention heads of";
  byId("verb").hidden = isExperts;
}

function goToLook(at) {
  stopPlaying();
  changeExperts({ at });
}

function playExperts() {
  const last = mixture().steps.length - 1;
  if (state.playing === "experts") {
    goToLook(state.experts.at);
    return;
  }
  state.playing = "experts";
  changeExperts({ at: state.experts.at === last ? 0 : state.experts.at });
  timer = setInterval(() => {
    if (state.experts.at + 1 >= last) stopPlaying();
    changeExperts({ at: state.experts.at + 1 });
  }, FRAME_MS);
}

function onExpertsKey(event) {
  const { at, layer, expert } = state.experts;
  const act = event.shiftKey ? {
    ArrowLeft: () => changeExperts({ expert: expert - 1 }),
    ArrowRight: () => changeExperts({ expert: expert + 1 }),
    ArrowUp: () => changeExperts({ layer: layer - 1 }),
    ArrowDown: () => changeExperts({ layer: layer + 1 }),
  }[event.key] : {
    ArrowLeft: () => goToLook(at - 1),
    ArrowRight: () => goToLook(at + 1),
    Home: () => goToLook(0),
    End: () => goToLook(Infinity),
    " ": playExperts,
    d: chooseTheme,
  }[event.key];
  if (event.key === "?") byId("help").showModal();
  if (!act) return;
  event.preventDefault();
  act();
}

function drawExperts() {
  const one = mixture();
  const { at, run } = state.experts;
  const look = one.steps[at];
  byId("experts-run").value = run;
  const slider = byId("experts-step");
  slider.max = one.steps.length - 1;
  slider.value = at;
  slider.setAttribute("aria-valuetext", `step ${look.step}`);
  byId("experts-when").textContent = `step ${look.step}${look.tokens ? ` · ${quantity(look.tokens)} tokens` : ""}`;
  const isPlaying = state.playing === "experts";
  byId("experts-play").textContent = isPlaying ? "❙❙ Pause" : "▶ Play";
  slider.hidden = byId("experts-play").hidden = one.steps.length < 2;
  byId("experts-balance").textContent = balance(one, look);
  byId("experts-worth").textContent = worth(one.steps.at(-1));
  drawExpertGrid(one, look);
  drawWords(one, look);
  drawExpertCurve(one, "share", FAIR, "fair share");
  drawExpertCurve(one, "weight", null);
}

// How evenly the tokens are shared out, and which experts are dead: in a sentence.
function balance(one, look) {
  const all = one.layers.flatMap((_, layer) => one.heads.map((expert) => ({ layer, expert, share: look.share[layer][expert] })));
  const dead = all.filter(({ share }) => share < one.dead).map(({ layer, expert }) => one.expertName(layer, expert));
  const weakest = all.reduce((least, found) => (found.share < least.share ? found : least));
  const words = `The weakest expert, ${one.expertName(weakest.layer, weakest.expert)}, has ${number(weakest.share)} of a fair share.`;
  return dead.length ? `Dead, with hardly a token: ${dead.join(", ")}.` : `${words} None is dead.`;
}

// At the end of training the loss is also measured with other experts.
function worth({ loss, step }) {
  if (loss.random === undefined || loss.learned === undefined) return "";
  const more = number(loss.random - loss.learned);
  return `At step ${step}, with experts drawn at random, the loss is ${more} nats a token higher.`;
}

function drawExpertGrid(one, look) {
  byId("experts-note").textContent = `share of the tokens, below it the mean weight; dashed: share under ${one.starved}`;
  const box = byId("experts-grid");
  box.style.gridTemplateColumns = `auto repeat(${one.heads.length}, minmax(38px, 76px))`;
  const columns = one.heads.map((expert) => element("span", "column-name", `E${expert}`));
  const focused = box.contains(document.activeElement);
  box.replaceChildren(element("span", "corner"), ...columns, ...one.layers.flatMap((layerNumber, layer) => [
    element("span", "row-name", `L${layerNumber}`),
    ...one.heads.map((expert) => expertCell(one, look, layer, expert)),
  ]));
  if (focused) box.querySelector('[aria-pressed="true"]').focus();
}

function expertCell(one, look, layer, expert) {
  const share = look.share[layer][expert];
  const weight = look.weight[layer][expert];
  const cell = element("button", "expert");
  const back = magma(share / one.ranges.share[1]);
  const chosen = layer === state.experts.layer && expert === state.experts.expert;
  cell.type = "button";
  cell.append(element("b", "", number(share)), element("span", "", number(weight)));
  cell.style.backgroundColor = css(back);
  cell.style.color = inkOn(back);
  cell.classList.toggle("starved", share < one.starved);
  cell.setAttribute("aria-pressed", chosen);
  cell.tabIndex = chosen ? 0 : -1;
  const alarm = share < one.dead ? ", dead" : share < one.starved ? `, under ${one.starved} of a fair share` : "";
  cell.title = `${one.expertName(layer, expert)}: ${number(share)} of a fair share, mean weight ${number(weight)}${alarm}`;
  cell.setAttribute("aria-label", cell.title);
  cell.addEventListener("click", () => changeExperts({ layer, expert }));
  return cell;
}

// Of the chosen layer; words of the last look that noted some, where this one did not.
function drawWords(one, look) {
  const { layer, expert } = state.experts;
  const noted = look.words.length ? look : one.steps.findLast((step) => step.words.length);
  const when = noted && noted !== look ? `, noted at step ${noted.step}` : "";
  byId("experts-words-note").textContent = `layer ${one.layers[layer]}${when}`;
  byId("experts-words").tBodies[0].replaceChildren(...one.heads.map((i) => {
    const row = element("tr", i === expert ? "chosen" : "");
    const words = element("td", "");
    (noted?.words[layer][i] ?? []).forEach((word) => words.append(element("span", "word", word), " "));
    const share = element("td", "number", number(look.share[layer][i]));
    row.append(element("th", "", `E${i}`), share, element("td", "number", number(look.weight[layer][i])), words);
    row.addEventListener("click", () => changeExperts({ expert: i }));
    return row;
  }));
}

const expertAxes = (canvas, name) => {
  const wide = Math.max(220, Math.min(640, canvas.parentElement.clientWidth));
  return { ...curveAxes(mixture(), mixture().ranges[name], wide), wide };
};

function drawExpertCurve(one, name, fair, fairName) {
  const canvas = byId(`experts-${name}`);
  const axes = expertAxes(canvas, name);
  const context = sizedContext(canvas, axes.wide, CURVE.high);
  const { at, layer, expert } = state.experts;
  drawAxes(context, axes, one);
  context.lineWidth = 1;
  context.strokeStyle = colour("--line-strong");
  one.heads.forEach((other) => drawLine(context, axes, one, { name }, layer, other));
  context.lineWidth = 2.5;
  context.strokeStyle = colour("--accent");
  drawLine(context, axes, one, { name }, layer, expert, true);
  drawChance(context, axes, fair, fairName);
  context.strokeStyle = colour("--text");
  context.lineWidth = 1;
  context.strokeRect(axes.x(one.steps[at].step), CURVE.top, 0, axes.bottom - CURVE.top);
  const words = `${one.expertName(layer, expert)} at step ${one.steps[at].step}: ${number(one.score(name, at, layer, expert))}`;
  canvas.setAttribute("aria-label", `${name} of every expert of a layer over training. ${words}`);
}
