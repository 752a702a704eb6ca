// All heads of the model: how sharply each looks from one token, which one is shown, and how strong it is.

const STRONGEST = 2; // of the slider
const inWords = ({ layer, head }) => `layer ${layer}, head ${head}`;
const inShort = ({ layer, head }) => `L${layer} H${head}`;
const strengthOf = (factor) => (factor === 0 ? "off" : `×${factor}`);
const factorOf = (heads, place) => heads.find((change) => isSame(change, place))?.factor ?? 1;

class HeadGrid {
  constructor({ layers, heads }, chat) {
    this.chat = chat;
    this.mean = button("Mean of all heads", () => chat.chooseHead(null));
    const grid = element("div", "head-grid grid", "", { role: "group", "aria-label": "Heads: choose one to see what it looked at" });
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
    this.cells.forEach((cell, i) => {
      const factor = factorOf(changed, this.places[i]);
      const [at, weight] = row ? sharpest(attentionOf(row, this.places[i])) : [0, 0];
      const looks = row ? `; most at “${labels[at]}”, ${percent(weight)}` : "";
      const strength = factor === 1 ? "" : factor === 0 ? "; switched off" : `; scaled by ${factor}`;
      cell.style.backgroundColor = cell.style.color = "";
      if (row) fillCell(cell, magma(SCALES.power(weight)), "");
      cell.textContent = factor === 1 ? "" : strengthOf(factor);
      drawCell(cell, isSame(this.places[i], chosen), `${inWords(this.places[i])}${looks}${strength}`);
    });
    if (!chosen) this.cells[0].tabIndex = 0;
    this.drawStrength(chosen);
    const words = `Changed: ${changed.map((place) => `${inShort(place)} ${strengthOf(place.factor)}`).join(", ")} `;
    this.changed.replaceChildren(...(changed.length ? [words, button("All as trained", () => this.chat.changeHeads([]))] : []));
  }

  drawStrength(chosen) {
    if (!chosen) {
      this.slider = null;
      this.strength.replaceChildren(element("p", "soft", "Choose a head to switch it off, or to scale it."));
      return;
    }
    const factor = factorOf(this.heads, chosen);
    if (this.slider?.dataset.of !== inShort(chosen)) { // otherwise the slider keeps the focus
      const act = (value) => { // the head at this strength, the others as they are; 1 changes nothing
        const others = this.heads.filter((place) => !isSame(place, chosen));
        this.chat.changeHeads(value === 1 ? others : [...others, { ...chosen, factor: value }]);
      };
      this.slider = element("input", "", "", { type: "range", min: 0, max: STRONGEST, step: 0.05, "data-of": inShort(chosen), "aria-label": `Strength of ${inWords(chosen)}` });
      this.slider.addEventListener("input", () => act(Number(this.slider.value)));
      this.off = button("Switch off", () => act(factorOf(this.heads, chosen) === 0 ? 1 : 0));
      this.value = element("output");
      this.strength.replaceChildren(element("b", "", inShort(chosen)), this.off, this.slider, this.value);
    }
    this.slider.value = factor;
    this.value.textContent = factor === 1 ? "×1, as trained" : strengthOf(factor);
    this.off.textContent = factor === 0 ? "Switch on" : "Switch off";
    this.off.setAttribute("aria-pressed", String(factor === 0));
  }
}

// The token that has most, the first one left out: most heads rest there when they find nothing.
function sharpest(weights) {
  const most = Math.max(...weights.slice(1), -1);
  return most < 0 ? [0, weights[0]] : [weights.indexOf(most, 1), most];
}
