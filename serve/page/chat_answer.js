// One answer: its tokens as they come, how it ended, and what is said about it.

import { element } from "./dom.js";
import { answer as ask, weigh } from "./chat_server.js";
import { TokenText, visible } from "./chat_text.js";
import { nats, signed } from "./chat_token.js";

const ENDS = { stop: "ended by itself", length: "cut: “Most tokens” gives it more", stopped: "stopped by you" };

export class Answer {
  constructor(name, title, pointer) {
    this.text = new TokenText(name, title, {
      point: (position) => pointer.point(this, position),
      choose: (position) => pointer.choose(this, position),
      arrive: () => pointer.arrive(this),
    });
    this.status = element("p", "soft answer-status");
    this.root = element("section", "answer", "", { "aria-label": title }, [element("h3", "", title), this.text.box, this.status]);
    this.clear();
  }

  clear() {
    Object.assign(this, { prompt: [], tokens: [], heads: [], end: null, differences: null });
    this.message = { role: "assistant", content: "" }; // what was answered so far
    this.text.begin([]);
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

  // asked: the request, without what stands of the answer; given: the tokens that stand already. onPrompt(tokens) gives
  // the elements of what was read; onToken is called at each change.
  async run(asked, given, { onPrompt, onToken, signal }) {
    this.clear();
    this.heads = asked.heads;
    this.status.textContent = "answering …";
    try {
      for await (const event of ask({ ...asked, answer_ids: given.map((token) => token.id) }, signal)) {
        if (event.prompt) {
          this.prompt = event.prompt.map((token) => ({ ...token, label: visible(token.label) }));
          this.text.begin(onPrompt(this.prompt));
          event.answer.forEach((token) => this.hear(token));
          event.answer.forEach((token, i) => this.add({ ...token, ...given[i], text: token.text, label: token.label }));
        }
        if (event.token) this.add(event.token);
        if (event.token || event.end) this.hear(event.token ?? event);
        if (event.end) this.end = event.end;
        onToken();
      }
    } catch (error) {
      if (!signal.aborted) this.status.textContent = "";
      if (error.name !== "AbortError") throw error;
    }
    this.end ??= "stopped";
    await this.fill(asked, signal);
    this.say();
  }

  add(told) {
    const token = { ...told, label: visible(told.label) };
    this.tokens.push(token);
    token.top?.forEach((one) => { one.label = visible(one.label); });
    this.text.add(token);
  }

  // What the model thinks of tokens that stood in the address.
  async fill({ run, step, adapter, heads }, signal) {
    if (signal.aborted || this.tokens.every((token) => token.top)) return;
    const found = await weigh({ run, step, adapter, heads, ids: this.ids, begin: this.prompt.length }, signal);
    found.forEach((one, i) => { this.tokens[i] = { ...this.tokens[i], ...one }; });
  }

  // The same tokens, as the model with these heads changed thinks of them.
  async compare({ run, step, adapter }, heads, signal) {
    this.differences = null;
    if (heads.length && this.tokens.length) {
      const found = await weigh({ run, step, adapter, heads, ids: this.ids, begin: this.prompt.length }, signal);
      this.differences = found.map((one, i) => one.log_prob - this.tokens[i].log_prob);
    }
    this.text.underline(this.differences);
    this.say();
  }

  // How it ended, and how likely it was.
  say() {
    const whole = (values) => values.reduce((sum, value) => sum + value, 0);
    const before = whole(this.tokens.map((token) => token.log_prob ?? 0));
    const words = `${this.tokens.length} tokens, ${ENDS[this.end] ?? ""}; ln p ${nats(before)}`;
    this.status.replaceChildren(words);
    if (!this.differences) return;
    const by = whole(this.differences);
    this.status.append("; with the heads changed ", element("b", by < 0 ? "seen" : "looks", signed(by)),
      " (underlined: orange is less likely, blue is more likely)");
  }
}
