"""How fast does it write? Tokens a second of greedy decoding: without a cache, with each one, and transformers'."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from benchmarks.timing import alternate, synchronize
from benchmarks.transformers_model import in_transformers
from configs.text import table
from model import LanguageModel, generate
from model.config import ModelConfig

PROMPT = 32
WAYS: dict[str, dict] = {
    "no cache": {"kv_cache": None},
    "dynamic": {"kv_cache": "dynamic"},
    "static": {"kv_cache": "static"},
    "static, compiled": {"kv_cache": "static", "compile": True},
    "offloaded": {"kv_cache": "offloaded"},
}


def compare_decoding(config: ModelConfig, device: torch.device, rounds: int, versus_transformers: bool) -> None:
    """Print tokens/s for batches of 1 and 16, and with and without a cache where the sequence is longer."""
    lm = random_weights(config).to(device)
    longest = config.max_position_embeddings - PROMPT
    print(f"{config.in_words()}, vocabulary {config.vocab_size:,}, prompt {PROMPT}, greedy, fp32")
    rows = []
    for batch, new_tokens in ((1, min(256, longest)), (16, min(256, longest)), (1, min(512, longest))):
        ids = torch.randint(0, lm.lm_head.out_features, (batch, PROMPT), device=device)
        calls: dict[str, Callable[[], Tensor]] = {
            name: partial(generate, lm, ids, new_tokens, temperature=0, stop_ids=(), **settings)
            for name, settings in WAYS.items()
            if not (name == "no cache" and batch > 1)
        }
        if versus_transformers:
            calls["transformers"] = theirs(lm, ids, new_tokens, device)
        first, outputs = {}, {}
        for name, call in calls.items():
            first[name], outputs[name] = first_call(call, device)
        seconds = alternate(calls, rounds, device, patience_s=240)
        for name, took in seconds.items():
            others = [seconds.get(other) for other in ("transformers", "no cache")]
            against = [f"{other / took:.2f}x" if other else "" for other in others]
            # two likely tokens may swap places under another kernel, and then the rest differs
            same = (outputs[name] == outputs["dynamic"]).float().mean().item()
            label, speed = f"batch {batch}, {new_tokens} new: {name}", f"{batch * new_tokens / took:,.0f}"
            rows.append([label, speed, *against, f"{first[name] - took:,.1f}", f"{same:.0%}"])
        print(f"  batch {batch}, {new_tokens} tokens done", flush=True)
    header = ["", "tokens/s", "against transformers", "against no cache", "extra s, first call", "same tokens"]
    print("\n" + table(header, rows))


def random_weights(config: ModelConfig) -> LanguageModel:
    """A model whose every layer does something; at initialisation the blocks add nothing."""
    torch.manual_seed(0)
    lm = LanguageModel(config).eval()
    with torch.no_grad():
        for parameter in lm.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    return lm


def theirs(lm: LanguageModel, ids: Tensor, new_tokens: int, device: torch.device) -> Callable[[], Tensor]:
    """transformers' generate on the identical weights."""
    other = in_transformers(lm)
    other.to(device.type)
    other.generation_config.eos_token_id, other.generation_config.pad_token_id = None, 0
    real = torch.ones_like(ids)
    return torch.no_grad()(lambda: other.generate(ids, attention_mask=real, max_new_tokens=new_tokens, do_sample=False))


def first_call(call: Callable[[], Tensor], device: torch.device) -> tuple[float, Tensor]:
    """Seconds of the first call, compilation included, and its tokens."""
    synchronize(device)
    before = time.perf_counter()
    output = call()
    synchronize(device)
    return time.perf_counter() - before, output
