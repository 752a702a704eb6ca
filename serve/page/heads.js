// The viewer of attention heads (eval/attention/viewer) on a run of the folder, while it trains and afterwards.

import { announce, byId, choice, element } from "./dom.js";
import { byNewest } from "./figures.js";
import { headMenu } from "./head_saves.js";
import { lookAt, ownTextForm } from "./own_text.js";
import { copyLink } from "./save.js";
import { ask, followRuns, part } from "./server.js";
import { keepState, restoreState } from "./heads_state.js";
import * as viewer from "./viewer.js";

export async function show(root, address) {
  const heads = new Heads(root, address);
  followRuns((changed, all) => heads.hear(all), address.signal);
}

class Heads {
  constructor(root, address) {
    Object.assign(this, { root, address, run: null, looks: "", frames: new Map(), queue: Promise.resolve(), moments: 0 });
    this.waiting = element("p", "card", "Looking for runs …");
    this.status = element("p", "live-line");
    this.said = element("details", "moments", "", {}, [element("summary"), element("ol")]);
    this.live = element("div", "live", "", { hidden: true }, [this.status, this.said]);
    this.own = address.get("own"); // a text of one's own, in place of those of the run
    this.viewing = new AbortController(); // the viewer that is shown now
    this.body = element("div");
    root.append(this.waiting, this.live, this.body);
    address.signal.addEventListener("abort", () => {
      this.viewing.abort();
      viewer.stopPlaying();
    });
  }

  // ------------------------------------------------------------------ news

  hear(all) {
    this.all = all;
    const runs = [...all.values()].sort(byNewest);
    const now = all.get(this.address.run);
    if (!this.address.run) {
      const first = runs.find((run) => run.looks[0]) ?? runs.find((run) => run.state === "training");
      if (first) this.address.open(first.name);
      else this.wait("No run of this folder has looked at its heads yet.");
    } else if (!now) {
      this.wait(`There is no run “${this.address.run}” in this folder.`);
    } else if (!now.looks[0] && !this.own) {
      this.drawStatus(now, runs);
      this.wait(`The run “${now.name}” has not looked at its heads yet. Its first look appears here by itself.`);
    } else {
      this.drawStatus(now, runs);
      const wanted = this.own || String(now.looks);
      if (wanted === this.looks) return;
      this.looks = wanted;
      this.queue = this.queue.then(() => this.read(now)).catch((error) => this.fail(error));
    }
  }

  wait(words) {
    this.waiting.hidden = false;
    this.waiting.textContent = words;
    document.documentElement.dataset.ready = "yes";
  }

  fail(error) {
    if (this.address.signal.aborted) return;
    this.wait(`The heads of this run cannot be shown: ${error.message}`);
    this.looks = this.own; // without one, the next news try again
  }

  async read(now) {
    if (this.own) {
      if (this.isOwn !== this.own) await this.look(this.own);
      return;
    }
    const about = await ask(`/live/runs/${part(now.name)}/attention`, { signal: this.address.signal });
    if (!this.run || !this.fits(about.runs[0])) {
      const run = new viewer.Run(about.runs[0], (name) => this.frame(name));
      await this.begin(about, run);
    } else this.grow(about);
    this.drawMoments(about.moments);
  }

  // A text of one's own, at every checkpoint.
  async look(text) {
    const { about, frames } = await lookAt(this.address.run, text, this.address.signal);
    Object.assign(this, { own: text, isOwn: text, looks: text });
    this.address.set({ own: text, text: "", score: "" });
    await this.begin(about, new viewer.Run(about.runs[0], (name) => frames.get(name)));
    this.drawMoments([]);
  }

  back() {
    Object.assign(this, { own: "", isOwn: "", looks: "", run: null });
    this.viewing.abort();
    this.body.replaceChildren();
    this.address.set({ own: "", text: "", score: "" });
    this.hear(this.all);
  }

  // ------------------------------------------------------------------ the viewer

  fits({ layers, heads }) {
    return String([layers, heads]) === String([this.run.layers, this.run.heads]);
  }

  async begin(about, run) {
    const text = await ask("/page/viewer.html", { signal: this.address.signal, as: "text" });
    this.viewing.abort();
    this.viewing = new AbortController();
    this.run = run;
    const parsed = new DOMParser().parseFromString(text, "text/html");
    ["theme", "png", "failure"].forEach((id) => parsed.getElementById(id).remove()); // the page has its own
    this.body.replaceChildren(...document.importNode(parsed.body, true).childNodes);
    byId("title").textContent = this.run.name;
    this.body.querySelector(".buttons").prepend(headMenu(), copyLink());
    viewer.setData(about, [this.run]);
    viewer.start(this.viewing.signal);
    restoreState(this.address);
    keepState(this.address, this.viewing.signal);
    this.waiting.hidden = true;
  }

  // A new look: whoever stands at the last one goes along.
  grow(about) {
    const before = viewer.state.views.map(({ at }) => ({ isLast: at === this.run.shown.length - 1, step: this.stepAt(at) }));
    const wasFormed = this.run.formed;
    this.run.update(about.runs[0]);
    viewer.setData(about, [this.run]);
    const last = this.run.shown.length - 1;
    viewer.change({
      views: viewer.state.views.map((view, i) => ({ ...view, at: before[i].isLast ? last : this.run.nearest(before[i].step) })),
    });
    const { formed } = this.run;
    const words = formed && !wasFormed ? ` Layer ${formed.layer}, head ${formed.head} became an induction head.` : "";
    announce(`A new look at the heads, step ${this.stepAt(last)}.${words}`);
  }

  stepAt(at) {
    return this.run.steps[this.run.shown[at]].step;
  }

  // The codes of one look on one text; nothing while they are on their way.
  frame(name) {
    if (this.frames.has(name)) return this.frames.get(name);
    this.frames.set(name, null);
    const { signal } = this.address;
    ask(`/live/runs/${part(this.run.name)}/attention/${part(...name.split("/"))}`, { signal, as: "bytes" })
      .then((bytes) => {
        this.frames.set(name, new Uint8Array(bytes));
        if (!signal.aborted) viewer.change({});
      })
      .catch(() => this.frames.delete(name));
    return null;
  }

  // ------------------------------------------------------------------ beside the viewer

  drawStatus(now, runs) {
    this.live.hidden = false;
    const names = runs.filter((run) => run.looks[0] || run === now).map((run) => run.name);
    if (String(this.names) !== String(names)) {
      this.names = names;
      this.pick?.remove();
      const options = names.map((name) => [name, name]);
      this.pick = choice("Run", options, now.name, (name) => this.address.open(name));
      this.pick.className = "pick";
      this.live.prepend(this.pick);
    }
    if (now.has_model && !this.form) {
      this.form = ownTextForm(this.own, (text) => this.look(text), () => this.back());
      this.live.append(this.form);
    }
    const ended = now.total && now.step >= now.total; // evaluated and drawn last; that can take minutes
    const training = ended ? "Trained: evaluating once more, then drawing." : "Training: new looks arrive by themselves.";
    const words = { training, finished: "Finished.", stopped: "Stopped before its end." };
    const step = `Step ${now.step ?? 0}${now.total ? ` of ${now.total}` : ""}, ${now.looks[0]} looks.`;
    this.status.textContent = `${words[now.state]} ${step}`;
    this.status.className = `live-line state ${now.state}`;
  }

  drawMoments(moments) {
    this.said.hidden = !moments.length;
    this.said.querySelector("summary").textContent = `What changed (${moments.length})`;
    this.said.querySelector("ol").replaceChildren(...[...moments].reverse().map(({ step, what }) => {
      const go = element("button", "link", `step ${step}`, { type: "button" });
      go.addEventListener("click", () => {
        viewer.stopPlaying();
        viewer.chooseStep(viewer.state.active, this.run.nearest(step));
      });
      return element("li", "", "", {}, [go, ` ${what}`]);
    }));
  }
}
