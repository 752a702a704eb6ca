// Five hints, each with a frame around what it is about, on the first visit, and again from the button Tour.

const STOPS = [
  ["#words", t("Type any text. A small model in this page reads it at every key.")],
  [".slider", t("Drag through training. A mark shows when a head learned what it does.")],
  [".map", t("Point at the map. A row is a token that looks, a column what it looks at. Below is how each number is computed.")],
  [".own-off", t("Switch the head off. What comes next changes, if the model needed it.")],
  [".caption", t("Why? This sentence says what the head looks at here. A number in a square says how much a head helped.")],
];

function showTour(at = 0) {
  byId("tour")?.remove();
  document.querySelector(".toured")?.classList.remove("toured");
  if (at >= STOPS.length) return;
  const [selector, words] = STOPS[at];
  const target = document.querySelector(selector);
  target.classList.add("toured");
  target.scrollIntoView({ block: "center" });
  const isLast = at === STOPS.length - 1;
  const next = button(isLast ? t("Done") : t("Next ({0} of {1})", at + 1, STOPS.length), () => showTour(at + 1));
  const end = button(t("Close"), () => showTour(STOPS.length));
  const box = element("div", "", "", { id: "tour", role: "dialog", "aria-label": t("Tour") }, [element("p", "", words), next, " ", isLast ? "" : end]);
  box.addEventListener("keydown", ({ key }) => key === "Escape" && showTour(STOPS.length));
  document.body.append(box);
  next.focus({ preventScroll: true });
}
