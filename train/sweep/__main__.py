"""Train one run for each value of a key, on the same data and budget, and compare them:

    python -m train.sweep configs/demo.yaml model.num_key_value_heads=1,2,4 [section.key=value ...] [--seeds 3]

`key=a,b,c` is swept, `key=value` holds for all runs. The baseline is the config itself. Runs are named
<name>-<value>-seed<seed>. A finished run is not trained again, so the same command continues after a stop.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from configs.bounds import MOST_RUNS, whole
from configs.command import exit_on_bad_input
from configs.streams import survive_lost_output

if TYPE_CHECKING:
    from train.sweep.plan import PlannedRun

POLL_S = 0.1
COURTESY_S = 1.0  # Ctrl-C in a terminal reaches the runs by itself; after this long the signal is sent again
REASONS = {2: "bad input", 3: "its loss became non-finite"}


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
    given = parser.parse_intermixed_args()
    from train.sweep.plan import plan  # heavy: --help answers at once

    runs = plan(given.config, given.overrides, given.seeds)
    sweep = Sweep(given.config, runs, given.jobs, {run.config.name for run in runs if is_finished(run)})
    survive_lost_output()
    sweep.announce()
    if stopped := sweep.train():
        print("sweep: stopped; the same command continues from here", file=sys.stderr)
        return 128 + stopped
    return sweep.compare(given.out or default_folder(runs), decode=not given.skip_decode)


def is_finished(run: PlannedRun) -> bool:
    """Whether it has been trained to its end. Raises InputError if the directory belongs to another run."""
    from train.saving.run_directory import find_start
    from train.sft import as_fine_tuning

    return find_start(as_fine_tuning(run.config) if run.script == "train.sft" else run.config).finished


def default_folder(runs: Sequence[PlannedRun]) -> Path:
    """<output_dir>/<name>-sweep-<the last part of each swept key>: another sweep has another folder."""
    first = runs[0].config
    base = first.name.removesuffix(f"-seed{first.seed}").removesuffix(f"-{runs[0].variant.label}")
    keys = dict.fromkeys(change.partition("=")[0].rpartition(".")[2] for run in runs for change in run.variant.changes)
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

        waiting = [run for run in self.runs if run.config.name not in self.finished]
        running: dict[str, Process] = {}
        with stop_signals() as stopped:
            while (waiting and not stopped()) or running:
                while waiting and len(running) < self.jobs and not stopped():
                    run = waiting.pop(0)
                    self._say(run.config.name, f"training{self._time_left(len(waiting) + len(running) + 1)}")
                    running[run.config.name] = Process(self.config, run, self.jobs)
                if stopped():
                    for process in running.values():
                        process.pass_on(stopped())
                for name, process in list(running.items()):
                    if (code := process.poll()) is not None:
                        self._note(name, code, stopped(), time.monotonic() - running.pop(name).began)
                time.sleep(POLL_S)
            return stopped()

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
            print(f"\n{comparison.summary}\n\n{comparison.file}")
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


class Process:
    """A run in a new process, with fresh memory. If others run beside it, its name is before each line it prints."""

    def __init__(self, config: str, run: PlannedRun, jobs: int):
        alone = jobs == 1
        threads = int(os.environ.get("OMP_NUM_THREADS") or _cores())
        share = {} if alone else {"OMP_NUM_THREADS": str(max(1, threads // jobs)), "PYTHONIOENCODING": "utf-8"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", run.script, config, *run.overrides],
            env=os.environ | share,
            stdout=None if alone else subprocess.PIPE,
            stderr=None if alone else subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
        )
        self.began = time.monotonic()
        self._signal_at: float | None = None
        self._output = None if alone else threading.Thread(target=self._show, args=(run.config.name,), daemon=True)
        if self._output is not None:
            self._output.start()

    def poll(self) -> int | None:
        """Its exit code, once it has ended and everything is printed."""
        code = self._process.poll()
        if code is not None and self._output is not None:
            self._output.join(timeout=10)
        return code

    def pass_on(self, number: int) -> None:
        """Pass a signal on, once, after the process had time to end by itself."""
        now = time.monotonic()
        if self._signal_at is None:
            self._signal_at = now + COURTESY_S
        elif now > self._signal_at:
            # neither harms a process that has ended; Windows sends no SIGINT, and its Ctrl-C has arrived already
            self._process.terminate() if os.name == "nt" else self._process.send_signal(number)
            self._signal_at = float("inf")

    def _show(self, name: str) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            print(f"{name} | {line}", end="", flush=True)


def _cores() -> int:
    """Cores that this process may use."""
    affinity: Callable[[int], set[int]] | None = getattr(os, "sched_getaffinity", None)  # not on macOS
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _reason(code: int) -> str:
    return REASONS.get(code, f"killed by signal {-code}" if code < 0 else "see what it printed")


if __name__ == "__main__":
    exit_on_bad_input(main)
