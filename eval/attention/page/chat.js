// Chat with attention: an answer token by token, what every head looked at, and what it would be without some heads.

const WAIT = { change: 250, hover: 40 }; // milliseconds after the last change of a head; that the pointer rests on a token
const SETTINGS = { // name in the address -> words, usual, least, most, step, what it means
  t: ["Temperature", "0", 0, 100, 0.1, "0: always the likeliest token"],
  p: ["Top p", "1", 0.01, 1, 0.01, "draw from the likeliest tokens that reach p together"],
  seed: ["Seed", "0", 0, 999999999, 1, "the same seed draws the same tokens"],
  n: ["Most tokens", "128", 1, 4096, 1, "of an answer"],
};
const LONGEST = 6000; // characters of a conversation in an address

const chatAsk = (what, values, signal) => {
  const query = new URLSearchParams(Object.entries(values).filter(([, value]) => value !== null));
  return ask(`/live/chat/${what}?${query}`, { signal });
};
const chatPost = (what, body, more) => post(`/live/chat/${what}`, body, more);

async function showChat(root, address) {
  const { models } = await chatAsk("models", {}, address.signal);
  const tell = (words) => {
    root.append(element("p", "card", words));
    isReady(true);
  };
  if (!models.length) return tell("No run of this folder has a checkpoint yet.");
  if (!address.run) return location.replace(link("chat", models[0].name));
  if (!models.some(({ name }) => name === address.run)) return tell(`There is no run “${address.run}” with a checkpoint in this folder.`);
  tell("Opening the model …");
  const asked = readChat(address);
  const model = await chatAsk("model", { run: address.run, step: asked.step, adapter: asked.adapter }, address.signal);
  root.replaceChildren();
  return new Chat(root, address, models, model, asked).begin();
}

VIEWS.chat = { title: "Chat", show: showChat };

// ------------------------------------------------------------------ the address: model, words, settings, changed heads

const wholeNumber = (text) => (/^\d{1,15}$/.test(text) ? Number(text) : null);

function readChat(address) {
  const chosen = /^(\d{1,4})\.(\d{1,4})$/.exec(address.get("head"));
  return {
    step: wholeNumber(address.get("step")),
    adapter: address.get("adapter") || null,
    messages: readMessages(address.get("m")),
    question: wholeNumber(address.get("q")),
    forced: address.get("a").split(".").map(wholeNumber).filter((token) => token !== null),
    heads: readHeads(address.get("off")),
    chosen: chosen ? { layer: Number(chosen[1]), head: Number(chosen[2]) } : null,
    settings: Object.fromEntries(Object.entries(SETTINGS).map(([name, [, value]]) => [name, address.get(name, value)])),
  };
}

// {layer, head, factor} of each changed head: "0.1*0,2.3*0.5"
function readHeads(text) {
  return text.split(",").map((one) => /^(\d{1,4})\.(\d{1,4})\*(-?\d+(?:\.\d+)?)$/.exec(one)).filter(Boolean)
    .map(([, layer, head, factor]) => ({ layer: Number(layer), head: Number(head), factor: Number(factor) }))
    .filter((one, i, all) => Math.abs(one.factor) <= 10 && all.findIndex((other) => isSame(one, other)) === i);
}

function readMessages(text) {
  try {
    const messages = JSON.parse(text);
    const isRight = ({ role, content }) => ["system", "user", "assistant"].includes(role) && typeof content === "string";
    return Array.isArray(messages) && messages.every(isRight) ? messages : [];
  } catch {
    return [];
  }
}

const isSame = (one, other) => one?.layer === other?.layer && one?.head === other?.head;

// ------------------------------------------------------------------

class Chat {
  constructor(root, address, models, model, asked) {
    Object.assign(this, { address, model, asked, right: null, job: null, chosen: null, hovered: null });
    const exists = ({ layer, head }) => layer < model.layers && head < model.heads;
    asked.heads = asked.heads.filter(exists);
    if (asked.chosen && !exists(asked.chosen)) asked.chosen = null;
    this.first = new Answer("first", "Answer", this);
    this.second = new Answer("second", "Answer with the heads changed", this);
    this.prompt = element("div", "said");
    this.verdict = element("div");
    this.problem = element("p", "card wrong", "", { role: "alert", hidden: true });
    this.answers = element("div", "answers", "", {}, [this.first.root, this.second.root]);
    this.talk = element("div", "talk", "", {}, [this.problem, this.prompt, this.answers, this.verdict]);
    this.card = new TokenCard((position, one) => this.force(position, one));
    this.grid = new HeadGrid(model, {
      choose: (head) => { asked.chosen = head; this.keep(); this.draw(); },
      change: (heads) => this.change(heads),
    });
    this.composer = new Composer(model, model.is_chat ? "" : asked.messages.at(-1)?.content ?? "", this);
    const bar = modelBar(models, model, asked, this);
    byId("keep").append(chatMenu(this), copyLink());
    const kind = model.is_chat ? "Ask something, or take a story question. " : "This run was trained on texts, not on chats: it continues what you type. ";
    const intro = `${kind}Then point at a token of the answer. The model sees ${model.context_length} tokens at most.`;
    byId("heading").textContent = `Chat with ${model.run}`;
    root.append(bar, element("p", "soft intro", intro), element("div", "chat-columns", "", {}, [
      this.talk,
      element("div", "chat-side", "", {}, [this.card.root, this.grid.root]), this.composer.root,
    ]));
    this.draw();
    isReady(true);
  }

  begin() {
    const { question, messages, forced } = this.asked;
    if (question !== null) return this.askStory(question, forced);
    return messages.length ? this.ask(forced.map((id) => ({ id }))) : undefined;
  }

  get name() {
    return { run: this.model.run, step: this.model.step, adapter: this.model.adapter };
  }

  get request() {
    const { settings, messages, question } = this.asked;
    const words = this.model.is_chat || question !== null ? { messages } : { prompt: messages.at(-1).content };
    return {
      ...this.name, ...words, heads: [], temperature: Number(settings.t), top_p: Number(settings.p), seed: Number(settings.seed),
      max_tokens: Number(settings.n),
    };
  }

  keep() {
    const { step, adapter, question, messages, forced, heads, chosen, settings } = this.asked;
    const words = JSON.stringify(messages);
    const given = forced.join(".");
    this.address.set({
      step, adapter, q: question,
      m: question === null && messages.length && words.length <= LONGEST ? words : "",
      a: given.length <= LONGEST ? given : "",
      off: heads.map(({ layer, head, factor }) => `${layer}.${head}*${factor}`).join(","),
      head: chosen ? `${chosen.layer}.${chosen.head}` : "",
      ...Object.fromEntries(Object.entries(settings).map(([name, value]) => [name, value === SETTINGS[name][1] ? "" : value])),
    });
  }

  // ------------------------------------------------------------------ what is asked

  send(words) {
    const { asked } = this;
    if (this.model.is_chat) {
      if (asked.messages.length && this.first.tokens.length) asked.messages.push(this.first.message);
      else if (asked.messages.length) asked.messages.pop(); // it was not answered
      this.composer.field.value = "";
    } else asked.messages = [];
    asked.messages.push({ role: "user", content: words });
    Object.assign(asked, { question: null, forced: [] });
    this.right = null;
    return this.ask([]);
  }

  async askStory(number, forced = []) {
    try {
      this.right = await chatAsk("question", { ...this.name, number }, this.address.signal);
    } catch (error) {
      return this.fail(error);
    }
    Object.assign(this.asked, { question: number, messages: this.right.messages, forced });
    return this.ask(forced.map((id) => ({ id })));
  }

  setting(values) {
    Object.assign(this.asked.settings, values);
    this.keep();
    if (this.asked.messages.length) this.ask([]);
  }

  fresh() {
    this.job?.abort();
    Object.assign(this.asked, { question: null, messages: [], forced: [] });
    Object.assign(this, { right: null, chosen: null, hovered: null });
    [this.first, this.second].forEach((answer) => answer.clear());
    this.prompt.replaceChildren();
    this.problem.hidden = true;
    this.composer.field.value = "";
    this.composer.field.focus();
    this.keep();
    this.draw();
  }

  // Another model: a new entry in the browser's history, with the same conversation.
  reopen(values) {
    const kept = ["m", "q", ...Object.keys(SETTINGS), ...(values.run ? [] : ["step", "adapter", "off", "head"])];
    const query = Object.fromEntries(kept.map((name) => [name, this.address.get(name)]));
    this.address.open(values.run ?? this.model.run, { ...query, ...values, run: "" });
  }

  // The first answer, then the one with the heads changed. given: tokens that the first begins with.
  ask(given) {
    this.asked.forced = given.map((token) => token.id);
    this.keep();
    return this.work(async (signal) => {
      await this.first.run(this.request, given, (tokens) => drawPrompt(this.prompt, tokens), signal);
      announce(`The answer: ${this.first.message.content}`);
      await this.runSecond(signal, []);
    });
  }

  async runSecond(signal, given) {
    const { heads } = this.asked;
    if (signal.aborted || !this.first.prompt.length) return;
    if (heads.length) {
      const { messages, ...request } = this.request;
      const prompt = this.first.prompt.map((token) => token.id);
      await this.second.run({ ...request, prompt, heads }, given, () => this.first.places.slice(0, prompt.length), signal);
    } else this.second.clear();
    if (!signal.aborted) await this.first.compare(this.name, heads, signal);
  }

  // One job at a time; what runs is given up.
  async work(job) {
    this.job?.abort();
    const mine = (this.job = new AbortController());
    this.address.signal.addEventListener("abort", () => mine.abort(), { signal: mine.signal });
    Object.assign(this, { chosen: null, hovered: null });
    this.problem.hidden = true;
    this.composer.busy(true);
    this.draw();
    try {
      await job(mine.signal);
    } catch (error) {
      if (this.job === mine && !this.address.signal.aborted && error.name !== "AbortError") this.fail(error);
    }
    if (this.job !== mine) return;
    this.job = null;
    this.composer.busy(false);
    this.draw();
  }

  fail(error) {
    this.problem.textContent = error.message;
    this.problem.hidden = false;
  }

  // ------------------------------------------------------------------ tokens and heads

  force(position, one) {
    const { answer } = this.place;
    const at = position - answer.prompt.length;
    const given = [...answer.tokens.slice(0, at), { id: one.id, log_prob: one.log_prob, top: answer.tokens[at].top, isForced: true }];
    return answer === this.first ? this.ask(given) : this.work((signal) => this.runSecond(signal, given));
  }

  change(heads) {
    this.asked.heads = heads;
    this.keep();
    this.draw();
    clearTimeout(this.changing);
    if (!this.first.prompt.length || (this.job && this.first.end === null)) return; // the first answer comes first
    this.changing = setTimeout(() => this.address.signal.aborted || this.work((signal) => this.runSecond(signal, [])), WAIT.change);
  }

  // The answer and the position of the token that is looked from: hovering shows one for a moment, choosing keeps it.
  get place() {
    return this.hovered ?? this.chosen;
  }

  point(answer, position) {
    this.hovered = position === null ? null : { answer, position };
    this.drawPlace();
  }

  choose(answer, position) {
    this.hovered = null;
    const isChosen = this.chosen?.answer === answer && this.chosen.position === position;
    this.chosen = position === null || isChosen ? null : { answer, position };
    this.drawPlace();
  }

  draw() {
    const { first, second } = this;
    [first, second].forEach((answer) => { answer.root.hidden = !answer.prompt.length; });
    this.answers.classList.toggle("two", !second.root.hidden);
    this.verdict.replaceChildren(...(this.right ? [rightAnswer(this.right, first.message.content, first.end)] : []));
    return this.drawPlace();
  }

  async drawPlace() {
    const { first, second, card, grid, asked, job } = this;
    const token = this.place?.answer.tokens[this.place.position - this.place.answer.prompt.length];
    [first, second].forEach((answer) => answer.shade(null, null));
    if (!token) {
      card.empty();
      return grid.draw(asked.chosen, asked.heads, null, null);
    }
    const { answer, position } = this.place;
    const labels = [...answer.prompt, ...answer.tokens].map((one) => one.label);
    card.draw(answer.name, position, token, answer.differences?.[position - answer.prompt.length], Boolean(job));
    answer.shade(position, null);
    const row = await this.row(answer, position).catch((error) => this.fail(error));
    if (!row || !this.isAt(answer, position)) return undefined;
    const weights = row.of(asked.chosen);
    answer.shade(position, weights);
    card.drawLooks(asked.chosen ? `head L${asked.chosen.layer} H${asked.chosen.head}` : "the mean of all heads", weights, labels);
    return grid.draw(asked.chosen, asked.heads, row, labels);
  }

  isAt(answer, position) {
    return !this.address.signal.aborted && this.place?.answer === answer && this.place.position === position;
  }

  // What all heads looked at to write this token; null where another one is pointed at by now.
  async row(answer, position) {
    if (this.hovered) await new Promise((resolve) => { setTimeout(resolve, WAIT.hover); });
    if (!this.isAt(answer, position)) return null;
    const ids = answer.end === null ? answer.ids.slice(0, position + 1) : answer.ids;
    return rowOf({ ...this.name, ids, position, heads: answer.heads }, this.address.signal);
  }
}
