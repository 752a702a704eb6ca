// One score over training: every head thin, the chosen one thick, chance dashed, the step that is shown a line.

const CURVE = { high: 190, left: 44, right: 12, top: 10, bottom: 32 };

function drawCurve(pane) {
  const info = scoreInfo();
  const canvas = pane.find(".curve");
  const wide = Math.max(220, Math.min(640, canvas.parentElement.clientWidth));
  if (!info) return;
  const context = sizedContext(canvas, wide, CURVE.high);
  const { run, view } = pane;
  const axes = curveAxes(run, range(info), wide);
  pane.curve = axes;
  drawAxes(context, axes, run);
  context.lineWidth = 1;
  context.strokeStyle = colour("--faint");
  run.layers.forEach((_, layer) => run.heads.forEach((__, head) => drawLine(context, axes, run, info, layer, head)));
  context.lineWidth = 2.5;
  context.strokeStyle = colour("--accent");
  drawLine(context, axes, run, info, view.layer, view.head, true);
  drawChance(context, axes, run.chance[info.name]);
  if (info.name === "induction" && run.formed) drawMoment(context, axes, run.formed.step, "forms");
  const now = stepOf(view);
  context.strokeStyle = context.fillStyle = colour("--text");
  context.lineWidth = 1;
  context.strokeRect(axes.x(now.step), CURVE.top, 0, axes.bottom - CURVE.top);
  const value = run.score(info.name, run.shown[view.at], view.layer, view.head);
  const name = headName(run, view.layer, view.head);
  const words = `${name} at step ${now.step}: ${value === null ? "undefined" : withUnit(value, info)}`;
  pane.find(".curve-note").textContent = `Thick: ${words}. Thin: the other heads. Click to go to a step.`;
  canvas.setAttribute("aria-label", `${info.title} over training. ${words}`);
}

function curveAxes(run, [low, high], wide) {
  const first = run.steps[0].step;
  const last = Math.max(first + 1, run.steps.at(-1).step);
  const right = wide - CURVE.right;
  const bottom = CURVE.high - CURVE.bottom;
  return {
    low, high, first, last, right, bottom,
    x: (step) => CURVE.left + ((right - CURVE.left) * (step - first)) / (last - first),
    y: (value) => bottom - ((bottom - CURVE.top) * (value - low)) / (high - low),
    step: (x) => first + ((x - CURVE.left) * (last - first)) / (right - CURVE.left),
  };
}

function drawAxes(context, axes, run) {
  context.strokeStyle = colour("--line-strong");
  context.fillStyle = colour("--soft");
  context.font = `11px ${FONT}`;
  context.beginPath();
  context.moveTo(CURVE.left, CURVE.top);
  context.lineTo(CURVE.left, axes.bottom);
  context.lineTo(axes.right, axes.bottom);
  context.stroke();
  context.textAlign = "right";
  context.textBaseline = "middle";
  [axes.low, (axes.low + axes.high) / 2, axes.high].forEach((value) => {
    context.fillText(number(value), CURVE.left - 5, axes.y(value));
  });
  context.textBaseline = "top";
  const middle = Math.round((axes.first + axes.last) / 2);
  const places = [[axes.first, "left"], [middle, "center"], [axes.last, "right"]];
  places.slice(0, run.steps.length > 1 ? 3 : 1).forEach(([step, align]) => {
    context.textAlign = align;
    context.fillText(step, axes.x(step), axes.bottom + 4);
  });
  const tokens = run.steps.at(-1).tokens;
  context.textAlign = "center";
  const title = `training step${tokens ? ` (to ${quantity(tokens)} tokens)` : ""}`;
  context.fillText(title, (CURVE.left + axes.right) / 2, axes.bottom + 17);
}

function drawLine(context, axes, run, info, layer, head, dots = false) {
  let drawing = false;
  context.beginPath();
  run.steps.forEach((step, place) => {
    const value = run.score(info.name, place, layer, head);
    if (value === null) {
      drawing = false; // a gap where it is undefined
      return;
    }
    const [x, y] = [axes.x(step.step), axes.y(value)];
    if (drawing) context.lineTo(x, y);
    else context.moveTo(x, y);
    if (dots) context.rect(x - 1, y - 1, 2, 2), context.moveTo(x, y);
    drawing = true;
  });
  context.stroke();
}

function drawChance(context, axes, chance, name = "chance") {
  if (chance === null) return;
  context.save();
  context.setLineDash([5, 4]);
  context.lineWidth = 1.2;
  context.strokeStyle = colour("--seen");
  context.beginPath();
  context.moveTo(CURVE.left, axes.y(chance));
  context.lineTo(axes.right, axes.y(chance));
  context.stroke();
  context.fillStyle = colour("--seen");
  context.font = `10px ${FONT}`;
  context.textAlign = "right";
  context.textBaseline = axes.y(chance) < CURVE.top + 14 ? "top" : "bottom";
  context.fillText(name, axes.right, axes.y(chance) + (context.textBaseline === "top" ? 2 : -1));
  context.restore();
}

function drawMoment(context, axes, step, words) {
  context.save();
  context.setLineDash([2, 3]);
  context.strokeStyle = context.fillStyle = colour("--seen");
  context.strokeRect(axes.x(step), CURVE.top, 0, axes.bottom - CURVE.top);
  context.font = `10px ${FONT}`;
  context.textBaseline = "top";
  const isRight = axes.x(step) > axes.right - 40;
  context.textAlign = isRight ? "right" : "left";
  context.fillText(words, axes.x(step) + (isRight ? -4 : 4), CURVE.top);
  context.restore();
}

function listenCurve(pane) {
  const canvas = pane.find(".curve");
  canvas.addEventListener("click", (event) => {
    const x = event.clientX - canvas.getBoundingClientRect().left;
    chooseStep(pane.number, pane.run.nearest(pane.curve.step(x)));
  });
}

// 5324800 -> "5.3 M"
function quantity(value) {
  const [size, unit] = [[1e9, " G"], [1e6, " M"], [1e3, " k"]].find(([bound]) => value >= bound) ?? [1, ""];
  return `${(value / size).toFixed(size > 1 && value / size < 100 ? 1 : 0)}${unit}`;
}
