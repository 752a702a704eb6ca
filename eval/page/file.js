// viewer.html: the numbers are in the page. While its run trains, the file is written again, and loads itself again.

const AT_REST = 5000; // milliseconds since somebody moved the mouse or pressed a key
let touched = 0;

async function showFile(root, to) {
  root.append(element("p", "card", t("Unpacking the maps …")));
  if (!window.DecompressionStream) throw new Error(t("the browser is too old. Use Chrome 123, Firefox 120, Safari 17.5, or a newer one."));
  const lines = byId("data").textContent.trim().split("\n");
  const parts = Promise.all(lines.map(unpack));
  const [data, ...frames] = await parts.then(([first, ...rest]) => [JSON.parse(new TextDecoder().decode(first)), ...rest]).catch(() => {
    throw new Error(t("its data are damaged. Download the file again."));
  });
  const progress = new Progress();
  const box = element("div");
  root.replaceChildren(progress.root, box, progress.story);
  progress.root.hidden = progress.story.hidden = data.runs.length > 1;
  progress.draw(data.status);
  progress.drawRun(data.runs[0]);
  if (data.status?.stopped) progress.say(data.status.stopped, data.status.command);
  startHeads(box, to, data, (line) => frames[line - 1], to.signal);
  if (data.status?.state === "training") renew(data.status, progress, to.signal);
  if (history.state?.scroll) scrollTo(0, history.state.scroll);
}

// Seldom where nothing changes; not while somebody looks closely, and not within a notebook.
function renew({ written, patience, command }, progress, signal) {
  const age = Date.now() / 1000 - written;
  if (age > patience) {
    const minutes = Math.floor(age / 60);
    progress.say(t("Nothing has changed for {0} minutes. The run may have been killed: look at its terminal.", minutes), command);
  }
  setTimeout(() => {
    if (signal.aborted || location.protocol === "about:") return;
    const isBusy = state.playing !== null || state.pinned || byId("help").open;
    if (isBusy || Date.now() - touched < AT_REST) return renew({ written, patience, command }, progress, signal);
    keepState();
    history.replaceState({ scroll: scrollY }, "");
    location.reload();
  }, 1000 * clamp(age / 5, 3, 60));
}

["pointermove", "pointerdown", "keydown"].forEach((name) => addEventListener(name, () => { touched = Date.now(); }));
VIEWS.heads = { title: t("Heads"), show: showFile };
