"""Figures of a run, and where they go: metrics.jsonl, a progress bar, wandb, TensorBoard.

None of these programs stops a run: one that raises is switched off, and the run continues.
"""

from __future__ import annotations

import math
import os
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import torch
from torch import Tensor
from tqdm import tqdm

from configs.command import InputError, still_busy
from configs.files import append_line
from configs.language import translated
from data.batches import Batch
from eval.run_files import METRICS
from model import LanguageModel
from model.accounting import flops_per_token
from train.config import RunConfig
from train.machine.device import Device, known_peak
from train.machine.distributed import World
from train.run.checkpoint import TrainerState
from train.run.wall import Wall

# Without a terminal, progress is a line every 10 s, or every 5 % of the run if that is longer.
SILENCE_S = 10.0
SILENCE = 0.05


class Counts(NamedTuple):
    """The counts of one step, over all processes."""

    trained: int  # by Objective.count
    tokens: int  # without padding
    positions: int  # with padding


@dataclass(frozen=True)
class StepFigures:
    """The figures of one step, over all processes."""

    step: int
    lr: float
    counts: Counts
    waited: float  # seconds for the batch
    # `loss` (nats a token), `grad_norm`, and the rest by name; NaN if nothing was trained. They
    # stay on the device, for reading one waits for the GPU.
    scalars: dict[str, Tensor]
    values: dict[str, float] = field(default_factory=dict)  # the same, once read


class Meter:
    """Speed, waiting and memory since the last line of metrics.jsonl."""

    def __init__(
        self, config: RunConfig, lm: LanguageModel, device: Device, world_size: int = 1
    ) -> None:
        self.device = device.device
        self.flops = flops_per_token(lm, config.data.sequence_length)
        peak = known_peak(device.device, device.dtype) if device.device.type == "cuda" else None
        self.peak_flops = peak[0] * 1e12 * world_size if peak else None
        self.last: StepFigures | None = None  # the newest step that was read
        self._unread: list[StepFigures] = []
        self.elsewhere = {"eval_s": 0.0, "save_s": 0.0}
        self.start()

    def start(self) -> None:
        """Begin a line now: time before, such as that of compiling, does not count."""
        self.tokens = self.positions = 0
        self.waited = 0.0
        self._began = time.perf_counter() - sum(self.elsewhere.values())

    def seconds(self) -> float:
        """Return the seconds of training since the last line, without evaluations and saves."""
        # 1e-9: a clock may be too coarse to see a short line, and speeds divide by this
        return max(time.perf_counter() - self._began - sum(self.elsewhere.values()), 1e-9)

    def add(self, figures: StepFigures) -> None:
        """Count a step, without waiting for the device."""
        self._unread.append(figures)
        self.tokens += figures.counts.tokens
        self.positions += figures.counts.positions
        self.waited += figures.waited

    def read_device(self) -> list[StepFigures]:
        """Return the steps since the last call with their values. It waits for the device once."""
        read = self._unread
        self._unread = []
        if read:
            # one stack and one tolist(): a .item() for each would wait for the GPU as often
            scalars = [x.float() for figures in read for x in figures.scalars.values()]
            values = iter(torch.stack(scalars).tolist())
            for figures in read:
                # not strict: all steps share one iterator, and each takes as many values as it has
                figures.values.update(zip(figures.scalars, values, strict=False))
            self.last = read[-1]
        return read

    def line(self) -> dict[str, Any]:
        """Return a line of figures; the next one starts from zero."""
        assert self.last is not None
        last = self.last
        seconds = self.seconds()
        # peak GPU memory, or this process's resident memory on a CPU
        memory = psutil.Process().memory_info().rss
        if self.device.type == "cuda":
            memory = torch.cuda.max_memory_allocated()
        # Padding is computed as well, so it counts as work of the machine, but not as tokens.
        flops_per_s = self.flops * self.positions / seconds
        values: dict[str, Any] = {
            "loss": last.values["loss"],
            "lr": last.lr,
            "grad_norm": last.values["grad_norm"],
            "tokens_per_s": round(self.tokens / seconds, 1),
            "padding_share": 1 - last.counts.tokens / max(1, last.counts.positions),
            "data_wait_share": round(self.waited / seconds, 4),
            "tflops": round(flops_per_s / 1e12, 4),
        }
        if self.peak_flops:
            values["mfu"] = round(flops_per_s / self.peak_flops, 4)
        values["memory_gb"] = round(memory / 1e9, 3)
        values |= {name: round(spent, 3) for name, spent in self.elsewhere.items()}
        self.elsewhere = dict.fromkeys(self.elsewhere, 0.0)
        self.start()
        return values | {name: value for name, value in last.values.items() if name not in values}


class Tracker:
    """The logs of a run: metrics.jsonl, the bar, wandb and TensorBoard. writes: on rank 0."""

    def __init__(self, config: RunConfig, state: TrainerState, writes: bool = True):
        self.file = config.directory / METRICS
        self.writes = writes
        self._disk_failed = False
        self._minutes = config.train.max_minutes if config.max_steps is None else None
        self._total = config.max_steps or config.train.max_minutes or 0
        self._first = state.step if config.max_steps else state.seconds / 60
        self._began = self._said = time.monotonic()
        self.bar = tqdm(
            total=self._total,
            desc=config.name,
            initial=self._first,
            unit="step" if config.max_steps else "min",
            dynamic_ncols=True,
            mininterval=0.5,
            bar_format="{desc} {percentage:3.0f}%|{bar:20}| {n:.4g}/{total} {unit} "
            "[{elapsed}<{remaining}{postfix}]",
            disable=None if writes else True,  # None: only on a terminal
        )
        chosen: dict[Any, bool] = {
            Wandb: config.tracking.wandb != "disabled",
            TensorBoard: config.tracking.tensorboard,
            SwanLab: config.tracking.swanlab != "disabled",
        }
        self._others: list[Wandb | TensorBoard | SwanLab] = [
            kind() for kind, is_on in chosen.items() if is_on and writes
        ]
        self._tell("start", config, state)
        self.wall: Wall | None = None
        if config.tracking.wall and writes:
            # wandb's id: random, and the same after a resume, so that the wall has each run once
            state.wandb_id = state.wandb_id or secrets.token_hex(4)
            about = {"id": state.wandb_id, "config": config.name, "seed": config.seed}
            self.wall = Wall(config.tracking.wall, about, self.say)

    @contextmanager
    def first_step(self, step: int) -> Iterator[ExitStack]:
        """Show that this step runs, until the stack is closed: the first one may take long."""
        with ExitStack() as waiting:
            waiting.enter_context(self.doing(f"step {step:,}"))
            yield waiting

    def _tell(self, method: str, *arguments: Any) -> None:
        """Call a method of every other program, and switch off one that raises."""
        # a copy of the list, because one that raises is removed from it
        for other in list(self._others):
            try:
                getattr(other, method)(*arguments)
            except Exception as error:
                self._others.remove(other)
                self.say(f"warning: {other.name} is off from here: {type(error).__name__}: {error}")

    def log(
        self, split: str, step: int, tokens: int, time_s: float, values: dict[str, Any]
    ) -> None:
        """Write a line of metrics.jsonl; wandb gets the figures as `train/loss`, `val/loss`, …"""
        place = {"step": step, "tokens": tokens, "time_s": round(time_s, 3), "split": split}
        self.append(self.file, place | values)
        self._tell("log", {f"{split}/{key}": value for key, value in values.items()}, step)

    def append(self, file: Path, record: dict[str, Any]) -> None:
        """Write a line of a .jsonl file of the run. A failure is reported once."""
        if not self.writes:
            return
        finite = dict(record)
        for key, value in record.items():
            if isinstance(value, float) and not math.isfinite(value):
                finite[key] = None  # JSON has no NaN
        try:
            append_line(file, finite)
        except OSError as error:
            if not file.parent.exists():  # no checkpoint could be saved either: stop
                raise InputError(
                    f"{file.parent} was moved or deleted while a run was writing into it"
                ) from None
            if not self._disk_failed:
                self.say(
                    f"warning: {file} cannot be written ({error.strerror}); training continues"
                )
            self._disk_failed = True

    def show(self, name: str, media: Path, step: int) -> None:
        """Send a picture (.png) or a page (.html) to the other programs."""
        self._tell("show", name, media, step)

    def progress(self, step: int, seconds: float, **shown: str) -> None:
        """Move the bar to this step (or minute), with these figures beside it."""
        at = step if self._minutes is None else min(seconds / 60, self._minutes)
        self.bar.set_postfix(shown, refresh=False)
        self.bar.update(at - self.bar.n)
        # Without a terminal print a line now and then: else the run looks as if it hangs.
        now = time.monotonic()
        if self.bar.disable and now - self._said > max(SILENCE_S, (now - self._began) * SILENCE):
            left = (now - self._began) / 60 * (self._total - at) / max(at - self._first, 1e-9)
            figures = "   ".join(f"{name} {value}" for name, value in shown.items())
            self.say(f"step {step:>6,}   {figures}   about {left:.1f} minutes to go")

    @contextmanager
    def doing(self, what: str, meter: Meter | None = None, figure: str = "") -> Iterator[None]:
        """Show why the bar does not move; without a terminal, by a line every few seconds.

        meter, figure: count the time as "eval_s" or "save_s", not as training.
        """
        self.bar.set_postfix_str(f"{what} …")
        before = time.perf_counter()
        try:
            with still_busy(what) if self.writes and self.bar.disable else nullcontext():
                yield
        finally:
            if meter is not None:
                meter.elsewhere[figure] += time.perf_counter() - before
            self.bar.set_postfix_str("", refresh=False)

    def say(self, text: str) -> None:
        """Print a line without tearing the progress bar."""
        if self.writes:
            self._said = time.monotonic()
            try:
                self.bar.write(translated(text), file=sys.stdout)
                sys.stdout.flush()
            except OSError:
                # Nobody reads any more: Ctrl-C ends both sides of `… | tee log`. The checkpoint is
                # still to be written, so go on, and drop what is printed from here on.
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

    def close(self, exit_code: int = 0) -> None:
        self.bar.close()
        if self.wall is not None:
            self.wall.finish()
        self._tell("finish", exit_code)


def append_trace(
    tracker: Tracker, world: World, directory: Path, batch: Batch, figures: StepFigures
) -> None:
    """Write a line of trace.jsonl, which proves two runs equal to the last bit.

    It has the sha256 of the whole batch, and figures as hexadecimal floats.
    """
    columns = [tensor.cpu().numpy() for tensor in batch.tensors.values()]
    hashes = []
    for number, *row in zip(batch.row_ids, *columns, strict=True):
        content = str(number).encode() + b"".join(array.tobytes() for array in row)
        hashes.append(sha256(content).hexdigest())
    everywhere = "".join(row_hash for share in world.gather(hashes) for row_hash in share)
    record = {
        "step": figures.step + 1,
        "batch": sha256(everywhere.encode()).hexdigest(),
        "loss": float(figures.scalars["loss"]).hex(),  # waits for the GPU at every step
        "grad_norm": float(figures.scalars["grad_norm"]).hex(),
        "lr": figures.lr.hex(),
    }
    tracker.append(directory / "trace.jsonl", record)


class Wandb:
    """Weights & Biases. It has a process of its own, so it hardly slows training."""

    name = "wandb"

    def start(self, config: RunConfig, state: TrainerState) -> None:
        import wandb

        # It is saved with every checkpoint, so a resumed run continues its own curves.
        state.wandb_id = state.wandb_id or secrets.token_hex(4)
        self._run = wandb.init(
            project=config.tracking.project,
            name=config.name,
            id=state.wandb_id,
            resume="allow",
            mode=config.tracking.wandb,
            dir=str(config.directory.resolve()),  # its service may have another working directory
            config=config.model_dump(),
            # a busy machine starts it slowly
            settings=wandb.Settings(silent=True, x_service_wait=300.0),
        )
        self._run.define_metric("*", step_metric="step")
        # the table of runs shows the best loss, not the last
        self._run.define_metric("val/loss", step_metric="step", summary="min")

    def log(self, values: dict[str, Any], step: int) -> None:
        self._run.log({**values, "step": step})

    def show(self, name: str, media: Path, step: int) -> None:
        import wandb

        if media.suffix == ".html":
            content: Any = wandb.Html(media.read_text(encoding="utf-8"), inject=False)
        else:
            content = wandb.Image(str(media))
        self.log({name: content}, step)

    def finish(self, exit_code: int) -> None:
        self._run.finish(exit_code=exit_code)  # waits for what is still to be sent


class TensorBoard:
    """Event files in `runs/<name>/tensorboard`, for `tensorboard --logdir runs`."""

    name = "tensorboard"

    def start(self, config: RunConfig, state: TrainerState) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # replaces what a killed run wrote after its last checkpoint
        self._writer = SummaryWriter(config.directory / "tensorboard", purge_step=state.step + 1)

    def log(self, values: dict[str, Any], step: int) -> None:
        for name, value in values.items():
            if isinstance(value, int | float):
                self._writer.add_scalar(name, value, step)

    def show(self, name: str, media: Path, step: int) -> None:
        import numpy as np
        from PIL import Image

        if media.suffix == ".png":  # it has no place for a page
            with Image.open(media) as picture:
                pixels = np.asarray(picture.convert("RGB"))
            self._writer.add_image(name, pixels, step, dataformats="HWC")

    def finish(self, exit_code: int) -> None:
        self._writer.close()


class SwanLab:
    """Files in `runs/<name>/swanlab`, for `swanlab sync`, or SwanLab's page."""

    name = "swanlab"

    def start(self, config: RunConfig, state: TrainerState) -> None:
        import swanlab

        state.wandb_id = state.wandb_id or secrets.token_hex(4)  # one id for all pages of a run
        self._run = swanlab.init(
            project=config.tracking.project,
            name=config.name,
            id=state.wandb_id,
            resume="allow",
            mode=config.tracking.swanlab,
            log_dir=str(config.directory.resolve() / "swanlab"),
            config=config.model_dump(mode="json"),
            settings=swanlab.Settings(terminal={"proxy_type": "none"}),  # samples stay here
        )

    def log(self, values: dict[str, Any], step: int) -> None:
        self._run.log(values, step=step)

    def show(self, name: str, media: Path, step: int) -> None:
        import swanlab

        if media.suffix == ".png":  # the viewer is a page of its own
            self._run.log({name: swanlab.Image(str(media))}, step=step)

    def finish(self, exit_code: int) -> None:
        if exit_code:
            self._run.finish(state="crashed", error=f"exit code {exit_code}")
        else:
            self._run.finish()
