// The list of runs: which are drawn, how far they are, and the way to their heads.

import { link } from "./address.js";
import { element } from "./dom.js";
import { brief } from "./figures.js";

const COLUMNS = [
  // heading, what it says of a run, whether it is left out where there is little room
  ["state", (run) => run.state, false],
  ["step", (run) => `${run.step ?? "–"}${run.total ? ` of ${run.total}` : ""}`, false],
  ["loss", (run) => brief(run.loss), false],
  ["validation", (run) => brief(run.val_loss), true],
  ["gap to the floor", (run) => brief(run.gap), true],
  ["tokens/s", (run) => brief(run.tokens_per_s), true],
];

// choose(name, isOn): a box was ticked.
export function drawTable(table, runs, shown, choose) {
  table.hidden = !runs.length;
  if (!table.tBodies.length) {
    const heads = ["run", ...COLUMNS.map(([title]) => title), ""];
    const late = (i) => (COLUMNS[i - 1]?.[2] ? "late" : "");
    table.append(
      element("caption", "unseen", "The runs of this folder. A ticked run is drawn below."),
      element("thead", "", "", {}, [element("tr", "", "", {}, heads.map((words, i) => element("th", late(i), words, { scope: "col" })))]),
      element("tbody"),
    );
  }
  const body = table.tBodies[0];
  const known = new Map([...body.rows].map((row) => [row.dataset.run, row]));
  const rows = runs.map((run) => known.get(run.name) ?? newRow(run.name, choose));
  if (rows.length !== body.rows.length || rows.some((row, i) => row !== body.rows[i])) body.replaceChildren(...rows);
  rows.forEach((row, i) => fill(row, runs[i], shown.indexOf(runs[i].name)));
}

function newRow(name, choose) {
  const row = element("tr");
  row.dataset.run = name;
  const box = element("input", "", "", { type: "checkbox" });
  box.addEventListener("change", () => choose(name, box.checked));
  const label = element("label", "run-name", "", {}, [box, element("span", "swatch", "", { "aria-hidden": "true" }), element("span", "", name)]);
  row.append(element("th", "", "", { scope: "row" }, [label]), ...COLUMNS.map(([, , isLate]) => element("td", isLate ? "late" : "")), element("td"));
  return row;
}

function fill(row, run, number) {
  row.className = number < 0 ? "" : `run-${number % 8}`;
  row.querySelector("input").checked = number >= 0;
  COLUMNS.forEach(([title, of], i) => {
    const cell = row.cells[i + 1];
    const words = of(run);
    if (cell.textContent !== words) cell.textContent = words;
    if (title === "state") cell.className = `state ${run.state}`;
  });
  const last = row.cells[row.cells.length - 1];
  if (run.looks[0] && !last.children.length) {
    last.append(element("a", "", "heads", { href: link("heads", run.name), "aria-label": `Heads of ${run.name}` }));
  }
}
