// The address of a view: #/VIEW/RUN?name=value. The run and every value are percent-encoded: any name may be there.

const VIEWS = {}; // name -> {title, show(root, address)}; each view enters itself here

function parse(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  const [view = "", run = ""] = path.split("/");
  return { view, run: decoded(run), query: new URLSearchParams(query) };
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // a lonely % that somebody typed
  }
}

function link(view, run = "", values = {}) {
  const query = new URLSearchParams(Object.entries(values).filter(([, value]) => value !== "" && value !== null));
  const words = query.toString();
  return `#/${view}${run ? `/${encodeURIComponent(run)}` : ""}${words ? `?${words}` : ""}`;
}

// What a view is given. signal: aborted when the view is left; the view then ends whatever it began.
class Address {
  constructor(view, { run, query }, signal) {
    Object.assign(this, { view, run, query, signal });
  }

  get(name, otherwise = "") {
    return this.query.get(name) ?? otherwise;
  }

  // Keep these values in the address; one that is "" or null leaves it. The view is not opened again.
  set(values) {
    Object.entries(values).forEach(([name, value]) => {
      if (value === "" || value === null) this.query.delete(name);
      else this.query.set(name, value);
    });
    const to = link(this.view, this.run, Object.fromEntries(this.query));
    if (this.signal.aborted || to === location.hash || location.protocol === "about:") return; // within a notebook
    history.replaceState(null, "", to);
  }

  // Another run in the same view: a new entry in the browser's history.
  open(run, values = {}) {
    location.hash = link(this.view, run, values);
  }
}
