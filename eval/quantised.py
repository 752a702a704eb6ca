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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from statistics import median
from typing import Any

import torch

from configs.command import InputError, exit_on_bad_input
from configs.text import table
from data.config import StoryworldSource
from eval.attention.capture import capture
from eval.attention.controls import copy_gain
from eval.attention.probes import probe_from_text, repeated_probe, story_probe
from eval.language_modeling import compare_with_floor
from eval.load_model import add_device_option, data_config, open_model
from eval.questions import ask, figures, held_out_questions
from model import LanguageModel, generate
from model.variants.caches import make_cache
from model.variants.quantised import weight_bytes
from storyworld import tell

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
DOCUMENTS = 50  # held-out stories, and conversations with questions
DECODED, PROMPT, ROUNDS = 128, 16, 5  # tokens that are decoded, and of their prompt; how often


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m eval.quantised", description=__doc__, formatter_class=form)
    parser.add_argument("run", help="a run or a checkpoint directory, for example runs/demo")
    add_device_option(parser)
    given = parser.parse_args()
    config, world, stories, questions = data_config(given.run), None, [], []
    if config is not None and isinstance(config.source, StoryworldSource) and config.source.recall is None:
        world = config.source.model_copy(update={"validation_documents": DOCUMENTS})
        stories = [tell(world.seed, i, "validation", world.level) for i in range(DOCUMENTS)]
        questions = list(held_out_questions(world)) if config.records != "text" else []
    models: dict[str, tuple[LanguageModel, str]] = {}
    qualities, in_float32 = {}, None  # attention: (layer, B, head, query, key)
    for name, (dtype, weights, cache) in VARIANTS.items():
        try:
            lm, tokenizer = open_model(given.run, given.device, dtype, weights)
        except InputError as error:
            if not models:
                raise
            print(f"{name} left out: {error}", flush=True)  # no torchao, or no layer that it could change
            continue
        longest = lm.config.max_position_embeddings
        probe = world and story_probe(tokenizer, world, longest, "stories")
        probe = probe or probe_from_text(tokenizer, TEXT, longest)
        copied = repeated_probe(tokenizer, 2, longest)
        with reading_through(lm, cache):
            maps = capture(lm, probe.for_model(next(lm.parameters()).device)["input_ids"]).weights
            gain = None if copied is None else copy_gain(lm, copied)
            _, bits, floor = compare_with_floor(lm, tokenizer, stories)
        exact = figures(questions, ask(lm, tokenizer, questions, cache))["exact_match"] if questions else None
        in_float32 = maps if in_float32 is None else in_float32
        drift = 0.5 * (maps - in_float32).abs().sum(-1).mean().item()
        shown = ((bits - floor, "+.4f"), (gain, ".3f"), (exact, ".1%"), (drift, ".4f"))
        qualities[name] = ["–" if value is None or value != value else format(value, form) for value, form in shown]
        models[name] = lm, cache
        print(f"{name} measured", flush=True)
    speeds, rows = decode_speeds(models), []
    for name, (lm, cache) in models.items():
        sizes = [f"{weight_bytes(lm):,}", f"{cache_bytes(lm, cache):,.0f}"]
        rows.append([name, *sizes, f"{speeds[name]:,.0f}", *qualities[name]])
    print(f"\n{table(HEADER, rows)}")


@contextmanager
def reading_through(lm: LanguageModel, cache: str) -> Iterator[None]:
    """Inside, every forward pass without a cache reads through a new one of this kind, and so sees what it keeps."""

    def add_cache(module: Any, args: tuple, given: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        if given.get("kv_cache") is None:
            rows, count = (args[0] if args else given["input_ids"]).shape
            given["kv_cache"] = make_cache(cache, lm.config, rows, count, next(lm.parameters()))
        return args, given

    handle = lm.register_forward_pre_hook(add_cache, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def decode_speeds(models: Mapping[str, tuple[LanguageModel, str]]) -> dict[str, float]:
    """Tokens/s of greedy decoding, one row: medians of ROUNDS turns. models: each with its kind of key-value cache.

    All models in each turn, so that whatever else the machine does slows all of them alike.
    """
    longest = min(lm.config.max_position_embeddings for lm, _ in models.values())
    prompt = min(PROMPT, longest // 2)
    new = min(DECODED, longest - prompt)
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for turn in range(ROUNDS + 1):
        for name, (lm, cache) in models.items():
            ids = torch.arange(prompt, device=next(lm.parameters()).device)[None]
            began = time.perf_counter()
            generate(lm, ids, new, temperature=0, stop_ids=(), kv_cache=cache).cpu()  # waits for a GPU
            if turn:  # the first one only warms up
                seconds[name].append(time.perf_counter() - began)
    return {name: new / median(times) for name, times in seconds.items()}


def cache_bytes(lm: LanguageModel, cache: str, tokens: int = 8) -> float:
    """Bytes that a token takes in a cache, counted after a few."""
    like = next(lm.parameters())
    filled = make_cache(cache, lm.config, 1, tokens, like)
    with torch.no_grad():
        lm(torch.zeros(1, tokens, dtype=torch.long, device=like.device), kv_cache=filled)
    return filled.nbytes / tokens


if __name__ == "__main__":
    exit_on_bad_input(main)
