"""What a run measures of itself: speed, share of the peak, waiting, memory, size of the updates, loss spikes."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from model import LanguageModel
from train.config import RunConfig
from train.machine.device import Device
from train.machine.distributed import whole
from train.machine.hardware import known_peak

SLOW_S, ENOUGH_S = 4.0, 2.0  # seconds: a first step that counts, since no warm-up takes so long; of steps to go by
SPIKE_WINDOW = 30  # steps whose losses a new one is compared with
SPIKE_DEVIATIONS = 6.0  # how far above their median it must be, in (robust) standard deviations, …
SPIKE_SHARE = 0.1  # … and as a share of the median


@dataclass(frozen=True)
class StepFigures:
    """What one step measured, over all processes.

    loss (nats a token), grad_norm: scalars on the device, not read yet; NaN where trained, what the objective counts,
    is 0. tokens without padding, positions with it. waited: seconds for the batch. rows: numbers of the step's first
    and last row. figures: the objective's other means, update_ratios: see UpdateRatio; both by name, on the device.
    """

    step: int
    loss: Tensor
    grad_norm: Tensor
    lr: float
    trained: int
    tokens: int
    positions: int
    waited: float
    rows: tuple[int, int]
    figures: dict[str, Tensor] = field(default_factory=dict)
    update_ratios: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Reading:
    """A step's loss and gradient norm as numbers, read off the device; of the newest step, everything else too."""

    figures: StepFigures
    loss: float
    grad_norm: float
    others: dict[str, float] = field(default_factory=dict)


class Meter:
    """Figures since the last line of metrics.jsonl. Losses stay on the device until `read_device`."""

    def __init__(self, config: RunConfig, lm: LanguageModel, device: Device, world_size: int = 1) -> None:
        self.device = device.device
        self.flops = lm.flops_per_token(config.data.sequence_length)
        peak = known_peak(device) if device.device.type == "cuda" else None
        self.peak_flops = peak[0] * 1e12 * world_size if peak else None
        self.last: Reading | None = None
        self.steps, self.training_s = 0, 0.0  # since this process began
        self.pace_is_said = False
        self._warm: tuple[int, float] | None = None
        self._unread: list[StepFigures] = []
        self._reset()

    def _reset(self) -> None:
        self.tokens = self.positions = 0
        self.waited = self.seconds = 0.0
        self.elsewhere = {"eval_s": 0.0, "save_s": 0.0}
        self._since = time.perf_counter()

    @contextmanager
    def apart(self, name: str) -> Iterator[None]:
        """An evaluation ("eval_s") or a save ("save_s"): its time is not training's."""
        before = time.perf_counter()
        try:
            yield
        finally:
            self._since = time.perf_counter()
            self.elsewhere[name] += self._since - before

    def add(self, figures: StepFigures) -> None:
        """Count a step; its loss stays on the device."""
        self._unread.append(figures)
        self.steps += 1
        self.tokens += figures.tokens
        self.positions += figures.positions
        self.waited += figures.waited
        self._lap()

    def read_device(self) -> list[Reading]:
        """The steps since the last call as numbers: one wait for the device, however many steps."""
        if not self._unread:
            return []
        newest, count = self._unread[-1], len(self._unread)
        ratios = {f"update_to_weight/{name}": ratio for name, ratio in newest.update_ratios.items()}
        others = newest.figures | ratios
        scalars = [f.loss for f in self._unread] + [f.grad_norm for f in self._unread] + [*others.values()]
        values = torch.stack([scalar.float() for scalar in scalars]).tolist()
        pairs = zip(self._unread, values[:count], values[count : 2 * count], strict=True)
        readings = [Reading(figures, loss, grad_norm) for figures, loss, grad_norm in pairs]
        readings[-1].others.update(zip(others, values[2 * count :], strict=True))
        self._unread, self.last = [], readings[-1]
        self._lap()
        return readings

    def _lap(self) -> None:
        now = time.perf_counter()
        self.seconds, self.training_s = self.seconds + now - self._since, self.training_s + now - self._since
        self._since = now

    def seconds_a_step(self) -> float | None:
        """Of training alone, right after `read_device`; None as long as it cannot be told. What was read first warmed
        up, or counts if it is slow."""
        steps, seconds = self.steps, self.training_s
        if self._warm is None:
            self._warm = steps, seconds
            return seconds / steps if seconds > SLOW_S * steps else None
        steps, seconds = steps - self._warm[0], seconds - self._warm[1]
        return seconds / steps if steps and seconds > ENOUGH_S else None

    @property
    def tokens_per_s(self) -> float:
        """Without padding and without the time of evaluations and saves."""
        return self.tokens / max(self.seconds, 1e-9)

    def line(self) -> dict[str, Any]:
        """A line of figures; the next one starts from zero."""
        assert self.last is not None
        flops_per_s = self.flops * self.positions / max(self.seconds, 1e-9)
        values = {
            "loss": self.last.loss,
            "lr": self.last.figures.lr,
            "grad_norm": self.last.grad_norm,
            "tokens_per_s": round(self.tokens_per_s, 1),
            "padding_share": 1 - self.last.figures.tokens / max(1, self.last.figures.positions),
            "data_wait_share": round(self.waited / max(self.seconds, 1e-9), 4),
            "tflops": round(flops_per_s / 1e12, 4),
            **({"mfu": round(flops_per_s / self.peak_flops, 4)} if self.peak_flops else {}),
            "memory_gb": memory_gb(self.device),
            **{name: round(seconds, 3) for name, seconds in self.elsewhere.items()},
            **self.last.others,
        }
        self._reset()
        return values


class UpdateRatio:
    """How far a step moves the weights: |change| / |weights| of every parameter group, Euclidean norms.

    About 1e-3 is usual with AdamW. Made before the step, read after it; it copies the weights, so only for the
    steps that are logged.
    """

    @torch.no_grad()
    def __init__(self, optimizers: list[torch.optim.Optimizer]) -> None:
        self.groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        self.before = [[p.detach().clone() for p in group["params"]] for group in self.groups]

    @torch.no_grad()
    def read(self) -> dict[str, Tensor]:
        """The ratio of each parameter group, by its name: scalars on the device, so that nothing waits for them."""
        ratios = {}
        for number, (group, before) in enumerate(zip(self.groups, self.before, strict=True)):
            changes = [p - old for p, old in zip(group["params"], before, strict=True)]
            ratios[group.get("name", str(number))] = _norm(changes) / _norm(before).clamp(min=1e-12)
        return ratios


def _norm(tensors: list[Tensor]) -> Tensor:
    return whole(torch.nn.utils.get_total_norm(tensors))


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
