// All heads of the model: how sharply each looks at one token, which one is shown, and how strong it is.

import { button, element } from "./dom.js";
import { factorOf, isSame, withFactor } from "./chat_state.js";
import { SCALES, css, inkOn, magma } from "./viewer.js";

const MOST = 2; // of the slider
const named = ({ layer, head }) => `layer ${layer}, head ${head}`;
const short = ({ layer, head }) => `L${layer} H${head}`;
export const percent = (share) => (share >= 0.9995 ? "100 %" : share < 0.0005 ? "< 0.1 %" : `${(100 * share).toFixed(1)} %`);

export class HeadGrid {
  // told: {choose(place or null), change(heads)}
  constructor(told) {
    this.told = told;
    this.cells = [];
    this.mean = button("Mean of all heads", () => told.choose(null), { class: "mean" });
    this.grid = element("div", "head-grid", "", { role: "group", "aria-label": "Heads: choose one to see what it looked at" });
    this.note = element("p", "soft", "A stronger colour: more of its attention is on one token, the first one left out.");
    this.strength = element("div", "strength");
    this.changed = element("div", "changed-heads");
    this.root = element("section", "card heads-card", "", { "aria-label": "Heads" }, [
      element("h2", "", "Heads"), this.mean, this.grid, this.note, this.strength, this.changed,
    ]);
  }

  build(layers, heads) {
    this.cells = [];
    this.grid.replaceChildren(element("span"));
    this.grid.style.gridTemplateColumns = `max-content repeat(${heads}, minmax(22px, 46px))`;
    for (let head = 0; head < heads; head++) this.grid.append(element("span", "head-name", `H${head}`));
    for (let layer = 0; layer < layers; layer++) {
      this.grid.append(element("span", "head-name", `L${layer}`));
      for (let head = 0; head < heads; head++) {
        const place = { layer, head };
        const cell = button("", () => this.told.choose(place), { class: "head-cell" });
        this.cells.push({ place, cell });
        this.grid.append(cell);
      }
    }
    this.grid.onkeydown = (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: heads, ArrowUp: -heads }[event.key];
      const to = this.cells[this.cells.findIndex(({ cell }) => cell === document.activeElement) + by];
      if (!by || !to) return;
      event.preventDefault();
      to.cell.focus();
      this.told.choose(to.place);
    };
  }

  // row: what the heads looked at; labels: of the tokens. Both are missing while no token is chosen.
  draw(chosen, changed, row, labels) {
    this.mean.setAttribute("aria-pressed", String(!chosen));
    this.cells.forEach(({ place, cell }) => {
      const factor = factorOf(changed, place);
      const [at, weight] = row ? sharpest(row.of(place)) : [0, 0];
      const colour = row ? magma(SCALES.power(weight)) : null;
      cell.style.backgroundColor = colour ? css(colour) : "";
      cell.style.color = colour ? inkOn(colour) : "";
      cell.textContent = factor === 1 ? "" : factor === 0 ? "off" : `×${factor}`;
      cell.setAttribute("aria-pressed", String(isSame(place, chosen)));
      const looks = row ? `; most at “${labels[at]}”, ${percent(weight)}` : "";
      const strength = factor === 1 ? "" : factor === 0 ? "; switched off" : `; scaled by ${factor}`;
      cell.setAttribute("aria-label", `${named(place)}${looks}${strength}`);
      cell.title = `${short(place)}${looks}${strength}`;
      cell.tabIndex = isSame(place, chosen ?? { layer: 0, head: 0 }) ? 0 : -1;
    });
    this.drawStrength(chosen, changed);
    this.drawChanged(changed);
  }

  drawStrength(chosen, changed) {
    const key = chosen ? `${short(chosen)} ${factorOf(changed, chosen)}` : "";
    if (this.strengthShown === key) return; // so that the slider keeps the focus
    this.strengthShown = key;
    if (!chosen) {
      this.slider = null;
      this.strength.replaceChildren(element("p", "soft", "Choose a head to switch it off, or to scale it."));
      return;
    }
    const factor = factorOf(changed, chosen);
    if (this.slider?.dataset.of !== short(chosen)) {
      const act = (value) => this.told.change(withFactor(this.heads, chosen, value));
      this.slider = element("input", "", "", { type: "range", min: 0, max: MOST, step: 0.05, "data-of": short(chosen), "aria-label": `Strength of ${named(chosen)}` });
      this.slider.addEventListener("input", () => act(Number(this.slider.value)));
      this.off = button("Switch off", () => act(factorOf(this.heads, chosen) === 0 ? 1 : 0));
      this.value = element("output");
      this.strength.replaceChildren(element("b", "", short(chosen)), this.off, this.slider, this.value);
    }
    this.slider.value = factor;
    this.value.textContent = factor === 0 ? "off" : factor === 1 ? "×1, as trained" : `×${factor}`;
    this.off.textContent = factor === 0 ? "Switch on" : "Switch off";
    this.off.setAttribute("aria-pressed", String(factor === 0));
  }

  drawChanged(changed) {
    this.heads = changed;
    this.changed.replaceChildren();
    if (!changed.length) return;
    const chips = changed.map((one) => button(`${short(one)} ${one.factor === 0 ? "off" : `×${one.factor}`} ✕`, () => {
      this.told.change(withFactor(this.heads, one, 1));
    }, { class: "chip-button", "aria-label": `${named(one)} as it was trained` }));
    this.changed.append(element("span", "soft", "Changed: "), ...chips, button("All as trained", () => this.told.change([])));
  }
}

// The token that has most, the first one left out: most heads rest there when they find nothing.
function sharpest(weights) {
  let at = 0;
  weights.forEach((weight, i) => { if (i > 0 && (at === 0 || weight > weights[at])) at = i; });
  return [at, weights[at]];
}
