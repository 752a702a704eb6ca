// What is asked, of which model, and how it is answered: the bar above and the box below.

import { button, choice, element } from "./dom.js";

const SETTINGS = { // name in the address -> words, least, most, step, what it means
  t: ["Temperature", 0, 100, 0.1, "0: always the likeliest token"],
  p: ["Top p", 0.01, 1, 0.01, "draw from the likeliest tokens that reach p together"],
  seed: ["Seed", 0, 999999999, 1, "the same seed draws the same tokens"],
  n: ["Most tokens", 1, 4096, 1, "of an answer"],
};

// told: {model(values), settings(values)}
export function modelBar(all, about, state, told) {
  const mine = all.find((one) => one.name === about.run);
  const steps = [["", `newest (${mine.steps.at(-1) ?? "?"})`], ...mine.steps.map((step) => [String(step), `step ${step}`]).reverse()];
  const adapters = [["", "none"], ...mine.adapters.map((name) => [name, name])];
  const bar = element("form", "bar chat-bar", "", { "aria-label": "The model, and how it answers" }, [
    choice("Run", all.map(({ name }) => [name, name]), about.run, (run) => told.model({ run })),
    choice("Checkpoint", steps, String(state.step ?? ""), (step) => told.model({ step })),
  ]);
  if (mine.adapters.length) bar.append(choice("Adapters", adapters, state.adapter ?? "", (adapter) => told.model({ adapter })));
  const settings = element("details", "chat-settings", "", {}, [element("summary", "", "Settings")]);
  Object.entries(SETTINGS).forEach(([name, [words, min, max, step, title]]) => {
    const field = element("input", "", "", { type: "number", min, max, step, title, required: true });
    field.value = state.settings[name];
    field.addEventListener("change", () => field.reportValidity() && told.settings({ [name]: field.value }));
    settings.append(element("label", "", `${words} `, {}, [field]));
  });
  settings.open = Object.entries(state.settings).some(([name, value]) => ["t", "p"].includes(name) && value !== { t: "0", p: "1" }[name]);
  bar.append(settings);
  bar.addEventListener("submit", (event) => event.preventDefault());
  return bar;
}

// told: {send(text), question(), fresh(), stop()}
export class Composer {
  constructor(about, text, told) {
    this.told = told;
    const words = about.is_chat ? "Your message" : "A text, which the model continues";
    this.field = element("textarea", "", "", { rows: 2, "aria-label": words, maxlength: 200000, placeholder: about.is_chat ? "Ask something" : about.first_line || "Once there was" });
    this.field.value = text;
    this.send = element("button", "send", about.is_chat ? "Send" : "Continue it");
    this.stop = button("Stop", () => told.stop(), { hidden: true });
    const story = button("Story question", () => told.question(), {
      disabled: !about.knows_questions,
      title: about.knows_questions ? "A story that no training text holds, a question about it, and the right answer" : "This run was not trained on the built-in world",
    });
    this.root = element("form", "composer", "", {}, [
      this.field, element("div", "composer-buttons", "", {}, [this.send, this.stop, story, button("Start again", () => told.fresh())]),
    ]);
    this.root.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.field.value.trim()) told.send(this.field.value);
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
export function rightAnswer(right, words, end) {
  const isRight = words.trim() === right.reply.trim(); // as eval.questions counts it
  const verdict = end === null ? "" : isRight ? " The model's answer is right." : " The model answered something else.";
  return element("p", "card right-answer", "", { role: "status" }, [
    element("span", "mark", end === null ? "" : isRight ? "✓ " : "✗ ", { "aria-hidden": "true" }), "Right answer: ", element("b", "", right.reply), verdict,
  ]);
}
