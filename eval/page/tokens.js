// The tokens as running text. For the one that is pointed at: before it what it looks at, after it who looks at it.

const shade = (name, weight) => `color-mix(in srgb, var(${name}) ${Math.round(85 * brightness(weight))}%, transparent)`;
// Blue above 0, orange below; most: percent of colour at 1 and -1.
const signedShade = (share, most) => `color-mix(in srgb, var(${share < 0 ? "--seen" : "--looks"}) ${Math.round(most * Math.abs(share))}%, var(--page))`;

function drawTokens(pane) {
  const text = mapsOf(pane.view)?.text ?? null;
  const probe = about.probes.find(({ name }) => name === state.probe);
  const note = isOwn() ? t("␣: a space. The longer the line, the less the model expected the token") : translated(probe.note);
  const left_out = text?.left_out && t("not shown: {0}", translated(text.left_out));
  pane.find(".text-note").textContent = [text?.note || note, left_out].filter(Boolean).join(t("; "));
  if (pane.textShown !== text) {
    pane.textShown = text;
    const box = pane.find(".tokens");
    box.replaceChildren();
    pane.tokens = (text?.labels ?? []).map((words, i) => {
      const isBegin = text.documents && text.starts[i] === i;
      const token = element("span", "token", words || "∅", { role: "option", "data-place": i, id: `token-${pane.number}-${i}` });
      box.append(...(isBegin ? [element("span", "document", t("document {0}", text.documents[i]))] : []), token);
      return token;
    });
  }
  drawSurprise(pane);
  drawAttention(pane);
}

// A line under each token of the reader's own text: the longer, the less the model expected the token.
function drawSurprise(pane) {
  const bits = isOwn() && mapsOf(pane.view) ? pane.run.own.surprise(stepOf(pane.view).step, state.words, state.off) : [];
  pane.tokens.forEach((token, i) => {
    const most = Math.log2(pane.run.own?.about.tokens.length ?? 2); // all tokens equally likely
    token.style.setProperty("--surprise", bits[i] ? clamp(bits[i] / most, 0, 1) : 0);
    token.title = bits[i] ? t("{0} bits of surprise", number(bits[i], 3)) : "";
  });
}

// The token that is pointed at, in this view or, where it shows the same text, in the other one.
function pointedIn(pane) {
  const [there, here] = [state.views[state.token?.view], pane.view].map((view) => view && mapsOf(view)?.text.labels.join());
  return there !== undefined && there === here ? state.token.place : null;
}

function drawAttention(pane) {
  const head = pane.map?.head ?? (mapsOf(pane.view) ? headOf(pane.view) : null);
  const pointed = pointedIn(pane);
  const here = pointed !== null && head && pointed < head.length ? pointed : null;
  const box = pane.find(".tokens");
  pane.tokens.forEach((token, i) => {
    token.setAttribute("aria-selected", i === here);
    token.style.backgroundColor = here === null ? ""
      : i <= here ? shade("--looks", head.weight(here, i)) : shade("--seen", head.weight(i, here));
  });
  if (here === null) box.removeAttribute("aria-activedescendant");
  else box.setAttribute("aria-activedescendant", pane.tokens[here].id);
  const words = !head ? (pane.run.isWaiting(pane.view.at, state.probe) ? t("Reading the map …") : t("There is no map of this text at this step."))
    : t("Point at a token, here or in the map: blue is what it looks at, orange is what looks at it.");
  pane.find(".readout").replaceChildren(...(here === null ? [words] : readout(head, here)));
}

function readout(head, here) {
  const { labels, first = 0 } = head.text;
  const strongest = (from, to, weight) => Array.from({ length: to - from }, (_, i) => [from + i, weight(from + i)])
    .filter(([, share]) => share >= 0.0005).sort((a, b) => b[1] - a[1]).slice(0, 5)
    .map(([i, share]) => `${labels[i]} (${first + i}) ${number(share)}`).join(" · ") || t("no token that is shown");
  const seen = here + 1 < head.length ? strongest(here + 1, head.length, (q) => head.weight(q, here)) : t("none: it is the last");
  return [
    element("b", "", `${labels[here]} (${first + here})`), " ", element("span", "looks", t("looks at")),
    ` ${strongest(0, here + 1, (k) => head.weight(here, k))}. `, element("span", "seen", t("Looked at by")), ` ${seen}.`,
  ];
}

// Hovering shows, clicking keeps; what is kept stays until it is clicked again or Escape is pressed.
function point(number, place, key = null) {
  if (state.pinned) return;
  Object.assign(state, { token: place === null ? null : { view: number, place }, key });
  visiblePanes().forEach((pane) => {
    drawCross(pane);
    drawAttention(pane);
    drawNext(pane);
    drawCaption(pane);
    drawCell(pane);
  });
}

function pin(number, place, key = null) {
  const same = state.pinned && state.token.view === number && state.token.place === place && state.key === key;
  state.pinned = false;
  point(number, same ? null : place, same ? null : key);
  state.pinned = !same;
  visiblePanes().forEach(drawCell);
}

function letGo() {
  state.pinned = false;
  point(0, null);
}

function moveToken(number, by) {
  const { length } = panes[number].tokens;
  const before = state.token?.view === number ? state.token.place : by > 0 ? -1 : length;
  const place = clamp(before + by, 0, length - 1);
  letGo();
  pin(number, place);
  panes[number].tokens[place].scrollIntoView({ block: "nearest" });
}

function listenTokens(pane) {
  listenPlaces(pane.find(".tokens"), (place) => point(pane.number, place), (place) => pin(pane.number, place));
  const map = pane.find(".map");
  map.addEventListener("pointermove", (event) => {
    const entry = entryAt(pane, event);
    point(pane.number, entry?.token ?? null, entry?.key ?? null);
  });
  map.addEventListener("click", (event) => {
    const entry = entryAt(pane, event);
    if (entry) pin(pane.number, entry.token, entry.key);
  });
  map.addEventListener("pointerleave", () => point(pane.number, null));
}
