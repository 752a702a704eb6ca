// Which view is shown? The address says it: #/VIEW/RUN?name=value. Every state of every view has an address.

import { Address, parse } from "./address.js";
import { byId, element } from "./dom.js";
import { onProblem } from "./server.js";
import { followTheme } from "./theme.js";

// To add a view: a line here, and a module that exports show(root, address). It draws into root, keeps its state in
// address.get() and address.set(), and ends whatever it began (listeners, timers, requests) at address.signal.
const VIEWS = {
  runs: { title: "Runs", load: () => import("./runs.js") },
  heads: { title: "Heads", load: () => import("./heads.js") },
  chat: { title: "Chat", load: () => import("./chat.js") },
};

let closing = new AbortController();

async function open() {
  const place = parse(location.hash);
  const view = VIEWS[place.view] ? place.view : Object.keys(VIEWS)[0];
  closing.abort(); // what the view before began
  closing = new AbortController();
  const { signal } = closing;
  byId("problem").hidden = true;
  document.documentElement.removeAttribute("data-ready");
  drawTabs(view, place.run);
  const root = byId("root");
  root.replaceChildren();
  root.className = `view-${view}`;
  try {
    const { show } = await VIEWS[view].load();
    if (signal.aborted) return;
    await show(root, new Address(view, place, signal));
  } catch (error) {
    if (signal.aborted) return;
    say(`This view cannot be shown: ${error.message}`);
    throw error;
  }
}

function drawTabs(chosen, run) {
  byId("tabs-of-page").replaceChildren(...Object.entries(VIEWS).map(([name, { title }]) => {
    const tab = element("a", "", title);
    tab.href = `#/${name}${run && name !== "runs" ? `/${encodeURIComponent(run)}` : ""}`;
    if (name === chosen) tab.setAttribute("aria-current", "page");
    return tab;
  }));
  document.title = `${VIEWS[chosen].title}${run ? ` of ${run}` : ""} · Headlight`;
}

function say(problem) {
  byId("problem").textContent = problem;
  byId("problem").hidden = false;
}

function askForKey() {
  if (byId("key")) return;
  byId("root").before(byId("key-form").content.cloneNode(true));
  byId("key-field").focus();
  byId("key").addEventListener("submit", async (event) => {
    event.preventDefault();
    const body = JSON.stringify({ key: byId("key-field").value });
    const answer = await fetch("/page/key", { method: "POST", headers: { "Content-Type": "application/json" }, body });
    byId("key-answer").textContent = answer.ok ? "" : "This is not the key.";
    if (answer.ok) location.reload();
  });
}

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address belongs to the view
  byId("root").focus();
});
onProblem((error) => (error.status === 401 ? askForKey() : say(error.message)));
addEventListener("hashchange", open);
followTheme();
open();
