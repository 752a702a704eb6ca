// In what do the chosen runs differ? Their settings side by side, without those that are equal in all.

import { element } from "./dom.js";
import { saveCsv, saveMenu } from "./save.js";
import { ask, part } from "./server.js";

const configs = new Map(); // a run's settings do not change while a page is open, but for the steps it may train

const isTold = (key) => key !== "name" && !key.startsWith("rungs"); // the column's heading; what other runs were

export async function differences(root, names, signal) {
  const asked = names.join("\n");
  if (root.dataset.of === asked) return;
  root.dataset.of = asked;
  const found = await Promise.all(names.map(async (name) => {
    if (!configs.has(name)) configs.set(name, await ask(`/live/runs/${part(name)}/config`, { signal }).catch(() => ({})));
    return configs.get(name);
  }));
  if (root.dataset.of !== asked) return; // others were chosen meanwhile
  root.replaceChildren();
  if (names.length < 2) return;
  const keys = [...new Set(found.flatMap((one) => Object.keys(one)))].filter(isTold);
  const rows = keys.map((key) => [key, ...found.map((one) => one[key] ?? "")]).filter(([, ...values]) => new Set(values).size > 1);
  const title = element("div", "chart-head", "", {}, [element("h2", "", "In what their settings differ")]);
  root.append(title);
  if (!rows.length) {
    root.append(element("p", "soft", "In nothing but their names."));
    return;
  }
  title.append(saveMenu("Save the settings that differ", {
    CSV: () => saveCsv([["setting", ...names], ...rows], "settings.csv"),
  }));
  root.append(element("div", "scroll low", "", { tabindex: 0, role: "region", "aria-label": "Settings that differ" }, [tableOf(names, rows)]));
}

function tableOf(names, rows) {
  const head = element("tr", "", "", {}, ["setting", ...names].map((words) => element("th", "", words, { scope: "col" })));
  const body = rows.map(([key, ...values]) => element("tr", "", "", {}, [
    element("th", "", key, { scope: "row" }), ...values.map((value) => element("td", "", value || "–")),
  ]));
  return element("table", "difference-table", "", {}, [element("thead", "", "", {}, [head]), element("tbody", "", "", {}, body)]);
}
