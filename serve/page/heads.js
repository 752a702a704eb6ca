// The viewer of attention heads (eval/attention/viewer) on a run of the folder, while it trains and afterwards.

import { announce, byId, choice, element } from "./dom.js";
import { ask, followRuns, part } from "./server.js";
import * as viewer from "./viewer.js";

const FIELDS = ["probe", "score", "scale", "compare"]; // of the viewer's state, as they stand in the address

export async function show(root, address) {
  const heads = new Heads(root, address);
  followRuns((changed, all) => heads.hear(changed, all), address.signal);
}

class Heads {
  constructor(root, address) {
    Object.assign(this, { root, address, run: null, looks: "", frames: new Map(), queue: Promise.resolve() });
    this.waiting = element("p", "card", "Looking for runs …");
    root.append(this.waiting);
    address.signal.addEventListener("abort", () => viewer.stopPlaying());
  }

  hear(changed, all) {
    if (!this.address.run) {
      const first = [...all.values()].sort(byNewest).find((run) => run.looks[0]);
      if (first) this.address.open(first.name);
      else this.waiting.textContent = "No run of this folder has looked at its heads yet.";
      return;
    }
    const now = all.get(this.address.run);
    if (!now) {
      this.waiting.hidden = false;
      this.waiting.textContent = `There is no run “${this.address.run}” in this folder.`;
      return;
    }
    this.drawChoice(all);
    if (String(now.looks) === this.looks) return;
    this.looks = String(now.looks);
    this.queue = this.queue.then(() => this.read(now)).catch((error) => this.fail(error));
  }

  async read(now) {
    if (!now.looks[0]) {
      this.waiting.textContent = `The run “${now.name}” has not looked at its heads yet. This page waits for its first look.`;
      return;
    }
    const { signal } = this.address;
    const about = await ask(`/live/runs/${part(now.name)}/attention`, { signal });
    if (!this.run || !this.fits(about.runs[0])) await this.begin(about);
    else this.grow(about);
  }

  fits({ layers, heads }) {
    return String([layers, heads]) === String([this.run.layers, this.run.heads]);
  }

  async begin(about) {
    this.run = new viewer.Run(about.runs[0], (name) => this.frame(name));
    const text = await ask("/page/viewer.html", { signal: this.address.signal, as: "text" });
    const parsed = new DOMParser().parseFromString(text, "text/html");
    parsed.getElementById("theme").remove(); // light and dark are the page's
    parsed.getElementById("failure").remove();
    this.root.replaceChildren(...document.importNode(parsed.body, true).childNodes);
    byId("title").textContent = this.run.name;
    viewer.setData(about, [this.run]);
    viewer.start(this.address.signal);
    this.waiting.hidden = true;
  }

  // A new look: who stands at the last one goes along.
  grow(about) {
    const places = viewer.state.views.map((view) => {
      const isLast = view.at === this.run.shown.length - 1;
      return { isLast, step: this.run.steps[this.run.shown[view.at]].step };
    });
    this.run.update(about.runs[0]);
    viewer.setData(about, [this.run]);
    const views = viewer.state.views.map((view, i) => {
      return { ...view, at: places[i].isLast ? this.run.shown.length - 1 : this.run.nearest(places[i].step) };
    });
    viewer.change({ views });
    announce(`A new look at the heads, step ${this.run.steps.at(-1).step}.`);
  }

  // The codes of one look on one text; nothing while they are on their way.
  frame(name) {
    if (this.frames.has(name)) return this.frames.get(name);
    this.frames.set(name, null);
    ask(`/live/runs/${part(this.run.name)}/attention/${name.split("/").map(encodeURIComponent).join("/")}`, {
      signal: this.address.signal, as: "bytes",
    }).then((bytes) => {
      this.frames.set(name, new Uint8Array(bytes));
      if (!this.address.signal.aborted) viewer.change({});
    }).catch(() => this.frames.delete(name));
    return null;
  }

  drawChoice() {}

  fail(error) {
    if (this.address.signal.aborted) return;
    this.waiting.hidden = false;
    this.waiting.textContent = `The heads of this run cannot be shown: ${error.message}`;
    this.looks = "";
  }
}

export const byNewest = (a, b) => (b.state === "training") - (a.state === "training") || b.written - a.written;
