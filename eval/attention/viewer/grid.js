// Every head of a view as a small picture: layers downwards, heads of a layer to the right.

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

function element(tag, className, text = "") {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  return made;
}

function buildGrid(pane, run) {
  const box = pane.find(".heads");
  box.replaceChildren(element("span", "corner"));
  box.style.gridTemplateColumns = `auto repeat(${run.heads.length}, minmax(0, 1fr))`;
  box.style.setProperty("--layers", run.layers.length);
  box.style.setProperty("--heads", run.heads.length);
  run.heads.forEach((head) => box.append(element("span", "column-name", `H${head}`)));
  pane.thumbnails = run.layers.map((layerNumber, layer) => {
    box.append(element("span", "row-name", `L${layerNumber}`));
    return run.heads.map((headNumber, head) => {
      const button = element("button", "thumbnail");
      button.type = "button";
      const canvas = document.createElement("canvas");
      const badge = element("span", "badge");
      button.append(canvas, badge);
      button.addEventListener("click", () => {
        chooseHead(pane.number, layer, head);
        if (innerWidth <= STACKED) pane.find(".map-side").scrollIntoView({ block: "start" }); // it is below, out of sight
      });
      box.append(button);
      return { button, canvas, badge, image: null };
    });
  });
}

function drawGrid(pane) {
  const { view, run } = pane;
  const info = scoreInfo();
  const kind = attentionKind(run);
  const shared = `${run.num_key_value_heads} key/value head${run.num_key_value_heads === 1 ? "" : "s"}`;
  pane.find(".kind").textContent = `${kind.toUpperCase()}, ${run.num_attention_heads} heads a layer, `
    + (kind === "mla" ? "one latent" : shared);
  drawGridNote(pane.find(".grid-note"), run, info);
  const maps = mapsOf(view);
  const wide = pane.thumbnails[0][0].canvas.clientWidth; // 0 while the grid is hidden
  const place = run.shown[view.at];
  pane.find(".heads").classList.toggle("roomy", wide >= 62);
  pane.thumbnails.forEach((row, layer) => row.forEach((thumbnail, head) => {
    const { button, badge } = thumbnail;
    const chosen = layer === view.layer && head === view.head;
    const group = run.grouped ? `, KV group ${run.group(run.heads[head])}` : "";
    const value = info ? run.score(state.score, place, layer, head) : null;
    const isBadged = maps && isMeasuredOn(info, state.probe);
    button.setAttribute("aria-pressed", chosen);
    button.tabIndex = chosen ? 0 : -1;
    const name = headName(run, layer, head);
    button.title = `${name}${group}${isBadged ? `: ${info.title} ${number(value)}` : ""}`;
    button.setAttribute("aria-label", button.title);
    button.style.setProperty("--group", state.groups && run.grouped ? groupColour(run, run.heads[head]) : "transparent");
    badge.textContent = isBadged ? brief(value, range(info)) : "";
    if (wide) drawThumbnail(thumbnail, maps && new Head(run, maps, layer, head, state), wide);
  }));
}

function drawGridNote(note, run, info) {
  note.replaceChildren();
  if (state.groups) note.append(`${GROUP_WORDS[attentionKind(run)]}`);
  if (state.groups && run.grouped) {
    const groups = [...new Map(run.heads.map((head) => [run.group(head), head]))];
    groups.forEach(([group, head], i) => {
      const chip = element("span", "chip", `KV ${group}`);
      chip.style.borderColor = groupColour(run, head);
      note.append(i ? " " : ": ", chip);
    });
  }
  if (state.groups) note.append(". ");
  if (!info) return;
  const words = isMeasuredOn(info, state.probe) ? "The number in a square is its score for" : "This text has no score for";
  note.append(`${words} ${info.title}; choose another score below.`);
}

function drawThumbnail(thumbnail, head, wide) {
  const { canvas } = thumbnail;
  const context = canvas.getContext("2d");
  if (!head) {
    context.clearRect(0, 0, canvas.width, canvas.height);
    return;
  }
  const size = Math.min(head.length, Math.round(wide * devicePixelRatio));
  if (!thumbnail.image || canvas.width !== size) {
    canvas.width = canvas.height = size;
    thumbnail.image = new ImageData(size, size);
  }
  context.putImageData(headPixels(head, size, state.scale, thumbnail.image), 0, 0);
}

// a number for people: three digits that matter, an undefined one a dash
function number(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 100) return value.toFixed(0);
  if (size >= 10) return value.toFixed(1);
  if (size >= 0.1 || size === 0) return value.toFixed(2);
  return size >= 0.001 ? value.toFixed(3) : value.toExponential(0);
}

// where there is little room: as many digits as the range of its kind needs
function brief(value, [low, high]) {
  if (value === null) return "–";
  const largest = Math.max(Math.abs(low), Math.abs(high));
  return value.toFixed(largest >= 10 ? 0 : largest >= 0.3 ? 2 : 3);
}
