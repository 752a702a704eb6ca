// Keep the conversation: as data, or as a picture of the tokens with what is shaded.

import { copyLink, saveJson, saveMenu, savePng, saveSvg } from "./save.js";
import { element } from "./dom.js";
import { shadeOf, shown } from "./chat_text.js";

const WIDE = 860; // of the picture, in pixels
const EDGE = 20;
const LINE = 24;
const FONT = "15px system-ui, sans-serif";
const NAMESPACE = "http://www.w3.org/2000/svg";

export function saveChat(chat) {
  const name = () => `${chat.about.run} step ${chat.about.step ?? ""} chat`;
  const pictured = async (save, ending) => {
    const svg = pictureOf(chat);
    document.body.append(svg); // styles are computed in the page
    try {
      await save(svg, `${name()}.${ending}`);
    } finally {
      svg.remove();
    }
  };
  const menu = saveMenu("Save the conversation", {
    "Picture (PNG)": () => pictured(savePng, "png"),
    "Picture (SVG)": () => pictured(saveSvg, "svg"),
    "Data (JSON)": () => saveJson(dataOf(chat), `${name()}.json`),
  });
  return element("span", "chat-save", "", {}, [menu, copyLink()]);
}

export function dataOf({ state, about, right, first, second }) {
  const answer = ({ heads, prompt, tokens, end, differences }) => ({ heads, prompt, tokens, end, differences });
  const answers = [first, second].filter(({ prompt }) => prompt.length).map(answer);
  return { model: about, settings: state.settings, messages: state.messages, right_answer: right?.reply ?? null, answers };
}

// The same tokens in the same colours, as an SVG of its own.
export function pictureOf({ about, first, second }) {
  const svg = made("svg", { class: "chat-picture", width: WIDE, "aria-hidden": "true" });
  const pen = new Pen(svg);
  pen.line(`${about.run}, step ${about.step ?? "–"}`, "bold");
  pen.tokens(first.prompt, first.text.weights ?? second.text.weights ?? [], null, 0);
  [first, second].filter(({ tokens }) => tokens.length).forEach((answer) => {
    const { text, tokens, heads } = answer;
    pen.line(heads.length ? `Heads changed: ${heads.map((one) => `L${one.layer} H${one.head} ×${one.factor}`).join(", ")}` : "Answer", "bold");
    pen.tokens(tokens, text.weights ?? [], text.chosen, text.first);
  });
  svg.setAttribute("viewBox", `0 0 ${WIDE} ${pen.y + EDGE}`);
  svg.setAttribute("height", pen.y + EDGE);
  return svg;
}

function made(tag, attributes) {
  const node = document.createElementNS(NAMESPACE, tag);
  Object.entries(attributes).forEach(([name, value]) => node.setAttribute(name, value));
  return node;
}

// Writes tokens one after the other, and begins a new line where there is no room.
class Pen {
  constructor(svg) {
    this.svg = svg;
    this.measure = document.createElement("canvas").getContext("2d");
    this.measure.font = FONT;
    [this.x, this.y] = [EDGE, EDGE];
  }

  line(words, weight) {
    if (this.x > EDGE) this.down();
    this.write(words, EDGE, weight);
    this.down();
  }

  down() {
    [this.x, this.y] = [EDGE, this.y + LINE];
  }

  write(words, x, weight = "normal") {
    const node = made("text", { x, y: this.y + 17, "font-weight": weight, class: "chat-picture-text" });
    node.textContent = words.replaceAll(" ", "\u00a0");
    this.svg.append(node);
  }

  tokens(tokens, weights, chosen, first) {
    tokens.forEach((token, i) => {
      const [words, ...more] = shown(token).split("\n");
      const wide = this.measure.measureText(words).width;
      if (this.x + wide > WIDE - EDGE) this.down();
      const box = { x: this.x, y: this.y + 1, width: Math.max(wide, 2), height: LINE - 3 };
      const share = shadeOf(weights[first + i]);
      if (share) this.svg.append(made("rect", { ...box, class: "chat-picture-shade", opacity: share }));
      if (first + i === chosen) this.svg.append(made("rect", { ...box, class: "chat-picture-chosen" }));
      this.write(words, this.x);
      this.x += wide;
      more.forEach(() => this.down());
    });
    this.down();
  }
}
