// Chat with attention: an answer token by token, what every head looked at, and what it would be without some heads.

import { Answer } from "./chat_answer.js";
import { Composer, modelBar, rightAnswer } from "./chat_form.js";
import { HeadGrid } from "./chat_heads.js";
import { saveChat } from "./chat_save.js";
import { described, models, question } from "./chat_server.js";
import { read, write } from "./chat_state.js";
import { drawPrompt } from "./chat_text.js";
import { TokenCard } from "./chat_token.js";
import { Pointer } from "./chat_pointer.js";
import { link } from "./address.js";
import { announce, element } from "./dom.js";

const PAUSE = 250; // milliseconds after the last change of a head

export async function show(root, address) {
  const all = await models(address.signal);
  if (!all.length) return void root.append(element("p", "card", "No run of this folder has a checkpoint yet."));
  if (!address.run) return location.replace(link("chat", all[0].name));
  if (!all.some(({ name }) => name === address.run)) {
    return void root.append(element("p", "card", `There is no run “${address.run}” with a checkpoint in this folder.`));
  }
  const waiting = element("p", "card", "Opening the model …");
  root.append(waiting);
  const state = read(address);
  const about = await described({ run: address.run, step: state.step, adapter: state.adapter }, address.signal);
  waiting.remove();
  const chat = new Chat(root, address, all, about, state);
  document.documentElement.dataset.ready = "yes";
  return chat.begin();
}

class Chat {
  constructor(root, address, all, about, state) {
    Object.assign(this, { address, about, state, right: null, job: null });
    this.state.heads = state.heads.filter((place) => this.exists(place));
    if (state.chosen && !this.exists(state.chosen)) this.state.chosen = null;
    this.pointer = new Pointer(this);
    this.first = new Answer("first", "Answer", this.pointer);
    this.second = new Answer("second", "Answer with the heads changed", this.pointer);
    this.prompt = element("div", "said");
    this.verdict = element("div");
    this.problem = element("p", "card wrong", "", { role: "alert", hidden: true });
    this.answers = element("div", "answers", "", {}, [this.first.root, this.second.root]);
    this.card = new TokenCard({ force: (position, one) => this.force(position, one) });
    this.grid = new HeadGrid({
      choose: (place) => { this.state.chosen = place; this.keep(); this.pointer.draw(); },
      change: (heads) => this.change(heads),
    });
    const text = about.is_chat ? "" : state.messages.at(-1)?.content ?? "";
    this.composer = new Composer(about, text, {
      send: (words) => this.send(words), question: () => this.askStory((this.state.question ?? -1) + 1),
      fresh: () => this.fresh(), stop: () => this.job?.abort(),
    });
    const bar = modelBar(all, about, state, {
      model: (values) => this.reopen(values), settings: (values) => { Object.assign(this.state.settings, values); this.keep(); this.again(); },
    });
    bar.append(saveChat(this));
    const kind = about.is_chat ? "Ask something, or take a story question. " : "This run was trained on texts, not on chats: it continues what you type. ";
    this.intro = element("p", "soft intro", `${kind}Then point at a token of the answer. The model sees ${about.context_length} tokens at most.`);
    const talk = element("div", "talk", "", {}, [this.problem, this.prompt, this.answers, this.verdict]);
    const side = element("div", "chat-side", "", {}, [this.card.root, this.grid.root]);
    root.append(element("h1", "unseen", `Chat with ${about.run}`), bar, this.intro, element("div", "chat-columns", "", {}, [talk, side, this.composer.root]));
    this.grid.build(about.layers, about.heads);
    this.showAnswers();
    this.pointer.draw();
  }

  exists({ layer, head }) {
    return layer < this.about.layers && head < this.about.heads;
  }

  begin() {
    if (this.state.question !== null) return this.askStory(this.state.question, this.state.forced);
    return this.state.messages.length ? this.ask(this.state.forced.map((id) => ({ id }))) : undefined;
  }

  get name() {
    return { run: this.about.run, step: this.about.step, adapter: this.about.adapter };
  }

  get asked() {
    const { settings, messages } = this.state;
    const said = this.about.is_chat || this.state.question !== null ? { messages } : { prompt: messages.at(-1).content };
    return {
      ...this.name, ...said, heads: [], temperature: Number(settings.t), top_p: Number(settings.p), seed: Number(settings.seed),
      max_tokens: Number(settings.n),
    };
  }

  keep() {
    write(this.address, this.state);
  }

  // ------------------------------------------------------------------------------------------------------
  // what is asked

  send(words) {
    if (this.about.is_chat) {
      if (this.state.messages.length && this.first.tokens.length) this.state.messages.push(this.first.message);
      else if (this.state.messages.length) this.state.messages.pop(); // it was not answered
      this.composer.field.value = "";
    } else this.state.messages = [];
    this.state.messages.push({ role: "user", content: words });
    Object.assign(this.state, { question: null, forced: [] });
    this.right = null;
    return this.ask([]);
  }

  async askStory(number, forced = []) {
    try {
      this.right = await question(this.name, number, this.address.signal);
    } catch (error) {
      return this.fail(error);
    }
    Object.assign(this.state, { question: number, messages: this.right.messages, forced });
    return this.ask(forced.map((id) => ({ id })));
  }

  again() {
    if (this.state.messages.length) this.ask([]);
  }

  fresh() {
    this.job?.abort();
    Object.assign(this.state, { question: null, messages: [], forced: [] });
    this.right = null;
    this.pointer.clear();
    [this.first, this.second].forEach((answer) => answer.clear());
    this.prompt.replaceChildren();
    this.problem.hidden = true;
    this.composer.field.value = "";
    this.composer.field.focus();
    this.keep();
    this.showAnswers();
    this.pointer.draw();
  }

  // Another model: a new entry in the browser's history, with the same conversation.
  reopen(values) {
    const kept = values.run ? ["m", "q", "t", "p", "seed", "n"] : ["m", "q", "t", "p", "seed", "n", "step", "adapter", "off", "head"];
    const query = Object.fromEntries(kept.map((name) => [name, this.address.get(name)]));
    this.address.open(values.run ?? this.about.run, { ...query, ...values, run: "" });
  }

  // The first answer, then the one with the heads changed. given: tokens that the first begins with.
  ask(given) {
    this.state.forced = given.map((token) => token.id);
    this.keep();
    return this.work(async (signal) => {
      const onPrompt = (tokens) => drawPrompt(this.prompt, tokens);
      await this.first.run(this.asked, given, { onPrompt, onToken: () => this.streamed(), signal });
      announce(`The answer: ${this.first.message.content}`);
      await this.runSecond(signal, []);
    });
  }

  async runSecond(signal, given) {
    const { heads } = this.state;
    if (signal.aborted || !this.first.prompt.length) return;
    if (heads.length) {
      const { messages, ...asked } = this.asked;
      const prompt = this.first.prompt.map((token) => token.id);
      const onPrompt = () => this.first.text.places.slice(0, this.first.text.first);
      await this.second.run({ ...asked, prompt, heads }, given, { onPrompt, onToken: () => this.streamed(), signal });
    } else this.second.clear();
    if (!signal.aborted) await this.first.compare(this.name, heads, signal);
  }

  // One job at a time; what runs is given up.
  async work(job) {
    this.job?.abort();
    const mine = (this.job = new AbortController());
    this.address.signal.addEventListener("abort", () => mine.abort(), { signal: mine.signal });
    this.pointer.clear();
    this.problem.hidden = true;
    this.composer.busy(true);
    this.showAnswers();
    try {
      await job(mine.signal);
    } catch (error) {
      if (this.job === mine && !this.address.signal.aborted && error.name !== "AbortError") this.fail(error);
    }
    if (this.job !== mine) return;
    this.job = null;
    this.composer.busy(false);
    this.showAnswers();
    this.pointer.draw();
  }

  fail(error) {
    this.problem.textContent = error.message;
    this.problem.hidden = false;
  }

  // ------------------------------------------------------------------------------------------------------
  // tokens and heads

  force(position, one) {
    const { answer } = this.pointer.place;
    const at = position - answer.text.first;
    const given = [...answer.tokens.slice(0, at), { id: one.id, log_prob: one.log_prob, top: answer.tokens[at].top, isForced: true }];
    if (answer === this.first) return this.ask(given);
    return this.work((signal) => this.runSecond(signal, given));
  }

  change(heads) {
    this.state.heads = heads;
    this.keep();
    this.pointer.draw();
    clearTimeout(this.changing);
    if (!this.first.prompt.length || (this.job && this.first.end === null)) return; // the first answer comes first
    this.changing = setTimeout(() => this.address.signal.aborted || this.work((signal) => this.runSecond(signal, [])), PAUSE);
  }

  streamed() {
    this.showAnswers();
    this.pointer.draw();
  }

  showAnswers() {
    this.second.root.hidden = !this.second.prompt.length;
    this.first.root.hidden = !this.first.prompt.length;
    this.verdict.replaceChildren(...(this.right ? [rightAnswer(this.right, this.first.message.content, this.first.end)] : []));
    this.answers.classList.toggle("two", !this.second.root.hidden);
  }
}
