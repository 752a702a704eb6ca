// One answer: its tokens as they come, as running text that can be pointed at, and what is said about it.

const ENDS = { stop: "ended by itself", length: "cut: “Most tokens” gives it more", stopped: "stopped by you" };
const TURN = "<im_start>"; // the label of the token that begins a turn
const LARGE_DIFFERENCE = 3; // nats; it is drawn in full colour
const MOST_ROWS = 400; // that are kept
const HIDDEN = /[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufffe\uffff]/g;

// Characters that nobody sees, or that turn the text around, by their number.
const visible = (text) => text.replace(HIDDEN, (one) => `⟨U+${one.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
// A special token, and a part of a character, adds nothing to the text: its label stands for it.
const wordsOf = (token) => visible(token.text || token.label).replaceAll("\n", "⏎\n");

const nats = (value) => (value <= -0.005 ? `−${Math.abs(value).toFixed(2)}` : Math.abs(value).toFixed(2));
const signed = (value) => (value >= 0.005 ? `+${nats(value)}` : nats(value));
const percent = (share) => (share >= 0.9995 ? "100 %" : share < 0.0005 ? "< 0.1 %" : `${(100 * share).toFixed(1)} %`);

// What was read before an answer, turn by turn. Gives the element of each token.
function drawPrompt(box, tokens) {
  box.replaceChildren();
  let turn = null;
  return tokens.map((token) => {
    if (!turn || (token.label === TURN && turn.children.length > 1)) box.append((turn = element("div", "turn")));
    const made = element("span", token.text ? "word-token" : "word-token special", wordsOf(token));
    turn.append(made);
    return made;
  });
}

class Answer {
  constructor(name, title, chat) {
    Object.assign(this, { name, chat });
    this.box = element("div", "answer-tokens", "", { role: "listbox", tabindex: "0", "aria-label": title });
    this.status = element("p", "soft answer-status");
    this.root = element("section", "answer", "", { "aria-label": title }, [element("h3", "", title), this.box, this.status]);
    this.listen();
    this.clear();
  }

  // places: the element of each token, of the prompt and of the answer
  clear() {
    Object.assign(this, { prompt: [], tokens: [], places: [], heads: [], end: null, differences: null, weights: null, chosen: null });
    this.message = { role: "assistant", content: "" }; // what was answered so far
    this.box.replaceChildren();
    this.status.textContent = "";
  }

  get ids() {
    return [...this.prompt, ...this.tokens].map((token) => token.id);
  }

  // What a token, or the end, adds to the message.
  hear({ reasoning_content: thoughts, content, tool_calls: calls }) {
    if (thoughts) this.message.reasoning_content = (this.message.reasoning_content ?? "") + thoughts;
    this.message.content += content;
    if (calls?.length) this.message.tool_calls = calls;
  }

  // request: without what stands of the answer; given: the tokens that stand already. onPrompt(tokens) gives the elements
  // of what was read.
  async run(request, given, onPrompt, signal) {
    this.clear();
    this.heads = request.heads;
    this.status.textContent = "answering …";
    try {
      for await (const event of answerEvents({ ...request, answer_ids: given.map((token) => token.id) }, signal)) {
        if (event.prompt) {
          this.prompt = event.prompt.map((token) => ({ ...token, label: visible(token.label) }));
          this.places = [...onPrompt(this.prompt)];
          event.answer.forEach((token, i) => {
            this.hear(token);
            this.add({ ...token, ...given[i], text: token.text, label: token.label });
          });
        }
        if (event.token) this.add(event.token);
        if (event.token || event.end) this.hear(event.token ?? event);
        if (event.end) this.end = event.end;
        this.chat.draw();
      }
    } catch (error) {
      if (!signal.aborted) this.status.textContent = "";
      if (error.name !== "AbortError") throw error;
    }
    this.end ??= "stopped";
    if (!signal.aborted && !this.tokens.every((token) => token.top)) { // of those that stood in the address
      const weighed = await this.weigh(request, request.heads, signal);
      weighed.forEach((one, i) => { this.tokens[i] = { ...this.tokens[i], ...one }; });
    }
    this.say();
  }

  async weigh({ run, step, adapter }, heads, signal) {
    const { tokens } = await chatPost("weigh", { run, step, adapter, heads, ids: this.ids, begin: this.prompt.length }, { signal });
    return tokens;
  }

  add(told) {
    const token = { ...told, label: visible(told.label) };
    token.top?.forEach((one) => { one.label = visible(one.label); });
    this.tokens.push(token);
    const made = element("span", "word-token of-answer", wordsOf(token), {
      role: "option", "aria-selected": "false", id: `${this.name}-${this.places.length}`, "data-position": this.places.length,
    });
    Object.entries({ special: !token.text, forced: token.isForced, thought: token.is_thought })
      .forEach(([kind, isOn]) => made.classList.toggle(kind, Boolean(isOn)));
    this.places.push(made);
    this.box.append(made);
  }

  // The same tokens, as the model with these heads changed thinks of them: a line below each that is more or less likely.
  async compare(name, heads, signal) {
    this.differences = null;
    if (heads.length && this.tokens.length) {
      const weighed = await this.weigh(name, heads, signal);
      this.differences = weighed.map((one, i) => one.log_prob - this.tokens[i].log_prob);
    }
    this.places.slice(this.prompt.length).forEach((made, i) => {
      const by = this.differences?.[i] ?? 0;
      const share = Math.min(1, Math.abs(by) / LARGE_DIFFERENCE);
      made.style.borderBottomColor = share < 0.02 ? ""
        : `color-mix(in srgb, var(${by < 0 ? "--seen" : "--looks"}) ${Math.round(25 + 75 * share)}%, transparent)`;
    });
    this.say();
  }

  // How it ended, and how likely it was.
  say() {
    const sum = (values) => values.reduce((total, value) => total + value, 0);
    const before = sum(this.tokens.map((token) => token.log_prob ?? 0));
    this.status.replaceChildren(`${this.tokens.length} tokens, ${ENDS[this.end] ?? ""}; ln p ${nats(before)}`);
    if (!this.differences) return;
    const by = sum(this.differences);
    this.status.append("; with the heads changed ", element("b", by < 0 ? "seen" : "looks", signed(by)),
      " (underlined: orange is less likely, blue is more likely)");
  }

  // position: the token that is looked from; weights: of each token before it, or nothing while they are on their way.
  shade(position, weights) {
    Object.assign(this, { chosen: position, weights });
    this.places.forEach((made, i) => {
      made.style.backgroundColor = weights?.[i] > 0.0005 ? shade("--looks", weights[i]) : "";
      if (i >= this.prompt.length) made.setAttribute("aria-selected", String(i === position));
    });
    if (position === null) this.box.removeAttribute("aria-activedescendant");
    else this.box.setAttribute("aria-activedescendant", this.places[position].id);
  }

  listen() {
    const { chat, box } = this;
    const positionOf = ({ target }) => (target.dataset?.position ? Number(target.dataset.position) : null);
    box.addEventListener("pointerover", (event) => chat.point(this, positionOf(event)));
    box.addEventListener("pointerleave", () => chat.point(this, null));
    box.addEventListener("click", (event) => positionOf(event) !== null && chat.choose(this, positionOf(event)));
    box.addEventListener("focus", () => { // the keyboard has come: to its first token, where none is chosen
      const isNew = box.matches(":focus-visible") && chat.chosen?.answer !== this && this.tokens.length;
      if (isNew) chat.choose(this, this.prompt.length);
    });
    box.addEventListener("keydown", (event) => {
      const [from, last] = [this.prompt.length, this.places.length - 1];
      if (last < from || event.ctrlKey || event.metaKey || event.altKey) return;
      const here = this.chosen ?? from - 1;
      const to = { ArrowRight: here + 1, ArrowDown: here + 1, ArrowLeft: here - 1, ArrowUp: here - 1, Home: from, End: last };
      if (event.key === "Escape") chat.choose(this, null);
      if (!(event.key in to)) return;
      event.preventDefault();
      if (clamp(to[event.key], from, last) !== this.chosen) chat.choose(this, clamp(to[event.key], from, last));
    });
  }
}

// The events of an answer, as they come. Raises what the server says, also in the midst of it.
async function* answerEvents(request, signal) {
  const reader = (await chatPost("answer", request, { signal, as: "stream" })).getReader();
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

// What every head looked at from one token. Rows that were asked for stay here.
const rows = new Map();
async function rowOf(request, signal) {
  const key = JSON.stringify(request);
  if (!rows.has(key)) {
    const { layers, heads, keys, weights } = await chatPost("look", request, { signal });
    rows.set(key, new Row(layers, heads, keys, new Float32Array(bytesOf(weights).buffer)));
    if (rows.size > MOST_ROWS) rows.delete(rows.keys().next().value);
  }
  return rows.get(key);
}

class Row {
  constructor(layers, heads, keys, weights) {
    Object.assign(this, { layers, heads, keys, weights });
  }

  // One number a token: of one head, or where none is chosen the mean of all.
  of(chosen) {
    if (chosen) {
      const start = (chosen.layer * this.heads + chosen.head) * this.keys;
      return [...this.weights.subarray(start, start + this.keys)];
    }
    const mean = new Array(this.keys).fill(0);
    this.weights.forEach((weight, i) => { mean[i % this.keys] += weight / (this.layers * this.heads); });
    return mean;
  }
}
