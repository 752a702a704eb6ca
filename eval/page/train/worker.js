// What the page asks of a model, in a thread of its own.
// After each step the model reports loss, scores and pictures; the page draws the newest.

let trainer;
let isRunning = false;

const commands = {
  start({ settings }) {
    trainer = new Trainer(settings);
    postMessage({ ...trainer.look(), loss: null, ids: trainer.probeRows[0] });
  },
  run() {
    if (!isRunning) setTimeout(work);
    isRunning = true;
  },
  pause() {
    isRunning = false;
    trainer.store(); // so that you can come back to this very step
    report();
  },
  step() {
    report(trainer.train());
  },
  goTo({ step }) {
    isRunning = false;
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
  if (!isRunning) return;
  report(trainer.train());
  setTimeout(work); // lets messages in
}

const report = (loss = null) => postMessage({ ...trainer.look(), loss });

// The same script also runs in the page, which needs its constants.
if (typeof WorkerGlobalScope !== "undefined") onmessage = ({ data }) => commands[data.act](data);
