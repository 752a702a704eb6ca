"""Where does the time of an answer go, and when does sharing keys pay? `python -m benchmarks.decode [config]`

Two times, for every number of key/value heads, batch and context:

    first token     reading a prompt of this many tokens: as many products as the model has weights, for each token
    next token      reading one token behind it: all weights and the whole cache come from memory once

Each is predicted from what this machine does at most, which is measured first: bytes read a second, and floating-point
operations a second. first = operations / rate; next = (bytes of weights + bytes of the cache) / bandwidth. What takes
longer is the program: Python, small kernels, copies. Random weights, float32, the dynamic cache, eager mode. Medians;
the numbers of key/value heads take turns. Without a config: 6 layers x 256, 8 query heads.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from configs.command import InputError, exit_on_bad_input, numbers, whole
from configs.text import table

if TYPE_CHECKING:
    import torch

    from benchmarks.timing import Clock
    from model import LanguageModel
    from model.config import ModelConfig
    from model.kv_cache import KVCache

LONGEST_PROMPT = 8192  # tokens of a batch that are read to measure the first token; more take minutes
PAYS = 0.9  # of the time with a key/value head for each query head: from here on sharing pays
READ = 2**28  # bytes of the array that measures the bandwidth: larger than a processor's caches are, mostly
SIDE = 1024  # of the matrices that measure the rate


@dataclass(frozen=True)
class Machine:
    """What it does at most: bytes read a second, floating-point operations (of float32) a second."""

    bandwidth: float
    rate: float


@dataclass(frozen=True)
class Cell:
    """One row of the table, in seconds. first: None where the prompts were too long to be read."""

    kv_heads: int
    batch: int
    context: int
    cache: int
    first: float | None
    first_predicted: float
    next: float
    next_predicted: float


def measure_machine(device: torch.device, rounds: int, clock: Clock) -> Machine:
    """Read a large array; multiply two matrices."""
    import torch

    from benchmarks.timing import alternate

    numbers = torch.ones(READ // 4, device=device)
    side = torch.randn(SIDE, SIDE, device=device)
    calls: dict[str, Callable[[], object]] = {"read": numbers.sum, "multiply": partial(torch.mm, side, side)}
    seconds = alternate(calls, rounds, device, clock=clock)
    return Machine(READ / seconds["read"], 2 * SIDE**3 / seconds["multiply"])


def cells(
    config: ModelConfig,
    kv_heads: Sequence[int],
    batch: int,
    context: int,
    machine: Machine,
    device: torch.device,
    rounds: int,
    clock: Clock,
) -> list[Cell]:
    """One batch and context: a cell for each number of key/value heads, timed in turn. Raises InputError."""
    from benchmarks.decoding import random_weights
    from benchmarks.timing import alternate
    from model.quantised import weight_bytes

    models = {heads: random_weights(shaped(config, heads, context + 1)).to(device) for heads in kv_heads}
    caches = {heads: filled(lm, batch, context) for heads, lm in models.items()}
    steps = {str(heads): partial(next_token, lm, caches[heads], batch) for heads, lm in models.items()}
    after = alternate(steps, rounds, device, clock=clock)
    first: dict[str, float] = {}
    if batch * context <= LONGEST_PROMPT:
        reads = {str(heads): partial(first_token, lm, batch, context) for heads, lm in models.items()}
        first = alternate(reads, rounds, device, clock=clock)
    found = []
    for heads, lm in models.items():
        operations = batch * context * lm.flops_per_token(context, training=False)
        moved = weight_bytes(lm) + caches[heads].nbytes
        predicted = operations / machine.rate, moved / machine.bandwidth
        key, held = str(heads), caches[heads].nbytes
        found.append(Cell(heads, batch, context, held, first.get(key), predicted[0], after[key], predicted[1]))
    return found


def shaped(config: ModelConfig, kv_heads: int, positions: int) -> ModelConfig:
    """The same model with this many key/value heads, for texts of this many tokens. Raises InputError."""
    from model.config import ModelConfig

    if config.num_attention_heads % kv_heads:
        raise InputError(f"--kv-heads {kv_heads}: {config.num_attention_heads} query heads cannot share them evenly")
    changes = {"num_key_value_heads": kv_heads, "max_position_embeddings": positions}
    try:
        return ModelConfig.model_validate(config.model_dump() | changes)
    except ValueError as error:
        raise InputError(f"--kv-heads {kv_heads}: {error}") from None


def filled(lm: LanguageModel, batch: int, context: int) -> KVCache:
    """A cache that holds random keys and values, as if a prompt of `context` tokens had been read."""
    import torch

    from model.kv_cache import KVCache

    cache, like = KVCache(lm.config), next(lm.parameters())
    for layer in range(lm.config.num_hidden_layers):
        k, v = (torch.randn(batch, heads, context, size, device=like.device) for heads, size in lm.config.cache_shapes)
        cache.update(layer, k, v)
    cache.advance(context)
    return cache


def first_token(lm: LanguageModel, batch: int, context: int) -> object:
    """Read a prompt, and choose the token behind it."""
    import torch

    from model.kv_cache import KVCache

    ids = torch.ones(batch, context, dtype=torch.long, device=next(lm.parameters()).device)
    with torch.inference_mode():
        return lm(ids, kv_cache=KVCache(lm.config), logits_to_keep=1).argmax(-1)


def next_token(lm: LanguageModel, cache: KVCache, batch: int) -> object:
    """Read one token behind what the cache holds, and choose the next; the cache is as before afterwards."""
    import torch

    ids, before = torch.ones(batch, 1, dtype=torch.long, device=next(lm.parameters()).device), cache.length
    with torch.inference_mode():
        chosen = lm(ids, kv_cache=cache, logits_to_keep=1).argmax(-1)
    cache.crop(before)
    return chosen


def shown(found: Sequence[Cell]) -> str:
    """The table, in milliseconds; the last column compares with the most key/value heads of the same cell."""
    head = ["batch x context", "H_kv", "cache, MB", "first, ms", "predicted", "next, ms", "predicted", "next, share"]
    rows = []
    for cell in found:
        most = _unshared(found, cell)
        first = "–" if cell.first is None else f"{1e3 * cell.first:,.1f}"
        times = [
            first,
            f"{1e3 * cell.first_predicted:,.1f}",
            f"{1e3 * cell.next:,.2f}",
            f"{1e3 * cell.next_predicted:,.2f}",
        ]
        label = f"{cell.batch} x {cell.context:,}"
        rows.append([label, cell.kv_heads, f"{cell.cache / 1e6:,.1f}", *times, f"{cell.next / most.next:.2f}"])
    return table(head, rows)


def where_it_pays(found: Sequence[Cell]) -> list[str]:
    """A line a batch: from which context on the fewest key/value heads are a tenth quicker than the most."""
    lines, fewest = [], min(cell.kv_heads for cell in found)
    for batch in dict.fromkeys(cell.batch for cell in found):
        row = [cell for cell in found if cell.batch == batch and cell.kv_heads == fewest]
        pays = [cell.next <= PAYS * _unshared(found, cell).next for cell in row]
        late = next((i for i in range(len(row)) if all(pays[i:])), None)  # once more it must not be lost again
        heads = (
            f"batch {batch}: {fewest} key/value head{'s' * (fewest > 1)} instead of {_unshared(found, row[0]).kv_heads}"
        )
        where = "does not pay in these contexts" if late is None else f"pays from {row[late].context:,} tokens on"
        lines.append(f"{heads} {where}")
    return lines


def _unshared(found: Sequence[Cell], cell: Cell) -> Cell:
    """The cell of the same batch and context with the most key/value heads."""
    same = [one for one in found if (one.batch, one.context) == (cell.batch, cell.context)]
    return max(same, key=lambda one: one.kv_heads)


def model_of(path: Path | None) -> ModelConfig:
    """The model of a config, or the benchmarks' own. Raises InputError."""
    from benchmarks.throughput import DEFAULT_MODEL
    from model.config import ModelConfig

    if path is None:
        return ModelConfig.model_validate(DEFAULT_MODEL)
    from train.budget import with_vocabulary
    from train.config import load_run_config

    run = load_run_config(path, [])
    model = run.model if run.model.vocab_size else with_vocabulary(run)[0].model
    if model.attention != "heads":
        raise InputError(f"{path}: its cache keeps latents, not key/value heads (model.attention: {model.attention})")
    return model


def main() -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decode", description=__doc__, formatter_class=form)
    parser.add_argument("config", nargs="?", type=Path, help="a YAML file; default: a 6 x 256 model")
    for option, most, default, meaning in (
        ("--kv-heads", 1024, [8, 2, 1], "numbers of key/value heads"),
        ("--batches", 4096, [1, 8, 32], "rows at once"),
        ("--contexts", 10**6, [128, 512, 2048], "tokens before the one that is written"),
    ):
        listed = ",".join(map(str, default))
        parser.add_argument(
            option, type=numbers(option, 1, most), default=default, metavar="N,N", help=f"{meaning} ({listed})"
        )
    parser.add_argument("--rounds", type=whole("--rounds", 1), default=7, metavar="N", help="(7)")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall", help="cpu: this process alone; one thread")
    given = parser.parse_args()
    import torch

    from benchmarks.timing import CLOCKS

    if given.clock == "cpu" and torch.get_num_threads() > 1:
        raise InputError("--clock cpu measures a single thread: set OMP_NUM_THREADS=1")
    config, device, clock = model_of(given.config), torch.device("cpu"), CLOCKS[given.clock]
    machine = measure_machine(device, given.rounds, clock)
    print(f"{config.in_words()}, float32, {torch.get_num_threads()} threads, torch {torch.__version__}")
    print(f"this machine: {machine.bandwidth / 1e9:.1f} GB/s, {machine.rate / 1e9:.0f} GFLOP/s", flush=True)
    found: list[Cell] = []
    for batch in given.batches:
        for context in sorted(given.contexts):
            found += cells(config, given.kv_heads, batch, context, machine, device, given.rounds, clock)
    print("\n" + shown(found) + "\n\n" + "\n".join(where_it_pays(found)))
    return 0


if __name__ == "__main__":
    exit_on_bad_input(main)
