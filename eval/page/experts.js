// The tab of a mixture of experts. An expert stands where a head does: its share of the tokens and its weight are scores.

const TABS = { heads: "H", experts: "E" }; // and the letter of what stands in a grid
const TAB_NAMES = { heads: t("heads"), experts: t("experts") };

// What is known of the experts of these runs, as if they were heads. null where no run has any.
function asExperts(data) {
  const some = data.runs.filter((run) => run.experts);
  if (!some.length) return null;
  const plain = { probe: "", measured_on: "", looks_at: "", unit: "", low: 0 };
  return {
    ...data, head: null, notes: [], probes: [],
    scores: [
      { ...plain, name: "share", title: t("share of the tokens"), meaning: t("1 is a fair share: as many as every other expert.") },
      { ...plain, name: "weight", title: t("mean weight"), meaning: t("The router multiplies its output by this.") },
    ],
    runs: some.map(({ name, experts }) => {
      const { layers, steps, experts: count } = experts;
      const table = (key) => steps.map((step) => step[key].flat());
      return {
        name, layers, heads: Array.from({ length: count }, (_, i) => i), num_attention_heads: count, num_key_value_heads: count,
        texts: [], steps: steps.map((step) => ({ ...step, maps: {}, scalars: {} })), mixture: experts, formed: null,
        scores: { share: table("share"), weight: table("weight") }, chance: { share: 1, weight: null },
      };
    }),
  };
}

// How evenly the tokens are shared out, and which experts are dead; at the end also what they are worth.
function expertsInWords(run, step) {
  const all = step.share.flatMap((row, layer) => row.map((share, expert) => ({ name: headName(run, layer, expert), share })));
  const dead = all.filter(({ share }) => share < run.mixture.dead).map(({ name }) => name);
  const weakest = all.reduce((least, other) => (other.share < least.share ? other : least));
  const words = dead.length ? t("Dead, with almost no tokens: {0}.", dead.join(", "))
    : t("The weakest expert, {0}, has {1} of a fair share. None is dead.", weakest.name, number(weakest.share));
  const last = run.steps.at(-1);
  const worth = last.loss.random - last.loss.learned;
  const costs = t("At step {0}, with experts drawn at random, the loss is {1} nats a token higher.", last.step, number(worth));
  return [words, Number.isFinite(worth) ? costs : ""];
}

// What is wrong with an expert, in words.
function alarmOf({ run, view }, layer, expert) {
  if (!run.mixture) return "";
  const share = stepOf(view).share[layer][expert];
  const { dead, starved } = run.mixture;
  return share < dead ? t(", dead") : share < starved ? t(", under {0} of a fair share", starved) : "";
}

// The tokens that tell each expert of the chosen layer from the others; of the last look that noted some.
function drawWords(pane) {
  const { run, view } = pane;
  const step = stepOf(view);
  const noted = step.words.length ? step : run.steps.findLast(({ words }) => words.length);
  const when = noted && noted !== step ? t(", noted at step {0}", noted.step) : "";
  pane.find(".words-note").textContent = t("layer {0}", run.layers[view.layer]) + when;
  pane.find(".words").replaceChildren(...run.heads.map((expert) => {
    const words = (noted?.words[view.layer][expert] ?? []).flatMap((word) => [" ", element("span", "word", word)]);
    return element("li", expert === view.head ? "chosen" : "", "", {}, [element("b", "", `E${expert}`), ...words]);
  }));
}
