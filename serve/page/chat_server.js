// What the chat asks the server: models, questions, answers token by token, what a head looked at.

import { ask } from "./server.js";

const AT = "/live/chat";
const MOST_LOOKS = 400; // rows that are kept

function post(what, asked, more) {
  const headers = { "Content-Type": "application/json" };
  return ask(`${AT}/${what}`, { method: "POST", headers, body: JSON.stringify(asked), ...more });
}

const query = (values) => new URLSearchParams(Object.entries(values).filter(([, value]) => value !== null)).toString();

export const models = (signal) => ask(`${AT}/models`, { signal }).then((said) => said.models);
export const described = (name, signal) => ask(`${AT}/model?${query(name)}`, { signal });
export const question = (name, number, signal) => ask(`${AT}/question?${query({ ...name, number })}`, { signal });
export const weigh = (asked, signal) => post("weigh", asked, { signal }).then((said) => said.tokens);

// The events of an answer, as they come. Raises what the server says, also in the midst of it.
export async function* answer(asked, signal) {
  const reader = (await post("answer", asked, { signal, as: "stream" })).getReader();
  const decoder = new TextDecoder();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    held += decoder.decode(value, { stream: true });
    const lines = held.split("\n\n");
    held = lines.pop();
    for (const line of lines) {
      const event = JSON.parse(line.slice("data: ".length));
      if (event.error) throw new Error(event.error.message);
      yield event;
    }
  }
}

// What every head looked at: weight(layer, head, key). Rows that were asked for stay here.
const looks = new Map();
export async function look(asked, signal) {
  const key = JSON.stringify(asked);
  if (looks.has(key)) return looks.get(key);
  const { layers, heads, keys, weights } = await post("look", asked, { signal });
  const bytes = Uint8Array.from(atob(weights), (letter) => letter.charCodeAt(0));
  const row = new Row(layers, heads, keys, new Float32Array(bytes.buffer));
  looks.set(key, row);
  if (looks.size > MOST_LOOKS) looks.delete(looks.keys().next().value);
  return row;
}

class Row {
  constructor(layers, heads, keys, weights) {
    Object.assign(this, { layers, heads, keys, weights });
  }

  weight(layer, head, key) {
    return this.weights[(layer * this.heads + head) * this.keys + key];
  }

  // Of one head, or where none is chosen the mean of all: one number a token.
  of(chosen) {
    if (chosen) return Array.from({ length: this.keys }, (_, key) => this.weight(chosen.layer, chosen.head, key));
    const count = this.layers * this.heads;
    const mean = new Array(this.keys).fill(0);
    this.weights.forEach((weight, i) => { mean[i % this.keys] += weight / count; });
    return mean;
  }
}
