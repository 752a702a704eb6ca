"""What will a run cost, and does it fit? `python -m train.budget configs/x.yaml [section.key=value ...]`

Nothing is prepared, downloaded or built. Parameters and the key-value cache are exact, memory is a formula, and minutes
follow from FLOPs. `python -m train.doctor` times real steps instead. A run asks here before anything is built.
"""

from __future__ import annotations

import argparse
import math
from contextlib import suppress

import torch

from configs.command import InputError, number
from configs.text import table
from data.tokenizer import DEFAULT_VOCAB_SIZE, SPECIAL_TOKENS, train_tokenizer
from model import LanguageModel, ModelConfig
from model.accounting import flops_per_token, num_active_parameters
from model.backends.kernels import LONGEST
from model.config import kv_heads_of
from model.loss import CHUNK, CHUNK_ELSEWHERE
from model.transformer import on_meta
from train.config import RunConfig, load_run_config
from train.machine.cpu_processes import largest_divisor
from train.machine.device import CORE_FLOPS, Device, known_peak, memory_of, resolve_device, sized
from train.machine.distributed import local_size
from train.optimizer import build_optimizers

USABLE_SHARE = 0.6  # of the memory: the formula counts the least that a step needs, and kernels need room as well
AUTO_MICRO_TOKENS = {"cpu": 8192, "cuda": 65536, "mps": 16384}
ASSUMED_CHAR_VOCABULARY = 128  # 116 characters and 12 special tokens: tiny Shakespeare has 65, plain English fits


def check_memory(config: RunConfig, device: Device, processes: int) -> None:
    """Refuse a model whose training step does not fit. Raises InputError with the figures.

    Before the vocabulary is known, it counts as small. processes: on a CPU they share the memory, and each holds all.
    """
    run, kind = sized(config), device.device.type
    total, whose = memory_of(kind) or (math.inf, "")
    is_settled = kind == "cpu" or run.train.micro_batch_size != "auto"  # on a GPU `auto` halves what does not fit
    rows = micro_batch_rows(run, device, processes) if is_settled else 1
    if kind == "cpu":
        total /= processes
    elif run.train.parallel != "ddp":  # each process holds a share
        total *= processes if run.train.parallel == "fsdp2" else local_size(processes)
    needed = step_memory(run, rows, device)
    if sum(needed.values()) > total:
        parts = ", ".join(f"{part} {size_in_words(size)}" for part, size in needed.items())
        raise InputError(
            f"model: a training step of {rows:,} rows x {run.data.sequence_length:,} tokens at a time needs "
            f"{size_in_words(sum(needed.values()))} ({parts}), and the memory is {size_in_words(total)} ({whose}): "
            "lower model.hidden_size, model.num_hidden_layers, data.sequence_length or train.micro_batch_size"
        )


def micro_batch_rows(config: RunConfig, device: Device, world_size: int = 1) -> int:
    """Rows of data.sequence_length in one forward pass of one process.

    auto: the largest divisor of its rows of a step within a fixed number of tokens and, on a GPU, what fits.
    """
    rows, wanted, kind = config.rows_per_step // world_size, config.train.micro_batch_size, device.device.type
    if isinstance(wanted, int):
        return min(wanted, rows)
    limit = max(1, AUTO_MICRO_TOKENS[kind] // config.data.sequence_length)
    memory = memory_of(kind) if kind == "cuda" and config.model.vocab_size else None
    if memory is not None:
        limit = min(limit, max(1, largest_micro_batch(config, memory[0], device)))
    return largest_divisor(rows, limit)


def largest_micro_batch(run: RunConfig, memory: float, device: Device) -> int:
    """The most rows whose micro-batch takes USABLE_SHARE of `memory` bytes; 0 if not even one does."""
    needed = step_memory(run, run.rows_per_step, device)
    a_row = needed.pop("kept for the backward pass") / run.rows_per_step
    return max(0, int((USABLE_SHARE * memory - sum(needed.values())) / a_row))


def step_memory(run: RunConfig, rows: int, device: Device) -> dict[str, int]:
    """Bytes of each part of a training step at its fullest moment, when the backward pass begins: the least that
    micro-batches of `rows` rows need. run.model has a vocabulary.

    Weights, gradients and optimizer state are exact. Of the activations it counts what must be kept: without
    torch.compile PyTorch keeps up to half as much again, mostly copies in another number format.
    """
    model, tokens = run.model, rows * run.data.sequence_length
    lm = on_meta(model)
    if run.lora is not None:
        from model.variants.lora import add_adapters

        add_adapters(lm, run.lora)
    state = sum(
        x.nbytes * (2 if isinstance(optimizer, torch.optim.AdamW) else 1)  # Muon has its momentum alone
        for optimizer in build_optimizers(lm, run.train.optimizer)
        for group in optimizer.param_groups
        for x in group["params"]
    )
    width, heads, number = model.hidden_size, model.num_attention_heads, device.dtype.itemsize
    key_heads = heads if model.attention == "mla" else model.kv_heads  # a latent is unfolded for every head
    queries_and_keys, values = (heads + key_heads) * model.head_size, (heads + key_heads) * model.value_size
    stored = 2 * (4 + number) * width  # the float32 stream before each norm, and what the norm makes of it
    stored += (4 + number) * queries_and_keys + number * values  # before and after RoPE; values and output
    if model.attn_implementation in ("eager", "mine"):  # which keeps every weight
        stored += (4 + number) * heads * run.data.sequence_length
    elif device.attention == "blocked" and run.data.sequence_length <= LONGEST:  # which keeps half of them
        stored += number * heads * run.data.sequence_length // 2
    experts = model.num_experts_per_tok * (model.moe_intermediate_size or 0)
    inner = [experts if has_experts else model.intermediate_size or 0 for has_experts in model.has_experts]
    layers = [stored + (4 if model.gated_mlp else 2) * number * each for each in inner]
    a_token = sum(layers)
    if run.train.activation_checkpointing:  # the input of every layer, and one layer at a time
        a_token = 4 * width * len(layers) + max(layers)
    chunk = min(tokens, CHUNK.get(device.device.type, CHUNK_ELSEWHERE))
    return {
        "weights": sum(x.nbytes for x in lm.parameters()),
        "gradients": sum(x.nbytes for x in lm.parameters() if x.requires_grad),
        "optimizer state": state,
        "kept for the backward pass": tokens * (a_token + 4 * width),
        "logits of a chunk of the loss": chunk * (model.vocab_size or 0) * (4 + number),  # with their gradient
    }


PARTS = {"norm": "norm", "embed": "embedding", "self_attn": "attention", "mlp": "feed_forward", "lm_head": "head"}


def parameter_counts(lm: LanguageModel) -> dict[str, int]:
    """How many of the weights are of each part, by their names. A tied matrix counts once, as embedding."""
    counts = dict.fromkeys(PARTS.values(), 0)
    for name, parameter in lm.named_parameters():
        counts[next(part for word, part in PARTS.items() if word in name)] += parameter.numel()
    return counts | {"total": lm.num_parameters()}


def size_in_words(number: float) -> str:
    """Bytes in decimal units: 1 kB = 1000 B."""
    units = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))
    return next((f"{number / size:,.2f} {unit}" for unit, size in units if number >= size), f"{number:,.0f} B")


def kv_cache_bytes(config: ModelConfig, tokens: int, bytes_per_number: int, kv_heads: int = 0) -> int:
    """Bytes of the keys and values that one sequence of `tokens` tokens leaves in a KVCache. Exact.

    2 * H_kv * D * bytes_per_number for every token and layer (with a latent: its size and that of the rotary part); a
    sliding layer holds window - 1 tokens at most. kv_heads: as if the model had this many; 0 = what it has.
    """
    held = sum(min(tokens, window - 1) if window else tokens for window in config.windows)
    numbers = 2 * kv_heads * config.head_size if kv_heads else config.cache_numbers
    return held * numbers * bytes_per_number


def with_vocabulary(run: RunConfig) -> tuple[RunConfig, str]:
    """The config with the size of its vocabulary, and in words where that is from. Nothing is prepared, so it may be an
    estimate, and the words say so."""
    tokenizer, size, source = run.data.tokenizer, run.model.vocab_size, "model.vocab_size"
    if size is None and tokenizer.kind == "pretrained":
        size, source = train_tokenizer(tokenizer, []).vocab_size, f"of the tokenizer in {tokenizer.path}"
    elif size is None:
        sizes = {"byte": 256 + len(SPECIAL_TOKENS), "char": ASSUMED_CHAR_VOCABULARY}
        size = sizes.get(tokenizer.kind, tokenizer.vocab_size or DEFAULT_VOCAB_SIZE)
        size, source = -(-size // 64) * 64, f"of data.tokenizer: {tokenizer.kind}"  # as a tokenizer rounds up
        if tokenizer.kind != "byte":
            source = f"an estimate {source}; a small text fills less"
    return run.model_copy(update={"model": run.model.model_copy(update={"vocab_size": size})}), source


# ---------------------------------------------------------------------------------------------------------
# the command


def main() -> None:
    parser = argparse.ArgumentParser(description="What a run will cost: parameters, memory, cache, FLOPs, minutes.")
    parser.add_argument("config", help="a YAML file, for example configs/demo.yaml")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="for example seed=1")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="plan for it; default: what this machine has")
    memory_gb, tflops, mfu = number("--memory-gb", 0.001), number("--tflops", 0.001), number("--mfu", 0.001, 1)
    parser.add_argument("--memory-gb", type=memory_gb, help="memory of the device, 1 GB = 1e9 bytes; default: ask it")
    parser.add_argument("--tflops", type=tflops, help="its peak; default: known for some GPUs, and a guess on a CPU")
    parser.add_argument("--mfu", type=mfu, default=0.4, help="share of the peak that training reaches; default 0.4")
    given = parser.parse_intermixed_args()
    run, vocabulary = with_vocabulary(load_run_config(given.config, given.overrides))
    model, length, lm = run.model, run.data.sequence_length, on_meta(run.model)
    if given.device == "cuda" and not torch.cuda.is_available():  # it is planned for, and not here
        precision = "bf16" if run.train.precision == "auto" else run.train.precision
        device = Device(torch.device("cuda"), precision, False, "auto", ())
    else:
        train = run.train.model_copy(update={"device": given.device or run.train.device})
        device = resolve_device(run.model_copy(update={"train": train}))
    kind = device.device.type
    print(f"{run.name}: {model.in_words()}, vocabulary {model.vocab_size:,}\n  ({vocabulary})\n")

    counts = parameter_counts(lm) | ({"active for a token": num_active_parameters(lm)} if model.num_experts else {})
    shares = [(part.replace("_", " "), f"{n:,}", f"{n / counts['total']:.1%}") for part, n in counts.items() if n]
    print(table(("Parameters (exact)", "", "share"), shares) + "\n")

    # a micro-batch as the run would take it, and the largest that fits
    memory = (given.memory_gb * 1e9, "--memory-gb") if given.memory_gb else memory_of(kind)
    rows = micro_batch_rows(run, device)
    needed = step_memory(run, rows, device)
    lines = [(part, size_in_words(size)) for part, size in {**needed, "all of it": sum(needed.values())}.items()]
    if memory is not None:
        usable = f"{USABLE_SHARE:.0%} of {size_in_words(memory[0])} ({memory[1]})"
        lines.append((f"rows that fit into {usable}", f"{largest_micro_batch(run, memory[0], device):,}"))
    heading = f"Memory, {rows:,} of the {run.rows_per_step:,} rows of a step × {length:,} tokens at a time"
    print(table((heading, f"{device.precision} on {kind}"), lines))
    print("The first three are exact. Without torch.compile, PyTorch keeps up to half as much again of the fourth.\n")

    # the cache under MHA, GQA and MQA, and MLA if it is that: of a token, and of the longest sequence
    heads, longest, choices = model.num_attention_heads, model.max_position_embeddings, {1, model.kv_heads}
    with suppress(ValueError):  # few heads have no GQA
        choices.add(kv_heads_of("gqa", heads))
    caches = {
        f"{ {heads: 'MHA', 1: 'MQA'}.get(kv, 'GQA') } ({kv})": kv for kv in sorted(choices | {heads}, reverse=True)
    }
    if model.attention == "mla":
        caches[f"MLA ({model.kv_lora_rank} + {model.rotary_size})"] = 0
    sizes = [
        (name, *(f"{kv_cache_bytes(model, n, width, kv):,}" for width in (2, 4) for n in (1, longest)))
        for name, kv in caches.items()
    ]
    columns = [f"{dtype}, {tokens}" for dtype in ("bf16", "fp32") for tokens in ("a token", f"{longest:,} tokens")]
    print(table(("Key-value cache, bytes (exact)", *columns), sizes) + "\n")

    # FLOPs, and the minutes of the training steps alone
    peak = (given.tflops, "--tflops") if given.tflops else known_peak(device.device, device.dtype)
    flops_per_s, speed = math.nan, "(the peak of the device is unknown: give --tflops)"
    if peak:
        flops_per_s = peak[0] * 1e12 * given.mfu
        speed = f"at {given.mfu:.0%} (assumed: --mfu) of {peak[0]:g} TFLOPS ({peak[1]})"
    elif kind == "cpu":
        flops_per_s, speed = CORE_FLOPS * torch.get_num_threads(), "a guess: python -m train.doctor times real steps"
    training = flops_per_token(lm, length)
    work = [("a token, training (3 × forward)", f"{training / 1e6:,.2f} MFLOP")]
    if run.max_steps is None:
        minutes = run.train.max_minutes or 0.0
        work.append((f"tokens in {minutes:g} minutes {speed}", f"{minutes * 60 * flops_per_s / training:,.0f}"))
    else:
        tokens = run.max_steps * run.train.tokens_per_step
        work.append((f"all {tokens:,} tokens of the run", f"{tokens * training / 1e15:,.3f} PFLOP"))
        minutes = tokens * training / flops_per_s / 60
        work.append((f"minutes {speed}", f"{minutes:,.1f}" if minutes >= 1 else f"{minutes:.2g}"))
    print(table((f"Compute, rows of {length:,} tokens", ""), [(name, n.replace("nan", "?")) for name, n in work]))
