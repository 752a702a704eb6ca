"""Figures of a run: what each step measured, and where it goes: metrics.jsonl, a progress bar, wandb, TensorBoard.

None of these programs stops a run: one that raises is switched off, and the run continues without it.
"""

from __future__ import annotations

import math
import secrets
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from configs.command import still_busy
from configs.files import append_line
from eval.run_files import METRICS
from model import LanguageModel
from train.config import RunConfig
from train.machine.device import Device
from train.machine.distributed import full_tensor
from train.machine.hardware import known_peak
from train.saving.checkpoint import TrainerState
from train.saving.run_directory import Owner

ENOUGH_S = 2.0  # seconds of steps that tell how long the run takes
SPIKE_WINDOW = 30  # steps whose losses a new one is compared with
SPIKE_DEVIATIONS = 6.0  # how far above their median it must be, in (robust) standard deviations, …
SPIKE_SHARE = 0.1  # … and as a share of the median
SILENCE_S, SILENCE = 10.0, 0.05  # without a terminal, for so long and this share of the run nothing need be said
Media = Path | tuple[list[str], list[list[Any]]]  # a file, or a table: columns, rows


class Counts(NamedTuple):
    """Of one step, over all processes: what the objective counts, tokens without padding, positions with it."""

    trained: int
    tokens: int
    positions: int


@dataclass(frozen=True)
class StepFigures:
    """What one step measured, over all processes.

    waited: seconds for the batch. scalars: `loss` (nats a token), `grad_norm`, both NaN where nothing was trained, and
    the rest by name; they stay on the device until somebody needs them. values: the same, once read.
    """

    step: int
    lr: float
    counts: Counts
    waited: float
    scalars: dict[str, Tensor]
    values: dict[str, float] = field(default_factory=dict)


class Meter:
    """Speed, share of the peak, waiting, memory: figures since the last line of metrics.jsonl."""

    def __init__(self, config: RunConfig, lm: LanguageModel, device: Device, world_size: int = 1) -> None:
        self.device = device.device
        self.flops = lm.flops_per_token(config.data.sequence_length)
        peak = known_peak(device.device, device.dtype) if device.device.type == "cuda" else None
        self.peak_flops = peak[0] * 1e12 * world_size if peak else None
        self.last: StepFigures | None = None  # the newest step that was read
        self._unread: list[StepFigures] = []
        self._steps, self._apart_s = 0, 0.0  # since this process began
        self._warm: tuple[int, float] | None = None  # steps and seconds that warmed up
        self._time_is_told = False
        self._reset()

    def _reset(self) -> None:
        self.tokens = self.positions = 0
        self.waited = 0.0
        self.elsewhere = {"eval_s": 0.0, "save_s": 0.0}
        self.start()

    def start(self) -> None:
        """Training begins now: what came before, for example compiling, does not count."""
        self._line_began = self._clock()

    def _clock(self) -> float:
        return time.perf_counter() - self._apart_s

    @contextmanager
    def apart(self, name: str) -> Iterator[None]:
        """An evaluation ("eval_s") or a save ("save_s"): its time is not training's."""
        before = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - before
            self.elsewhere[name] += seconds
            self._apart_s += seconds

    def add(self, figures: StepFigures) -> None:
        """Count a step, without a wait for the device."""
        self._unread.append(figures)
        self._steps += 1
        self.tokens += figures.counts.tokens
        self.positions += figures.counts.positions
        self.waited += figures.waited

    def read_device(self) -> list[StepFigures]:
        """The steps since the last call with their values: one wait for the device, however many steps."""
        read, self._unread = self._unread, []
        if read:
            values = iter(torch.stack([x.float() for figures in read for x in figures.scalars.values()]).tolist())
            for figures in read:
                figures.values.update(zip(figures.scalars, values, strict=False))
            self.last = read[-1]
        return read

    def tokens_per_s(self) -> float:
        """Without padding and without the time of evaluations and saves."""
        return self.tokens / max(self._clock() - self._line_began, 1e-9)

    def time_to_go(self, steps_left: int) -> str:
        """Once, right after `read_device`: the minutes to expect, as soon as a few steps show it. The first ones that
        are read warm up, and do not count."""
        self._warm = self._warm or (self._steps, self._clock())
        steps, seconds = self._steps - self._warm[0], self._clock() - self._warm[1]
        if self._time_is_told or steps_left <= 0 or steps == 0 or seconds < ENOUGH_S:
            return ""
        self._time_is_told, minutes = True, steps_left * seconds / steps / 60
        time_left = f"{minutes:.1f} minutes" if minutes < 120 else f"{minutes / 60:.1f} hours"
        pace = f"about {time_left} of training to go ({seconds / steps:.3g} s a step)"
        return f"{pace}; evaluations and checkpoints come on top" + "; Ctrl-C stops and saves" * (minutes > 30)

    def line(self) -> dict[str, Any]:
        """A line of figures; the next one starts from zero."""
        assert self.last is not None
        last, seconds = self.last, max(self._clock() - self._line_began, 1e-9)
        flops_per_s = self.flops * self.positions / seconds
        values = {
            "loss": last.values["loss"],
            "lr": last.lr,
            "grad_norm": last.values["grad_norm"],
            "tokens_per_s": round(self.tokens / seconds, 1),
            "padding_share": 1 - last.counts.tokens / max(1, last.counts.positions),
            "data_wait_share": round(self.waited / seconds, 4),
            "tflops": round(flops_per_s / 1e12, 4),
            **({"mfu": round(flops_per_s / self.peak_flops, 4)} if self.peak_flops else {}),
            "memory_gb": memory_gb(self.device),
            **{name: round(spent, 3) for name, spent in self.elsewhere.items()},
        }
        self._reset()
        return values | {name: value for name, value in last.values.items() if name not in values}


def copies_of_weights(optimizers: list[torch.optim.Optimizer]) -> list[list[Tensor]]:
    """Of each parameter group, for `update_ratios`. They take memory and time: only for steps that are logged."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    return [[parameter.detach().clone() for parameter in group["params"]] for group in groups]


@torch.no_grad()
def update_ratios(optimizers: list[torch.optim.Optimizer], before: list[list[Tensor]]) -> dict[str, Tensor]:
    """How far a step moved the weights: |change| / |weights| of each parameter group, in Euclidean norms.

    About 1e-3 is usual with AdamW. before: `copies_of_weights`. Scalars on the device, so that nothing waits for them.
    """
    ratios = {}
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    for group, weights in zip(groups, before, strict=False):  # without copies there is nothing to say
        changes = [new - old for new, old in zip(group["params"], weights, strict=True)]
        change, length = (full_tensor(torch.nn.utils.get_total_norm(tensors)) for tensors in (changes, weights))
        ratios[f"update_to_weight/{group['name']}"] = change / length.clamp(min=1e-12)
    return ratios


def spike_median(losses: list[float], loss: float) -> float | None:
    """Whether a loss is a spike: far above the losses of the last steps, whose median is returned then.

    Far: in median absolute deviations, which a single spike among the losses hardly changes. `losses` takes in the new
    one and keeps the last SPIKE_WINDOW.
    """
    median = None
    if len(losses) == SPIKE_WINDOW:
        middle = statistics.median(losses)
        deviation = 1.4826 * statistics.median(abs(known - middle) for known in losses)
        if loss - middle > max(SPIKE_DEVIATIONS * deviation, SPIKE_SHARE * middle):
            median = middle
    losses[:] = [*losses, loss][-SPIKE_WINDOW:]
    return median


def memory_gb(device: torch.device) -> float | None:
    """Peak memory: of the GPU if there is one, else of this process (None where the system does not say)."""
    if device.type == "cuda":
        return round(torch.cuda.max_memory_allocated() / 1e9, 3)
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # kB on Linux, bytes on macOS
    return round(peak / (1e9 if sys.platform == "darwin" else 1e6), 3)


class Tracker:
    """Where a run's figures go. writes=False: of a process that is not the first."""

    def __init__(self, config: RunConfig, state: TrainerState, owner: Owner, writes: bool = True):
        self.file, self.writes, self._owner = config.directory / METRICS, writes, owner
        self._minutes = config.train.max_minutes if config.max_steps is None else None
        self.bar = tqdm(
            total=config.max_steps or config.train.max_minutes,
            desc=config.name,
            initial=state.step if config.max_steps else state.seconds / 60,
            unit="step" if config.max_steps else "min",
            dynamic_ncols=True,
            mininterval=0.5,
            bar_format="{desc} {percentage:3.0f}%|{bar:20}| {n:.4g}/{total} {unit} [{elapsed}<{remaining}{postfix}]",
            disable=None if writes else True,  # None: only on a terminal
        )
        self._began = self._said = time.monotonic()
        self._disk_failed = False
        self._others: list[Wandb | TensorBoard] = []
        if writes and config.tracking.wandb != "disabled":
            state.wandb_id = state.wandb_id or secrets.token_hex(4)
            self._others.append(Wandb(config, state.wandb_id))
        if writes and config.tracking.tensorboard:
            self._others.append(TensorBoard(config, state.step))
        self._tell("start")

    def _tell(self, method: str, *arguments: Any) -> None:
        """Call a method of every other program; one that raises is off from here."""
        for other in list(self._others):
            try:
                getattr(other, method)(*arguments)
            except Exception as error:
                self._others.remove(other)
                self.say(f"warning: {other.name} is off from here: {type(error).__name__}: {error}")

    def log(self, split: str, step: int, tokens: int, time_s: float, values: dict[str, Any]) -> None:
        """One line of metrics.jsonl; the same figures go elsewhere as `train/loss`, `val/loss`, …"""
        self.append(self.file, {"step": step, "tokens": tokens, "time_s": round(time_s, 3), "split": split, **values})
        self._tell("log", {f"{split}/{key}": value for key, value in values.items()}, step)

    def append(self, file: Path, record: dict[str, Any]) -> None:
        """A line of a .jsonl file of the run; what is non-finite (NaN, infinity) is null.

        A failure to write is reported once, and training continues. Nothing is written if the run directory is no
        longer this run's; the loop finds that out and stops.
        """
        if not self.writes or self._owner.lost:
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
        self._tell("show", name, media, step)

    def progress(self, step: int, seconds: float, **shown: str) -> None:
        """Move the bar to this step (under max_minutes, to this time) and show these figures beside it.

        Without a terminal: a line of its own where nothing was said for a while, so that nobody takes work for a hang.
        """
        self.bar.set_postfix(shown, refresh=False)
        self.bar.update((step if self._minutes is None else min(seconds / 60, self._minutes)) - self.bar.n)
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
        if self.writes:
            self._said = time.monotonic()
            self.bar.write(text, file=sys.stdout)
            sys.stdout.flush()

    def close(self, exit_code: int = 0) -> None:
        """Close the bar, and the others' runs with our exit code."""
        self.bar.close()
        self._tell("finish", exit_code)


class Wandb:
    """Weights & Biases, which has a process of its own: a line costs training next to nothing. The runs of a sweep are
    one group there (WANDB_RUN_GROUP, train/sweep.py)."""

    name = "wandb"

    def __init__(self, config: RunConfig, run_id: str):
        self._config, self._id = config, run_id

    def start(self) -> None:
        import wandb

        config = self._config
        self._run = wandb.init(
            project=config.tracking.project,
            name=config.name,
            id=self._id,
            resume="allow",
            mode=config.tracking.wandb,
            dir=str(config.directory.resolve()),  # its service may have another working directory
            config=config.model_dump(),
            settings=wandb.Settings(silent=True, x_service_wait=300.0),  # a busy machine starts it slowly
        )
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        self._run.define_metric("val/loss", step_metric="step", summary="min")  # the table of runs shows the best

    def log(self, values: dict[str, Any], step: int) -> None:
        self._run.log({**values, "step": step})

    def show(self, name: str, media: Media, step: int) -> None:
        import wandb

        if not isinstance(media, Path):
            shown: Any = wandb.Table(columns=list(media[0]), data=media[1])
        elif media.suffix == ".html":
            shown = wandb.Html(media.read_text(encoding="utf-8"), inject=False)
        else:
            shown = wandb.Image(str(media))
        self.log({name: shown}, step)

    def finish(self, exit_code: int) -> None:
        self._run.finish(exit_code=exit_code)  # waits for what is still to be sent


class TensorBoard:
    """Event files in `runs/<name>/tensorboard`, for `tensorboard --logdir runs`. They hold figures and pictures."""

    name = "tensorboard"

    def __init__(self, config: RunConfig, start_step: int):
        self._folder, self._start_step = config.directory / "tensorboard", start_step

    def start(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # what a run that was killed wrote beyond its last checkpoint is replaced
        self._writer = SummaryWriter(self._folder, purge_step=self._start_step + 1)

    def log(self, values: dict[str, Any], step: int) -> None:
        for name, value in values.items():
            if isinstance(value, int | float):
                self._writer.add_scalar(name, value, step)

    def show(self, name: str, media: Media, step: int) -> None:
        import numpy as np
        from PIL import Image

        if isinstance(media, Path) and media.suffix == ".png":
            with Image.open(media) as picture:
                self._writer.add_image(name, np.asarray(picture.convert("RGB")), step, dataformats="HWC")

    def finish(self, exit_code: int) -> None:
        self._writer.close()
