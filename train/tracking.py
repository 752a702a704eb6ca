"""Where figures go: metrics.jsonl always, a progress bar, and wandb on top. A tracker never stops or slows a run."""

from __future__ import annotations

import math
import queue
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tqdm import tqdm

from configs.read_back import append_line
from eval.run_files import METRICS
from train.config import RunConfig
from train.saving.owner import Owner

PATIENCE_S = 60.0  # how long the end of a run waits for wandb
SILENCE_S, SILENCE = 10.0, 0.05  # without a terminal, for so long and this share of the run nothing need be said
WAITING = 1000  # things to log that may wait for wandb; what comes beyond is dropped there (it is on the disk)


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
        self._wandb: _Wandb | None = None
        self.wandb_id = wandb_id
        if writes and config.tracking.wandb != "disabled":
            self.wandb_id = wandb_id or secrets.token_hex(4)
            self._wandb = _Wandb(config, self.wandb_id, self.say)

    def log(self, split: str, step: int, tokens: int, time_s: float, values: dict[str, Any]) -> None:
        """One line of metrics.jsonl; the same figures go to wandb as `train/loss`, `val/loss`, …"""
        if not self.writes:
            return
        record = {"step": step, "tokens": tokens, "time_s": round(time_s, 3), "split": split, **values}
        self.append(self.file, record)
        if self._wandb is not None:
            self._wandb.log({f"{split}/{key}": value for key, value in values.items()}, step)

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
        """Send a picture from the disk to wandb."""
        if self._wandb is not None:
            self._wandb.log_image(name, path, step)

    def log_html(self, name: str, path: Path, step: int) -> None:
        """Send a page from the disk to wandb."""
        if self._wandb is not None:
            self._wandb.log_html(name, path, step)

    def log_table(self, name: str, columns: list[str], rows: list[list[Any]], step: int) -> None:
        """A table, to wandb."""
        if self._wandb is not None:
            self._wandb.log_table(name, columns, rows, step)

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
        """While inside, the bar says what keeps it from moving: evaluating, saving, compiling, drawing."""
        self.bar.set_postfix_str(f"{what} …")
        try:
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
        """Close the bar, and wandb's run with our exit code."""
        self.bar.close()
        if self._wandb is not None:
            self._wandb.close(exit_code)


class _Wandb:
    """wandb in a thread of its own: an error switches it off, and training never waits for it."""

    def __init__(self, config: RunConfig, run_id: str, warn: Callable[[str], None]):
        self._config, self._id, self._warn = config, run_id, warn
        self._run: Any = None
        self._todo: queue.Queue[Callable[[], None] | None] = queue.Queue(WAITING)
        self._is_off = False
        self._thread = threading.Thread(target=self._work, name="wandb", daemon=True)
        self._thread.start()
        self._put(self._start)

    def log(self, values: dict[str, Any], step: int) -> None:
        self._put(lambda: self._run.log({**values, "step": step}))

    def log_image(self, name: str, path: Path, step: int) -> None:
        self._put_media(name, lambda wandb: wandb.Image(str(path)), step)

    def log_html(self, name: str, path: Path, step: int) -> None:
        self._put_media(name, lambda wandb: wandb.Html(path.read_text(encoding="utf-8"), inject=False), step)

    def log_table(self, name: str, columns: list[str], rows: list[list[Any]], step: int) -> None:
        self._put_media(name, lambda wandb: wandb.Table(columns=columns, data=rows), step)

    def _put_media(self, name: str, make: Callable[[Any], Any], step: int) -> None:
        def send() -> None:
            import wandb

            self._run.log({name: make(wandb), "step": step})

        self._put(send)

    def close(self, exit_code: int) -> None:
        """Wait for what is still to be sent, but not forever."""
        until = time.monotonic() + PATIENCE_S
        for last in (lambda: self._run.finish(exit_code=exit_code), None):
            with suppress(queue.Full):
                self._todo.put(last, timeout=max(0.0, until - time.monotonic()) if self._thread.is_alive() else 0)
        self._thread.join(max(0.0, until - time.monotonic()))
        if self._thread.is_alive():
            self._warn(f"warning: wandb did not finish within {PATIENCE_S:.0f} s; all figures are in metrics.jsonl")

    def _start(self) -> None:
        import wandb

        self._run = wandb.init(
            project=self._config.tracking.project,
            name=self._config.name,
            id=self._id,
            resume="allow",
            mode=self._config.tracking.wandb,
            dir=str(self._config.directory.resolve()),  # its service may have another working directory
            config=self._config.model_dump(),
            settings=wandb.Settings(silent=True, x_service_wait=300.0),  # a busy machine starts it slowly
        )
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def _put(self, action: Callable[[], None] | None) -> None:
        if self._is_off:
            return
        try:
            self._todo.put_nowait(action)
        except queue.Full:
            self._is_off = True
            self._warn("warning: wandb is off from here: it does not keep up; all figures are in metrics.jsonl")

    def _work(self) -> None:
        try:
            while (action := self._todo.get()) is not None:
                action()
        except Exception as error:
            self._is_off = True
            self._warn(f"warning: wandb is off from here: {type(error).__name__}: {error}")
