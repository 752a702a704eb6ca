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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from statistics import median
from typing import Any

import torch
from torch import Tensor

from configs.command import InputError, exit_on_bad_input, whole
from configs.text import table
from data.config import StoryworldSource
from data.storyworld import tell
from data.tokenizer import Tokenizer
from eval.attention.capture import capture
from eval.attention.controls import copy_gain
from eval.attention.probes import Probe, probe_from_text, repeated_probe, story_probe
from eval.language_modeling import compare_with_floor
from eval.load_model import add_device_option, data_config, open_model
from eval.questions import ask, held_out_questions, score
from model import LanguageModel, generate
from model.kv_cache import make_cache
from model.quantised import weight_bytes

TEXT = "Once there was a fox. The fox saw a bird, and the bird saw the fox."  # where there are no stories
HEADER = ["", "weights, bytes", "cache, bytes a token", "tokens/s", "gap", "copy gain", "exact match", "drift"]
# name -> dtype, weights, cache
VARIANTS: dict[str, tuple[torch.dtype, str | None, str]] = {
    "float32": (torch.float32, None, "dynamic"),
    "bfloat16": (torch.bfloat16, None, "dynamic"),
    "int8 weights": (torch.float32, "int8", "dynamic"),
    "int4 weights": (torch.float32, "int4", "dynamic"),
    "int8 cache": (torch.float32, None, "int8"),
}
DECODED, PROMPT, ROUNDS = 128, 16, 5  # tokens that are decoded, and of their prompt; how often


@contextmanager
def reading_through(lm: LanguageModel, cache: str) -> Iterator[None]:
    """Inside, every forward pass without a cache reads through a new one of this kind, and so sees what it keeps."""

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


def decode_speeds(
    models: dict[str, LanguageModel],
    rounds: int = ROUNDS,
    caches: Mapping[str, str] | None = None,
    clock: Callable[[], float] | None = None,
) -> dict[str, float]:
    """Tokens/s of greedy decoding with a key-value cache, one row: medians of `rounds` turns, all models in each.

    caches: the kind of cache of a model that does not have the dynamic one. clock: seconds, wall-clock by default.

    Alternating, so that whatever else the machine does slows all of them alike.
    """
    clock = clock or time.perf_counter
    longest = min(lm.config.max_position_embeddings for lm in models.values())
    prompt = min(PROMPT, longest // 2)
    new = min(DECODED, longest - prompt)
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for turn in range(rounds + 1):
        for name, lm in models.items():
            ids = torch.arange(prompt, device=next(lm.parameters()).device)[None]
            before = clock()
            try:
                kind = (caches or {}).get(name, "dynamic")
                generate(lm, ids, new, temperature=0, stop_ids=(), kv_cache=kind).cpu()  # waits for a GPU
            except ValueError as error:
                raise InputError(f"{name}: {error}") from None
            if turn:  # the first one only warms up
                seconds[name].append(clock() - before)
    return {name: new / median(times) for name, times in seconds.items()}


def cache_bytes(lm: LanguageModel, cache: str, tokens: int = 8) -> float:
    """Bytes that a token takes in a cache, counted after a few."""
    like = next(lm.parameters())
    filled = make_cache(cache, lm.config, 1, tokens, like)
    with torch.no_grad():
        lm(torch.zeros(1, tokens, dtype=torch.long, device=like.device), kv_cache=filled)
    return filled.nbytes / tokens


class HeldOut:
    """What every row is measured on: stories and questions of the run's world, copies of random tokens, and a probe
    whose attention is compared with that in float32."""

    def __init__(self, run: str, lm: LanguageModel, tokenizer: Tokenizer, documents: int):
        """lm: the model in float32."""
        config, longest = data_config(run), lm.config.max_position_embeddings
        self.world: StoryworldSource | None = None
        if config is not None and isinstance(config.source, StoryworldSource) and config.source.recall is None:
            self.world = config.source.model_copy(update={"validation_documents": documents})
        self.asks = self.world is not None and config is not None and config.records != "text"
        self.tokenizer = tokenizer
        self.copied = repeated_probe(tokenizer, 2, longest)
        stories = story_probe(tokenizer, self.world, longest, "stories") if self.world is not None else None
        self.probe = stories or probe_from_text(tokenizer, TEXT, longest)
        self.maps = maps_of(lm, self.probe)

    def measure(self, lm: LanguageModel, cache: str) -> list[str]:
        """gap, copy gain, exact match and drift of the model as it is, read through a cache of this kind."""
        gap = gain = exact = None
        with reading_through(lm, cache):
            gain = copy_gain(lm, self.copied) if self.copied is not None else None
            drift = 0.5 * (maps_of(lm, self.probe) - self.maps).abs().sum(-1).mean().item()
            if (world := self.world) is not None:
                stories = [tell(world.seed, i, "validation", world.level) for i in range(world.validation_documents)]
                documents, bits, floor = compare_with_floor(lm, self.tokenizer, stories)
                gap = bits - floor if documents else None
        if self.world is not None and self.asks:
            questions = list(held_out_questions(self.world))
            exact = score(questions, ask(lm, self.tokenizer, questions, kv_cache=cache))["all"].exact_match
        shown = ((gap, "+.4f"), (gain, ".3f"), (exact, ".1%"), (drift, ".4f"))
        return ["–" if value is None else format(value, form) for value, form in shown]


def maps_of(lm: LanguageModel, probe: Probe) -> Tensor:
    """Attention on a probe: (layer, B, head, query, key)."""
    return capture(lm, probe.for_model(next(lm.parameters()).device)["input_ids"]).weights


def main() -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m eval.quantised", description=__doc__, formatter_class=form)
    parser.add_argument("run", help="a run or a checkpoint directory, for example runs/demo")
    parser.add_argument(
        "--documents",
        type=whole("--documents", 1, 10**6),
        default=50,
        metavar="N",
        help="held-out stories, and conversations with questions (50)",
    )
    parser.add_argument(
        "--clock",
        choices=["wall", "cpu"],
        default="wall",
        help="cpu: time of this process alone, beside other programs; set OMP_NUM_THREADS=1 with it",
    )
    add_device_option(parser)
    given = parser.parse_args()
    models: dict[str, LanguageModel] = {}
    held_out, qualities = None, {}
    for name, (dtype, weights, cache) in VARIANTS.items():
        try:
            lm, tokenizer = open_model(given.run, given.device, dtype, weights)
        except InputError as error:
            if not models:
                raise
            print(f"{name} left out: {error}", flush=True)  # no torchao, or no layer that it could change
            continue
        held_out = held_out or HeldOut(given.run, lm, tokenizer, given.documents)
        models[name], qualities[name] = lm, held_out.measure(lm, cache)
        print(f"{name} measured", flush=True)
    clock = time.process_time if given.clock == "cpu" else time.perf_counter
    speeds = decode_speeds(models, ROUNDS, {name: VARIANTS[name][2] for name in models}, clock)
    rows = []
    for name, lm in models.items():
        sizes = [f"{weight_bytes(lm):,}", f"{cache_bytes(lm, VARIANTS[name][2]):,.0f}"]
        rows.append([name, *sizes, f"{speeds[name]:,.0f}", *qualities[name]])
    print(f"\n{table(HEADER, rows)}")
    return 0


if __name__ == "__main__":
    exit_on_bad_input(main)
