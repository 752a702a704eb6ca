// Around a chat: the bar above, the box below, the card of one token, and the ways to keep a conversation.

function modelBar(models, model, { step, adapter, settings }, chat) {
  const { steps, adapters } = models.find(({ name }) => name === model.run);
  const checkpoints = steps.map((number) => [String(number), t("step {0}", number)]).reverse();
  const fields = Object.entries(SETTINGS).map(([name, [words, , min, max, by, title]]) => {
    const field = element("input", "", "", { type: "number", min, max, step: by, title, required: true });
    field.value = settings[name];
    field.addEventListener("change", () => field.reportValidity() && chat.setting({ [name]: Number(field.value) }));
    return element("label", "", `${words} `, {}, [field]);
  });
  const isOpen = ["temperature", "top_p"].some((name) => settings[name] !== SETTINGS[name][1]);
  const bar = element("form", "bar chat-bar", "", { "aria-label": t("The model, and how it answers") }, [
    choice(t("Run"), models.map(({ name }) => [name, name]), model.run, (run) => chat.reopen({ run })),
    choice(t("Checkpoint"), [["", t("newest ({0})", steps.at(-1) ?? "?")], ...checkpoints], String(step ?? ""), (value) => chat.reopen({ step: value ? Number(value) : null })),
    ...(adapters.length ? [choice(t("Adapters"), [["", t("none")], ...adapters.map((name) => [name, name])], adapter ?? "", (value) => chat.reopen({ adapter: value || null }))] : []),
    element("details", "chat-settings", "", { open: isOpen }, [element("summary", "", t("Settings")), ...fields]),
  ]);
  bar.addEventListener("submit", (event) => event.preventDefault());
  return bar;
}

class Composer {
  constructor(model, text, chat) {
    const words = model.is_chat ? t("Your message") : t("A text, which the model continues");
    const placeholder = model.is_chat ? t("Ask something") : model.first_line || "Once there was";
    this.field = element("textarea", "", text, { rows: 2, "aria-label": words, maxlength: 200000, placeholder });
    this.send = element("button", "send", model.is_chat ? t("Send") : t("Continue it"));
    this.stop = button(t("Stop"), () => chat.job?.abort(), { hidden: true });
    const story = button(t("Story question"), () => chat.askStory((chat.asked.question ?? -1) + 1), {
      disabled: !model.knows_questions,
      title: model.knows_questions ? t("A story that is in no training text, a question about it, and the right answer") : t("This run was not trained on the built-in world"),
    });
    const again = button(t("Start again"), () => chat.reopen({ messages: [], question: null }));
    this.root = element("form", "composer", "", {}, [this.field, element("div", "composer-buttons", "", {}, [this.send, this.stop, story, again])]);
    this.root.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.field.value.trim()) chat.send(this.field.value);
    });
    this.field.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.root.requestSubmit();
    });
  }

  busy(isBusy) {
    this.stop.hidden = !isBusy;
    this.send.hidden = isBusy;
  }
}

// The right answer to a story question. end: of the model's answer, null while it writes.
function rightAnswer({ reply }, words, end) {
  const isRight = words.trim() === reply.trim(); // as eval.questions counts it
  const [mark, verdict] = end === null ? ["", ""] : isRight ? ["✓ ", t(" The model's answer is right.")] : ["✗ ", t(" The model answered something else.")];
  return element("p", "card right-answer", "", { role: "status" }, [
    element("b", "", mark, { "aria-hidden": "true" }), t("Right answer: "), element("b", "", reply), verdict,
  ]);
}

// One token: how likely it was, what the model might have written instead, and what it looked at.
class TokenCard {
  constructor(force) {
    this.force = force;
    this.root = element("section", "card", "", { "aria-label": t("The token") });
    this.empty();
  }

  empty() {
    this.shown = "";
    this.root.replaceChildren(element("h2", "", "Token"), element("p", "soft", t("Point at a token of the answer, tap it, or go to the answer and use the arrow keys. You see what the model looked at to write it, how likely it was, and what it might have written instead.")));
  }

  // difference: with the heads changed, in nats, where it is known
  draw(answer, position, token, difference, isBusy) {
    const shown = `${answer} ${position} ${token.id} ${difference} ${isBusy}`;
    if (this.shown === shown) return; // so that an alternative keeps the focus
    this.shown = shown;
    this.looks = element("p", "looks-at");
    const likely = ` ${percent(Math.exp(token.logprob))}, ln p ${nats(token.logprob)}`;
    const now = percent(Math.exp(token.logprob + difference));
    this.root.replaceChildren(
      element("h2", "", "Token ", {}, [element("span", "soft", t("number {0}", position) + (token.isForced ? t(", chosen by you") : ""))]),
      element("p", "", "", {}, [element("code", "token-name", token.label), likely]),
      this.looks,
      ...(difference === undefined ? [] : [element("p", "", t("With the heads changed: {0}, a difference of {1} in ln p", now, signed(difference)))]),
      element("h2", "soft", t("Alternatives: choose one to continue from there")),
      element("ol", "alternatives", "", {}, token.top_logprobs.map((other) => {
        const share = Math.exp(other.logprob);
        const isWritten = other.id === token.id;
        const fill = element("span", "alternative-fill");
        fill.style.width = `${100 * share}%`;
        const made = button("", () => this.force(position, other), {
          class: "alternative", disabled: isWritten || isBusy, "aria-label": `${other.label}, ${percent(share)}${isWritten ? t(", written") : ""}`,
        });
        made.append(fill, element("code", "token-name", other.label), element("span", "number", percent(share)));
        return element("li", "", "", {}, [made]);
      })),
    );
  }

  // who: the head that is shown, in words
  drawLooks(who, weights, labels) {
    const strongest = weights.map((weight, i) => [weight, i]).filter(([weight]) => weight >= 0.005).sort((a, b) => b[0] - a[0]).slice(0, 4);
    const words = strongest.map(([weight, i]) => `${labels[i]} (${i}) ${percent(weight)}`).join(" · ");
    this.looks.replaceChildren(element("span", "looks", t("Looked at")), ` ${words || t("no token more than others")}${t(", ")}${who}`);
  }
}

function saveButtons(chat) {
  const name = `${chat.model.run} step ${chat.model.step ?? ""} chat`;
  const picture = () => pictureOf([chat.talk], t("Chat with {0}", chat.model.run));
  const data = () => new Blob([JSON.stringify(chatData(chat), null, 1)], { type: "application/json" });
  return [
    button(t("Save picture"), () => savePng(picture(), `${name}.png`)),
    button(t("Save data"), () => saveBlob(data(), `${name}.json`)),
  ];
}

function chatData({ asked, model, right, first, second }) {
  const answers = [first, second].filter(({ prompt }) => prompt.length)
    .map(({ request, prompt, tokens, end, differences }) => ({ heads: request.inspect.heads.map(([layer, head, factor]) => ({ layer, head, factor })), prompt, tokens, end, differences }));
  return { model, settings: asked.settings, messages: asked.messages, right_answer: right?.reply ?? null, answers };
}
