// The tokens as running text. For the one that is pointed at: before it what it looks at, after it who looks at it.

const shade = (name, weight) => `color-mix(in srgb, var(${name}) ${Math.round(85 * SCALES.power(weight))}%, transparent)`;

function buildTokens(pane, text) {
  const box = pane.find(".tokens");
  box.replaceChildren();
  pane.tokens = text.labels.map((words, i) => {
    if (text.documents && text.starts[i] === i) {
      box.append(element("span", "document", `document ${text.documents[i]}`));
    }
    const token = element("span", "token", words || "∅", { role: "option", "data-place": i, id: `token-${pane.number}-${i}` });
    box.append(token);
    return token;
  });
}

function drawTokens(pane) {
  const maps = mapsOf(pane.view);
  const probe = about.probes.find((one) => one.name === state.probe);
  const words = [probe.note, maps?.text.left_out && `not shown: ${maps.text.left_out}`].filter(Boolean);
  pane.find(".text-note").textContent = words.join("; ");
  if (pane.textShown !== (maps?.text ?? null)) {
    pane.textShown = maps?.text ?? null;
    buildTokens(pane, maps?.text ?? { labels: [] });
  }
  drawAttention(pane);
}

// The token that is pointed at, in this view or, where it shows the same text, in the other one.
function pointedIn(pane) {
  if (!state.token) return null;
  const there = mapsOf(state.views[state.token.view])?.text;
  const here = mapsOf(pane.view)?.text;
  return here && there && (here === there || here.labels.join() === there.labels.join()) ? state.token.place : null;
}

function drawAttention(pane) {
  const head = pane.map?.head ?? (mapsOf(pane.view) ? headOf(pane.view) : null);
  const here = pointedIn(pane);
  const box = pane.find(".tokens");
  if (here === null || !head || here >= head.length) {
    pane.tokens.forEach((token) => {
      token.style.backgroundColor = "";
      token.setAttribute("aria-selected", "false");
    });
    box.removeAttribute("aria-activedescendant");
    pane.find(".readout").textContent = head
      ? "Point at a token, here or in the map: blue is what it looks at, orange is what looks at it."
      : pane.run.isWaiting(pane.view.at, state.probe) ? "Reading the map …"
        : "This run was not looked at on this text at this step.";
    return;
  }
  box.setAttribute("aria-activedescendant", pane.tokens[here].id);
  pane.tokens.forEach((token, i) => {
    token.setAttribute("aria-selected", i === here);
    const weight = i <= here ? head.weight(here, i) : head.weight(i, here);
    token.style.backgroundColor = shade(i <= here ? "--looks" : "--seen", weight);
  });
  pane.find(".readout").replaceChildren(...readout(head, here));
}

function readout(head, here) {
  const { labels } = head.text;
  const range = (from, to, weight) => Array.from({ length: to - from }, (_, i) => [from + i, weight(from + i)]);
  const strongest = (pairs) => pairs.filter(([, weight]) => weight >= 0.0005).sort((a, b) => b[1] - a[1]).slice(0, 5)
    .map(([i, weight]) => `${labels[i]} (${i}) ${number(weight)}`).join(" · ") || "nothing that is shown";
  const looks = strongest(range(0, here + 1, (k) => head.weight(here, k)));
  const seen = strongest(range(here + 1, head.length, (q) => head.weight(q, here)));
  return [
    element("b", "", `${labels[here]} (${here})`), " ", element("span", "looks", "looks at"), ` ${looks}. `,
    element("span", "seen", "Looked at by"), ` ${here + 1 < head.length ? seen : "none: it is the last"}.`,
  ];
}

// Hovering shows, clicking keeps; what is kept stays until it is clicked again or Escape is pressed.
function point(number, place, key = null) {
  if (state.pinned) return;
  Object.assign(state, { token: place === null ? null : { view: number, place }, key });
  visiblePanes().forEach((pane) => {
    drawCross(pane);
    drawAttention(pane);
  });
}

function pin(number, place, key = null) {
  const same = state.pinned && state.token.view === number && state.token.place === place && state.key === key;
  state.pinned = false;
  point(number, same ? null : place, same ? null : key);
  state.pinned = !same;
}

function letGo() {
  state.pinned = false;
  point(0, null);
}

function moveToken(number, by) {
  const { length } = panes[number].tokens;
  const before = state.token?.view === number ? state.token.place : by > 0 ? -1 : length;
  const place = clamp(before + by, 0, length - 1);
  state.pinned = false;
  point(number, place);
  state.pinned = true;
  panes[number].tokens[place].scrollIntoView({ block: "nearest" });
}

function listenTokens(pane) {
  const box = pane.find(".tokens");
  const placeOf = ({ target }) => (target.dataset?.place ? Number(target.dataset.place) : null);
  box.addEventListener("pointerover", (event) => point(pane.number, placeOf(event)));
  box.addEventListener("click", (event) => placeOf(event) !== null && pin(pane.number, placeOf(event)));
  const map = pane.find(".map");
  map.addEventListener("pointermove", (event) => {
    const entry = entryAt(pane, event);
    point(pane.number, entry?.token ?? null, entry?.key ?? null);
  });
  map.addEventListener("click", (event) => {
    const entry = entryAt(pane, event);
    if (entry) pin(pane.number, entry.token, entry.key);
  });
  [box, map].forEach((part) => part.addEventListener("pointerleave", () => point(pane.number, null)));
}
