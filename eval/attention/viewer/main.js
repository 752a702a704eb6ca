// Build the two views and the experts, draw.

render = () => {
  draw();
  document.dispatchEvent(new Event("drawn")); // for a page around it
};

function draw() {
  showTab();
  if (state.tab === "experts") {
    drawExperts();
    return;
  }
  const main = byId("panes");
  main.classList.toggle("two", viewCount() === 2);
  main.classList.toggle("many", visiblePanes().some((pane) => pane.run.heads.length > 6)); // too many for beside the map
  main.classList.toggle("wide", state.wide);
  panes[1].root.hidden = viewCount() === 1;
  drawBar();
  if (viewCount() === 1) align(); // lets go of heights that two views needed: the map takes the room that is left
  visiblePanes().forEach((pane) => pane.draw());
  align();
  if (viewCount() === 1) return;
  visiblePanes().forEach((pane) => { // now that they stand at one height, both maps have the same room
    drawMap(pane);
    drawCross(pane);
  });
  align();
}

// Side by side, what belongs together stands at the same height, also where one run has more layers.
function align() {
  ["steps", "caption", "grid-side", "map-side", "text-side", "score-all-side"].forEach((part) => {
    const parts = panes.map((pane) => pane.find(`.${part}`));
    parts.forEach((box) => { box.style.minHeight = ""; });
    if (viewCount() === 1 || innerWidth <= NARROW) return;
    const high = Math.ceil(Math.max(...parts.map((box) => box.getBoundingClientRect().height)));
    parts.forEach((box) => { box.style.minHeight = `${high}px`; });
  });
}

function showNotes() {
  byId("notes").hidden = !about.notes.length;
  byId("notes").textContent = about.notes.join(" ");
}

// Draw what setData got. Within another page: signal is aborted when that shows something else; light and dark are its.
function start(signal) {
  panes.length = 0;
  startState();
  buildBar(signal);
  showNotes();
  buildExperts();
  panes.push(new Pane(0), new Pane(1));
  byId("panes").replaceChildren(...panes.map((pane) => pane.root));
  showColours();
  if (byId("theme")) followSystemTheme(); // draws
  else render();
  document.addEventListener("theme", () => render(), { signal }); // the page around it has changed its colours
  let wide = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === wide) return; // a phone's address bar comes and goes
    wide = innerWidth;
    showColours();
    render();
  }, { signal });
  window.headlight = { state, runs, about, panes, Head }; // for the console, and for tests
  document.documentElement.dataset.ready = "yes";
}
