// Tokens as running text, turn by turn. Those of an answer can be pointed at: what they looked at is shaded.

import { element } from "./dom.js";
import { SCALES } from "./viewer.js";

const TURN = "<im_start>"; // the label of the token that begins a turn
const LARGE = 3; // nats; a difference of this is drawn in full colour

// How much colour a weight gets, 0 to 1.
export const shadeOf = (weight) => (weight > 0.0005 ? 0.85 * SCALES.power(weight) : 0);
const HIDDEN = /[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufffe\uffff]/g;

// Characters that nobody sees, or that turn the text around, by their number.
export const visible = (text) => text.replace(HIDDEN, (one) => `⟨U+${one.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
// A special token, and a part of a character, adds nothing to the text: its label stands for it.
export const shown = (token) => visible(token.text || token.label).replaceAll("\n", "⏎\n");

// What was read before an answer, turn by turn. Gives the element of each token.
export function drawPrompt(box, tokens) {
  box.replaceChildren();
  let turn = null;
  return tokens.map((token) => {
    if (!turn || (token.label === TURN && turn.children.length > 1)) box.append((turn = element("div", "turn")));
    const place = element("span", token.text ? "word-token" : "word-token special", shown(token));
    turn.append(place);
    return place;
  });
}

// The text of one answer. told: {point(position or null), choose(position or null), arrive()}.
export class TokenText {
  constructor(name, title, told) {
    Object.assign(this, { name, told });
    this.begin([]);
    this.box = element("div", "answer-tokens", "", { role: "listbox", tabindex: "0", "aria-label": title });
    this.listen();
  }

  // prompt: the elements of the tokens before the answer.
  begin(prompt) {
    this.places = [...prompt]; // the element of each token
    this.first = prompt.length; // the first token of the answer
    this.chosen = null;
    this.box?.replaceChildren();
  }

  add(token) {
    const place = element("span", token.text ? "word-token of-answer" : "word-token of-answer special", shown(token), {
      role: "option", "aria-selected": "false",
    });
    if (token.isForced) place.classList.add("forced");
    if (token.is_thought) place.classList.add("thought");
    place.id = `${this.name}-${this.places.length}`;
    place.dataset.position = this.places.length;
    this.places.push(place);
    this.box.append(place);
  }

  listen() {
    const positionOf = ({ target }) => (target.dataset?.position ? Number(target.dataset.position) : null);
    this.box.addEventListener("pointerover", (event) => this.told.point(positionOf(event)));
    this.box.addEventListener("pointerleave", () => this.told.point(null));
    this.box.addEventListener("click", (event) => positionOf(event) !== null && this.told.choose(positionOf(event)));
    this.box.addEventListener("keydown", (event) => this.onKey(event));
    this.box.addEventListener("focus", () => this.box.matches(":focus-visible") && this.told.arrive());
  }

  onKey(event) {
    const last = this.places.length - 1;
    if (last < this.first || event.ctrlKey || event.metaKey || event.altKey) return;
    const here = this.chosen ?? this.first - 1;
    const to = { ArrowRight: here + 1, ArrowDown: here + 1, ArrowLeft: here - 1, ArrowUp: here - 1, Home: this.first, End: last };
    if (event.key === "Escape") this.told.choose(null);
    if (!(event.key in to)) return;
    event.preventDefault();
    this.told.choose(Math.min(last, Math.max(this.first, to[event.key])));
  }

  // position: the token that is looked from; weights: of each token before it, or nothing while they are on their way.
  shade(position, weights) {
    Object.assign(this, { chosen: position, weights });
    this.places.forEach((place, i) => {
      const share = shadeOf(weights?.[i]);
      place.style.backgroundColor = share ? `color-mix(in srgb, var(--looks) ${Math.round(100 * share)}%, transparent)` : "";
      if (i >= this.first) place.setAttribute("aria-selected", String(i === position));
    });
    if (position === null) return this.box.removeAttribute("aria-activedescendant");
    this.box.setAttribute("aria-activedescendant", this.places[position].id);
    return undefined;
  }

  // How much more (or less) likely the changed heads make each token: a line below it.
  underline(differences) {
    this.places.slice(this.first).forEach((place, i) => {
      const nats = differences?.[i];
      const share = nats === undefined ? 0 : Math.min(1, Math.abs(nats) / LARGE);
      place.style.borderBottomColor = share < 0.02 ? ""
        : `color-mix(in srgb, var(${nats < 0 ? "--seen" : "--looks"}) ${Math.round(25 + 75 * share)}%, transparent)`;
    });
  }
}
