"""What do fewer bits cost? `python -m eval.quantised runs/demo`

A row each for float32, bfloat16, weights of 8 and of 4 bits, and a key-value cache of 8 bits, all of one checkpoint:

    weights         bytes of all weights
    cache           bytes of the key-value cache a token
    tokens/s        greedy decoding of one row, medians; the rows take turns
    gap             bits per byte above the entropy floor, on held-out stories
    copy gain       what telling random tokens twice is worth, nats a token
    exact match     share of held-out questions answered right
    drift           how far attention moves from that in float32: half the sum of |difference| over the keys of a token
                    (total variation: 0 = equal maps, 1 = nothing in common), mean of all heads and tokens

A run on other texts than the built-in world has no gap; one that was trained on texts, not on chats, no exact match.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from configs.command import InputError, exit_on_bad_input, whole
from configs.text import table
from eval.opening import add_device_option, data_config, open_model

if TYPE_CHECKING:  # torch takes seconds to import, and --help should not
    from torch import Tensor

    from data.config import StoryworldSource
    from data.tokenizer import Tokenizer
    from eval.attention.probes import Probe
    from model import LanguageModel

TEXT = "Once there was a fox. The fox saw a bird, and the bird saw the fox."  # where there are no stories
HEADER = ["", "weights, bytes", "cache, bytes a token", "tokens/s", "gap", "copy gain", "exact match", "drift"]
# name -> dtype, weights, cache
VARIANTS: dict[str, tuple[str, str | None, str]] = {
    "float32": ("float32", None, "dynamic"),
    "bfloat16": ("bfloat16", None, "dynamic"),
    "int8 weights": ("float32", "int8", "dynamic"),
    "int4 weights": ("float32", "int4", "dynamic"),
    "int8 cache": ("float32", None, "int8"),
}


@dataclass(frozen=True)
class HeldOut:
    """What every row is measured on. source: of the stories and questions; None for other texts. asks: whether there
    are questions. maps: the probe whose attention is compared, and that attention in float32."""

    tokenizer: Tokenizer
    source: StoryworldSource | None
    asks: bool
    documents: int
    copied: Probe | None
    seen: Probe
    maps: Tensor


@dataclass(frozen=True)
class Figures:
    """A row of the table but for its speed."""

    weights: int
    cache: float
    gap: float | None
    gain: float | None
    exact: float | None
    drift: float


@contextmanager
def reading_through(lm: LanguageModel, cache: str) -> Iterator[None]:
    """Inside, every forward pass without a cache reads through a new one of this kind, and so sees what it keeps."""
    from model.kv_cache import make_cache

    def add_cache(module: Any, args: tuple, given: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        if given.get("kv_cache") is None:
            ids = args[0] if args else given["input_ids"]
            rows, count = ids.shape
            given["kv_cache"] = make_cache(cache, lm.config, rows, count, next(lm.parameters()))
        return args, given

    handle = lm.register_forward_pre_hook(add_cache, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def measure(lm: LanguageModel, cache: str, held_out: HeldOut) -> Figures:
    """One row: the model as it is, read through a cache of this kind."""
    from data.storyworld import tell
    from eval.attention.controls import copy_gain
    from eval.floor import compare_with_floor, fitting
    from eval.questions import ask, held_out_questions, score
    from model.quantised import weight_bytes

    tokenizer, source, gap, exact = held_out.tokenizer, held_out.source, None, None
    with reading_through(lm, cache):
        gain = copy_gain(lm, held_out.copied) if held_out.copied is not None else None
        drift = 0.5 * (maps_of(lm, held_out.seen) - held_out.maps).abs().sum(-1).mean().item()
        if source is not None:
            stories = [tell(source.seed, i, "validation", source.level) for i in range(held_out.documents)]
            read = fitting(lm, tokenizer, stories)
            gap = compare_with_floor(lm, tokenizer, read).gap if read else None
    if source is not None and held_out.asks:
        of_some = source.model_copy(update={"validation_documents": held_out.documents})
        questions = list(held_out_questions(of_some))
        exact = score(questions, ask(lm, tokenizer, questions, kv_cache=cache))["all"].exact_match
    return Figures(weight_bytes(lm), cache_bytes(lm, cache), gap, gain, exact, drift)


def maps_of(lm: LanguageModel, probe: Probe) -> Tensor:
    """Attention on a probe: (layer, B, head, query, key)."""
    from eval.attention.capture import capture

    return capture(lm, probe.for_model(next(lm.parameters()).device)["input_ids"]).weights


def cache_bytes(lm: LanguageModel, cache: str, tokens: int = 8) -> float:
    """Bytes that a token takes in a cache, counted after a few."""
    import torch

    from model.kv_cache import make_cache

    like = next(lm.parameters())
    kept = make_cache(cache, lm.config, 1, tokens, like)
    with torch.no_grad():
        lm(torch.zeros(1, tokens, dtype=torch.long, device=like.device), kv_cache=kept)
    return kept.nbytes / tokens


def held_out_of(run: str, lm: LanguageModel, tokenizer: Tokenizer, documents: int) -> HeldOut:
    """What the rows are measured on; lm is the model in float32, whose attention the others are compared with."""
    from data.config import StoryworldSource
    from eval.attention.probes import probe_from_text, repeated_probe, stories_probe

    config, longest = data_config(run), lm.config.max_position_embeddings
    source = config.source if config is not None and isinstance(config.source, StoryworldSource) else None
    if source is not None and source.recall is not None:
        source = None
    seen = stories_probe(tokenizer, source, longest) if source is not None else None
    seen = seen or probe_from_text(tokenizer, TEXT, longest)
    asks = config is not None and config.records != "text"
    return HeldOut(tokenizer, source, asks, documents, repeated_probe(tokenizer, 2, longest), seen, maps_of(lm, seen))


def rows_of(found: dict[str, Figures], speeds: dict[str, float]) -> Iterator[Sequence[Any]]:
    """The lines of the table."""

    def shown(value: float | None, form: str) -> str:
        return "–" if value is None else format(value, form)

    for name, one in found.items():
        quality = [shown(one.gap, "+.4f"), shown(one.gain, ".3f"), shown(one.exact, ".1%"), f"{one.drift:.4f}"]
        yield [name, f"{one.weights:,}", f"{one.cache:,.0f}", f"{speeds[name]:,.0f}", *quality]


def main() -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m eval.quantised", description=__doc__, formatter_class=form)
    parser.add_argument("run", help="a run or a checkpoint directory, for example runs/demo")
    for option, most, default, meaning in (
        ("--documents", 10**6, 50, "held-out stories, and conversations with questions"),
        ("--rounds", 1000, 5, "how often each is timed"),
    ):
        parser.add_argument(
            option, type=whole(option, 1, most), default=default, metavar="N", help=f"{meaning} ({default})"
        )
    parser.add_argument(
        "--clock",
        choices=["wall", "cpu"],
        default="wall",
        help="cpu: time of this process alone, beside other programs; set OMP_NUM_THREADS=1 with it",
    )
    add_device_option(parser)
    given = parser.parse_args()
    import torch

    from eval.decode_speed import decode_speeds

    models: dict[str, LanguageModel] = {}
    held_out, found = None, {}
    for name, (dtype, weights, cache) in VARIANTS.items():
        try:
            lm, tokenizer = open_model(given.run, given.device, getattr(torch, dtype), weights)
        except InputError as error:
            if not models:
                raise
            print(f"{name} left out: {error}", flush=True)  # no torchao, or no layer that it could change
            continue
        if held_out is None:
            held_out = held_out_of(given.run, lm, tokenizer, given.documents)
        models[name] = lm
        found[name] = measure(lm, cache, held_out)
        print(f"{name} measured", flush=True)
    clock = time.process_time if given.clock == "cpu" else time.perf_counter
    speeds = decode_speeds(models, given.rounds, {name: VARIANTS[name][2] for name in models}, clock)
    print(f"\n{table(HEADER, rows_of(found, speeds))}")
    return 0


if __name__ == "__main__":
    exit_on_bad_input(main)
