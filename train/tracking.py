"""Where figures go: metrics.jsonl always, a progress bar, and other programs that show a run: wandb and TensorBoard.

None of those stops a run: one that raises is switched off, and the run continues without it.
"""

from __future__ import annotations

import math
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from tqdm import tqdm

from configs.command import still_busy
from configs.files import append_line
from eval.run_files import METRICS
from train.config import RunConfig
from train.saving.run_directory import Owner

SILENCE_S, SILENCE = 10.0, 0.05  # without a terminal, for so long and this share of the run nothing need be said
Media = Path | tuple[list[str], list[list[Any]]]  # a file, or a table: columns, rows


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
        self._others: list[Wandb | TensorBoard] = []
        self.wandb_id = wandb_id
        if writes and config.tracking.wandb != "disabled":
            self.wandb_id = wandb_id or secrets.token_hex(4)
            self._others.append(Wandb(config, self.wandb_id))
        if writes and config.tracking.tensorboard:
            self._others.append(TensorBoard(config, start_step))
        self._tell(lambda other: other.start())

    def log(self, split: str, step: int, tokens: int, time_s: float, values: dict[str, Any]) -> None:
        """One line of metrics.jsonl; the same figures go elsewhere as `train/loss`, `val/loss`, …"""
        if not self.writes:
            return
        record = {"step": step, "tokens": tokens, "time_s": round(time_s, 3), "split": split, **values}
        self.append(self.file, record)
        self._tell(lambda other: other.log({f"{split}/{key}": value for key, value in values.items()}, step))

    def _tell(self, what: Callable[[Wandb | TensorBoard], None]) -> None:
        """Let every other program do this; one that raises is off from here."""
        for other in list(self._others):
            try:
                what(other)
            except Exception as error:
                self._others.remove(other)
                self.say(f"warning: {other.name} is off from here: {type(error).__name__}: {error}")

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

    def show(self, name: str, media: Media, step: int) -> None:
        """A picture (.png) or a page (.html) on the disk, or a table, sent elsewhere."""
        self._tell(lambda other: other.show(name, media, step))

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
        self._tell(lambda other: other.finish(exit_code))


class Wandb:
    """Weights & Biases, which has a process of its own: a line costs training next to nothing. The runs of a sweep are
    one group there (WANDB_RUN_GROUP, train/sweep.py)."""

    name = "wandb"

    def __init__(self, config: RunConfig, run_id: str):
        self._config, self._id = config, run_id

    def start(self) -> None:
        """Begin a run there, or continue the one with our id."""
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

    def log(self, values: dict[str, Any], step: int) -> None:
        """Figures by name."""
        self._run.log({**values, "step": step})

    def show(self, name: str, media: Media, step: int) -> None:
        """A picture or a page on the disk, or a table."""
        import wandb

        if not isinstance(media, Path):
            shown: Any = wandb.Table(columns=list(media[0]), data=media[1])
        elif media.suffix == ".html":
            shown = wandb.Html(media.read_text(encoding="utf-8"), inject=False)
        else:
            shown = wandb.Image(str(media))
        self.log({name: shown}, step)

    def finish(self, exit_code: int) -> None:
        """Wait for what is still to be sent."""
        self._run.finish(exit_code=exit_code)


class TensorBoard:
    """Event files in `runs/<name>/tensorboard`, for `tensorboard --logdir runs`."""

    name = "tensorboard"

    def __init__(self, config: RunConfig, start_step: int):
        self._folder, self._start_step = config.directory / "tensorboard", start_step

    def start(self) -> None:
        """Open a file of events; what a run that was killed wrote beyond its last checkpoint is replaced."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ImportError("tensorboard is not installed: pip install tensorboard") from None
        self._writer = SummaryWriter(self._folder, purge_step=self._start_step + 1)

    def log(self, values: dict[str, Any], step: int) -> None:
        """Figures by name."""
        for name, value in values.items():
            if isinstance(value, int | float):
                self._writer.add_scalar(name, value, step)

    def show(self, name: str, media: Media, step: int) -> None:
        """A picture on the disk; there is no place for a page or a table."""
        import numpy as np
        from PIL import Image

        if isinstance(media, Path) and media.suffix == ".png":
            with Image.open(media) as picture:
                self._writer.add_image(name, np.asarray(picture.convert("RGB")), step, dataformats="HWC")

    def finish(self, exit_code: int) -> None:
        """Write what is left."""
        self._writer.close()
