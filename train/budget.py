"""What will a run cost, and does it fit? `python -m train.budget configs/x.yaml [section.key=value ...]`

Nothing is prepared, downloaded or built. Parameters and the key-value cache are exact, memory is a formula, and minutes
follow from FLOPs. `python -m train.doctor` times real steps instead. A run asks here before anything is built.
"""

from __future__ import annotations

import argparse
import math
from contextlib import suppress
from pathlib import Path

import torch

from configs.command import InputError, exit_on_bad_input, number
from configs.text import table
from data.config import HubSource, MixSource
from model import ModelConfig
from model.loss import CHUNK, CHUNK_ELSEWHERE
from model.transformer import on_meta
from train.config import RunConfig, load_run_config
from train.device import CORE_FLOPS, SMALL_VOCABULARY, Device, known_peak, memory_of, resolve_device
from train.optimizer import build_optimizers
from train.processes import largest_divisor

USABLE_SHARE = 0.6  # of the memory: the formula counts the least that a step needs, and kernels need room as well
AUTO_MICRO_TOKENS = {"cpu": 8192, "cuda": 65536, "mps": 16384}
ASSUMED_CHAR_VOCABULARY = 128  # 116 characters and 12 special tokens: tiny Shakespeare has 65, plain English fits
REMEDY = (
    "lower model.hidden_size, model.num_hidden_layers, data.sequence_length or train.micro_batch_size "
    "(python -m train.budget shows each part)"
)

# ---------------------------------------------------------------------------------------------------------
# does it fit? A run is refused for what can never fit: all memory counts, without a margin


def check_memory(config: RunConfig, device: Device, processes: int) -> None:
    """Refuse a model whose training step does not fit. Raises InputError with the figures.

    Before the vocabulary is known, it counts as small. processes: on a CPU they share the memory, and each holds all.
    """
    kind, train = device.device.type, config.train
    model = config.model.model_copy(update={"vocab_size": config.model.vocab_size or SMALL_VOCABULARY})
    run, (total, whose) = config.model_copy(update={"model": model}), memory_of(kind) or (math.inf, "")
    rows = 1  # on a GPU `auto` halves what does not fit
    if kind == "cpu" or train.micro_batch_size != "auto":
        rows = micro_batch_rows(run, device, processes)
    if kind == "cpu":
        total /= processes
    elif train.parallel == "fsdp2":  # each process holds a share
        total *= processes
    try:
        needed = step_memory(run, rows, device)
    except (RuntimeError, OverflowError):  # more bytes than 64 bits can count
        raise InputError(f"model: a training step needs more memory than any machine has: {REMEDY}") from None
    if sum(needed.values()) > total:
        parts = ", ".join(f"{part} {size_in_words(size)}" for part, size in needed.items())
        raise InputError(
            f"model: a training step of {rows:,} rows x {config.data.sequence_length:,} tokens at a time needs "
            f"{size_in_words(sum(needed.values()))} ({parts}), and the memory is {size_in_words(total)} ({whose}): "
            f"{REMEDY}"
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
        from model.lora import add_adapters

        add_adapters(lm, run.lora)
    state = 0
    for optimizer in build_optimizers(lm, run.train.optimizer):
        moments = 2 if isinstance(optimizer, torch.optim.AdamW) else 1  # Muon has its momentum alone
        state += moments * sum(x.nbytes for group in optimizer.param_groups for x in group["params"])
    width, heads, number = model.hidden_size, model.num_attention_heads, device.dtype.itemsize
    key_heads = heads if model.attention == "mla" else model.kv_heads  # a latent is unfolded for every head
    queries_and_keys, values = (heads + key_heads) * model.head_size, (heads + key_heads) * model.value_size
    layers = []
    for has_experts in model.has_experts:
        inner = model.intermediate_size or 0
        if has_experts:
            inner = model.num_experts_per_tok * (model.moe_intermediate_size or 0)
        kept = 2 * (4 + number) * width  # the float32 stream before each norm, and what the norm makes of it
        kept += (4 + number) * queries_and_keys + number * values  # before and after RoPE; values and output
        kept += (4 if model.gated_mlp else 2) * number * inner
        if model.attn_implementation == "eager":  # which keeps every weight
            kept += (4 + number) * heads * run.data.sequence_length
        layers.append(kept)
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


def size_in_words(number: float) -> str:
    """Bytes in decimal units: 1 kB = 1000 B."""
    units = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))
    return next((f"{number / size:,.2f} {unit}" for unit, size in units if number >= size), f"{number:,.0f} B")


def kv_cache_bytes(config: ModelConfig, tokens: int, bytes_per_number: int, kv_heads: int = 0) -> int:
    """Bytes of the keys and values that one sequence of `tokens` tokens leaves in a KVCache. Exact.

    2 * H_kv * D * bytes_per_number for every token and layer (with a latent: its size and that of the rotary part); a
    sliding layer holds window - 1 tokens at most.
    kv_heads: as if the model had this many key/value heads, instead of what it has (0).
    """
    held = sum(min(tokens, window - 1) if window else tokens for window in config.windows)
    numbers = 2 * kv_heads * config.head_size if kv_heads else config.cache_numbers
    return held * numbers * bytes_per_number


# ---------------------------------------------------------------------------------------------------------
# the vocabulary, before there is one


def with_vocabulary(run: RunConfig) -> tuple[RunConfig, str]:
    """The config with the size of its vocabulary, and in words where that is from. Prepares nothing.

    The size is exact if the data is prepared, and for tokenizers of bytes and pretrained ones; else it is an estimate,
    and the words say so.
    """
    from data.tokenizer import DEFAULT_VOCAB_SIZE, SPECIAL_TOKENS, train_tokenizer

    tokenizer, size, known = run.data.tokenizer, run.model.vocab_size, "model.vocab_size"
    if size is None:
        size, known = _prepared_vocabulary(run), "of the prepared data"
    if size is None and tokenizer.kind == "pretrained":
        size, known = train_tokenizer(tokenizer, []).vocab_size, f"of the tokenizer in {tokenizer.path}"
    elif size is None:
        sizes = {"byte": 256 + len(SPECIAL_TOKENS), "bpe": tokenizer.vocab_size or DEFAULT_VOCAB_SIZE}
        size = -(-sizes.get(tokenizer.kind, ASSUMED_CHAR_VOCABULARY) // 64) * 64  # a multiple of 64
        known = f"of data.tokenizer: {tokenizer.kind}"
        if tokenizer.kind != "byte":
            known = f"an estimate {known}; a small text fills less"
    return run.model_copy(update={"model": run.model.model_copy(update={"vocab_size": size})}), known


def _prepared_vocabulary(run: RunConfig) -> int | None:
    from data.prepare import dependencies, key_of, read_manifest

    source, prepared = run.data.source, Path(run.output_dir) / ".prepared"
    parts = [part.source for part in source.parts] if isinstance(source, MixSource) else [source]
    if not prepared.is_dir() or any(isinstance(part, HubSource) for part in parts):  # the network knows its version
        return None
    with suppress(InputError):  # a text that is not there yet, or damaged data, which data.prepare will name
        return int(read_manifest(prepared / key_of(dependencies(run.data, Path(run.output_dir))))["vocab_size"])
    return None


# ---------------------------------------------------------------------------------------------------------
# the command


def main() -> int:
    parser = argparse.ArgumentParser(description="What a run will cost: parameters, memory, cache, FLOPs, minutes.")
    parser.add_argument("config", help="a YAML file, for example configs/demo.yaml")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="for example seed=1")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="plan for it; default: what this machine has")
    options = {"memory-gb": "memory of the device, 1 GB = 1e9 bytes; default: ask it"}
    options["tflops"] = "peak of the device; default: known for some GPUs, and a guess on a CPU"
    for name, words in options.items():
        parser.add_argument(f"--{name}", type=number(f"--{name}", 0.001), help=words)
    mfu = number("--mfu", 0.001, 1)
    parser.add_argument("--mfu", type=mfu, default=0.4, help="share of the peak that training reaches; default 0.4")
    arguments = parser.parse_intermixed_args()
    run, known = with_vocabulary(load_run_config(arguments.config, arguments.overrides))
    device = planned_device(run, arguments.device)
    kind = device.device.type
    memory = (arguments.memory_gb * 1e9, "--memory-gb") if arguments.memory_gb else memory_of(kind)
    peak = (arguments.tflops, "--tflops") if arguments.tflops else known_peak(device.device, device.dtype)
    if peak:
        flops_per_s = peak[0] * 1e12 * arguments.mfu
        speed = f"at {arguments.mfu:.0%} (assumed: --mfu) of {peak[0]:g} TFLOPS ({peak[1]})"
    elif kind == "cpu":
        flops_per_s, speed = CORE_FLOPS * torch.get_num_threads(), "a guess: python -m train.doctor times real steps"
    else:
        flops_per_s, speed = math.nan, "(the peak of the device is unknown: give --tflops)"
    print(f"{run.name}: {run.model.in_words()}, vocabulary {run.model.vocab_size:,}\n  ({known})", end="\n\n")
    tables = (parameters_table(run.model), memory_table(run, device, memory), cache_table(run.model))
    print(*tables, compute_table(run, flops_per_s, speed), sep="\n\n")
    return 0


def planned_device(run: RunConfig, kind: str | None) -> Device:
    """This machine's device, or the one that you plan for, whether it is here or not."""
    if kind == "cuda" and not torch.cuda.is_available():
        precision = "bf16" if run.train.precision == "auto" else run.train.precision
        return Device(torch.device("cuda"), precision, False, "auto", ())
    train = run.train.model_copy(update={"device": kind or run.train.device})
    return resolve_device(run.model_copy(update={"train": train}))


def memory_table(run: RunConfig, device: Device, memory: tuple[float, str] | None) -> str:
    """A micro-batch as the run would take it, and the largest that fits. memory: bytes, and in words whose."""
    rows, a_step = micro_batch_rows(run, device), run.rows_per_step
    needed = step_memory(run, rows, device)
    lines = [(part, size_in_words(size)) for part, size in {**needed, "all of it": sum(needed.values())}.items()]
    note = "The first three are exact. Without torch.compile, PyTorch keeps up to half as much again of the fourth."
    if memory is None:
        note += "\nThe memory of the device is unknown: give --memory-gb."
    else:
        most, usable = largest_micro_batch(run, memory[0], device), f"{USABLE_SHARE:.0%} of {size_in_words(memory[0])}"
        lines.append((f"rows that fit into {usable} ({memory[1]})", f"{most:,}"))
        lines.append((f"… and divide the {a_step:,} rows of a step", f"{largest_divisor(a_step, most):,}"))
    heading = f"Memory, {rows:,} rows × {run.data.sequence_length:,} tokens at a time"
    return table((heading, f"{device.precision} on {device.device.type}"), lines) + "\n" + note


def cache_table(config: ModelConfig) -> str:
    """Bytes of the cache under MHA, GQA and MQA, and MLA if it is that: of a token, and of the longest sequence."""
    heads, longest, own = config.num_attention_heads, config.max_position_embeddings, config.kv_heads
    names = {own: "GQA"}
    with suppress(ValueError):  # not every number of heads has a GQA of that name
        names[ModelConfig(hidden_size=2 * heads, num_attention_heads=heads, num_key_value_heads="gqa").kv_heads] = "GQA"
    names |= {1: "MQA", heads: "MHA"}
    models = {f"{names[kv]} ({kv})": kv for kv in sorted(names, reverse=True)}
    if config.attention == "mla":
        own = 0
        models[f"MLA ({config.kv_lora_rank} + {config.rotary_size})"] = 0
    rows = []
    for name, kv in models.items():
        sizes = [f"{kv_cache_bytes(config, tokens, width, kv):,}" for width in (2, 4) for tokens in (1, longest)]
        rows.append((f"{name}{' *' if kv == own else ''}", *sizes))
    columns = [f"{dtype}, {tokens}" for dtype in ("bf16", "fp32") for tokens in ("a token", f"{longest:,} tokens")]
    return table(("Key-value cache, bytes (exact)", *columns), rows)


def parameters_table(config: ModelConfig) -> str:
    """Parameters of each part, and its share."""
    lm = on_meta(config)
    counts = lm.parameter_counts()
    if config.num_experts is not None:
        counts["active for a token"] = lm.num_active_parameters()
    rows = [(part.replace("_", " "), f"{n:,}", f"{n / counts['total']:.1%}") for part, n in counts.items() if n]
    return table(("Parameters (exact)", "", "share"), rows)


def compute_table(run: RunConfig, flops_per_s: float, speed: str) -> str:
    """FLOPs, and the minutes of the training steps alone. flops_per_s: NaN where it is unknown; speed: it, in words."""
    length, steps = run.data.sequence_length, run.max_steps
    training = on_meta(run.model).flops_per_token(length)
    rows = [
        ("a token, forward", f"{training / 3e6:,.2f} MFLOP"),
        ("a token, training (3 × forward)", f"{training / 1e6:,.2f} MFLOP"),
    ]
    if steps is None:
        minutes = run.train.max_minutes or 0.0
        rows.append((f"tokens in {minutes:g} minutes {speed}", f"{minutes * 60 * flops_per_s / training:,.0f}"))
    else:
        tokens = steps * run.train.tokens_per_step
        minutes = tokens * training / flops_per_s / 60
        rows.append((f"all {tokens:,} tokens of the run", f"{tokens * training / 1e15:,.3f} PFLOP"))
        rows.append((f"minutes {speed}", f"{minutes:,.1f}" if minutes >= 1 else f"{minutes:.2g}"))
    return table((f"Compute, rows of {length:,} tokens", ""), [(name, n.replace("nan", "?")) for name, n in rows])


if __name__ == "__main__":
    exit_on_bad_input(main)
