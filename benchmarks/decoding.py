"""Measure writing and shared keys: `python -m benchmarks.decoding [config] [section.key=value …]`

It decodes greedily with random weights in float32, without a cache and with each one: tokens/s.

    --versus transformers    also time its `generate` on the same weights, in turns
    --kv-heads 8,2,1         instead, time the first token after a context and the next one, for
                             each number of key/value heads. Beside them is the machine's limit:
                             first = operations / rate
                             next = (bytes of weights + bytes of the cache) / bandwidth
"""

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.timing import alternate, command_line, in_transformers, measured_config
from configs.command import add_number, exit_on_bad_input, numbers
from configs.text import table
from model import LanguageModel, generate
from model.accounting import flops_per_token
from model.config import ModelConfig
from model.kv_cache import KVCache
from model.variants.quantised import weight_bytes

PROMPT = 32
WAYS: dict[str, dict] = {
    "no cache": {"kv_cache": None},
    "dynamic": {"kv_cache": "dynamic"},
    "static": {"kv_cache": "static"},
    "static, compiled": {"kv_cache": "static", "compile": True},
    "offloaded": {"kv_cache": "offloaded"},
}
# The array for the bandwidth has so many bytes, more than most processors cache.
READ = 2**28
# The matrices for the rate are so wide.
SIDE = 1024
# With more tokens in a batch, the first token would take minutes.
LONGEST_PROMPT = 8192


def main() -> None:
    parser = command_line(__doc__)
    for option, default, meaning in (
        ("--batches", [1, 16], "rows at once"),
        ("--kv-heads", [], "numbers of key/value heads"),
        ("--contexts", [128, 512, 2048], "with --kv-heads: tokens before the one that is written"),
    ):
        listed = f" ({','.join(map(str, default))})" if default else ""
        kind = numbers(option, 1)
        help_text = f"{meaning}{listed}"
        parser.add_argument(option, type=kind, default=default, metavar="N,N", help=help_text)
    add_number(parser, "--tokens", 256, "new ones of an answer")
    args = parser.parse_intermixed_args()
    run, device = measured_config(args)
    print(f"{run.model.in_words()}, greedy, float32")
    if args.kv_heads:
        compare_kv_heads(run.model, device, args)
    else:
        compare_caches(run.model, device, args)


def random_weights(config: ModelConfig) -> LanguageModel:
    """Return a model with random weights everywhere."""
    torch.manual_seed(0)
    lm = LanguageModel(config).eval()
    # In a new model the output projections are zero, so all layers would agree by adding nothing.
    with torch.no_grad():
        for parameter in lm.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    return lm


def compare_caches(config: ModelConfig, device: torch.device, args: argparse.Namespace) -> None:
    """Print tokens/s with each cache."""
    lm = random_weights(config).to(device)
    new_tokens = min(args.tokens, config.max_position_embeddings - PROMPT)
    rows = []
    for batch in args.batches:
        ids = torch.randint(0, lm.lm_head.out_features, (batch, PROMPT), device=device)
        options = {"temperature": 0, "stop_ids": ()}
        calls: dict[str, Callable[[], Tensor]] = {}
        for name, settings in WAYS.items():
            if name != "no cache" or batch == 1:  # without a cache many rows take minutes
                calls[name] = partial(generate, lm, ids, new_tokens, **options | settings)
        if args.versus:
            other = in_transformers(lm).to(device)
            other.generation_config.eos_token_id = None  # both write all tokens
            # or each call would print a warning, and be timed with it
            other.generation_config.pad_token_id = 0
            options = {"attention_mask": torch.ones_like(ids), "do_sample": False}
            theirs = partial(other.generate, ids, max_new_tokens=new_tokens, **options)
            calls["transformers"] = torch.no_grad()(theirs)
            static = {"cache_implementation": "static", "compile_config": compiled_everywhere()}
            calls["transformers, static, compiled"] = torch.no_grad()(partial(theirs, **static))
        # one call each before the clock starts: it warms up, and shows whether all write the same
        outputs = {name: call() for name, call in calls.items()}
        seconds = alternate(calls, args.rounds, device, 240)
        for name, took in seconds.items():
            row = [f"batch {batch}, {new_tokens} new: {name}", f"{batch * new_tokens / took:,.0f}"]
            for peer in ("transformers", "no cache"):
                row.append(f"{seconds[peer] / took:.2f}x" if peer in seconds else "")
            # Kernels round differently. Where two tokens are equally likely, one may choose the
            # other token, and from there on the text differs.
            same = (outputs[name] == outputs["dynamic"]).float().mean().item()
            rows.append([*row, f"{same:.0%}"])
    header = ["", "tokens/s", "against transformers", "against no cache", "same tokens"]
    print("\n" + table(header, rows))


def compiled_everywhere() -> Any:
    """Return transformers' settings of a compiled `generate`, on a CPU as well."""
    from transformers import CompileConfig

    settings = CompileConfig()
    # Without this, it compiles on accelerators alone, and says nothing.
    settings._compile_all_devices = True
    return settings


def compare_kv_heads(config: ModelConfig, device: torch.device, args: argparse.Namespace) -> None:
    """Print milliseconds of the first and the next token, measured and predicted."""
    # Measure the machine's limits: read a large array, multiply two matrices. What a token takes
    # beyond the prediction is the program: Python, small kernels, copies.
    ones = torch.ones(READ // 4, device=device)
    matrix = torch.randn(SIDE, SIDE, device=device)
    limits: dict[str, Callable[[], object]] = {}
    limits["read"] = ones.sum
    limits["multiply"] = partial(torch.mm, matrix, matrix)
    seconds = alternate(limits, args.rounds, device)
    bandwidth = READ / seconds["read"]
    rate = 2 * SIDE**3 / seconds["multiply"]
    print(f"this machine: {bandwidth / 1e9:.1f} GB/s, {rate / 1e9:.0f} GFLOP/s", flush=True)
    rows = []
    for batch in args.batches:
        for context in sorted(args.contexts):
            models: dict[str, LanguageModel] = {}
            for number in args.kv_heads:
                # the same random weights would not do: fewer heads are another network
                changes = {"num_key_value_heads": number, "max_position_embeddings": context + 1}
                shape = ModelConfig.model_validate(config.model_dump() | changes)
                models[f"{number}"] = random_weights(shape).to(device)
            caches = {heads: filled(lm, batch, context) for heads, lm in models.items()}
            steps = {h: partial(next_token, lm, caches[h], batch) for h, lm in models.items()}
            after = alternate(steps, args.rounds, device)
            first: dict[str, float] = {}
            if batch * context <= LONGEST_PROMPT:
                reads = {h: partial(first_token, lm, batch, context) for h, lm in models.items()}
                first = alternate(reads, args.rounds, device)
            # the most key/value heads, which is MHA if you gave it
            slowest = after[max(models, key=int)]
            for heads, lm in models.items():
                size = caches[heads].nbytes
                # Reading a prompt is limited by arithmetic, writing one token by the memory's
                # speed. So there are two predictions.
                operations = batch * context * flops_per_token(lm, context, training=False)
                row = [f"{batch} x {context:,}", heads, f"{size / 1e6:,.1f}"]
                row.append(f"{1e3 * first[heads]:,.1f}" if first else "–")
                row.append(f"{1e3 * operations / rate:,.1f}")
                row.append(f"{1e3 * after[heads]:,.2f}")
                row.append(f"{1e3 * (weight_bytes(lm) + size) / bandwidth:,.2f}")
                rows.append([*row, f"{after[heads] / slowest:.2f}"])
    header = ["batch x context", "H_kv", "cache, MB", "first, ms", "predicted", "next, ms"]
    print("\n" + table([*header, "predicted", "next, share"], rows))


def filled(lm: LanguageModel, batch: int, context: int) -> KVCache:
    """Return a cache of random keys and values, as after a prompt of `context` tokens."""
    cache = KVCache(lm.config)
    device = lm.device
    # (B, H_kv, T, D)
    k_shape, v_shape = [(batch, heads, context, width) for heads, width in lm.config.cache_shapes]
    for layer in range(lm.config.num_hidden_layers):
        # any numbers will do, as the time does not depend on them
        k = torch.randn(k_shape, device=device)
        v = torch.randn(v_shape, device=device)
        cache.update(layer, k, v)
    cache.advance(context)
    return cache


@torch.inference_mode()
def first_token(lm: LanguageModel, batch: int, context: int) -> Tensor:
    """Read a prompt and choose the token after it."""
    ids = torch.ones(batch, context, dtype=torch.long, device=lm.device)
    return lm(ids, kv_cache=KVCache(lm.config), logits_to_keep=1).argmax(-1)


@torch.inference_mode()
def next_token(lm: LanguageModel, cache: KVCache, batch: int) -> Tensor:
    """Read one token after the cached ones and choose the next."""
    ids = torch.ones(batch, 1, dtype=torch.long, device=lm.device)
    before = cache.length
    chosen = lm(ids, kv_cache=cache, logits_to_keep=1).argmax(-1)
    cache.crop(before)  # the next call finds the same cache
    return chosen


if __name__ == "__main__":
    exit_on_bad_input(main)
