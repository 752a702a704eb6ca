// All runs of the folder, alive or finished.

import { element } from "./dom.js";
import { link } from "./address.js";
import { followRuns } from "./server.js";

export async function show(root, address) {
  const list = element("ul", "runs");
  root.append(element("h1", "", "Runs"), list);
  followRuns((changed, all) => {
    list.replaceChildren(...[...all.values()].map((run) => element("li", "", "", {}, [
      element("a", "", run.name, { href: link("heads", run.name) }),
      element("span", "soft", ` ${run.state}, step ${run.step ?? "–"}, loss ${run.loss?.toFixed(3) ?? "–"}`),
    ])));
    document.documentElement.dataset.ready = "yes";
  }, address.signal);
}
