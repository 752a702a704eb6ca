// What the server knows: questions with one answer, and news of the runs.

let tell = () => {};

// Who hears of problems that no view expects: {status, message}.
export function onProblem(listener) {
  tell = listener;
}

// Raises what the server says; nothing is raised for a request that was given up.
export async function ask(path, { signal, as = "json", ...more } = {}) {
  const answer = await fetch(path, { signal, ...more });
  if (answer.ok) return as === "json" ? answer.json() : as === "text" ? answer.text() : as === "stream" ? answer.body : answer.arrayBuffer();
  const said = await answer.json().catch(() => ({}));
  const error = new Error(said.error?.message ?? `the server answered ${answer.status}`);
  Object.assign(error, { status: answer.status, code: said.error?.code });
  if (answer.status === 401) tell(error);
  throw error;
}

export const part = (...names) => names.map(encodeURIComponent).join("/");

const AGAIN = 3000; // milliseconds until a connection is tried again that the browser has given up

// The runs of the folder, by name, as they change. listen(changed, all) is called at once with what is known, then at
// every change, until the signal is aborted.
export function followRuns(listen, signal) {
  const all = new Map();
  const connection = document.getElementById("connection");
  let source = null;
  const connect = () => {
    if (signal.aborted) return;
    source = new EventSource("/live/events");
    source.onmessage = ({ data }) => {
      connection.hidden = true;
      const { runs, gone } = JSON.parse(data);
      gone.forEach((name) => all.delete(name));
      runs.forEach((run) => all.set(run.name, run));
      listen(runs, all);
    };
    source.onerror = async () => {
      const isOver = source.readyState === EventSource.CLOSED; // the browser does not try again by itself
      const status = await ask("/live/runs", { signal }).then(() => 200, (error) => error.status);
      if (signal.aborted || status === 401) return; // the page asks for the key, and is loaded again
      connection.textContent = "No connection to the server. Is `python -m serve` still running? This page tries again.";
      connection.hidden = status === 200;
      if (isOver) setTimeout(connect, AGAIN);
    };
  };
  connect();
  signal.addEventListener("abort", () => source.close());
}
