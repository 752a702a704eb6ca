// Heads in rows and columns: layers downwards, heads of a layer to the right. Small pictures, scores, experts.

// Buttons with the names of rows and columns: cells[row][column]. choose(row, column) is called at a click.
function buildGrid(box, rows, columns, kind, choose, width = "minmax(0, 1fr)") {
  box.style.gridTemplateColumns = `max-content repeat(${columns.length}, ${width})`;
  box.replaceChildren(element("span"), ...columns.map((name) => element("span", "column-name", name)));
  return rows.map((name, row) => {
    box.append(element("span", "row-name", name));
    return columns.map((_, column) => {
      const cell = button("", () => choose(row, column), { class: kind });
      box.append(cell);
      return cell;
    });
  });
}

// What every cell says; the chosen one is where the keyboard comes to.
function drawCell(cell, isChosen, title) {
  cell.setAttribute("aria-pressed", isChosen);
  cell.tabIndex = isChosen ? 0 : -1;
  cell.title = title;
  cell.setAttribute("aria-label", title);
}

function fillCell(cell, back, words) {
  cell.style.backgroundColor = css(back);
  cell.style.color = inkOn(back);
  cell.textContent = words;
}

const layerNames = (run) => run.layers.map((layer) => `L${layer}`);
const headNames = (run) => run.heads.map((head) => `${TABS[state.tab]}${head}`);

const GROUP_WORDS = {
  mha: "MHA: every head has keys and values of its own",
  gqa: "GQA: heads of one colour share one key/value head",
  mqa: "MQA: all heads of a layer share one key/value head",
  mla: "MLA: every head makes its own keys and values, all from one small vector per token",
};

function attentionKind(run) {
  if (run.attention === "mla") return "mla";
  if (!run.grouped) return "mha";
  return run.num_key_value_heads === 1 ? "mqa" : "gqa";
}

const groupColour = (run, head) => about.colours[run.group(head) % about.colours.length];

function buildThumbnails(pane, run) {
  const box = pane.find(".heads");
  box.style.setProperty("--layers", run.layers.length);
  box.style.setProperty("--heads", run.heads.length);
  pane.thumbnails = buildGrid(box, layerNames(run), headNames(run), "thumbnail", (layer, head) => {
    chooseHead(pane.number, layer, head);
    if (innerWidth <= STACKED) pane.find(".map-side").scrollIntoView({ block: "start" }); // it is below, out of sight
  });
  pane.thumbnails.flat().forEach((cell) => cell.append(document.createElement("canvas"), element("span", "badge")));
}

function drawThumbnails(pane) {
  const { view, run } = pane;
  const info = scoreInfo();
  const kind = attentionKind(run);
  const shared = `${run.num_key_value_heads} key/value head${run.num_key_value_heads === 1 ? "" : "s"}`;
  pane.find(".kind").textContent = `${kind.toUpperCase()}, ${run.num_attention_heads} heads a layer, `
    + (kind === "mla" ? "one latent" : shared);
  drawGridNote(pane.find(".grid-note"), run, info);
  const maps = mapsOf(view);
  const wide = pane.thumbnails[0][0].clientWidth; // 0 while the grid is hidden
  pane.find(".heads").classList.toggle("roomy", wide >= 66);
  pane.thumbnails.forEach((row, layer) => row.forEach((cell, head) => {
    const group = run.grouped ? `, KV group ${run.group(run.heads[head])}` : "";
    const value = info ? run.score(state.score, run.shown[view.at], layer, head) : null;
    const hasBadge = maps && isMeasuredOn(info, state.probe);
    drawCell(cell, layer === view.layer && head === view.head,
      `${headName(run, layer, head)}${group}${hasBadge ? `: ${info.title} ${number(value)}` : ""}`);
    cell.style.setProperty("--group", state.groups && run.grouped ? groupColour(run, run.heads[head]) : "transparent");
    cell.querySelector(".badge").textContent = hasBadge ? brief(value, range(info)) : "";
    const canvas = cell.firstChild;
    if (!maps) canvas.width = canvas.height = 0;
    else if (wide) {
      const { length } = maps.text.labels;
      paintHead(canvas, new Head(run, maps, layer, head, state), Math.min(length, Math.round(wide * devicePixelRatio)));
    }
  }));
}

function drawGridNote(note, run, info) {
  note.replaceChildren();
  if (state.groups) {
    note.append(GROUP_WORDS[attentionKind(run)]);
    const groups = run.grouped ? [...new Map(run.heads.map((head) => [run.group(head), head]))] : [];
    groups.forEach(([group, head], i) => {
      const chip = element("span", "chip", `KV ${group}`);
      chip.style.borderColor = groupColour(run, head);
      note.append(i ? " " : ": ", chip);
    });
    note.append(". ");
  }
  if (!info) return;
  const words = isMeasuredOn(info, state.probe) ? "The number in a square is its score for" : "This text has no score for";
  note.append(`${words} ${info.title}; choose another score below.`);
}
