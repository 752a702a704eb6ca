"""Where figures go: metrics.jsonl always, a progress bar, other programs on top (trackers.py)."""

from __future__ import annotations

import math
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from tqdm import tqdm

from configs.read_back import append_line
from configs.still_busy import still_busy
from eval.run_files import METRICS
from train.config import RunConfig
from train.saving.run_lock import Owner
from train.trackers import Elsewhere, TensorBoard, Wandb

SILENCE_S, SILENCE = 10.0, 0.05  # without a terminal, for so long and this share of the run nothing need be said


class Tracker:
    """One run's metrics.jsonl, progress bar and wandb run. writes=False: of a process that is not the first."""

    def __init__(
        self,
        config: RunConfig,
        start_step: int,
        start_seconds: float,
        wandb_id: str | None,
        writes: bool = True,
        owner: Owner | None = None,
    ):
        self.file = config.directory / METRICS
        self.writes = writes
        self._owner = owner
        self._minutes = config.train.max_minutes if config.max_steps is None else None
        self._disk_failed = False
        initial = start_step if config.max_steps else start_seconds / 60
        self.bar = tqdm(
            total=config.max_steps or config.train.max_minutes,
            desc=config.name,
            initial=initial,
            unit="step" if config.max_steps else "min",
            dynamic_ncols=True,
            mininterval=0.5,
            bar_format="{desc} {percentage:3.0f}%|{bar:20}| {n:.4g}/{total} {unit} [{elapsed}<{remaining}{postfix}]",
            disable=None if writes else True,  # None: only on a terminal
        )
        self._began = self._said = time.monotonic()
        self._elsewhere: list[Elsewhere] = []
        self.wandb_id = wandb_id
        if writes and config.tracking.wandb != "disabled":
            self.wandb_id = wandb_id or secrets.token_hex(4)
            self._elsewhere.append(Wandb(config, self.wandb_id, self.say))
        if writes and config.tracking.tensorboard:
            self._elsewhere.append(TensorBoard(config, start_step, self.say))

    def log(self, split: str, step: int, tokens: int, time_s: float, values: dict[str, Any]) -> None:
        """One line of metrics.jsonl; the same figures go elsewhere as `train/loss`, `val/loss`, …"""
        if not self.writes:
            return
        record = {"step": step, "tokens": tokens, "time_s": round(time_s, 3), "split": split, **values}
        self.append(self.file, record)
        for other in self._elsewhere:
            other.log({f"{split}/{key}": value for key, value in values.items()}, step)

    def append(self, file: Path, record: dict[str, Any]) -> None:
        """A line of a .jsonl file of the run; what is non-finite (NaN, infinity) is null.

        A failure to write is reported once, and training continues. Nothing is written if the run directory is no
        longer this run's; the loop finds that out and stops.
        """
        if self._owner is not None and self._owner.lost:
            return
        finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}
        try:
            append_line(file, finite)
        except OSError as error:
            if not self._disk_failed:
                self.say(f"warning: {file} cannot be written ({error.strerror}); training continues")
            self._disk_failed = True

    def log_image(self, name: str, path: Path, step: int) -> None:
        """Send a picture from the disk elsewhere."""
        for other in self._elsewhere:
            other.log_image(name, path, step)

    def log_html(self, name: str, path: Path, step: int) -> None:
        """Send a page from the disk elsewhere."""
        for other in self._elsewhere:
            other.log_html(name, path, step)

    def log_table(self, name: str, columns: list[str], rows: list[list[Any]], step: int) -> None:
        """A table, sent elsewhere."""
        for other in self._elsewhere:
            other.log_table(name, columns, rows, step)

    def progress(self, step: int, seconds: float, **shown: str) -> None:
        """Move the bar to this step (under max_minutes, to this time) and show these figures beside it.

        Without a terminal: a line of its own where nothing was said for a while, so that nobody takes work for a hang.
        """
        self.bar.set_postfix(shown, refresh=False)
        position = step if self._minutes is None else min(seconds / 60, self._minutes)
        self.bar.update(position - self.bar.n)
        now = time.monotonic()
        if self.bar.disable and now - self._said > max(SILENCE_S, (now - self._began) * SILENCE):
            self.say(f"step {step:>6,}   " + "   ".join(f"{name} {value}" for name, value in shown.items()))

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """While inside, the bar says what keeps it from moving: evaluating, saving, compiling, drawing; without a
        terminal a line does, every few seconds."""
        self.bar.set_postfix_str(f"{what} …")
        try:
            with still_busy(what) if self.writes and self.bar.disable else nullcontext():
                yield
        finally:
            self.bar.set_postfix_str("", refresh=False)

    def say(self, text: str) -> None:
        """Print a line without tearing the progress bar."""
        if not self.writes:
            return
        self._said = time.monotonic()
        self.bar.write(text, file=sys.stdout)
        sys.stdout.flush()

    def close(self, exit_code: int = 0) -> None:
        """Close the bar, and the others' runs with our exit code."""
        self.bar.close()
        for other in self._elsewhere:
            other.close(exit_code)
