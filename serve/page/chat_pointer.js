// Which token is looked from? Hovering shows one for a moment, choosing keeps it; everything that shows it is drawn.

import { look } from "./chat_server.js";

const HOVER = 40; // milliseconds that the pointer rests on a token before the server is asked

export class Pointer {
  constructor(chat) {
    this.chat = chat;
    this.clear();
  }

  // The answer and the position of the token; null where there is none.
  get place() {
    return this.hovered ?? this.chosen;
  }

  clear() {
    Object.assign(this, { chosen: null, hovered: null });
  }

  point(answer, position) {
    this.hovered = position === null ? null : { answer, position };
    this.draw();
  }

  choose(answer, position) {
    this.hovered = null;
    this.chosen = position === null || this.isChosen(answer, position) ? null : { answer, position };
    this.draw();
  }

  isChosen(answer, position) {
    return this.chosen?.answer === answer && this.chosen.position === position;
  }

  // The keyboard has come to an answer: its first token, where none is chosen.
  arrive(answer) {
    if (this.chosen?.answer !== answer && answer.tokens.length) this.choose(answer, answer.text.first);
  }

  async draw() {
    const { first, second, card, grid, state, job } = this.chat;
    const token = this.place?.answer.tokens[this.place.position - this.place.answer.text.first];
    [first, second].forEach((answer) => answer.text.shade(null, null));
    if (!token) {
      card.empty();
      return grid.draw(state.chosen, state.heads, null, null);
    }
    const { answer, position } = this.place;
    const labels = [...answer.prompt, ...answer.tokens].map((one) => one.label);
    card.draw(answer.text.name, position, token, answer.differences?.[position - answer.text.first], Boolean(job));
    answer.text.shade(position, null);
    const row = await this.row(answer, position).catch((error) => this.chat.fail(error));
    if (!row || !this.isAt(answer, position)) return undefined;
    const weights = row.of(state.chosen);
    answer.text.shade(position, weights);
    card.drawLooks(state.chosen ? `head L${state.chosen.layer} H${state.chosen.head}` : "the mean of all heads", weights, labels);
    return grid.draw(state.chosen, state.heads, row, labels);
  }

  isAt(answer, position) {
    return !this.chat.address.signal.aborted && this.place?.answer === answer && this.place.position === position;
  }

  // What all heads looked at to write this token; null where another one is pointed at by now.
  async row(answer, position) {
    if (this.hovered) await new Promise((resolve) => { setTimeout(resolve, HOVER); });
    if (!this.isAt(answer, position)) return null;
    const ids = answer.end === null ? answer.ids.slice(0, position + 1) : answer.ids;
    return look({ ...this.chat.name, ids, position, heads: answer.heads }, this.chat.address.signal);
  }
}
