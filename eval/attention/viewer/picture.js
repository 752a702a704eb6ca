// PNG of what is shown: for each view the heads and the large map, with a line that says what it is.

const PICTURE = { cell: 84, gap: 6, edge: 18, title: 44, map: 620 };

function savePicture() {
  const canvas = pictureOf(visiblePanes());
  canvas.toBlob((blob) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    const view = state.views[0];
    link.download = `${runOf(view).name} step ${stepOf(view).step}.png`.replace(/[^\p{L}\p{N}._ -]/gu, "_");
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  }, "image/png");
}

function pictureOf(views) {
  const sizes = views.map(pictureSize);
  const canvas = document.createElement("canvas");
  const ratio = 2;
  canvas.width = ratio * sizes.reduce((sum, size) => sum + size.wide, 0);
  canvas.height = ratio * Math.max(...sizes.map((size) => size.high));
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  context.fillStyle = colour("--page");
  context.fillRect(0, 0, canvas.width, canvas.height);
  views.forEach((pane, i) => {
    paintView(context, pane, sizes[i]);
    context.translate(sizes[i].wide, 0);
  });
  return canvas;
}

function pictureSize(pane) {
  const { run } = pane;
  const step = PICTURE.cell + PICTURE.gap;
  const grid = { wide: run.heads.length * step + 26, high: run.layers.length * step + 16 };
  const high = PICTURE.title + Math.max(grid.high, PICTURE.map + 60) + PICTURE.edge;
  return { wide: PICTURE.edge + Math.max(grid.wide + PICTURE.edge + PICTURE.map, 640) + PICTURE.edge, high, grid };
}

function paintView(context, pane, size) {
  const { run, view } = pane;
  const step = stepOf(view);
  context.textBaseline = "top";
  context.textAlign = "left";
  context.fillStyle = colour("--text");
  context.font = `bold 15px ${FONT}`;
  const text = about.probes.find((probe) => probe.name === state.probe).title;
  const title = `${run.name} · step ${step.step} · ${headName(run, view.layer, view.head)} · ${text}`;
  context.fillText(title, PICTURE.edge, PICTURE.edge - 4, size.wide - 2 * PICTURE.edge);
  const maps = mapsOf(view);
  if (!maps) return;
  paintHeads(context, run, view, maps);
  context.save();
  context.translate(PICTURE.edge + size.grid.wide + PICTURE.edge, PICTURE.title);
  const head = headOf(view);
  paintMap(context, head, layoutMap(context, head.text.labels, PICTURE.map));
  context.restore();
}

function paintHeads(context, run, view, maps) {
  const step = PICTURE.cell + PICTURE.gap;
  run.layers.forEach((_, layer) => run.heads.forEach((headNumber, place) => {
    const [x, y] = [PICTURE.edge + 26 + place * step, PICTURE.title + 16 + layer * step];
    const head = new Head(run, maps, layer, place, state);
    const side = Math.min(head.length, PICTURE.cell * 2);
    const small = new OffscreenCanvas(side, side);
    small.getContext("2d").putImageData(headPixels(head, side, state.scale, new ImageData(side, side)), 0, 0);
    context.imageSmoothingEnabled = side > PICTURE.cell;
    context.drawImage(small, x, y, PICTURE.cell, PICTURE.cell);
    context.lineWidth = 2;
    context.strokeStyle = state.groups && run.grouped ? groupColour(run, headNumber) : "transparent";
    if (layer === view.layer && place === view.head) context.strokeStyle = colour("--text");
    context.strokeRect(x - 1, y - 1, PICTURE.cell + 2, PICTURE.cell + 2);
  }));
  context.fillStyle = colour("--soft");
  context.font = `11px ${FONT}`;
  context.textAlign = "center";
  const middle = PICTURE.cell / 2;
  run.heads.forEach((n, i) => context.fillText(`H${n}`, PICTURE.edge + 26 + i * step + middle, PICTURE.title));
  run.layers.forEach((n, i) => context.fillText(`L${n}`, PICTURE.edge + 11, PICTURE.title + 10 + i * step + middle));
}
