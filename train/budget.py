"""What will a run cost? `python -m train.budget configs/x.yaml [section.key=value ...]` says it before you train.

Nothing is prepared, downloaded or built. Parameters and the key-value cache are exact, memory is a formula. FLOPs count
matrix products; on a CPU one product is timed. `python -m train.doctor` times real steps instead.
"""

from __future__ import annotations

import argparse
import math
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from configs.command import InputError, exit_on_bad_input, number
from configs.text import table
from data.config import HubSource, MixSource
from model.config import ModelConfig
from train.config import RunConfig, load_run_config

if TYPE_CHECKING:
    from train.machine.device import Device

ASSUMED_CHAR_VOCABULARY = 128  # 116 characters and 12 special tokens: tiny Shakespeare has 65, plain English fits


def kv_cache_bytes(config: ModelConfig, tokens: int, bytes_per_number: int, kv_heads: int | None = None) -> int:
    """Bytes of the keys and values that one sequence of `tokens` tokens leaves in a KVCache. Exact.

    2 * H_kv * D * bytes_per_number for every token and layer (with a latent: its size and that of the rotary part); a
    sliding layer holds window - 1 tokens at most.
    kv_heads: as if the model had this many key/value heads, instead of what it has.
    """
    held = sum(min(tokens, window - 1) if window else tokens for window in config.windows)
    numbers = 2 * kv_heads * config.head_size if kv_heads else config.cache_numbers
    return held * numbers * bytes_per_number


# ---------------------------------------------------------------------------------------------------------
# what this machine and this config say


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
    elif size is None and tokenizer.kind == "byte":
        size, known = _rounded(256 + len(SPECIAL_TOKENS)), "of data.tokenizer: byte"
    elif size is None:
        size = ASSUMED_CHAR_VOCABULARY
        if tokenizer.kind == "bpe":
            size = _rounded(tokenizer.vocab_size or DEFAULT_VOCAB_SIZE)
        known = (
            f"an estimate, because the data is not prepared; a small text fills less (data.tokenizer: {tokenizer.kind})"
        )
    return run.model_copy(update={"model": run.model.model_copy(update={"vocab_size": size})}), known


def _rounded(size: int) -> int:
    return -(-size // 64) * 64


def _prepared_vocabulary(run: RunConfig) -> int | None:
    from data.prepare import dependencies, read_manifest

    source, manifests = run.data.source, sorted(Path(run.output_dir).glob(".prepared/*/manifest.json"))
    parts = [part.source for part in source.parts] if isinstance(source, MixSource) else [source]
    if not manifests or any(isinstance(part, HubSource) for part in parts):  # the Hub's version, the network knows
        return None
    try:
        wanted = dependencies(run.data, Path(run.output_dir))
    except InputError:
        return None  # a text that is not there yet
    for file in manifests:
        with suppress(InputError):  # a damaged one, which data.prepare will name
            found = read_manifest(file.parent)
            if all(found["depends_on"].get(key) == wanted[key] for key in ("source", "tokenizer")):
                return int(found["vocab_size"])
    return None


def planned_device(run: RunConfig, kind: str | None) -> Device:
    """This machine's device, or the one that you plan for, whether it is here or not."""
    import torch

    from train.machine.device import Device, resolve_device

    if kind == "cuda" and not torch.cuda.is_available():
        precision = "bf16" if run.train.precision == "auto" else run.train.precision
        return Device(torch.device("cuda"), precision, run.train.compile is not False, "auto", ())
    train = run.train.model_copy(update={"device": kind or run.train.device})
    return resolve_device(run.model_copy(update={"train": train}))


def peak_of(run: RunConfig, device: Device) -> tuple[float, str] | None:
    """(TFLOPS, in words whose): known of some GPUs; of the CPU that is here, one product of the model is timed."""
    import torch

    from train.machine.cpu_processes import number_of_processes, threads_each
    from train.machine.hardware import busy_in_words, known_peak, product_tflops, share_of_others

    if device.device.type != "cpu":
        return known_peak(device.device, device.dtype)
    busy, number, cores = busy_in_words(share_of_others()), number_of_processes(run), torch.get_num_threads()
    tokens, inner = run.train.tokens_per_step // number, run.model.hidden_size
    torch.set_num_threads(threads_each(number))
    try:
        measured = number * product_tflops(tokens, inner, run.model.intermediate_size or inner, device.dtype)
    finally:
        torch.set_num_threads(cores)
    timed = f"one of its {device.precision} products, timed now"
    shared = f" in one of {number} processes, and taken {number} times" if number > 1 else ""
    return round(measured, 3), timed + shared + (f"; {busy}" if busy else "")


# ---------------------------------------------------------------------------------------------------------
# the command


def parameters_table(config: ModelConfig) -> str:
    """Parameters of each part, and its share."""
    from model.transformer import on_meta

    lm = on_meta(config)
    counts = lm.parameter_counts()
    if config.num_experts is not None:
        counts["active for a token"] = lm.num_active_parameters()
    rows = [(part.replace("_", " "), f"{n:,}", f"{n / counts['total']:.1%}") for part, n in counts.items() if n]
    return table(("Parameters (exact)", "", "share"), rows)


def memory_table(run: RunConfig, device: Device, memory: tuple[float, str] | None) -> str:
    """A micro-batch as the run would take it, and the largest that fits. memory: bytes, and in words whose."""
    from train.fits import (
        USABLE_SHARE,
        largest_divisor,
        largest_micro_batch,
        micro_batch_rows,
        size_in_words,
        step_memory,
    )

    kind, rows, a_step = device.device.type, micro_batch_rows(run, device), run.rows_per_step
    half = device.dtype.itemsize == 2
    found = step_memory(run, rows, half=half, device=kind)
    lines = [
        ("weights", size_in_words(found.weights)),
        ("gradients", size_in_words(found.gradients)),
        ("optimizer state", size_in_words(found.optimizer_state)),
        ("kept for the backward pass", size_in_words(found.activations)),
        ("logits of a chunk of the loss", size_in_words(found.logits)),
        ("all of it", size_in_words(found.total)),
    ]
    note = "The first three are exact. Without torch.compile, PyTorch keeps up to half as much again of the fourth."
    if memory is None:
        note += "\nThe memory of the device is unknown: give --memory-gb."
    else:
        most = largest_micro_batch(run, memory[0], half=half, device=kind)
        dividing, whole = largest_divisor(a_step, most), size_in_words(memory[0])
        lines.append((f"rows that fit into {USABLE_SHARE:.0%} of {whole} ({memory[1]})", f"{most:,}"))
        lines.append((f"… and divide the {a_step:,} rows of a step", f"{dividing:,}"))
    heading = f"Memory, {rows:,} rows × {run.data.sequence_length:,} tokens at a time"
    return table((heading, f"{device.precision} on {kind}"), lines) + "\n" + note


def cache_table(config: ModelConfig) -> str:
    """Bytes of the cache under MHA, GQA and MQA, and MLA if it is that: of a token, and of the longest sequence."""
    H, longest = config.num_attention_heads, config.max_position_embeddings
    names = {config.kv_heads: "GQA"} | {1: "MQA"} | {H: "MHA"}
    latent = config.attention == "mla"
    with suppress(ValueError):  # not every number of heads has a GQA of that name
        gqa = ModelConfig(hidden_size=H * 2, num_attention_heads=H, num_key_value_heads="gqa")
        names.setdefault(gqa.kv_heads, "GQA")
    rows = []
    for kv_heads in [*sorted(names, reverse=True), *([None] if latent else [])]:
        sizes = [f"{kv_cache_bytes(config, n, b, kv_heads):,}" for b in (2, 4) for n in (1, longest)]
        name = f"{names[kv_heads]} ({kv_heads})" if kv_heads else f"MLA ({config.kv_lora_rank} + {config.rotary_size})"
        own = kv_heads is None if latent else kv_heads == config.kv_heads
        rows.append((f"{name}{' *' if own else ''}", *sizes))
    columns = [f"{dtype}, {n}" for dtype in ("bf16", "fp32") for n in ("a token", f"{longest:,} tokens")]
    return table(("Key-value cache, bytes (exact)", *columns), rows)


def compute_table(run: RunConfig, peak: tuple[float, str] | None, mfu: float) -> str:
    """FLOPs and, where the peak (TFLOPS, in words whose) is known, the minutes of the training steps alone."""
    from model.transformer import on_meta

    length, steps = run.data.sequence_length, run.max_steps
    training = on_meta(run.model).flops_per_token(length)
    rows = [
        ("a token, forward", f"{training / 3e6:,.2f} MFLOP"),
        ("a token, training (3 × forward)", f"{training / 1e6:,.2f} MFLOP"),
    ]
    unknown = "(the peak of the device is unknown: give --tflops)"
    of_peak = f"at {mfu:.0%} (assumed: --mfu) of {peak[0]:g} TFLOPS ({peak[1]})" if peak else unknown
    flops_per_s = peak[0] * 1e12 * mfu if peak else math.nan
    if steps is None:
        minutes = run.train.max_minutes or 0.0
        rows.append((f"tokens in {minutes:g} minutes {of_peak}", f"{minutes * 60 * flops_per_s / training:,.0f}"))
    else:
        tokens = steps * run.train.tokens_per_step
        minutes = tokens * training / flops_per_s / 60
        rows.append((f"all {tokens:,} tokens of the run", f"{tokens * training / 1e15:,.3f} PFLOP"))
        rows.append((f"minutes {of_peak}", f"{minutes:,.1f}" if minutes >= 1 else f"{minutes:.2g}"))
    return table((f"Compute, rows of {length:,} tokens", ""), [(name, n.replace("nan", "?")) for name, n in rows])


def main() -> int:
    parser = argparse.ArgumentParser(description="What a run will cost: parameters, memory, cache, FLOPs, minutes.")
    parser.add_argument("config", help="a YAML file, for example configs/demo.yaml")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="for example seed=1")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="plan for it; default: what this machine has")
    parser.add_argument(
        "--memory-gb",
        type=number("--memory-gb", 0, above=True),
        help="memory of the device, 1 GB = 1e9 bytes; default: ask it",
    )
    parser.add_argument(
        "--tflops",
        type=number("--tflops", 0, above=True),
        help="peak of the device; default: known for some GPUs, and a CPU is timed",
    )
    parser.add_argument(
        "--mfu",
        type=number("--mfu", 0, 1, above=True),
        default=0.4,
        help="share of the peak that training reaches; default 0.4",
    )
    arguments = parser.parse_intermixed_args()

    run, known = with_vocabulary(load_run_config(arguments.config, arguments.overrides))
    from train.machine.hardware import device_memory

    device = planned_device(run, arguments.device)
    memory = (arguments.memory_gb * 1e9, "--memory-gb") if arguments.memory_gb else device_memory(device.device.type)
    peak = (arguments.tflops, "--tflops") if arguments.tflops else peak_of(run, device)
    heading = f"{run.name}: {run.model.in_words()}, vocabulary {run.model.vocab_size:,}\n  ({known})"
    tables = [parameters_table(run.model), memory_table(run, device, memory), cache_table(run.model)]
    print(heading, *tables, compute_table(run, peak, arguments.mfu), sep="\n\n")
    if device.device.type == "cpu":
        print("A small model may reach far less in bf16. python -m train.doctor times real steps.")
    return 0


if __name__ == "__main__":
    exit_on_bad_input(main)
