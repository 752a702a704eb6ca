// The wall of a class: guess, then watch the births. It asks the server every two seconds.

const EVERY = 2000; // milliseconds
const HIGH = 190; // of the highest column of dots, in pixels
const EDGE = 6; // room for the last number
const random = (digits) => crypto.getRandomValues(new Uint32Array(1))[0].toString(16).padStart(8, "0").slice(-digits);
const median = (values) => [...values].sort((a, b) => a - b)[(values.length - 1) >> 1];

// Both stay in this browser: the id lets a guess be changed, and the seed is that of the command.
const kept = (key, value) => {
  const old = storage?.getItem(key) ?? value;
  storage?.setItem(key, old);
  return old;
};
const id = kept("headlight-wall-id", random(8));
const seed = kept("headlight-wall-seed", String(1000 + (parseInt(random(4), 16) % 9000)));
let wall = null; // the newest answer

async function ask(path, method = "GET", body = undefined) {
  const headers = { "Content-Type": "application/json" };
  const answer = await fetch(path, { method, headers, body: body && JSON.stringify(body) }).catch(() => {
    throw new Error(t("The wall does not answer. Does it still run, and are you in its network?"));
  });
  const data = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(data.error?.message ?? String(answer.status));
  return data;
}

const act = (...request) => ask(...request).then(refresh, (error) => say(error.message));

async function refresh() {
  try {
    const now = await ask(`/wall?id=${id}`);
    say("");
    const isNew = JSON.stringify(now) !== JSON.stringify(wall);
    wall = now;
    if (isNew) draw();
  } catch (error) {
    say(error.message);
  }
  isReady(true);
}

function draw() {
  if (!wall) return;
  // the teacher's own address leads nowhere from elsewhere
  const address = wall.is_teacher ? wall.address : location.host;
  byId("address").textContent = `http://${address}/`;
  byId("invitation").hidden = !wall.is_teacher;
  byId("before").hidden = wall.is_open;
  byId("wall").hidden = !wall.is_open;
  byId("open").hidden = !wall.is_teacher;
  byId("hint").hidden = wall.is_teacher;
  byId("question").textContent = t("My guess, from 0 to {0}:", wall.steps);
  byId("yours").textContent = wall.yours === null ? "" : t("Your guess is {0}. You can still change it.", wall.yours);
  byId("counts").textContent = t("Guesses: {0}. Runs that have reported: {1}.", wall.guesses.length, wall.reports);
  const name = byId("name").value.trim().replace(/[\s'"\\@/?#]+/g, "_");
  const to = name ? `${name}@${address}` : address;
  byId("command").textContent =
    `python -m train.pretrain configs/small.yaml name=seed_${seed} seed=${seed} tracking.wall=${to}`;
  if (wall.is_open) drawWall(wall);
}

function drawWall({ births, guesses, yours, steps, is_teacher: isTeacher }) {
  const born = births.filter(({ step }) => step !== null);
  const parts = [
    guesses.length ? t("Median of {0} guesses: step {1}.", guesses.length, median(guesses)) : "",
    born.length ? t("Median of {0} births: step {1}.", born.length, median(born.map(({ step }) => step))) : "",
    born.length < births.length ? t("Runs without a birth: {0}.", births.length - born.length) : "",
  ];
  if (!births.length) parts.push(t("No birth yet. Keep training."));
  byId("medians").textContent = parts.join(isChinese ? "" : " ");
  drawChart(born, guesses, yours, Math.max(steps, ...born.map(({ step }) => step)));
  const rows = [...births].reverse().map((birth) => {
    const remove = isTeacher && button("×", () => act(`/births/${birth.id}`, "DELETE"), { title: t("Remove this birth") });
    const head = birth.step === null ? t("no head formed") : t("layer {0}, head {1}", birth.layer, birth.head);
    const [step, gain] = [birth.step ?? "–", birth.copy_gain === null ? "–" : nats(birth.copy_gain)];
    return element("tr", "", "", {}, [
      element("td", "", birth.name || t("anonymous")), element("td", "", head), element("td", "number", String(step)),
      element("td", "number", gain), element("td", "", birth.config), element("td", "number", String(birth.seed)),
      element("td", "", "", {}, remove ? [remove] : []),
    ]);
  });
  byId("births").replaceChildren(...rows);
  announce(parts[1]);
}

// Two histograms of dots, one person a dot: guesses above the axis, births below.
function drawChart(births, guesses, yours, last) {
  const svg = byId("chart");
  const wide = Math.max(280, svg.parentElement.clientWidth);
  // heads are measured every 100 steps, so narrower columns would have gaps
  const width = 100 * Math.ceil(last / 1500);
  const stacks = [guesses, births.map(({ step }) => step)].map((steps) => {
    const columns = Array.from({ length: Math.round(last / width) + 1 }, () => []);
    steps.forEach((step, i) => columns[Math.round(step / width)].push(i));
    return columns;
  });
  const across = (wide - 2 * EDGE) / stacks[0].length;
  const at = (x) => EDGE + (x + 0.5) * across;
  const highest = stacks.map((columns) => Math.max(1, ...columns.map((column) => column.length)));
  const size = Math.min(across * 0.9, HIGH / Math.max(...highest), 38);
  const axis = 20 + highest[0] * size;
  const high = axis + highest[1] * size + 44;
  const dots = (columns, kind, from) => columns.flatMap((column, x) => column.map((i, y) =>
    drawn("circle", { class: kind(i), cx: at(x), cy: from(size * (y + 0.5)), r: size * 0.42 })));
  const isYours = guesses.indexOf(yours);
  const every = Math.ceil(44 / across);
  const numbers = stacks[0].map((_, x) => (x % every ? "" : write(String(x * width), at(x), axis + 16, "middle")));
  filled(svg, { viewBox: `0 0 ${wide} ${high}`, width: wide, height: high, "aria-label": byId("medians").textContent }, "", [])
    .replaceChildren(
      drawn("path", { class: "now", d: `M0 ${axis}H${wide}` }),
      ...numbers,
      ...dots(stacks[0], (i) => (i === isYours ? "guess yours" : "guess"), (up) => axis - up),
      ...dots(stacks[1], () => "birth", (down) => axis + 22 + down),
      write(t("guesses"), wide - 2, 14, "end", { class: "side" }),
      write(t("births, by training step"), wide - 2, high - 6, "end", { class: "side" }),
    );
}

function showWall(root) {
  byId("heading").textContent = t("When is a head born?");
  root.append(byId("wall-view").content.cloneNode(true));
  byId("guess").addEventListener("submit", (event) => {
    event.preventDefault();
    act("/guesses", "POST", { id, step: Number(byId("step").value) });
  });
  byId("open").addEventListener("click", () => act("/open", "POST"));
  byId("name").addEventListener("input", draw);
  addEventListener("resize", draw);
  setInterval(refresh, EVERY);
  return refresh();
}

VIEWS.wall = { show: showWall };
