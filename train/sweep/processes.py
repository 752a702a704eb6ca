"""The process that trains a run of a sweep: one that the sweep started, or another one that trains it already."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from configs.cores import usable_cores

if TYPE_CHECKING:
    from train.sweep.plan import PlannedRun

COURTESY_S = 1.0  # Ctrl-C in a terminal reaches the runs by itself; after this long the signal is sent again
LOOK_S = 0.5  # between two looks whether another process still trains a run


class Process:
    """A run in a new process, with fresh memory. If others run beside it, its name is before each line it prints.

    group: of the sweep's runs in wandb.
    """

    def __init__(self, config: str, run: PlannedRun, jobs: int, group: str):
        alone = jobs == 1
        threads = int(os.environ.get("OMP_NUM_THREADS") or usable_cores())
        share = {} if alone else {"OMP_NUM_THREADS": str(max(1, threads // jobs)), "PYTHONIOENCODING": "utf-8"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", run.script, config, *run.overrides, *["--trust-hooks"] * run.trust_hooks],
            env={"WANDB_RUN_GROUP": group} | os.environ | share,  # wandb's own name for what belongs together
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


class Adopted:
    """A run that another process trains, such as one that a killed sweep left behind: the sweep waits until it ends."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.began = self._looked = time.monotonic()

    def has_ended(self) -> bool:
        """Whether nobody trains it any more, to its end or not."""
        from train.saving.run_lock import holder

        if time.monotonic() - self._looked < LOOK_S:
            return False
        self._looked = time.monotonic()
        return not holder(self.directory)
