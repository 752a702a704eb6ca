"""The cost of fewer bits: `python -m eval.quantised runs/demo`

A row each for float32, bfloat16, weights of 8 and of 4 bits, and a key-value cache of 8 bits:

    weights         bytes of all weights
    cache           bytes of the key-value cache a token
    tokens/s        greedy decoding of one row, medians; the rows take turns
    gap             bits per byte above the entropy floor, on held-out stories
    copy gain       gain on the second copy of random tokens, nats a token
    exact match     share of held-out questions answered right
    drift           change of attention against float32: half the sum of |difference| over a token's
                    keys (0 = equal maps, 1 = nothing in common), mean of heads and tokens

Only a run on the built-in world has a gap, and only one on chats an exact match.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from statistics import median
from typing import Any

import torch

from configs.command import InputError, command_parser, exit_on_bad_input
from configs.text import table
from data.config import StoryworldSource
from eval.attention.capture import capture, layers_with_weights, without_weights
from eval.attention.controls import copy_gain
from eval.attention.probes import probe_from_text, repeated_probe, story_probe
from eval.language_modeling import compare_with_floor
from eval.load_model import add_device_option, data_config, open_model
from eval.questions import ask, figures, held_out_questions
from model import LanguageModel, generate
from model.variants.caches import make_cache
from model.variants.quantised import weight_bytes
from storyworld import tell

TEXT = "Once there was a fox. The fox saw a bird, and the bird saw the fox."  # without stories
HEADER = "weights, bytes|cache, bytes a token|tokens/s|gap|copy gain|exact match|drift".split("|")
# Name -> dtype, weights, cache.
VARIANTS: dict[str, tuple[torch.dtype, str | None, str]] = {
    "float32": (torch.float32, None, "dynamic"),
    "bfloat16": (torch.bfloat16, None, "dynamic"),
    "int8 weights": (torch.float32, "int8", "dynamic"),
    "int4 weights": (torch.float32, "int4", "dynamic"),
    "int8 cache": (torch.float32, None, "int8"),
}
DOCUMENTS = 50  # So many held-out stories and conversations are read.
# Decoding is timed over so many tokens after a prompt, so many times.
PROMPT = 16
DECODED = 128
ROUNDS = 5


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("run", help="a run or a checkpoint directory, for example runs/demo")
    add_device_option(parser)
    args = parser.parse_args()
    config = data_config(args.run)
    world = None
    stories = []
    questions = []
    if config and isinstance(config.source, StoryworldSource) and config.source.tells_stories:
        world = config.source.model_copy(update={"validation_documents": DOCUMENTS})
        stories = [tell(world.seed, i, "validation", world.level) for i in range(DOCUMENTS)]
        if config.records != "text":
            questions = list(held_out_questions(world))
    models: dict[str, tuple[LanguageModel, str]] = {}
    rows: dict[str, list[str]] = {}
    maps_in_float32 = None
    for name, (dtype, weights, cache) in VARIANTS.items():
        try:
            # opened anew for each variant, because quantising changes the weights in place
            lm, tokenizer = open_model(args.run, args.device, dtype, weights)
        except InputError as error:
            if not models:  # not even float32
                raise
            # torchao is missing, or no layer can be quantised
            print(f"{name} left out: {error}", flush=True)
            continue
        if not layers_with_weights(lm.config):
            raise InputError(f"{args.run}: {without_weights(lm.config)}")
        device = lm.device
        longest = lm.config.max_position_embeddings
        # a story if the run has stories
        probe = world and story_probe(tokenizer, world, longest, "stories")
        probe = probe or probe_from_text(tokenizer, TEXT, longest)
        repeated = repeated_probe(tokenizer, 2, longest)
        with reading_through(lm, cache):
            maps = capture(lm, probe.input_ids.to(device)).weights  # (layer, B, head, query, key)
            gain = copy_gain(lm, repeated) if repeated else None
            _, bits, floor = compare_with_floor(lm, tokenizer, stories)
        exact = None
        if questions:
            exact = figures(questions, ask(lm, tokenizer, questions, cache))["exact_match"]
        if maps_in_float32 is None:  # the first variant
            maps_in_float32 = maps
        # the total variation distance of two rows, between 0 and 1
        drift = 0.5 * (maps - maps_in_float32).abs().sum(-1).mean().item()
        # the bytes of a token, measured after eight
        filled = make_cache(cache, lm.config, 1, 8, next(lm.parameters()))
        with torch.no_grad():
            lm(torch.zeros(1, 8, dtype=torch.long, device=device), kv_cache=filled)
        row = rows[name] = [name, f"{weight_bytes(lm):,}", f"{filled.nbytes / 8:,.0f}"]
        values = ((bits - floor, "+.4f"), (gain, ".3f"), (exact, ".1%"), (drift, ".4f"))
        for value, form in values:
            is_missing = value is None or value != value  # NaN
            row.append("–" if is_missing else format(value, form))
        models[name] = lm, cache
        print(f"{name} measured", flush=True)
    for name, speed in decode_speeds(models).items():
        rows[name].insert(3, f"{speed:,.0f}")
    print(f"\n{table(['', *HEADER], rows.values())}")


@contextmanager
def reading_through(lm: LanguageModel, cache: str) -> Iterator[None]:
    """Give every forward pass a new cache of this kind, within this context."""

    def add_cache(module: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        if kwargs.get("kv_cache") is None:
            B, T = (args[0] if args else kwargs["input_ids"]).shape
            kwargs["kv_cache"] = make_cache(cache, lm.config, B, T, next(lm.parameters()))
        return args, kwargs

    with lm.register_forward_pre_hook(add_cache, with_kwargs=True):
        yield


def decode_speeds(models: Mapping[str, tuple[LanguageModel, str]]) -> dict[str, float]:
    """Return tokens/s of greedy decoding, one row, for each model and its kind of cache."""
    longest = min(lm.config.max_position_embeddings for lm, _ in models.values())
    prompt = min(PROMPT, longest // 2)
    new = min(DECODED, longest - prompt)
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(1 + ROUNDS):
        # each round times all models, so that other programs slow all of them alike
        for name, (lm, cache) in models.items():
            ids = torch.arange(prompt, device=lm.device)[None]
            start = time.perf_counter()
            # no stop ids: all write equally many tokens, whatever they write
            output = generate(lm, ids, new, temperature=0, stop_ids=(), kv_cache=cache)
            output.cpu()  # note: this waits for the GPU
            seconds[name].append(time.perf_counter() - start)
    # the first round only warms up
    return {name: new / median(times[1:]) for name, times in seconds.items()}


if __name__ == "__main__":
    exit_on_bad_input(main)
