// All heads of the model: how sharply each looks from one token, which one is shown, and how strong it is.

const STRONGEST = 2; // of the slider
const inWords = ({ layer, head }) => t("layer {0}, head {1}", layer, head);
const inShort = ({ layer, head }) => `L${layer} H${head}`;
const strengthOf = (factor) => (factor === 0 ? t("off") : `×${factor}`);
const factorOf = (heads, place) => heads.find((change) => isSame(change, place))?.factor ?? 1;

class HeadGrid {
  constructor({ layers, heads, linear_layers: linear }, chat) {
    Object.assign(this, { chat, linear });
    this.mean = button(t("Mean of all heads"), () => chat.chooseHead(null));
    const grid = element("div", "head-grid grid", "", { role: "group", "aria-label": t("Heads: choose one to see what it looked at") });
    const names = (count, letter) => Array.from({ length: count }, (_, i) => `${letter}${i}`);
    this.cells = buildGrid(grid, names(layers, "L"), names(heads, "H"), "head-cell", (layer, head) => chat.chooseHead({ layer, head }),
      "minmax(22px, 46px)").flat();
    grid.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: heads, ArrowUp: -heads }[event.key];
      const to = this.cells[this.cells.indexOf(document.activeElement) + by];
      if (!to) return;
      event.preventDefault();
      to.focus();
      to.click();
    });
    this.places = this.cells.map((_, i) => ({ layer: Math.floor(i / heads), head: i % heads }));
    this.name = element("b");
    this.off = button("", () => this.change(factorOf(this.heads, this.chosen) === 0 ? 1 : 0));
    this.slider = element("input", "", "", { type: "range", min: 0, max: STRONGEST, step: 0.05 });
    this.slider.addEventListener("input", () => this.change(Number(this.slider.value)));
    this.value = element("output");
    this.strength = element("div", "strength", "", {}, [this.name, this.off, this.slider, this.value]);
    this.hint = element("p", "soft", t("Choose a head to switch it off, or to scale it."));
    this.changed = element("div", "changed-heads");
    this.root = element("section", "card", "", { "aria-label": t("Heads") }, [
      element("h2", "", t("Heads")), this.mean, grid,
      element("p", "soft", t("A stronger colour: more of its attention is on one token (not counting the first one).")),
      ...(linear.length ? [element("p", "soft", t("No weights, because these layers are linear attention: {0}", linear.map((layer) => `L${layer}`).join(", ")))] : []),
      this.hint, this.strength, this.changed,
    ]);
  }

  // The head that is shown at this strength, the others as they are. 1 changes nothing.
  change(factor) {
    const others = this.heads.filter((place) => !isSame(place, this.chosen));
    this.chat.changeHeads(factor === 1 ? others : [...others, { ...this.chosen, factor }]);
  }

  // row: what the heads looked at; labels: of the tokens. Both are missing while no token is chosen.
  draw(chosen, heads, row, labels) {
    Object.assign(this, { chosen, heads });
    this.mean.setAttribute("aria-pressed", String(!chosen));
    this.cells.forEach((cell, i) => {
      const factor = factorOf(heads, this.places[i]);
      const [at, weight] = row ? sharpest(attentionOf(row, this.places[i])) : [0, 0];
      const isLinear = this.linear.includes(this.places[i].layer);
      const looks = isLinear ? t("; linear attention has no weights") : row ? t("; most at “{0}”, {1}", labels[at], percent(weight)) : "";
      const strength = factor === 1 ? "" : factor === 0 ? t("; switched off") : t("; scaled by {0}", factor);
      cell.style.backgroundColor = cell.style.color = "";
      if (row) fillCell(cell, magma(brightness(weight)), "");
      cell.textContent = factor === 1 ? "" : strengthOf(factor);
      markCell(cell, isSame(this.places[i], chosen), `${inWords(this.places[i])}${looks}${strength}`);
    });
    if (!chosen) this.cells[0].tabIndex = 0;
    this.hint.hidden = Boolean(chosen);
    this.strength.hidden = !chosen;
    if (chosen) {
      const factor = factorOf(heads, chosen);
      Object.assign(this.slider, { value: factor, ariaLabel: t("Strength of {0}", inWords(chosen)) });
      this.name.textContent = inShort(chosen);
      this.value.textContent = factor === 1 ? t("×1, as trained") : strengthOf(factor);
      this.off.textContent = factor === 0 ? t("Switch on") : t("Switch off");
    }
    const words = t("Changed: {0} ", heads.map((place) => `${inShort(place)} ${strengthOf(place.factor)}`).join(", "));
    this.changed.replaceChildren(...(heads.length ? [words, button(t("All as trained"), () => this.chat.changeHeads([]))] : []));
  }
}

// The token that has most, the first one left out: most heads rest there when they find nothing.
function sharpest(weights) {
  const most = Math.max(...weights.slice(1), -1);
  return most < 0 ? [0, weights[0]] : [weights.indexOf(most, 1), most];
}
