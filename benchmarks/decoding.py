"""How fast does it write, and when does sharing keys pay? `python -m benchmarks.decoding [config] [key=value …]`

Greedy decoding with random weights in float32: tokens/s without a cache and with each one.

    --versus transformers    its `generate` on the same weights, in turns
    --kv-heads 8,2,1         instead: the first token behind a context, and the next one, for each number of key/value
                             heads, beside what the machine could do at most (measured first):
                             first = operations / rate; next = (bytes of weights + bytes of the cache) / bandwidth
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from benchmarks.timing import alternate, command_line, in_transformers, measured_config
from configs.command import exit_on_bad_input, integer, numbers
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
READ = 2**28  # bytes of the array that measures the bandwidth: larger than a processor's caches are, mostly
SIDE = 1024  # of the matrices that measure the rate
LONGEST_PROMPT = 8192  # tokens of a batch that are read to measure the first token; more take minutes


def main() -> None:
    parser = command_line(__doc__, rounds=5)
    for option, default, meaning in (
        ("--batches", [1, 16], "rows at once"),
        ("--kv-heads", [], "numbers of key/value heads"),
        ("--contexts", [128, 512, 2048], "with --kv-heads: tokens before the one that is written"),
    ):
        listed = f" ({','.join(map(str, default))})" if default else ""
        read = numbers(option, 1)
        parser.add_argument(option, type=read, default=default, metavar="N,N", help=f"{meaning}{listed}")
    parser.add_argument("--tokens", type=integer("--tokens", 1), default=256, help="new ones of an answer (256)")
    given = parser.parse_intermixed_args()
    run, device = measured_config(given)
    print(f"{run.model.in_words()}, greedy, float32")
    if given.kv_heads:
        compare_kv_heads(run.model, device, given.kv_heads, given.batches, given.contexts, given.rounds)
    else:
        compare_caches(run.model, device, given.batches, given.tokens, given.rounds, bool(given.versus))


def random_weights(config: ModelConfig) -> LanguageModel:
    """A model whose every layer does something; at initialisation the blocks add nothing."""
    torch.manual_seed(0)
    lm = LanguageModel(config).eval()
    with torch.no_grad():
        for parameter in lm.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    return lm


def compare_caches(
    config: ModelConfig, device: torch.device, batches: list[int], tokens: int, rounds: int, versus: bool
) -> None:
    """Print tokens/s; without a cache only one row at a time."""
    lm, new_tokens = random_weights(config).to(device), min(tokens, config.max_position_embeddings - PROMPT)
    rows = []
    for batch in batches:
        ids = torch.randint(0, lm.lm_head.out_features, (batch, PROMPT), device=device)
        calls: dict[str, Callable[[], Tensor]] = {
            name: partial(generate, lm, ids, new_tokens, temperature=0, stop_ids=(), **settings)
            for name, settings in WAYS.items()
            if not (name == "no cache" and batch > 1)
        }
        if versus:
            other = in_transformers(lm).to(device)
            other.generation_config.eos_token_id, other.generation_config.pad_token_id = None, 0
            real = torch.ones_like(ids)
            theirs = partial(other.generate, ids, attention_mask=real, max_new_tokens=new_tokens, do_sample=False)
            calls["transformers"] = torch.no_grad()(theirs)
        outputs = {name: call() for name, call in calls.items()}
        seconds = alternate(calls, rounds, device, 240)
        for name, took in seconds.items():
            others = [seconds.get(other) for other in ("transformers", "no cache")]
            against = [f"{other / took:.2f}x" if other else "" for other in others]
            # two likely tokens may swap places under another kernel, and then the rest differs
            same = (outputs[name] == outputs["dynamic"]).float().mean().item()
            label, speed = f"batch {batch}, {new_tokens} new: {name}", f"{batch * new_tokens / took:,.0f}"
            rows.append([label, speed, *against, f"{same:.0%}"])
    header = ["", "tokens/s", "against transformers", "against no cache", "same tokens"]
    print("\n" + table(header, rows))


def compare_kv_heads(
    config: ModelConfig, device: torch.device, kv_heads: list[int], batches: list[int], contexts: list[int], rounds: int
) -> None:
    """Print milliseconds of the first and of the next token, measured and predicted. What takes longer than predicted
    is the program: Python, small kernels, copies. Raises InputError."""
    bandwidth, rate = machine_limits(device, rounds)
    print(f"this machine: {bandwidth / 1e9:.1f} GB/s, {rate / 1e9:.0f} GFLOP/s", flush=True)
    rows = []
    for batch in batches:
        for context in sorted(contexts):
            models: dict[str, LanguageModel] = {}
            for number in kv_heads:
                changes = {"num_key_value_heads": number, "max_position_embeddings": context + 1}
                shape = ModelConfig.model_validate(config.model_dump() | changes)
                models[f"{number}"] = random_weights(shape).to(device)
            caches = {heads: filled(lm, batch, context) for heads, lm in models.items()}
            steps = {heads: partial(next_token, lm, caches[heads], batch) for heads, lm in models.items()}
            after = alternate(steps, rounds, device)
            first: dict[str, float] = {}
            if batch * context <= LONGEST_PROMPT:
                reads = {heads: partial(first_token, lm, batch, context) for heads, lm in models.items()}
                first = alternate(reads, rounds, device)
            most = after[max(models, key=int)]
            for heads, lm in models.items():
                held = caches[heads].nbytes
                operations = batch * context * flops_per_token(lm, context, training=False)
                figures = [
                    f"{1e3 * first[heads]:,.1f}" if first else "–",
                    f"{1e3 * operations / rate:,.1f}",
                    f"{1e3 * after[heads]:,.2f}",
                    f"{1e3 * (weight_bytes(lm) + held) / bandwidth:,.2f}",
                    f"{after[heads] / most:.2f}",
                ]
                rows.append([f"{batch} x {context:,}", heads, f"{held / 1e6:,.1f}", *figures])
    header = ["batch x context", "H_kv", "cache, MB", "first, ms", "predicted", "next, ms", "predicted", "next, share"]
    print("\n" + table(header, rows))


def machine_limits(device: torch.device, rounds: int) -> tuple[float, float]:
    """Bytes read a second, and floating-point operations a second: read a large array, multiply two matrices."""
    ones, side = torch.ones(READ // 4, device=device), torch.randn(SIDE, SIDE, device=device)
    calls: dict[str, Callable[[], object]] = {"read": ones.sum, "multiply": partial(torch.mm, side, side)}
    seconds = alternate(calls, rounds, device)
    return READ / seconds["read"], 2 * SIDE**3 / seconds["multiply"]


def filled(lm: LanguageModel, batch: int, context: int) -> KVCache:
    """A cache that holds random keys and values, as if a prompt of `context` tokens had been read."""
    cache, like = KVCache(lm.config), next(lm.parameters())
    for layer in range(lm.config.num_hidden_layers):
        k, v = (torch.randn(batch, heads, context, size, device=like.device) for heads, size in lm.config.cache_shapes)
        cache.update(layer, k, v)
    cache.advance(context)
    return cache


@torch.inference_mode()
def first_token(lm: LanguageModel, batch: int, context: int) -> Tensor:
    """Read a prompt, and choose the token behind it."""
    ids = torch.ones(batch, context, dtype=torch.long, device=next(lm.parameters()).device)
    return lm(ids, kv_cache=KVCache(lm.config), logits_to_keep=1).argmax(-1)


@torch.inference_mode()
def next_token(lm: LanguageModel, cache: KVCache, batch: int) -> Tensor:
    """Read one token behind what the cache holds, and choose the next; the cache is as before afterwards."""
    ids, before = torch.ones(batch, 1, dtype=torch.long, device=next(lm.parameters()).device), cache.length
    chosen = lm(ids, kv_cache=cache, logits_to_keep=1).argmax(-1)
    cache.crop(before)
    return chosen


if __name__ == "__main__":
    exit_on_bad_input(main)
