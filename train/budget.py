"""What a run will cost, before a second is spent: `python -m train.budget configs/x.yaml [section.key=value ...]`

Nothing is prepared, downloaded or built. Parameters and the key-value cache are exact; FLOPs count matrix products;
the memory of a training step is a formula for the eager graph, which on a CPU is within 5 % of what is measured
(tests/train/test_budget.py). The peak on CUDA is NOT MEASURED YET; the goal is to be within 20 % of it.
"""

from __future__ import annotations

import argparse
import bisect
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from configs.loader import InputError, exit_on_bad_input
from model.backends import blocked as blocked_attention
from model.config import ModelConfig
from train.config import RunConfig, load_run_config
from train.machine.hardware import device_memory, known_peak

if TYPE_CHECKING:
    from train.machine.device import Device

ASSUMED_CHAR_VOCABULARY = 128  # 116 characters and 12 special tokens: tiny Shakespeare has 65, plain English fits
USABLE_SHARE = 0.9  # of the memory: the rest is for the CUDA context, fragments and one layer's gradients
MOST_ROWS = 1 << 24


# ---------------------------------------------------------------------------------------------------------
# parameters and arithmetic


def parameter_count_by_part(config: ModelConfig) -> dict[str, int]:
    """Trained numbers of each part, and their `total`; a tied matrix counts once, as embedding. Exact.

    Raises ValueError if config has no vocab_size: see with_vocabulary.
    """
    if config.vocab_size is None:
        raise ValueError("vocab_size is not set: use the tokenizer's, for example vocab_size=2048")
    assert config.intermediate_size is not None
    hidden, layers, head_dim = config.hidden_size, config.num_hidden_layers, config.head_size
    parts = {
        "embedding": config.vocab_size * hidden,
        "attention": layers * 2 * hidden * head_dim * (config.num_attention_heads + config.kv_heads),  # q, o; k, v
        "feed-forward": layers * 3 * hidden * config.intermediate_size,  # gate, up, down
        "norms": (2 * layers + 1) * hidden + (2 * layers * head_dim if config.qk_norm else 0),
        "head": 0 if config.tie_word_embeddings else config.vocab_size * hidden,
    }
    return parts | {"total": sum(parts.values())}


def flops_per_token(config: ModelConfig, sequence_length: int, *, training: bool = True) -> float:
    """Floating-point operations a token costs, in rows of `sequence_length` tokens.

    forward = 2 * (matrix parameters, head included, embedding not: it is looked up)
              + 4 * H * D * (keys that a token sees), summed over the layers
    training = 3 * forward, as the backward pass multiplies twice what the forward pass does once.

    Kaplan et al. 2020 (arXiv 2001.08361), table 1; Chowdhery et al. 2022, PaLM (2204.02311), appendix B. Both count
    every key of the row; here a token sees itself and what came before, (T + 1) / 2 keys on average. Document
    boundaries would leave fewer still and are not counted; nor are norms, softmax, RoPE and the optimizer.
    """
    count = parameter_count_by_part(config)
    head = count["embedding"]  # of the same shape, or the same matrix
    products = 2 * (count["attention"] + count["feed-forward"] + head)
    keys = sum(mean_keys(sequence_length, window) for window in config.windows)
    forward = products + 4 * config.num_attention_heads * config.head_size * keys
    return 3 * forward if training else forward


def mean_keys(sequence_length: int, window: int | None = None) -> float:
    """Keys a token sees on average: i of them at place i = 1 … T, at most `window`."""
    w = min(window or sequence_length, sequence_length)
    return (w * (w + 1) / 2 + (sequence_length - w) * w) / sequence_length


def kv_cache_bytes(config: ModelConfig, tokens: int, bytes_per_number: int, kv_heads: int | None = None) -> int:
    """Bytes of the keys and values that one sequence of `tokens` tokens leaves in a KVCache. Exact.

    2 * H_kv * D * bytes_per_number for every token and layer; a sliding layer holds window - 1 tokens at most.
    kv_heads: as if the model had so many of them, instead of the config's own.
    """
    held = sum(min(tokens, window - 1) if window else tokens for window in config.windows)
    return 2 * held * (kv_heads or config.kv_heads) * config.head_size * bytes_per_number


# ---------------------------------------------------------------------------------------------------------
# memory of a training step


def step_memory(run: RunConfig, rows: int, *, half: bool, device: str) -> dict[str, int]:
    """Bytes of each part of a training step, and the sum of what is there `at the fullest moment`.

    run.model has a vocabulary. rows: of a micro-batch. half: 16-bit autocast over float32 weights, else float32.
    The gradients lie beside all activations from a step's second micro-batch on; with one it is that much less.
    """
    config, count = run.model, parameter_count_by_part(run.model)
    length, documents = run.data.sequence_length, run.data.isolate_documents
    blocks = count["attention"] + count["feed-forward"]
    muon = blocks if run.train.optimizer.name == "muon" else 0
    lasting = {
        "weights": 4 * count["total"],
        "gradients": 4 * count["total"],
        # Muon keeps one momentum for the matrices of the blocks, AdamW two moments for all the rest
        "optimizer state": 4 * muon + 8 * (count["total"] - muon),
    }
    backward = {
        "16-bit copies of the matrices": 2 * blocks if half else 0,
        "activations": activation_bytes(config, length, rows, half=half, device=device, documents=documents),
        "loss": loss_bytes(config, rows * length, device, half=half),
    }
    # Muon takes the matrices of a shape at once, gate, up and down being the most as a rule: their stack in float32,
    # and three of them inside Newton-Schulz (bf16 on CUDA). The activations are gone by then.
    step = (4 + 3 * (2 if device == "cuda" else 4)) * count["feed-forward"] if muon else 0
    total = sum(lasting.values()) + max(sum(backward.values()), step)
    return lasting | backward | {"instead of these three, Muon's step": step, "at the fullest moment": total}


def activation_bytes(
    config: ModelConfig, sequence_length: int, rows: int, *, half: bool, device: str, documents: bool
) -> int:
    """Bytes that autograd keeps for the backward pass of one micro-batch of `rows` rows, without torch.compile.

    half: 16-bit autocast over float32 weights, else float32. documents: document_ids are given, so there is a mask.
    Every term is a tensor that some backward formula reads. Left out: dropout, and the gradients in flight.
    """
    hidden, H, H_kv = config.hidden_size, config.num_attention_heads, config.kv_heads
    number = 2 if half else 4  # bytes that matrix products take and give
    assert config.intermediate_size is not None

    came_in = 0 if device == "cpu" else 4  # bytes; on a CPU a norm's backward pass does without (model/norm.py)
    norm = (4 + came_in) * hidden + 4  # what came in, what was normalised, one root: float32 in any precision
    # what a norm gives is float32; autocast casts it once for each of q, k, v (gate, up), which otherwise share it
    normed = (3 + 2) * 2 * hidden if half else (1 + 1) * 4 * hidden
    qk_norm = (came_in + number) * (H + H_kv) * config.head_size + 4 * (H + H_kv) if config.qk_norm else 0
    feed_forward = 4 * number * config.intermediate_size  # gate, silu(gate), up, their product
    attention = sum(
        _attention_bytes(config, sequence_length, rows, number, device, documents, window) for window in config.windows
    )
    layer = 2 * norm + normed + qk_norm + feed_forward
    ends = norm + 4 * hidden + 8  # the last norm, the gradient that the loss computes ahead, the token ids
    return round(rows * sequence_length * (config.num_hidden_layers * layer + attention + ends))


def _attention_bytes(
    config: ModelConfig, sequence_length: int, rows: int, number: int, device: str, documents: bool, window: int | None
) -> float:
    """Bytes a token that one layer's attention keeps, from the rotated q, k and v to the input of o_proj."""
    T, name = sequence_length, config.attn_implementation
    H, H_kv, D = config.num_attention_heads, config.kv_heads, config.head_size
    if name in ("eager", "sdpa_math"):  # q, k, v and the output; two copies of the weights, one in float32
        return number * 4 * H * D + (4 + number) * H * T
    if device == "cpu" and number == 2 and name in ("auto", "blocked") and T <= blocked_attention.LONGEST:
        keys = mean_keys(T, None) + (min(T, blocked_attention.BLOCK) - 1) / 2  # up to the end of a token's block
        return 2 * ((2 * H + 2 * H_kv) * D + H * keys)  # q, k, v and the output in bfloat16; the weights
    kernel = 4 if device == "cpu" else number  # on a CPU, sdpa leaves autocast (attention_functions.py)
    # flex and varlen read no mask, and on a GPU `auto` takes one of them where there are documents or windows
    unmasked = name in ("flex", "varlen") or (name == "auto" and device == "cuda")
    masked = not unmasked and (documents or (window is not None and window <= T))
    keys = 2 * H_kv
    if masked and device == "cuda":  # k and v are repeated for every query head; a single one, only by a cast
        keys = 2 * H if H_kv > 1 else H + 1 if number == 2 else 2
    kept = kernel * (2 * H + keys) * D + 4 * H  # q, k, v, the output; the log of a sum for each head
    if kernel != number:
        kept += number * H * D  # the output as o_proj reads it
    # the mask, as numbers to add to the scores: for every row, or one for all
    return kept + (kernel * T / (1 if documents else rows) if masked else 0)


def loss_bytes(config: ModelConfig, tokens: int, device: str, *, half: bool) -> int:
    """Bytes of the loss: the gradient of the head, and the logits of one chunk (model/loss.py) a few times over."""
    from model.loss import CHUNK, CHUNK_ELSEWHERE

    chunk = min(tokens, CHUNK.get(device, CHUNK_ELSEWHERE))
    # at once: float32 logits, of this chunk and of the one before, and their 16-bit copies
    return 4 * parameter_count_by_part(config)["embedding"] + (12 if half else 8) * chunk * (config.vocab_size or 0)


def largest_micro_batch(run: RunConfig, memory: float, *, half: bool, device: str) -> int:
    """The most rows whose step fits into USABLE_SHARE of `memory` bytes; 0 if not even one does."""
    return bisect.bisect_right(
        range(1, MOST_ROWS),
        USABLE_SHARE * memory,
        key=lambda rows: step_memory(run, rows, half=half, device=device)["at the fullest moment"],
    )


# ---------------------------------------------------------------------------------------------------------
# what this machine and this config say


def with_vocabulary(run: RunConfig) -> tuple[RunConfig, str]:
    """The config with a vocabulary in it, and in words how its size is known. Reads prepared data, prepares none."""
    from data.tokenizer import DEFAULT_VOCAB_SIZE, SPECIAL_TOKENS, train_tokenizer

    tokenizer, size, known = run.data.tokenizer, run.model.vocab_size, "model.vocab_size"
    if size is None:
        size, known = _prepared_vocabulary(run), "the prepared data's"
    if size is None and tokenizer.kind == "char":
        size, known = ASSUMED_CHAR_VOCABULARY, "ASSUMED: the text, once it is prepared, tells its characters"
    elif size is None and tokenizer.kind == "pretrained":
        size, known = train_tokenizer(tokenizer, []).vocab_size, f"the tokenizer in {tokenizer.path}"
    elif size is None:
        wanted = (tokenizer.vocab_size or DEFAULT_VOCAB_SIZE) if tokenizer.kind == "bpe" else 256 + len(SPECIAL_TOKENS)
        size, known = -(-wanted // 64) * 64, f"data.tokenizer: {tokenizer.kind}"
        known += "; a very small text fills less" if tokenizer.kind == "bpe" else ""
    return run.model_copy(update={"model": run.model.model_copy(update={"vocab_size": size})}), known


def _prepared_vocabulary(run: RunConfig) -> int | None:
    from data.prepare import dependencies

    manifests = sorted(Path(run.output_dir).glob(".prepared/*/manifest.json"))
    if "'hub'" in str(run.data.source.model_dump()) or not manifests:  # what is there, only the network could tell
        return None
    try:
        wanted = dependencies(run.data, Path(run.output_dir))
    except InputError:
        return None  # a text that is not there yet
    found: list[dict[str, Any]] = [json.loads(file.read_text(encoding="utf-8")) for file in manifests]
    same = [m for m in found if all(m["depends_on"].get(key) == wanted[key] for key in ("source", "tokenizer"))]
    return same[0]["vocab_size"] if same else None


def planned_device(run: RunConfig, kind: str | None) -> Device:
    """This machine's device, or the one that is planned for, whether it is here or not."""
    import torch

    from train.machine.device import Device, resolve_device

    if kind == "cuda" and not torch.cuda.is_available():
        precision = "bf16" if run.train.precision == "auto" else run.train.precision
        return Device(torch.device("cuda"), precision, run.train.compile is not False, "auto", ())
    train = run.train.model_copy(update={"device": kind or run.train.device})
    return resolve_device(run.model_copy(update={"train": train}))


# ---------------------------------------------------------------------------------------------------------
# the command


def in_words(config: ModelConfig) -> str:
    """The shape of a model: "4 layers x 128, 4 query heads / 1 key-value heads (MQA)"."""
    toggle = {config.num_attention_heads: "MHA", 1: "MQA"}.get(config.kv_heads, "GQA")
    heads = f"{config.num_attention_heads} query heads / {config.kv_heads} key-value heads ({toggle})"
    return f"{config.num_hidden_layers} layers x {config.hidden_size}, {heads}"


def parameters_table(config: ModelConfig) -> str:
    """Trained numbers of each part, and its share."""
    counts = parameter_count_by_part(config)
    rows = [(part, f"{n:,}", f"{n / counts['total']:.1%}") for part, n in counts.items() if n]
    return _table(("Parameters (exact)", "", ""), rows)


def memory_table(run: RunConfig, device: Device, memory: tuple[float, str] | None) -> str:
    """A micro-batch as the run would take it, in float32 and under autocast, and the largest that fits."""
    from train.run import micro_batch_rows

    kind, rows, step = device.device.type, micro_batch_rows(run, device), run.rows_per_step
    both = [step_memory(run, rows, half=half, device=kind) for half in (False, True)]
    lines = [(part, *(_size(memory_of[part]) for memory_of in both)) for part in both[0]]
    notes = [
        f"* this run: {device.precision} on {kind}. A formula for the eager graph; torch.compile keeps less.",
        "The peak on CUDA is not measured yet (goal: within 20 %).",
    ]
    if memory is None:
        notes.append("How much memory there is, nobody tells here: give --memory-gb.")
    else:
        most = [largest_micro_batch(run, memory[0], half=half, device=kind) for half in (False, True)]
        dividing = [max((n for n in range(1, min(m, step) + 1) if step % n == 0), default=0) for m in most]
        label = f"rows that fit into {USABLE_SHARE:.0%} of {_size(memory[0])} ({memory[1]})"
        lines.append((label, *(f"{n:,}" for n in most)))
        lines.append((f"… and divide the {step:,} rows of a step", *(f"{n:,}" for n in dividing)))
    columns = ("fp32 *", "16-bit autocast") if device.precision == "fp32" else ("fp32", "16-bit autocast *")
    heading = f"Memory of a step, {rows:,} rows x {run.data.sequence_length:,} tokens at a time"
    return _table((heading, *columns), lines) + "".join(f"\n  {note}" for note in notes)


def cache_table(config: ModelConfig) -> str:
    """Bytes of the cache under MHA, GQA and MQA: of a token, and of the longest sequence."""
    H, longest = config.num_attention_heads, config.max_position_embeddings
    names = {H: "MHA"} | ({H // 4: "GQA, a quarter"} if H % 4 == 0 else {}) | {1: "MQA"}
    names.setdefault(config.kv_heads, "GQA")
    rows = []
    for kv_heads in sorted(names, reverse=True):
        sizes = [f"{kv_cache_bytes(config, n, b, kv_heads):,}" for b in (2, 4) for n in (1, longest)]
        rows.append((f"{names[kv_heads]} ({kv_heads}){' *' if kv_heads == config.kv_heads else ''}", *sizes))
    columns = [f"{dtype}, {n}" for dtype in ("bf16", "fp32") for n in ("a token", f"{longest:,}")]
    return _table(("Bytes of a key-value cache (exact)", *columns), rows)


def compute_table(run: RunConfig, peak: tuple[float, str] | None, mfu: float) -> str:
    """FLOPs and, where the peak (TFLOPS, in words whose) is known, the minutes of the training steps alone."""
    length, steps = run.data.sequence_length, run.max_steps
    forward = flops_per_token(run.model, length, training=False)
    training = flops_per_token(run.model, length)
    rows = [
        ("a token, forward", f"{forward / 1e6:,.2f} MFLOP"),
        ("a token, training (3 x forward)", f"{training / 1e6:,.2f} MFLOP"),
    ]
    of_peak = f"at {mfu:.0%} (assumed: --mfu) of {peak[0]:g} TFLOPS ({peak[1]})" if peak else ""
    if steps is None:
        minutes = run.train.max_minutes or 0.0
        found = f"{minutes * 60 * peak[0] * 1e12 * mfu / training:,.0f}" if peak else "?"
        rows.append(
            (f"tokens in {minutes:g} minutes " + (of_peak or "(give --tflops, the peak of your device)"), found)
        )
    else:
        tokens = steps * run.train.tokens_per_step
        rows.append((f"all {tokens:,} tokens of the run", f"{tokens * training / 1e15:,.3f} PFLOP"))
        minutes = tokens * training / (peak[0] * 1e12 * mfu) / 60 if peak else 0.0
        shown = f"{minutes:,.1f}" if minutes >= 1 else f"{minutes:.2g}"
        rows.append((f"minutes {of_peak}", shown) if peak else ("minutes: give --tflops, the peak of your device", "?"))
    return _table((f"Compute, rows of {length:,} tokens", ""), rows)


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A heading and rows below it, indented; the first column to the left, the others to the right."""
    lines = [heading, *(("  " + first, *others) for first, *others in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    widths[0] = max(widths[0], 36)
    shown = ([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])] for line in lines)
    return "\n".join("   ".join(cells).rstrip() for cells in shown)


def _size(number: float) -> str:
    """Bytes in decimal units: 1 kB = 1000 B."""
    units = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))
    return next((f"{number / size:,.2f} {unit}" for unit, size in units if number >= size), f"{number:,.0f} B")


def main() -> int:
    parser = argparse.ArgumentParser(description="What a run will cost: parameters, memory, cache, FLOPs, minutes.")
    parser.add_argument("config", help="a YAML file, for example configs/demo.yaml")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="for example seed=1")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="plan for it; default: what this machine has")
    parser.add_argument("--memory-gb", type=float, help="memory of the device, 1 GB = 1e9 bytes; default: ask it")
    parser.add_argument("--tflops", type=float, help="peak of the device; default: known for some GPUs")
    parser.add_argument("--mfu", type=float, default=0.4, help="share of the peak that training reaches; default 0.4")
    arguments = parser.parse_intermixed_args()
    for name, most in (("memory_gb", math.inf), ("tflops", math.inf), ("mfu", 1.0)):
        value = getattr(arguments, name)
        if value is not None and not 0 < value <= most:
            raise InputError(
                f"--{name.replace('_', '-')} is {value}: it must be above 0" + " and at most 1" * (most == 1)
            )

    run, known = with_vocabulary(load_run_config(arguments.config, arguments.overrides))
    device = planned_device(run, arguments.device)
    memory = (arguments.memory_gb * 1e9, "--memory-gb") if arguments.memory_gb else device_memory(device.device.type)
    peak = (arguments.tflops, "--tflops") if arguments.tflops else known_peak(device)
    heading = f"{run.name}: {in_words(run.model)}, vocabulary {run.model.vocab_size:,}\n  ({known})"
    tables = [parameters_table(run.model), memory_table(run, device, memory), cache_table(run.model)]
    print(heading, *tables, compute_table(run, peak, arguments.mfu), sep="\n\n")
    return 0


if __name__ == "__main__":
    exit_on_bad_input(main)
