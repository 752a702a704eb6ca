// Chat with attention: an answer token by token, what every head looked at, and what it would be without some heads.

const WAIT = { change: 250, hover: 40 }; // milliseconds after the last change of a head; that the pointer rests on a token
const SETTINGS = { // name in a request -> words, usual, least, most, step, what it means
  temperature: [t("Temperature"), 0, 0, 2, 0.1, t("0: always the likeliest token")],
  top_p: [t("Top p"), 1, 0.01, 1, 0.01, t("draw from the likeliest tokens whose probabilities add up to p")],
  seed: [t("Seed"), 0, 0, 999999999, 1, t("the same seed draws the same tokens")],
  max_completion_tokens: [t("Most tokens"), 128, 1, 4096, 1, t("of an answer")],
};
const LONGEST = 6000; // characters of a conversation in an address

// What the server knows of a model, at this checkpoint and with these adapters.
function askModel(run, what, values, signal) {
  const query = new URLSearchParams(Object.entries(values).filter(([, value]) => value !== null));
  return ask(`/live/models/${part(run)}${what}?${query}`, { signal });
}

VIEWS.chat = {
  title: t("Chat"),
  async show(root, address) {
    const { models } = await ask("/live/models", { signal: address.signal });
    const tell = (words) => {
      root.append(element("p", "card", words));
      isReady(true);
    };
    if (!models.length) return tell(t("No run of this folder has a checkpoint yet."));
    if (!address.run) return location.replace(link("chat", models[0].name));
    tell(t("Opening the model …"));
    const asked = readChat(address);
    const model = await askModel(address.run, "", { step: asked.step, adapter: asked.adapter }, address.signal);
    root.replaceChildren();
    return new Chat(root, address, models, model, asked).begin();
  },
};

// What the address says: the model, the words or the number of a story question, tokens with which the answer begins,
// the changed heads, the head that is shown, and the settings. Whatever cannot be read begins anew.
function readChat(address) {
  const asked = { step: null, adapter: null, messages: [], question: null, begun: [], heads: [], chosen: null, settings: {} };
  try {
    Object.assign(asked, JSON.parse(address.get("talk", "{}")));
  } catch (error) {
    console.warn(error.message);
  }
  ["messages", "begun", "heads"].filter((name) => !Array.isArray(asked[name])).forEach((name) => { asked[name] = []; });
  const usual = Object.fromEntries(Object.entries(SETTINGS).map(([name, [, value]]) => [name, value]));
  return { ...asked, settings: { ...usual, ...asked.settings } };
}

const isSame = (place, other) => place?.layer === other?.layer && place?.head === other?.head;

class Chat {
  constructor(root, address, models, model, asked) {
    Object.assign(this, { address, model, asked, right: null, job: null, chosen: null, hovered: null });
    const exists = (place) => place?.layer < model.layers && place.head < model.heads;
    asked.heads = asked.heads.filter(exists);
    if (asked.chosen && !exists(asked.chosen)) asked.chosen = null;
    this.first = new Answer("first", t("Answer"), this);
    this.second = new Answer("second", t("Answer with the heads changed"), this);
    this.prompt = element("div", "said");
    this.verdict = element("div");
    this.answers = element("div", "answers", "", {}, [this.first.root, this.second.root]);
    this.talk = element("div", "talk", "", {}, [this.prompt, this.answers, this.verdict]);
    this.card = new TokenCard((position, likely) => this.force(position, likely));
    this.grid = new HeadGrid(model, this);
    this.composer = new Composer(model, model.is_chat ? "" : asked.messages.at(-1)?.content ?? "", this);
    byId("keep").append(...saveButtons(this));
    byId("heading").textContent = t("Chat with {0}", model.run);
    const kind = model.is_chat ? t("Ask something, or take a story question. ") : t("This run was trained on texts, not on chats: it continues what you type. ");
    const intro = kind + t("Then point at a token of the answer. The model sees {0} tokens at most.", model.context_length);
    root.append(modelBar(models, model, asked, this), element("p", "soft intro", intro), element("div", "chat-columns", "", {}, [
      this.talk, element("div", "chat-side", "", {}, [this.card.root, this.grid.root]), this.composer.root,
    ]));
    this.draw();
    isReady(true);
  }

  begin() {
    const { question, messages, begun } = this.asked;
    if (question !== null) return this.askStory(question, begun);
    return messages.length ? this.ask(begun) : undefined;
  }

  // The body of /v1/chat/completions; `inspect` is not OpenAI's (serve/openai_api.py).
  request(heads = []) {
    const { settings, messages } = this.asked;
    const { run: model, step, adapter } = this.model;
    const inspect = { step, adapter, heads: heads.map(({ layer, head, factor }) => [layer, head, factor]) };
    return { model, messages, logprobs: true, top_logprobs: 8, ...settings, inspect };
  }

  // The address without what the server gives, and nothing of a conversation that is too long for one.
  keep() {
    const { question, messages } = this.asked;
    const talk = JSON.stringify({ ...this.asked, messages: question === null ? messages : [] });
    this.address.set({ talk: talk.length <= LONGEST ? talk : "" });
  }

  send(words) {
    const { asked, first } = this;
    const isAnswered = first.tokens.length && first.request.messages === asked.messages;
    const before = isAnswered ? [...asked.messages, first.message] : asked.messages.slice(0, -1);
    asked.messages = [...(this.model.is_chat ? before : []), { role: "user", content: words }];
    asked.question = this.right = null;
    return this.ask();
  }

  async askStory(number, begun = []) {
    try {
      this.right = await askModel(this.model.run, "/question", { number, step: this.model.step }, this.address.signal);
    } catch (error) {
      return say(error.message);
    }
    Object.assign(this.asked, { question: number, messages: this.right.messages });
    return this.ask(begun);
  }

  setting(values) {
    Object.assign(this.asked.settings, values);
    this.keep();
    if (this.asked.messages.length) this.ask();
  }

  // Another model, or another conversation: a new entry in the browser's history, with what stays.
  reopen({ run = this.model.run, ...changes }) {
    const model = run === this.model.run ? {} : { step: null, adapter: null, heads: [], chosen: null };
    this.address.open(run, { talk: JSON.stringify({ ...this.asked, begun: [], ...model, ...changes }) });
  }

  // The first answer, then the one with the heads changed. begun: ids with which the first begins.
  ask(begun = []) {
    this.asked.begun = begun;
    this.keep();
    return this.work(async (signal) => {
      await this.first.run(this.request(), begun, (tokens) => {
        const { field } = this.composer;
        if (this.model.is_chat && field.value === this.asked.messages.at(-1)?.content) field.value = ""; // it has arrived
        return drawPrompt(this.prompt, tokens);
      }, signal);
      announce(t("The answer: {0}", this.first.message.content));
      await this.runSecond(signal);
    });
  }

  async runSecond(signal, begun = []) {
    const { heads } = this.asked;
    if (signal.aborted || !this.first.prompt.length) return;
    const request = this.request(heads);
    this.second.clear(); // it was of other heads
    if (heads.length) await this.second.run(request, begun, (tokens) => this.first.places.slice(0, tokens.length), signal);
    if (!signal.aborted) await this.first.compare(request, signal);
  }

  // One job at a time; what runs is given up.
  async work(job) {
    this.job?.abort();
    const mine = (this.job = new AbortController());
    this.address.signal.addEventListener("abort", () => mine.abort(), { signal: mine.signal });
    Object.assign(this, { chosen: null, hovered: null });
    say("");
    this.composer.busy(true);
    this.draw();
    try {
      await job(mine.signal);
    } catch (error) {
      if (this.job === mine && !mine.signal.aborted) say(error.message);
    }
    if (this.job !== mine) return;
    this.job = null;
    this.composer.busy(false);
    this.draw();
  }

  // Go on from another token than the one at this position.
  force(position, likely) {
    const { answer } = this.place;
    const begun = [...answer.ids.slice(answer.prompt.length, position), likely.id];
    return answer === this.first ? this.ask(begun) : this.work((signal) => this.runSecond(signal, begun));
  }

  chooseHead(place) {
    this.asked.chosen = place;
    this.keep();
    this.draw();
  }

  changeHeads(heads) {
    this.asked.heads = heads;
    this.keep();
    this.draw();
    clearTimeout(this.changing);
    if (!this.first.prompt.length || (this.job && this.first.end === null)) return; // the first answer comes first
    this.changing = setTimeout(() => this.address.signal.aborted || this.work((signal) => this.runSecond(signal)), WAIT.change);
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
    const isChosen = this.chosen?.answer === answer && this.chosen.position === position;
    Object.assign(this, { hovered: null, chosen: position === null || isChosen ? null : { answer, position } });
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
    const { first, second, card, grid, asked } = this;
    const { answer, position } = this.place ?? {};
    const at = position - answer?.prompt.length;
    const token = answer?.tokens[at];
    [first, second].forEach((other) => other.shade(null, null));
    if (!token) {
      card.empty();
      return grid.draw(asked.chosen, asked.heads, null, null);
    }
    card.draw(answer.name, position, token, answer.differences?.[at], Boolean(this.job));
    answer.shade(position, null);
    const isHere = () => !this.address.signal.aborted && this.place?.answer === answer && this.place.position === position;
    if (this.hovered) await new Promise((resolve) => { setTimeout(resolve, WAIT.hover); });
    if (!isHere()) return undefined;
    const row = await answer.row(position, this.address.signal).catch((error) => say(error.message));
    if (!row || !isHere()) return undefined;
    const labels = [...answer.prompt, ...answer.tokens].map(({ label }) => label);
    const weights = attentionOf(row, asked.chosen);
    answer.shade(position, weights);
    card.drawLooks(asked.chosen ? t("head {0}", inShort(asked.chosen)) : t("the mean of all heads"), weights, labels);
    return grid.draw(asked.chosen, asked.heads, row, labels);
  }
}
