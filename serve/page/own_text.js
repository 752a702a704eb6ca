// A text of one's own, looked at by every checkpoint that the run keeps.

import { element } from "./dom.js";
import { ask, part } from "./server.js";

const MOST = 2000; // letters, as in serve/own_text.py

// look(text) shows it, and raises what is wrong with it; back() shows the run's own texts again.
export function ownTextForm(text, look, back) {
  const field = element("textarea", "", "", { rows: 2, maxlength: MOST, placeholder: "Once there was a fox. The fox saw a bird …",
    "aria-label": "A text of your own" });
  field.value = text;
  const submit = element("button", "", "Look at it");
  const leave = element("button", "", "Back to the texts of the run", { type: "button", hidden: !text });
  const answer = element("p", "soft", "", { role: "status" });
  const form = element("form", "own-text", "", {}, [field, submit, leave, answer]);
  const root = element("details", "own", "", {}, [element("summary", "", "A text of your own"), form]);
  root.open = Boolean(text);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (!field.value.trim()) return;
    submit.disabled = true;
    answer.textContent = "Every checkpoint of the run looks at it …";
    try {
      await look(field.value);
      answer.textContent = "";
      leave.hidden = false;
    } catch (error) {
      answer.textContent = `It cannot be looked at: ${error.message}`;
    } finally {
      submit.disabled = false;
    }
  });
  leave.addEventListener("click", () => {
    leave.hidden = true;
    back();
  });
  return root;
}

// What the viewer shows of it, and its maps: {about, frames}.
export async function lookAt(name, text, signal) {
  const body = JSON.stringify({ text });
  const headers = { "Content-Type": "application/json" };
  const about = await ask(`/live/runs/${part(name)}/look`, { method: "POST", headers, body, signal });
  const frames = new Map(Object.entries(about.frames).map(([place, packed]) => {
    return [place, Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0))];
  }));
  const probes = about.probes.map((probe) => ({ ...probe, title: "your own text", note: "your own" }));
  const scores = about.scores.map((score) => ({ ...score, measured_on: score.probe ? "your own text" : "" }));
  return { about: { ...about, probes, scores }, frames };
}
