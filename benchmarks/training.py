"""Measure how fast a config trains: `python -m benchmarks.training [config] [section.key=value …]`

It takes whole steps on random tokens, in as many processes as a run. It prints tokens/s, MFU,
memory, and what `auto` chose.

    --profile [DIR]          also write a trace, and print where the time of a step goes
    --versus transformers    compare with its model and the same weights, plain and compiled
"""

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

from benchmarks import timing
from benchmarks.timing import seconds_of
from configs.command import add_number, exit_on_bad_input
from configs.text import table
from data.packing import document_starts
from model import LanguageModel
from model.accounting import flops_per_token
from train.config import RunConfig
from train.machine.budget import micro_batch_rows
from train.machine.compilation import compile_layers
from train.machine.cpu_processes import (
    add_up_gradients,
    number_of_processes,
    on_processes,
    processes_in_words,
)
from train.machine.device import Device, known_peak, resolve_device, set_float32_products
from train.machine.distributed import ALONE, World, check_shares, processes
from train.optimizer import build_optimizers

WARM_UP = 0.25  # Steps count after this share of the time.
PROFILED = 3  # The profiler records so many steps.
DOCUMENT = 150  # Isolated documents have about as many tokens as a story.
BATCHES = 4  # Batches with different tokens take turns, so that experts get different ones.
Step = Callable[[], object]
Optimizers = Sequence[torch.optim.Optimizer]


def main() -> int:
    parser = timing.command_line(__doc__)
    add_number(parser, "--seconds", 30.0, "to measure for", least=0.01, kind=float)
    about = "write a trace; default: output_dir"
    parser.add_argument("--profile", nargs="?", const="", metavar="DIR", help=about)
    args = parser.parse_intermixed_args()
    run, _ = timing.measured_config(args)
    if args.versus:
        compare(run, args.rounds)
        return 0
    device = resolve_device(run)  # once, before the processes start
    folder = None if args.profile is None else Path(args.profile or run.output_dir)
    work = partial(measure, run, device, args.seconds, folder)
    on_processes(number_of_processes(run), work)
    return 0


def measure(run: RunConfig, device: Device, seconds: float, profile: Path | None) -> None:
    """Measure in every process, and print on rank 0."""
    on_gpu = device.device.type == "cuda"
    length = run.data.sequence_length
    with processes(run.train.parallel, run.train.device) as world:
        check_shares(run, world)
        lm = model_of(run, device)
        if device.compile:
            compile_layers(lm)
        optimizers = build_optimizers(lm, run.train.optimizer, world, device.dtype)
        # as in a run: this setting doubles the speed of float32 on some CPUs
        set_float32_products(device, writes=False)
        step = step_of(lm, optimizers, run, device, run.rows_per_step // world.size, world)
        # the first step compiles, so it is timed apart
        first = seconds_of(step, device.device)
        times = repeat(step, seconds, device.device, world)
        if profile is not None:
            trace = profile / f"{run.name or 'step'}.trace.json"
            where_time_goes(step, device.device, trace if world.rank == 0 else None)
        if on_gpu:  # apart from the timing, and after compiling, which needs memory too
            torch.cuda.reset_peak_memory_stats(device.device)
            before = torch.cuda.memory_allocated(device.device)
            seconds_of(step, device.device)
            peak = torch.cuda.max_memory_allocated(device.device) - before
        if world.rank:
            return
    # What stays between steps; the peak within a step comes on top.
    lasting = sum(parameter.nbytes for parameter in lm.parameters())
    for optimizer in optimizers:
        for state in optimizer.state.values():
            lasting += sum(tensor.nbytes for tensor in state.values())
    tokens = run.rows_per_step * length
    median = statistics.median(times)
    flops_per_s = flops_per_token(lm, length) * tokens / median
    mfu = "unknown peak"
    known = known_peak(device.device, device.dtype)
    if known:
        tflops, source = known
        mfu = f"{flops_per_s / tflops / 1e12:.1%} of {tflops:g} TFLOPS ({source})"
    each = " of each process" if world.size > 1 else ""
    compiling = ", compiling included" if device.compile else ""
    rows = [
        ["tokens/s (median)", f"{tokens / median:,.0f}"],
        [f"ms a step of {tokens:,} tokens (median of {len(times)})", f"{1e3 * median:,.1f}"],
        [f"first step{compiling}, s", f"{first:.1f}"],
        ["TFLOP/s of matrix products", f"{flops_per_s / 1e12:.3f}"],
        ["MFU", mfu],
        [f"weights and optimizer state{each}, MB", f"{lasting / 1e6:,.1f}"],
        ["rows a forward pass × length", f"{micro_batch_rows(run, device, world.size)} × {length}"],
    ]
    if on_gpu:
        rows.append([f"a step's fullest moment{each}, beyond them, MB", f"{peak / 1e6:,.1f}"])
    print(table(["", run.name], rows))
    notes = [*device.notes]
    if world.memory is not None:
        notes.append(processes_in_words(world.size, torch.get_num_threads()))
    print("\n" + "\n".join(f"* {note}" for note in notes))


def model_of(run: RunConfig, device: Device) -> LanguageModel:
    torch.manual_seed(run.seed)
    lm = LanguageModel(run.model).to(device.device).train()
    lm.set_attn_implementation(device.attention)
    lm.model.activation_checkpointing = run.train.activation_checkpointing
    return lm


def step_of(
    model: Any, optimizers: Optimizers, run: RunConfig, device: Device, rows: int,
    world: World = ALONE,
) -> Step:  # fmt: skip
    """Return a training step on random tokens. rows: of each process of the world."""
    rows_at_once = min(rows, micro_batch_rows(run, device, world.size))
    # on the device already: a run copies the next batch while it computes
    steps = [random_batches(run, rows, rows_at_once, device.device) for _ in range(BATCHES)]
    next_step = cycle(steps)

    def step() -> None:
        batches = next(next_step)
        for batch in batches:
            with device.autocast():  # batches have equal size, so a mean of means is right
                loss = mean_loss(model(**batch)) / (len(batches) * world.size)
            loss.backward()
        if world.memory is not None:
            add_up_gradients(model, world.memory)
        torch.nn.utils.clip_grad_norm_(model.parameters(), run.train.grad_clip or math.inf)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return step


def random_batches(
    run: RunConfig, rows: int, rows_at_once: int, device: torch.device
) -> list[dict[str, Tensor]]:
    """Return the micro-batches of one step, each (rows_at_once, data.sequence_length)."""
    ids = torch.randint(0, run.model.vocab_size or 0, (rows, run.data.sequence_length))
    tensors = {"input_ids": ids, "labels": ids}
    if run.data.isolate_documents:
        # a new number wherever a document begins, which is once in DOCUMENT tokens
        documents = (torch.rand(ids.shape) < 1 / DOCUMENT).cumsum(1)
        tensors["document_ids"] = documents
        tensors["document_starts"] = torch.from_numpy(document_starts(documents.numpy()))
    batches = []
    for i in range(0, rows, rows_at_once):
        batches.append({name: x[i : i + rows_at_once].to(device) for name, x in tensors.items()})
    return batches


def mean_loss(output: Any) -> Tensor:
    """Return the mean loss of an output: (sum, count, …) of LanguageModel, or transformers'."""
    return output[0] / output[1] if isinstance(output, tuple) else output.loss


def repeat(step: Step, seconds: float, device: torch.device, world: World) -> list[float]:
    """Return the seconds of each step, at least three. The first quarter of the time warms up."""
    times: list[float] = []
    began = time.perf_counter()
    while True:
        spent = time.perf_counter() - began
        goes_on = spent < seconds or len(times) < 3
        # The clock of rank 0 decides for all: if one process stopped alone, the rest would hang.
        if not world.sum(int(world.rank == 0 and goes_on))[0]:
            return times
        took = seconds_of(step, device)
        if spent >= WARM_UP * seconds or spent + took >= seconds:
            times.append(took)


def where_time_goes(step: Step, device: torch.device, trace: Path | None) -> None:
    """Write a Chrome trace of some steps, and print the slowest operators. None: only step."""
    with torch.profiler.profile() as profiler:
        # every process takes these steps, or the others would wait for its gradients
        for _ in range(PROFILED):
            seconds_of(step, device)
    if trace is not None:
        trace.parent.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(trace))
        print(f"{trace}: open it in chrome://tracing or ui.perfetto.dev; its {PROFILED} steps:")
        key = f"self_{'cuda' if device.type == 'cuda' else 'cpu'}_time_total"
        averages = profiler.key_averages()  # Chrome shows when, this table how much in all
        print(averages.table(sort_by=key, row_limit=15, max_name_column_width=40))


def compare(run: RunConfig, rounds: int) -> None:
    """Time ours and theirs in turns: same network, rows, AdamW and precision; also compiled."""
    # transformers' model takes no documents, so neither may see where they begin
    run = run.model_copy(update={"data": run.data.model_copy(update={"isolate_documents": False})})
    device = resolve_device(run)
    rows = micro_batch_rows(run, device)
    length = run.data.sequence_length
    steps: dict[str, Step] = {}
    for compiled in (False, True) if run.train.compile else (False,):
        suffix = ", compiled" if compiled else ""
        lm = model_of(run, device)
        other = timing.in_transformers(lm, attn_implementation="sdpa").to(device.device).train()
        # or it returns keys and values, which training never reads
        other.config.use_cache = False
        forward = other
        if compiled:
            compile_layers(lm)
            forward = torch.compile(other, dynamic=False)
        # the same optimizer for both: this compares networks
        adamw = [torch.optim.AdamW(x.parameters(), lr=1e-4, fused=True) for x in (lm, other)]
        ours = step_of(lm, adamw[:1], run, device, rows)
        theirs = step_of(forward, adamw[1:], run, device, rows)
        steps[f"Headlight{suffix}"] = partial(with_products, ours, device)
        steps[f"transformers{suffix}"] = partial(with_products, theirs, None)
    first = {name: seconds_of(step, device.device) for name, step in steps.items()}
    seconds = timing.alternate(steps, rounds, device.device, patience_s=60.0 * rounds)
    reference = list(steps)[-1]
    tokens = rows * length
    lines = []
    for name, took in seconds.items():
        ratio = f"{seconds[reference] / took:.2f}"
        speed = f"{tokens / took:,.0f}"
        lines.append([name, speed, f"{1e3 * took:,.1f}", ratio, f"{first[name]:.1f}"])
    print(f"{tokens:,} tokens a step, rows of {length}, {device.precision}", end=", ")
    print(f"attention {device.attention}, forward + backward + clip + fused AdamW", end=", ")
    print(f"medians of {rounds} alternating steps")
    print(table(["", "tokens/s", "ms a step", f"ratio to {reference}", "first step, s"], lines))


def with_products(step: Step, device: Device | None) -> None:
    """Take a step with our float32 products; None: with PyTorch's default, as transformers has."""
    if device is None:
        torch.set_float32_matmul_precision("highest")
    else:
        set_float32_products(device, writes=False)
    step()


if __name__ == "__main__":
    exit_on_bad_input(main)
