"""How fast does a config train here? `python -m benchmarks.training [config] [section.key=value …]`

Whole steps on random tokens, in as many processes as a run starts: tokens/s, MFU, memory, and what auto chose.

    --profile [DIR]          also a trace to look into, and where the time of a step goes
    --versus transformers    its model with the same weights in turns with ours, plain and compiled, with fused AdamW
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.timing import alternate, command_line, in_transformers, measured_config, peak_bytes, seconds_of
from configs.command import exit_on_bad_input, number
from configs.text import table
from data.packing import document_starts
from model import LanguageModel
from model.accounting import flops_per_token
from train.config import RunConfig
from train.machine.budget import micro_batch_rows
from train.machine.compilation import compile_layers
from train.machine.cpu_processes import add_up_gradients, number_of_processes, on_processes, processes_in_words
from train.machine.device import Device, known_peak, resolve_device, set_float32_products, synchronize
from train.machine.distributed import ALONE, World, check_shares, processes
from train.optimizer import build_optimizers

COUNTED = 0.25  # share of the time after which steps count
PROFILED = 3  # steps
DOCUMENT = 150  # tokens; about as long as a story, where documents are isolated
DIFFERENT = 4  # steps, before their tokens come again: a router of experts sends other tokens elsewhere
Step = Callable[[], object]


def main() -> int:
    parser = command_line(__doc__, rounds=5)
    parser.add_argument("--seconds", type=number("--seconds", 0.01), default=30.0, help="to measure for (30)")
    parser.add_argument("--profile", nargs="?", const="", metavar="DIR", help="write a trace; default: output_dir")
    given = parser.parse_intermixed_args()
    run, _ = measured_config(given)
    if given.versus:
        compare(run, given.rounds)
        return 0
    device = resolve_device(run)  # before the processes start: it may ask the machine
    folder = None if given.profile is None else Path(given.profile or run.output_dir)
    on_processes(number_of_processes(run), partial(measure, run, device, given.seconds, folder))
    return 0


def measure(run: RunConfig, device: Device, seconds: float, profile: Path | None) -> None:
    """What each process does; the first one prints."""
    with processes(run.train.parallel, run.train.device) as world:
        check_shares(run, world)
        own_rows, length = run.rows_per_step // world.size, run.data.sequence_length
        lm = model_of(run, device)
        if device.compile:
            compile_layers(lm)
        optimizers = build_optimizers(lm, run.train.optimizer, world, device.dtype)
        set_float32_products(device, writes=False)
        step = step_of(lm, optimizers, run, device, own_rows, world)
        first = seconds_of(step, device.device)
        times = repeat(step, seconds, device.device, world)
        if profile is not None:
            trace = profile / f"{run.name or 'step'}.trace.json"
            where_time_goes(step, device.device, trace if world.rank == 0 else None)
        peak = peak_bytes(step, device.device) if device.device.type == "cuda" else None
        if world.rank:
            return
    states = [tensor for optimizer in optimizers for state in optimizer.state.values() for tensor in state.values()]
    lasting = sum(tensor.nbytes for tensor in [*lm.parameters(), *states])
    tokens, median = run.rows_per_step * length, statistics.median(times)
    flops_per_s = flops_per_token(lm, length) * tokens / median
    known = known_peak(device.device, device.dtype)
    share = f"{flops_per_s / known[0] / 1e12:.1%} of {known[0]:g} TFLOPS ({known[1]})" if known else "unknown peak"
    each = " of each process" if world.size > 1 else ""
    rows = [
        ["tokens/s (median)", f"{tokens / median:,.0f}"],
        [f"ms a step of {tokens:,} tokens (median of {len(times)})", f"{1e3 * median:,.1f}"],
        ["first step, compiling included, s" if device.compile else "first step, s", f"{first:.1f}"],
        ["TFLOP/s of matrix products", f"{flops_per_s / 1e12:.3f}"],
        ["MFU", share],
        [f"weights and optimizer state{each}, MB", f"{lasting / 1e6:,.1f}"],
        ["rows a forward pass × length", f"{micro_batch_rows(run, device, world.size)} × {length}"],
    ]
    if peak is not None:
        rows.append([f"a step's fullest moment{each}, beyond them, MB", f"{peak / 1e6:,.1f}"])
    print(table(["", run.name], rows))
    shared = [] if world.memory is None else [processes_in_words(world.size, torch.get_num_threads())]
    print("\n" + "\n".join(f"* {choice}" for choice in [*device.notes, *shared]))


def model_of(run: RunConfig, device: Device) -> LanguageModel:
    """The network of a config as it is trained."""
    torch.manual_seed(run.seed)
    lm = LanguageModel(run.model).to(device.device).train()
    lm.set_attn_implementation(device.attention)
    lm.model.activation_checkpointing = run.train.activation_checkpointing
    return lm


def step_of(
    model: Any, optimizers: Sequence[torch.optim.Optimizer], run: RunConfig, device: Device, rows: int,
    world: World = ALONE,
) -> Step:  # fmt: skip
    """A step of this many rows of random tokens, of a model of ours or of transformers. world: the processes that take
    it together, with these rows each."""
    rows_at_once = min(rows, micro_batch_rows(run, device, world.size))
    steps = cycle([random_batches(run, rows, rows_at_once, device.device) for _ in range(DIFFERENT)])

    def step() -> None:
        batches = next(steps)
        for batch in batches:
            with device.autocast():
                loss = mean_loss(model(**batch)) / (len(batches) * world.size)
            loss.backward()
        if world.memory is not None:
            add_up_gradients(model, world.memory)
        torch.nn.utils.clip_grad_norm_(model.parameters(), run.train.grad_clip or math.inf)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return step


def random_batches(run: RunConfig, rows: int, rows_at_once: int, device: torch.device) -> list[dict[str, Tensor]]:
    """The micro-batches of one step, rows (rows_at_once, data.sequence_length)."""
    ids = torch.randint(0, run.model.vocab_size or 0, (rows, run.data.sequence_length))
    tensors = {"input_ids": ids, "labels": ids}
    if run.data.isolate_documents:
        tensors["document_ids"] = (torch.rand(ids.shape) < 1 / DOCUMENT).cumsum(1)
        tensors["document_starts"] = torch.from_numpy(document_starts(tensors["document_ids"].numpy()))
    parts = range(0, rows, rows_at_once)
    return [{name: x[i : i + rows_at_once].to(device) for name, x in tensors.items()} for i in parts]


def mean_loss(output: Any) -> Tensor:
    """Of a batch, from what LanguageModel returns, its sum and count, or a model of transformers."""
    return output[0] / output[1] if isinstance(output, tuple) else output.loss


def repeat(step: Step, seconds: float, device: torch.device, world: World = ALONE) -> list[float]:
    """Seconds of each step, at least three. The first quarter of the time warms up and does not count.

    world: who takes the step together; the first process's clock decides how many there are.
    """
    times: list[float] = []
    began = time.perf_counter()
    while True:
        spent = time.perf_counter() - began
        goes_on = spent < seconds or len(times) < 3
        if not world.sum(int(world.rank == 0 and goes_on))[0]:
            return times
        took = seconds_of(step, device)
        if spent >= COUNTED * seconds or spent + took >= seconds:
            times.append(took)


def where_time_goes(step: Step, device: torch.device, trace: Path | None) -> None:
    """Take PROFILED steps; write a Chrome trace of them, and print the operators that take most.

    trace: its file; None in the other processes, which only take the steps.
    """
    with torch.profiler.profile() as profiler:  # the GPU too, where there is one
        for _ in range(PROFILED):
            step()
        synchronize(device)
    if trace is not None:
        trace.parent.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(trace))
        kind = "cuda" if device.type == "cuda" else "cpu"
        print(f"{trace}: open it in chrome://tracing or ui.perfetto.dev; its {PROFILED} steps:")
        print(profiler.key_averages().table(sort_by=f"self_{kind}_time_total", row_limit=15, max_name_column_width=40))


def compare(run: RunConfig, rounds: int) -> None:
    """Print ours and theirs in turn: the same architecture, rows, AdamW and precision; compiled too, unless
    train.compile is false. Float32 is multiplied as we set it for ours, and as PyTorch has it for theirs."""
    run = run.model_copy(update={"data": run.data.model_copy(update={"isolate_documents": False})})
    device = resolve_device(run)
    rows, length = micro_batch_rows(run, device), run.data.sequence_length
    steps: dict[str, Step] = {}
    for compiled in (False, True) if run.train.compile else (False,):
        name = ", compiled" if compiled else ""
        lm = model_of(run, device)
        other = in_transformers(lm, attn_implementation="sdpa").to(device.device).train()
        other.config.use_cache = False
        for whose, model in (("Headlight", lm), ("transformers", other)):
            adamw = [torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)]
            if compiled and model is lm:
                compile_layers(lm)
            forward = torch.compile(model, dynamic=False) if compiled and model is other else model
            step = step_of(forward, adamw, run, device, rows)
            steps[f"{whose}{name}"] = partial(with_products, step, device if model is lm else None)
    first = {name: seconds_of(step, device.device) for name, step in steps.items()}
    seconds = alternate(steps, rounds, device.device, patience_s=60.0 * rounds)
    measure, tokens = list(steps)[-1], rows * length
    lines = [
        [name, f"{tokens / took:,.0f}", f"{1e3 * took:,.1f}", f"{seconds[measure] / took:.2f}", f"{first[name]:.1f}"]
        for name, took in seconds.items()
    ]
    print(
        f"{tokens:,} tokens a step, rows of {length}, {device.precision}, attention {device.attention}, "
        f"forward + backward + clip + fused AdamW, medians of {rounds} alternating steps"
    )
    print(table(["", "tokens/s", "ms a step", f"ratio to {measure}", "first step, s"], lines))


def with_products(step: Step, ours: Device | None) -> None:
    """A step with float32 products as our runs set them; None: as PyTorch has them."""
    if ours is None:
        torch.set_float32_matmul_precision("highest")
    else:
        set_float32_products(ours, writes=False)
    step()


if __name__ == "__main__":
    exit_on_bad_input(main)
