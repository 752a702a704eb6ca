// Which view is shown? The address says it: #/VIEW/RUN?name=value. Every state of every view has an address.

let closing = new AbortController();

async function open() {
  const asked = parse(location.hash);
  const view = VIEWS[asked.view] ? asked.view : Object.keys(VIEWS)[0];
  closing.abort(); // what the view before began
  closing = new AbortController();
  const { signal } = closing;
  say("");
  byId("heading").textContent = "";
  byId("keep").replaceChildren();
  isReady(false);
  drawViews(view, asked.run);
  const root = byId("root");
  root.replaceChildren();
  try {
    await VIEWS[view].show(root, new Address(view, asked, signal));
  } catch (error) {
    if (signal.aborted) return;
    say(`This page cannot be shown: ${error.message}`);
    throw error;
  }
}

function drawViews(chosen, run) {
  if (Object.keys(VIEWS).length < 2) return; // a file
  byId("views").replaceChildren(...Object.entries(VIEWS).map(([name, { title }]) => {
    const to = element("a", "", title, { href: link(name, name === "runs" ? "" : run) });
    if (name === chosen) to.setAttribute("aria-current", "page");
    return to;
  }));
  document.title = `${VIEWS[chosen].title}${run ? ` of ${run}` : ""} · Headlight`;
}

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address belongs to the view
  byId("root").focus();
});
KEYS.forEach(([keys, words]) => byId("keys").append(element("dt", "", keys), element("dd", "", words)));
byId("help-button").addEventListener("click", () => byId("help").showModal());
byId("theme").addEventListener("click", chooseTheme);
document.addEventListener("keydown", ({ target, key, ctrlKey, metaKey, altKey }) => {
  const isTyping = ["SELECT", "TEXTAREA"].includes(target.tagName) || ["text", "number", "password"].includes(target.type);
  if (isTyping || ctrlKey || metaKey || altKey || byId("help").open) return;
  if (key === "?") byId("help").showModal();
  if (key.toLowerCase() === "d") chooseTheme();
});
followSystemTheme();
addEventListener("hashchange", open);
open();
