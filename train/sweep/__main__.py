"""Train one run for each value of a key, on the same data and budget, and compare them:

    python -m train.sweep configs/demo.yaml model.num_key_value_heads=1,2,6 [section.key=value ...] [--seeds 3]

`key=a,b,c` is swept, `key=value` holds for all runs. The baseline is the config itself. A config may bring its variants
along, under `rungs`: `python -m train.sweep configs/ladder.yaml --seeds 3`. Runs are named <name>-<value or
rung>-seed<seed>. A finished run is not trained again, so the same command continues after a stop.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from configs.bounds import MOST_RUNS, whole
from configs.command import InputError, exit_on_bad_input
from configs.streams import survive_lost_output
from train.config import add_trust_option
from train.sweep.processes import Adopted, Process

if TYPE_CHECKING:
    from train.sweep.plan import PlannedRun

POLL_S = 0.1
BAD_INPUT = 2
REASONS = {BAD_INPUT: "bad input", 3: "its loss became non-finite"}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m train.sweep", description=__doc__.split("\n")[0])
    parser.add_argument("config", help="the baseline, a YAML file, for example configs/demo.yaml")
    parser.add_argument("overrides", nargs="*", metavar="key=a,b,c", help="swept; key=value holds for all runs")
    parser.add_argument(
        "--seeds",
        type=whole("--seeds", 1, MOST_RUNS),
        default=1,
        help="runs of every variant: the config's seed, seed + 1, …",
    )
    parser.add_argument(
        "--jobs", type=whole("--jobs", 1, MOST_RUNS), default=1, help="runs at a time; they share the machine's threads"
    )
    parser.add_argument("--out", type=Path, help="folder of comparison.md; default: <output_dir>/<name>-sweep-<keys>")
    parser.add_argument("--skip-decode", action="store_true", help="do not measure decoding in the comparison")
    add_trust_option(parser)
    given = parser.parse_intermixed_args()
    from train.saving.run_lock import owned
    from train.sweep.plan import plan  # heavy: --help answers at once

    runs = plan(given.config, given.overrides, given.seeds, trust_hooks=given.trust_hooks)
    out = given.out or default_folder(runs)
    with owned(out, named="--out" if given.out else "output_dir") as owner:
        if owner.problem:
            raise InputError(owner.problem)
        sweep = Sweep(given.config, runs, given.jobs, {run.config.name for run in runs if is_finished(run)})
        survive_lost_output()
        sweep.announce()
        if stopped := sweep.train():
            print("sweep: stopped; the same command continues from here", file=sys.stderr)
            return 128 + stopped
        return sweep.compare(out, decode=not given.skip_decode)


def is_finished(run: PlannedRun) -> bool:
    """Whether it has been trained to its end. Raises InputError if the directory belongs to another run."""
    from train.saving.run_directory import find_start
    from train.saving.run_lock import holder
    from train.sft import as_fine_tuning

    if holder(run.config.directory):  # its files may change while they are read
        return False
    return find_start(as_fine_tuning(run.config) if run.script == "train.sft" else run.config).finished


def default_folder(runs: Sequence[PlannedRun]) -> Path:
    """<output_dir>/<name>-sweep-<the last part of each swept key>: another sweep has another folder.

    Of rungs: <output_dir>/<name>-sweep.
    """
    first = runs[0].config
    base = first.name.removesuffix(f"-seed{first.seed}").removesuffix(f"-{runs[0].variant.label}")
    swept = [change for run in runs for change in run.variant.changes if not run.variant.is_rung]
    keys = dict.fromkeys(change.partition("=")[0].rpartition(".")[2] for change in swept)
    return Path(first.output_dir) / "-".join([base, "sweep", *keys])


@dataclass
class Sweep:
    """The runs of a sweep, and how far they are. By name: finished, failed (exit codes), seconds (that a run took)."""

    config: str
    runs: list[PlannedRun]
    jobs: int
    finished: set[str]
    failed: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def announce(self) -> None:
        """Say what will be trained."""
        variants = {run.variant.label: run.variant for run in self.runs}
        seeds = len(self.runs) // len(variants)
        print(
            f"sweep: {len(variants)} variants x {seeds} seed{'s' * (seeds > 1)} = {len(self.runs)} runs, "
            f"{len(self.finished)} of them already trained"
        )
        for variant in variants.values():
            print(f"  {variant.label}: {' '.join(variant.changes) or f'the baseline, {self.config}'}")

    def train(self) -> int:
        """Train the runs that are not finished, `jobs` at a time. Returns 0, or the signal that stopped the sweep."""
        from train.machine.signals import stop_signals
        from train.saving.run_lock import holder

        waiting = [run for run in self.runs if run.config.name not in self.finished]
        waiting.sort(key=lambda run: not holder(run.config.directory))  # first those that are trained already
        running: dict[str, tuple[PlannedRun, Process | Adopted]] = {}
        with stop_signals() as stopped:
            while (waiting and not stopped()) or running:
                while waiting and len(running) < self.jobs and not stopped():
                    run = waiting.pop(0)
                    left = len(waiting) + len(running) + 1
                    running[run.config.name] = run, self._adopt(run) or self._start(run, left)
                for name, (run, process) in list(running.items()):
                    if isinstance(process, Process):
                        code = process.poll()
                        if stopped():
                            process.pass_on(stopped())
                        if code == BAD_INPUT and (adopted := self._adopt(run)):  # another process was quicker
                            running[name] = run, adopted
                        elif code is not None:
                            del running[name]
                            self._note(name, code, stopped(), time.monotonic() - process.began)
                    elif stopped():
                        del running[name]
                        self._say(name, "is not waited for any more; its process continues")
                    elif process.has_ended():
                        del running[name]
                        try:
                            is_trained = is_finished(run)
                        except InputError:  # its own process says why
                            is_trained = False
                        if is_trained:
                            self._note(name, 0, 0, 0.0)
                        else:
                            waiting.insert(0, run)
                time.sleep(POLL_S)
            return stopped()

    def _start(self, run: PlannedRun, left: int) -> Process:
        self._say(run.config.name, f"training{self._time_left(left)}")
        return Process(self.config, run, self.jobs, default_folder(self.runs).name)

    def _adopt(self, run: PlannedRun) -> Adopted | None:
        """Wait for the process that trains this run already, if there is one."""
        from train.saving.run_lock import holder

        if not (who := holder(run.config.directory)):
            return None
        self._say(run.config.name, f"is trained by {who}, already: waiting until that ends")
        return Adopted(run.config.directory)

    def compare(self, out: Path, *, decode: bool) -> int:
        """Compare the finished runs and say which ones failed. Returns the exit code: 0, or that of a failed run."""
        from eval.compare.__main__ import compare

        labels = list(dict.fromkeys(run.variant.label for run in self.runs))
        trained = sorted(self.runs, key=lambda run: labels.index(run.variant.label))  # the baseline first
        paths = [run.config.directory for run in trained if run.config.name not in self.failed]
        notes = [f"{name} is left out: {_reason(code)}" for name, code in self.failed.items()]
        if paths:
            comparison = compare(paths, out, decode=decode, notes=notes)
            for warning in comparison.warnings:
                print(f"warning: {warning}", file=sys.stderr)
            print(f"\n{comparison.short}\n\nall rows, figures and heads: {comparison.file}")
        else:
            print("sweep: no run was trained to its end, so there is nothing to compare", file=sys.stderr)
        codes = list(self.failed.values())
        return 3 if 3 in codes else next((code if code > 0 else 128 - code for code in codes), 0)

    def _note(self, name: str, code: int, stopped: int, took: float) -> None:
        """Note that a process has ended, after this many seconds."""
        if code == 0:
            self.finished.add(name)
            self.seconds[name] = took
            self._say(name, "trained")
        elif stopped and code in (128 + stopped, -stopped):
            self._say(name, "stopped")
        else:
            self.failed[name] = code
            self._say(name, f"FAILED, exit code {code} ({_reason(code)}); the others continue")

    def _say(self, name: str, what: str) -> None:
        done = len(self.finished) + len(self.failed)
        print(f"sweep: [{done}/{len(self.runs)}] {name}: {what}", flush=True)

    def _time_left(self, to_do: int) -> str:
        """In words, from the finished runs; nothing before the first one."""
        from eval.run_files import read_metrics

        seconds = []
        for run in self.runs:
            if run.config.name in self.finished:  # metrics.jsonl knows how long an earlier one took
                lines = read_metrics(run.config.directory, lambda problem: None)
                seconds.append(max(self.seconds.get(run.config.name, 0.0), lines[-1]["time_s"] if lines else 0.0))
        if not seconds:
            return ""
        return f"; about {median(seconds) * to_do / self.jobs / 60:.1f} minutes for the {to_do} that are left"


def _reason(code: int) -> str:
    return REASONS.get(code, f"killed by signal {-code}" if code < 0 else "see what it printed")


if __name__ == "__main__":
    exit_on_bad_input(main)
