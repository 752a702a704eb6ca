"""Other programs that show a run: wandb and TensorBoard. None of them stops or slows a run."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from train.config import RunConfig

PATIENCE_S = 60.0  # how long the end of a run waits for a tracker
WAITING = 1000  # things to log that may wait for one; what comes beyond is dropped there (it is on the disk)


class Elsewhere:
    """A tracker in a thread of its own: an error switches it off, and training never waits for it.

    Of what can be sent, a tracker takes what its program can show.
    """

    name: str

    def __init__(self, config: RunConfig, warn: Callable[[str], None]):
        self._config, self._warn = config, warn
        self._run: Any = None
        self._todo: queue.Queue[Callable[[], None] | None] = queue.Queue(WAITING)
        self._is_off = False
        self._thread = threading.Thread(target=self._work, name=self.name, daemon=True)
        self._thread.start()
        self._put(self._start)

    def log(self, values: dict[str, Any], step: int) -> None:
        """Figures by name."""
        raise NotImplementedError

    def log_image(self, name: str, path: Path, step: int) -> None:
        """A picture on the disk."""

    def log_html(self, name: str, path: Path, step: int) -> None:
        """A page on the disk."""

    def log_table(self, name: str, columns: list[str], rows: list[list[Any]], step: int) -> None:
        """A table."""

    def close(self, exit_code: int) -> None:
        """Wait for what is still to be sent, but not forever."""
        until = time.monotonic() + PATIENCE_S
        for last in (lambda: self._finish(exit_code), None):
            with suppress(queue.Full):
                self._todo.put(last, timeout=max(0.0, until - time.monotonic()) if self._thread.is_alive() else 0)
        self._thread.join(max(0.0, until - time.monotonic()))
        if self._thread.is_alive():
            self._warn(
                f"warning: {self.name} did not finish within {PATIENCE_S:.0f} s; all figures are in metrics.jsonl"
            )

    def _start(self) -> None:
        raise NotImplementedError

    def _finish(self, exit_code: int) -> None:
        raise NotImplementedError

    def _put(self, action: Callable[[], None] | None) -> None:
        if self._is_off:
            return
        try:
            self._todo.put_nowait(action)
        except queue.Full:
            self._is_off = True
            self._warn(f"warning: {self.name} is off from here: it does not keep up; all figures are in metrics.jsonl")

    def _work(self) -> None:
        try:
            while (action := self._todo.get()) is not None:
                action()
        except Exception as error:
            self._is_off = True
            self._warn(f"warning: {self.name} is off from here: {type(error).__name__}: {error}")


class Wandb(Elsewhere):
    """Weights & Biases. The runs of a sweep are one group there (WANDB_RUN_GROUP, train/sweep/processes.py)."""

    name = "wandb"

    def __init__(self, config: RunConfig, run_id: str, warn: Callable[[str], None]):
        self._id = run_id
        super().__init__(config, warn)

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
        self._run.define_metric("val/loss", step_metric="step", summary="min")  # the table of runs shows the best

    def _finish(self, exit_code: int) -> None:
        self._run.finish(exit_code=exit_code)


class TensorBoard(Elsewhere):
    """Event files in `runs/<name>/tensorboard`, for `tensorboard --logdir runs`."""

    name = "tensorboard"

    def __init__(self, config: RunConfig, start_step: int, warn: Callable[[str], None]):
        self._start_step = start_step
        super().__init__(config, warn)

    def log(self, values: dict[str, Any], step: int) -> None:
        self._put(lambda: self._scalars(values, step))

    def log_image(self, name: str, path: Path, step: int) -> None:
        def send() -> None:
            import numpy as np
            from PIL import Image

            with Image.open(path) as picture:
                self._run.add_image(name, np.asarray(picture.convert("RGB")), step, dataformats="HWC")

        self._put(send)

    def _scalars(self, values: dict[str, Any], step: int) -> None:
        for name, value in values.items():
            if isinstance(value, int | float):
                self._run.add_scalar(name, value, step)

    def _start(self) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ImportError("tensorboard is not installed: pip install tensorboard") from None
        # what a run that was killed wrote beyond its last checkpoint is replaced
        self._run = SummaryWriter(self._config.directory / "tensorboard", purge_step=self._start_step + 1)

    def _finish(self, exit_code: int) -> None:
        self._run.close()
