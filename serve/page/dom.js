// Elements. Words of runs and models become text, never HTML.

export const byId = (id) => document.getElementById(id);

// element("a", "link", "words", { href: "…" }, [children])
export function element(tag, className = "", words = "", attributes = {}, children = []) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (words !== "") made.textContent = words;
  Object.entries(attributes).forEach(([name, value]) => {
    if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null) made.setAttribute(name, value);
  });
  made.append(...children);
  return made;
}

export function button(words, act, attributes = {}) {
  const made = element("button", "", words, { type: "button", ...attributes });
  made.addEventListener("click", act);
  return made;
}

// Options are [value, words].
export function choice(words, options, chosen, act) {
  const select = element("select", "", "", {}, options.map(([value, title]) => new Option(title, value)));
  select.value = chosen;
  select.addEventListener("change", () => act(select.value));
  return element("label", "", `${words} `, {}, [select]);
}

export function check(words, isOn, act) {
  const box = element("input", "", "", { type: "checkbox" });
  box.checked = isOn;
  box.addEventListener("change", () => act(box.checked));
  const made = element("label", "check", "", {}, [box]);
  made.append(` ${words}`);
  return made;
}

// For screen readers: the newest of what changes by itself.
export function announce(words) {
  if (byId("news").textContent !== words) byId("news").textContent = words;
}
