// One token: how likely it was, what the model might have written instead, and what it looked at.

import { button, element } from "./dom.js";
import { percent } from "./chat_heads.js";

const MOST = 4; // tokens that are named

export const nats = (value) => (value <= -0.005 ? `−${Math.abs(value).toFixed(2)}` : Math.abs(value).toFixed(2));
export const signed = (value) => (value >= 0.005 ? `+${nats(value)}` : nats(value));

export class TokenCard {
  // told: {force(position, alternative)}
  constructor(told) {
    this.told = told;
    this.root = element("section", "card token-card", "", { "aria-label": "The token" });
    this.shown = "";
    this.empty();
  }

  empty() {
    this.shown = "";
    this.root.replaceChildren(element("h2", "", "Token"), element("p", "soft",
      "Point at a token of the answer, tap it, or go to the answer and use the arrow keys. You see what the model looked "
      + "at to write it, how likely it was, and what it might have written instead."));
  }

  // token: {label, log_prob, top}; difference: with the heads changed, in nats, where it is known
  draw(key, position, token, difference, isBusy) {
    const shown = `${key} ${position} ${token.id} ${token.log_prob} ${difference} ${isBusy}`;
    if (this.shown === shown) return;
    this.shown = shown;
    const likely = token.log_prob === undefined ? "its probability is not known"
      : `${percent(Math.exp(token.log_prob))}, ln p ${nats(token.log_prob)}`;
    this.looks = element("p", "looks-at");
    const parts = [
      element("h2", "", "Token "),
      element("p", "token-line", "", {}, [element("code", "token-name", token.label), ` ${likely}`]),
      this.looks,
    ];
    parts[0].append(element("span", "soft", `number ${position}${token.isForced ? ", chosen by you" : ""}`));
    if (difference !== undefined) {
      const now = percent(Math.exp(token.log_prob + difference));
      parts.push(element("p", "", `With the heads changed: ${now}, a difference of ${signed(difference)} in ln p`));
    }
    if (token.top) {
      const list = element("ol", "alternatives", "", {}, token.top.map((one) => this.alternative(position, token, one, isBusy)));
      parts.push(element("h3", "", "Alternatives: choose one to continue from there"), list);
    }
    this.root.replaceChildren(...parts);
  }

  alternative(position, token, one, isBusy) {
    const share = Math.exp(one.log_prob);
    const chosen = one.id === token.id;
    const made = button("", () => this.told.force(position, one), {
      class: "alternative", disabled: chosen || isBusy, "aria-label": `${one.label}, ${percent(share)}${chosen ? ", written" : ""}`,
    });
    const fill = element("span", "alternative-fill");
    fill.style.width = `${100 * share}%`;
    made.append(fill, element("code", "token-name", one.label), element("span", "number", percent(share)));
    return element("li", "", "", {}, [made]);
  }

  // who: the head that is shown, in words
  drawLooks(who, weights, labels) {
    if (!this.looks) return;
    const most = weights.map((weight, i) => [weight, i]).filter(([weight]) => weight >= 0.005)
      .sort((a, b) => b[0] - a[0]).slice(0, MOST);
    const words = most.map(([weight, i]) => `${labels[i]} (${i}) ${percent(weight)}`).join(" · ");
    this.looks.replaceChildren(element("span", "looks", "Looked at"), ` ${words || "no token more than others"}, ${who}`);
  }
}
