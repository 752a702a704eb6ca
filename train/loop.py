"""The training loop: batch -> loss -> gradients -> optimizer step, and what happens every n steps."""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from data.batches import Batch, TrainBatches
from data.packing import Rows
from data.prepare import PreparedData
from eval.hooks import EvalEvent, Hook, run_hooks
from model import LanguageModel
from train.checkpoint import TrainerState, save_checkpoint
from train.config import RunConfig
from train.device import Device
from train.optimizer import set_learning_rate
from train.schedule import lr_factor
from train.tracking import Tracker

EXIT_NON_FINITE = 3
AUTO_MICRO_TOKENS = {"cpu": 8192, "cuda": 65536, "mps": 16384}


@dataclass
class Run:
    """Everything a training run holds."""

    config: RunConfig
    device: Device
    data: PreparedData
    batches: TrainBatches
    held_out: Rows
    lm: LanguageModel
    optimizers: list[torch.optim.Optimizer]
    state: TrainerState
    tracker: Tracker
    switched_off: set[Hook] = field(default_factory=set)


class NonFiniteLoss(Exception):
    """The loss or the gradient is not a number any more; the parameters are as they were before this step."""


def train(run: Run) -> int:
    """Train from run.state.step to max_steps. Returns the exit code: 0, 3 (non-finite), 130 / 143 (signal)."""
    config, state = run.config, run.state
    micro_tokens = micro_batch_rows(config, run.device) * config.data.sequence_length
    micro_rows = max(1, micro_tokens // run.batches.rows.length)
    started = time.perf_counter() - state.seconds
    forward = compiled(run, micro_rows) if run.device.compile else run.lm
    if state.step == 0:
        report_initial_loss(run)
        evaluate(run, started)
    meter = Meter(run.device.device)
    run.lm.train()
    pin = run.device.device.type == "cuda"
    upcoming = run.batches.prefetch(state.step, config.train.max_steps, pin)
    with stop_signals() as stopped, closing(upcoming):
        while state.step < config.train.max_steps:
            try:
                meter.add(training_step(run, upcoming, forward, micro_rows))
            except NonFiniteLoss as error:
                run.tracker.say(f"stopped: {error}")
                return EXIT_NON_FINITE
            is_last, signal_number = state.step == config.train.max_steps, stopped()
            state.seconds = time.perf_counter() - started
            show_progress(run, meter)
            if is_last or state.step % config.train.log_every == 0:
                run.tracker.log("train", state.step, state.tokens, state.seconds, meter.read())
            if is_last or _due(state.step, config.eval.every, config.eval.attention.every):
                evaluate(run, started)
                meter.restart_clock()
            state.seconds = time.perf_counter() - started
            is_best = state.best_step == state.step
            if is_last or signal_number or is_best or _due(state.step, config.train.checkpoint_every):
                save(run)
                meter.restart_clock()
            if signal_number and not is_last:
                run.tracker.say(f"stopped at step {state.step:,}; the same command goes on from here")
                return 128 + signal_number
    return 0


def compiled(run: Run, micro_rows: int) -> nn.Module:
    """The compiled model, tried out on one micro-batch. Where `auto` chose it and it fails, the plain model."""
    model: nn.Module = torch.compile(run.lm, dynamic=False)  # type: ignore[assignment]
    before, random_state = time.perf_counter(), torch.get_rng_state()
    batch = run.batches.batch(0).split(micro_rows)[0].to(run.device.device)
    try:
        run.lm.train()
        with run.device.autocast():
            loss_sum, _ = model(**batch.for_model())
        loss_sum.backward()
    except Exception as error:
        if run.config.train.compile is True:
            raise
        run.tracker.say(f"compile is off: it failed here ({type(error).__name__}: {str(error).splitlines()[0][:120]})")
        return run.lm
    finally:
        _forget_gradients(run)
        torch.set_rng_state(random_state)
    run.tracker.say(f"compiled in {time.perf_counter() - before:.0f} s")
    return model


def training_step(run: Run, upcoming: Iterator[Batch], forward: nn.Module, micro_rows: int) -> StepFigures:
    """One optimizer step. Raises NonFiniteLoss before anything is changed."""
    config, state = run.config.train, run.state
    before = time.perf_counter()
    batch = next(upcoming).to(run.device.device)
    waited = time.perf_counter() - before
    # the loss of a step is its token sum / its number of trained tokens, whatever the micro-batches are
    trained = (batch.labels[:, 1:] != -100).sum().clamp(min=1)
    loss = torch.zeros((), device=run.device.device)
    for micro in batch.split(micro_rows):
        with run.device.autocast():
            loss_sum, _ = forward(**micro.for_model())
        (loss_sum / trained).backward()
        loss += loss_sum.detach()
    loss_value = float(loss / trained)
    grad_norm = float(nn.utils.clip_grad_norm_(run.lm.parameters(), config.grad_clip or math.inf))
    if not math.isfinite(loss_value) or not math.isfinite(grad_norm):
        _forget_gradients(run)
        raise NonFiniteLoss(
            f"loss {loss_value}, gradient norm {grad_norm} at step {state.step} (rows {batch.row_ids[0]} to "
            f"{batch.row_ids[-1]}); no step was taken. Lower train.optimizer.lr, or train with precision fp32"
        )
    factor = lr_factor(
        state.step,
        config.max_steps,
        config.schedule,
        config.warmup_steps,
        config.cooldown,
        config.final_lr_fraction,
    )
    lr = set_learning_rate(run.optimizers, factor)
    for optimizer in run.optimizers:
        optimizer.step()
    _forget_gradients(run)
    tokens = _real_tokens(batch, run.data)
    state.step += 1
    state.tokens += tokens
    return StepFigures(loss_value, lr, grad_norm, tokens, batch.input_ids.numel(), waited)


@dataclass(frozen=True)
class StepFigures:
    """What one step measured: loss in nats a token, tokens without padding, positions with it, seconds."""

    loss: float
    lr: float
    grad_norm: float
    tokens: int
    positions: int
    waited: float


class Meter:
    """The newest loss, and speed since the last line of metrics."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.last = StepFigures(math.nan, 0.0, 0.0, 0, 0, 0.0)
        self._reset()

    def _reset(self) -> None:
        self.tokens = 0
        self.waited = self.seconds = 0.0
        self.restart_clock()

    def restart_clock(self) -> None:
        """Call after an evaluation or a save: their time is not training's."""
        self._since = time.perf_counter()

    def add(self, figures: StepFigures) -> None:
        now = time.perf_counter()
        self.seconds, self._since = self.seconds + now - self._since, now
        self.last = figures
        self.tokens += figures.tokens
        self.waited += figures.waited

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / max(self.seconds, 1e-9)

    def read(self) -> dict[str, Any]:
        """A line of figures; the next one starts afresh."""
        values = {
            "loss": self.last.loss,
            "lr": self.last.lr,
            "grad_norm": self.last.grad_norm,
            "tokens_per_s": round(self.tokens_per_s, 1),
            "padding_share": 1 - self.last.tokens / max(1, self.last.positions),
            "data_wait_share": round(self.waited / max(self.seconds, 1e-9), 4),
            "memory_gb": _memory_gb(self.device),
        }
        self._reset()
        return values


def evaluate(run: Run, started: float) -> None:
    """Run the hooks; a better validation loss makes this step the best one."""
    state, tracker = run.state, run.tracker

    def log(split: str, values: dict[str, Any]) -> None:
        tracker.log(split, state.step, state.tokens, time.perf_counter() - started, values)
        if split == "val":
            shown = f"loss {values['loss']:.4f}   bits per byte {values['bits_per_byte']:.4f}"
            tracker.say(f"step {state.step:>6,}   val {shown}")
            if state.best_loss is None or values["loss"] < state.best_loss:
                state.best_loss, state.best_step = values["loss"], state.step
        elif split in ("questions", "questions_new_names"):
            shown = f"{values['exact_match']:.1%} of {values['asked']} answers right (chance {values['chance']:.1%})"
            tracker.say(f"step {state.step:>6,}   {split.replace('_', ' ')} {shown}")

    event = EvalEvent(
        step=state.step,
        is_last=state.step == run.config.train.max_steps,
        lm=run.lm,
        data=run.data,
        held_out=run.held_out,
        data_config=run.config.data,
        config=run.config.eval,
        rows_per_batch=micro_batch_rows(run.config, run.device),
        directory=run.config.directory,
        autocast=run.device.autocast,
        log=log,
        log_image=lambda name, path: tracker.log_image(name, path, state.step),
    )
    with run.device.autocast():
        run_hooks(event, run.switched_off, tracker.say)


@torch.no_grad()
def report_initial_loss(run: Run) -> None:
    """An untrained model should find every token equally likely: its loss is ln(vocabulary)."""
    batch = run.batches.batch(0).split(8)[0].to(run.device.device)
    run.lm.eval()
    with run.device.autocast():
        loss_sum, count = run.lm(**batch.for_model())
    vocabulary = run.data.tokenizer.vocab_size
    run.tracker.say(
        f"step 0: loss {float(loss_sum / count.clamp(min=1)):.4f}, and ln(vocabulary {vocabulary:,}) = "
        f"{math.log(vocabulary):.4f}"
    )


def save(run: Run) -> None:
    run.state.wandb_id = run.tracker.wandb_id
    save_checkpoint(
        run.config.directory / "checkpoints",
        run.lm,
        run.optimizers,
        run.data.tokenizer,
        run.state,
        run.config.train.keep_last,
    )


def show_progress(run: Run, meter: Meter) -> None:
    figures = meter.last
    run.tracker.progress(
        run.state.step, loss=f"{figures.loss:.3f}", lr=f"{figures.lr:.1e}", tok_s=f"{meter.tokens_per_s:,.0f}"
    )


def micro_batch_rows(config: RunConfig, device: Device) -> int:
    """Rows of one forward pass. auto: the largest divisor of a step's rows within a fixed number of tokens."""
    rows, wanted = config.rows_per_step, config.train.micro_batch_size
    if isinstance(wanted, int):
        return wanted
    limit = max(1, AUTO_MICRO_TOKENS[device.device.type] // config.data.sequence_length)
    return max(n for n in range(1, rows + 1) if rows % n == 0 and n <= limit)


@contextmanager
def stop_signals() -> Iterator[Callable[[], int]]:
    """While inside, SIGINT and SIGTERM only note themselves; the function given tells which came (0: none)."""
    received = 0

    def note(number: int, frame: Any) -> None:
        nonlocal received
        received = number
        print(f"\n{signal.Signals(number).name}: finishing this step, then saving …", file=sys.stderr)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _due(step: int, *cadences: int) -> bool:
    return any(every > 0 and step % every == 0 for every in cadences)


def _real_tokens(batch: Batch, data: PreparedData) -> int:
    return int(batch.input_ids.ne(data.tokenizer.pad_id).sum())


def _forget_gradients(run: Run) -> None:
    for optimizer in run.optimizers:
        optimizer.zero_grad(set_to_none=True)


def _memory_gb(device: torch.device) -> float | None:
    """Peak memory: of the GPU if there is one, else of this process (None where the system does not tell)."""
    if device.type == "cuda":
        return round(torch.cuda.max_memory_allocated() / 1e9, 3)
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # kB on Linux, bytes on macOS
    return round(peak / (1e9 if sys.platform == "darwin" else 1e6), 3)
