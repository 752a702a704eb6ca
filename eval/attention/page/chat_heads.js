// All heads of the model: how sharply each looks from one token, which one is shown, and how strong it is.

const STRONGEST = 2; // of the slider
const inWords = ({ layer, head }) => `layer ${layer}, head ${head}`;
const inShort = ({ layer, head }) => `L${layer} H${head}`;
const factorOf = (heads, place) => heads.find((one) => isSame(one, place))?.factor ?? 1;

// The changed heads, with one more changed; a factor of 1 changes nothing.
function withFactor(heads, { layer, head }, factor) {
  const others = heads.filter((one) => !isSame(one, { layer, head }));
  const all = factor === 1 ? others : [...others, { layer, head, factor }];
  return all.sort((a, b) => a.layer - b.layer || a.head - b.head);
}

class HeadGrid {
  // told: {choose(place or null), change(heads)}
  constructor({ layers, heads }, told) {
    this.told = told;
    this.mean = button("Mean of all heads", () => told.choose(null));
    const grid = element("div", "head-grid grid", "", { role: "group", "aria-label": "Heads: choose one to see what it looked at" });
    const names = (count, letter) => Array.from({ length: count }, (_, i) => `${letter}${i}`);
    this.cells = buildGrid(grid, names(layers, "L"), names(heads, "H"), "head-cell", (layer, head) => told.choose({ layer, head }),
      "minmax(22px, 46px)").flatMap((row, layer) => row.map((cell, head) => ({ place: { layer, head }, cell })));
    grid.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: heads, ArrowUp: -heads }[event.key];
      const to = this.cells[this.cells.findIndex(({ cell }) => cell === document.activeElement) + by];
      if (!by || !to) return;
      event.preventDefault();
      to.cell.focus();
      told.choose(to.place);
    });
    this.strength = element("div", "strength");
    this.changed = element("div", "changed-heads");
    this.root = element("section", "card", "", { "aria-label": "Heads" }, [
      element("h2", "", "Heads"), this.mean, grid,
      element("p", "soft", "A stronger colour: more of its attention is on one token, the first one left out."),
      this.strength, this.changed,
    ]);
  }

  // row: what the heads looked at; labels: of the tokens. Both are missing while no token is chosen.
  draw(chosen, changed, row, labels) {
    this.heads = changed;
    this.mean.setAttribute("aria-pressed", String(!chosen));
    this.cells.forEach(({ place, cell }) => {
      const factor = factorOf(changed, place);
      const [at, weight] = row ? sharpest(row.of(place)) : [0, 0];
      const looks = row ? `; most at “${labels[at]}”, ${percent(weight)}` : "";
      const strength = factor === 1 ? "" : factor === 0 ? "; switched off" : `; scaled by ${factor}`;
      cell.style.backgroundColor = cell.style.color = "";
      if (row) fillCell(cell, magma(SCALES.power(weight)), "");
      cell.textContent = factor === 1 ? "" : factor === 0 ? "off" : `×${factor}`;
      drawCell(cell, isSame(place, chosen), `${inWords(place)}${looks}${strength}`);
      if (!chosen && isSame(place, { layer: 0, head: 0 })) cell.tabIndex = 0;
    });
    this.drawStrength(chosen, changed);
    this.changed.replaceChildren();
    if (!changed.length) return;
    const chips = changed.map((one) => button(`${inShort(one)} ${one.factor === 0 ? "off" : `×${one.factor}`} ✕`, () => {
      this.told.change(withFactor(this.heads, one, 1));
    }, { class: "chip-button", "aria-label": `${inWords(one)} as it was trained` }));
    this.changed.append(element("span", "soft", "Changed: "), ...chips, button("All as trained", () => this.told.change([])));
  }

  drawStrength(chosen, changed) {
    if (!chosen) {
      this.slider = null;
      this.strength.replaceChildren(element("p", "soft", "Choose a head to switch it off, or to scale it."));
      return;
    }
    const factor = factorOf(changed, chosen);
    if (this.slider?.dataset.of !== inShort(chosen)) { // otherwise the slider keeps the focus
      const act = (value) => this.told.change(withFactor(this.heads, chosen, value));
      this.slider = element("input", "", "", { type: "range", min: 0, max: STRONGEST, step: 0.05, "data-of": inShort(chosen), "aria-label": `Strength of ${inWords(chosen)}` });
      this.slider.addEventListener("input", () => act(Number(this.slider.value)));
      this.off = button("Switch off", () => act(factorOf(this.heads, chosen) === 0 ? 1 : 0));
      this.value = element("output");
      this.strength.replaceChildren(element("b", "", inShort(chosen)), this.off, this.slider, this.value);
    }
    this.slider.value = factor;
    this.value.textContent = factor === 0 ? "off" : factor === 1 ? "×1, as trained" : `×${factor}`;
    this.off.textContent = factor === 0 ? "Switch on" : "Switch off";
    this.off.setAttribute("aria-pressed", String(factor === 0));
  }
}

// The token that has most, the first one left out: most heads rest there when they find nothing.
function sharpest(weights) {
  let at = 0;
  weights.forEach((weight, i) => { if (i > 0 && (at === 0 || weight > weights[at])) at = i; });
  return [at, weights[at]];
}
