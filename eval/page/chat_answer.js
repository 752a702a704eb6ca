// One answer: its tokens as they come, as running text that can be pointed at, and what is said about it.

const ENDS = { stop: t("ended by itself"), tool_calls: t("ended by itself"), length: t("cut: raise “Most tokens” for longer answers"), stopped: t("stopped by you"), broken: t("cut off") };
const TURN = "<im_start>"; // the label of the token that begins a turn
const LARGE_DIFFERENCE = 3; // nats; it is drawn in full colour
const HIDDEN = /[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufffe\uffff]/g;

// Characters that nobody sees, or that turn the text around, by their number.
const visible = (text) => text.replace(HIDDEN, (letter) => `⟨U+${letter.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
const readable = (token) => ({ ...token, label: visible(token.label) });
// A special token, and a part of a character, adds nothing to the text: its label stands for it.
const wordsOf = (token) => visible(token.text || token.label).replaceAll("\n", "⏎\n");

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

const begunWith = (request, ids) => ({ ...request, inspect: { ...request.inspect, answer_ids: ids } });

class Answer {
  constructor(name, title, chat) {
    Object.assign(this, { name, chat });
    this.box = element("div", "answer-tokens", "", { role: "listbox", tabindex: "0", "aria-label": title });
    this.status = element("p", "soft answer-status");
    this.root = element("section", "answer", "", { "aria-label": title }, [element("h2", "soft", title), this.box, this.status]);
    this.listen();
    this.clear();
  }

  // places: the element of each token, of the prompt and of the answer; message: what was answered so far
  clear() {
    Object.assign(this, { prompt: [], tokens: [], places: [], rows: [], end: null, differences: null, chosen: null });
    this.request = { inspect: { heads: [] } };
    this.message = { role: "assistant", content: "" };
    this.box.replaceChildren();
    this.status.textContent = "";
  }

  get ids() {
    return [...this.prompt, ...this.tokens].map((token) => token.id);
  }

  // begun: the ids with which it begins. onPrompt(tokens) gives the elements of what was read.
  async run(request, begun, onPrompt, signal) {
    const { end } = this;
    this.end = null;
    this.status.textContent = t("answering …");
    try {
      for await (const choice of choicesOf({ ...begunWith(request, begun), stream: true }, signal)) {
        if (choice.prompt) {
          this.clear();
          this.request = request;
          this.status.textContent = t("answering …");
          this.prompt = choice.prompt.map(readable);
          this.places = [...onPrompt(this.prompt)];
        }
        choice.logprobs.content.forEach((token) => this.add({ ...token, isForced: this.tokens.length === begun.length - 1 }));
        const { reasoning_content: thoughts, content, tool_calls: calls } = choice.delta;
        if (thoughts) this.message.reasoning_content = (this.message.reasoning_content ?? "") + thoughts;
        this.message.content += content ?? "";
        if (calls) this.message.tool_calls = calls;
        this.end = choice.finish_reason;
        this.chat.draw();
      }
    } catch (error) {
      if (error.name !== "AbortError") throw error;
    } finally {
      if (this.request !== request) this.end = end; // nothing has come: the answer before it stays
      this.end ??= signal.aborted ? "stopped" : "broken";
      this.say();
    }
  }

  add(told) {
    const token = { ...readable(told), top_logprobs: told.top_logprobs.map(readable) };
    const made = element("span", "word-token of-answer", wordsOf(token), {
      role: "option", "aria-selected": "false", id: `${this.name}-${this.places.length}`, "data-place": this.places.length,
    });
    Object.entries({ special: !token.text, forced: token.isForced, thought: token.is_thought })
      .forEach(([kind, isOn]) => made.classList.toggle(kind, Boolean(isOn)));
    this.tokens.push(token);
    this.places.push(made);
    this.box.append(made);
  }

  // The same tokens, as the model of this request thinks of them: a line below each that is more or less likely.
  async compare(request, signal) {
    this.differences = null;
    if (request.inspect.heads.length && this.tokens.length) {
      const body = { ...begunWith(request, this.ids.slice(this.prompt.length)), max_completion_tokens: 0 };
      const { choices: [{ logprobs }] } = await post("/v1/chat/completions", body, { signal });
      this.differences = logprobs.content.map((token, i) => token.logprob - this.tokens[i].logprob);
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
    const likely = sum(this.tokens.map((token) => token.logprob));
    this.status.replaceChildren(t("{0} tokens, {1}; ln p {2}", this.tokens.length, ENDS[this.end] ?? "", nats(likely)));
    if (!this.differences) return;
    const by = sum(this.differences);
    this.status.append(t("; with the heads changed "), element("b", by < 0 ? "seen" : "looks", signed(by)),
      t(" (underlined: orange is less likely, blue is more likely)"));
  }

  // What all heads looked at to write the token at a position. A whole answer is sent: one pass is enough for all of it.
  async row(position, signal) {
    const { model, inspect: { step, adapter, heads } } = this.request;
    const body = { step, adapter, heads, position, ids: this.end === null ? this.ids.slice(0, position + 1) : this.ids };
    if (!this.rows[position]) {
      const { weights, ...row } = await post(`/live/models/${part(model)}/attention`, body, { signal });
      this.rows[position] = { ...row, weights: new Float32Array(bytesOf(weights).buffer) };
    }
    return this.rows[position];
  }

  // position: the token that is looked from; weights: of each token before it, or nothing while they are on their way.
  shade(position, weights) {
    this.chosen = position;
    this.places.forEach((made, i) => {
      made.style.backgroundColor = weights?.[i] > 0.0005 ? shade("--looks", weights[i]) : "";
      if (i >= this.prompt.length) made.setAttribute("aria-selected", String(i === position));
    });
    if (position === null) this.box.removeAttribute("aria-activedescendant");
    else this.box.setAttribute("aria-activedescendant", this.places[position].id);
  }

  listen() {
    const { chat, box } = this;
    listenPlaces(box, (position) => chat.point(this, position), (position) => chat.choose(this, position));
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

// The parts of a streamed answer, as they come. Raises what the server says, also in the midst of it.
async function* choicesOf(request, signal) {
  const stream = await post("/v1/chat/completions", request, { signal, as: "stream" });
  let held = "";
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (held + value).split("\n\n");
    held = events.pop();
    for (const event of events.map((line) => line.slice("data: ".length))) {
      if (event === "[DONE]") return;
      const { error, choices } = JSON.parse(event);
      if (error) throw new Error(error.message);
      yield choices[0];
    }
  }
}

// One number a token: of one head, or where none is chosen the mean of all.
function attentionOf({ heads, keys, weights }, chosen) {
  const begin = chosen && (chosen.layer * heads + chosen.head) * keys;
  if (chosen) return [...weights.subarray(begin, begin + keys)];
  const mean = new Array(keys).fill(0);
  weights.forEach((weight, i) => { mean[i % keys] += weight; });
  const rows = mean.reduce((sum, weight) => sum + weight, 0); // each head's weights sum to 1; those of linear attention are 0
  return mean.map((weight) => weight / rows);
}
