// What the page asks of a model, in a thread of its own.
// After each step the model reports loss, scores and pictures; the page draws the newest.

let trainer;
let timer;

const commands = {
  start({ settings }) {
    trainer = new Trainer(settings);
    report();
  },
  run({ yes }) {
    clearTimeout(timer); // one loop only
    if (yes) timer = setTimeout(work);
    else trainer.store(); // so that you can come back to this very step
  },
  step() {
    report(trainer.train());
  },
  goTo({ step }) {
    trainer.goTo(step);
    report();
  },
  // off: a 1 for each head that is off; scaled, masked
  change({ switches }) {
    Object.assign(trainer.switches, switches);
    report();
  },
};

function work() {
  report(trainer.train());
  timer = setTimeout(work); // lets messages in
}

function report(loss = null) {
  const { settings, probeRows, switches } = trainer;
  postMessage({ ...trainer.look(), loss, run: settings.run, ids: probeRows[0], switches });
}

// The same script also runs in the page, which needs its constants.
if (typeof WorkerGlobalScope !== "undefined") onmessage = ({ data }) => commands[data.act](data);
