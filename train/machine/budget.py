"""The cost of a run: `python -m train.budget configs/x.yaml [key=value ...]`

Nothing is prepared, downloaded or built. Parameters and the key-value cache are exact, memory is a
formula, and minutes are a guess from FLOPs. `python -m train.doctor` times real steps instead. A
run calls `check_memory` before anything is built.
"""

import math
from contextlib import suppress

import torch

from configs.command import InputError, add_config, add_number, command_parser
from configs.text import table
from data.tokenizer import DEFAULT_VOCAB_SIZE, SPECIAL_TOKENS, round_up, train_tokenizer
from model import LanguageModel, ModelConfig
from model.accounting import flops_per_token, num_active_parameters
from model.backends.kernels import LONGEST
from model.config import kv_heads_of
from model.loss import CHUNK, CHUNK_ELSEWHERE
from model.transformer import on_meta
from train.config import RunConfig, load_run_config
from train.machine import device as hardware
from train.machine.cpu_processes import largest_divisor
from train.machine.device import Device, memory_of, resolve_device, sized
from train.machine.distributed import local_size
from train.optimizer import build_optimizers

# The formula counts the least that a step needs, and kernels need room as well.
USABLE_SHARE = 0.6
# `auto` takes at most so many tokens in a forward pass.
AUTO_MICRO_TOKENS = {"cpu": 8192, "cuda": 65536, "mps": 16384}
# 116 characters and 12 special tokens: tiny Shakespeare has 65, and plain English fits.
ASSUMED_CHAR_VOCABULARY = 128


def check_memory(config: RunConfig, device: Device, processes: int) -> None:
    """Raise InputError, with the figures, if a training step does not fit into memory."""
    run = sized(config)  # as long as the vocabulary is not known, it counts as small
    kind = device.device.type
    total, owner = memory_of(kind) or (math.inf, "")
    rows = 1  # on a GPU `auto` halves the rows until they fit
    if kind == "cpu" or run.train.micro_batch_size != "auto":
        rows = micro_batch_rows(run, device, processes)
    if kind == "cpu":  # processes share the memory, and each holds everything
        total /= processes
    elif run.train.parallel != "ddp":  # each GPU holds a share
        total *= processes if run.train.parallel == "fsdp2" else local_size(processes)
    needed = step_memory(run, rows, device)
    if sum(needed.values()) <= total:
        return
    parts = ", ".join(f"{part} {size_in_words(size)}" for part, size in needed.items())
    raise InputError(
        f"model: a training step of {rows:,} rows x {run.data.sequence_length:,} tokens at a time "
        f"needs {size_in_words(sum(needed.values()))} ({parts}), and the memory is "
        f"{size_in_words(total)} ({owner}): lower model.hidden_size, model.num_hidden_layers, "
        "data.sequence_length or train.micro_batch_size"
    )


def micro_batch_rows(config: RunConfig, device: Device, world_size: int = 1) -> int:
    """Return the rows of data.sequence_length tokens in one forward pass of one process."""
    rows = config.rows_per_step // world_size
    kind = device.device.type
    if config.train.micro_batch_size != "auto":
        return min(config.train.micro_batch_size, rows)
    # auto: within a fixed number of tokens, and on a GPU within its memory
    limit = max(1, AUTO_MICRO_TOKENS[kind] // config.data.sequence_length)
    memory = memory_of(kind)
    if kind == "cuda" and memory is not None and config.model.vocab_size:
        limit = min(limit, max(1, largest_micro_batch(config, memory[0], device)))
    return largest_divisor(rows, limit)


def largest_micro_batch(run: RunConfig, memory: float, device: Device) -> int:
    """Return the most rows that take USABLE_SHARE of `memory` bytes; 0 if not even one does."""
    needed = step_memory(run, run.rows_per_step, device)
    # only this part grows with the number of rows
    row = needed.pop("kept for the backward pass") / run.rows_per_step
    return max(0, int((USABLE_SHARE * memory - sum(needed.values())) / row))


def step_memory(run: RunConfig, rows: int, device: Device) -> dict[str, int]:
    """Return the bytes of each part of a training step when its backward pass begins.

    It is the least that micro-batches of `rows` rows need. run.model has a vocabulary.
    """
    # Weights, gradients and optimizer state are exact. Of the activations this counts what must be
    # kept. Without torch.compile PyTorch keeps up to half as much again, mostly copies in another
    # number format.
    model = run.model
    length = run.data.sequence_length
    lm = on_meta(model)
    if run.lora is not None:
        from model.variants.lora import add_adapters

        add_adapters(lm, run.lora)
    state = 0
    for optimizer in build_optimizers(lm, run.train.optimizer):
        # AdamW keeps two moments of a weight, Muon keeps its momentum alone.
        moments = 2 if isinstance(optimizer, torch.optim.AdamW) else 1
        for group in optimizer.param_groups:
            state += moments * sum(parameter.nbytes for parameter in group["params"])
    gradients = sum(x.nbytes for x in lm.parameters() if x.requires_grad)

    # bytes of a token that a layer keeps for the backward pass
    size = device.dtype.itemsize
    width = model.hidden_size
    heads = model.num_attention_heads
    # MLA computes the keys and values of all heads from its latent, and keeps these.
    key_heads = value_heads = heads
    if model.attention != "mla":
        (key_heads, _), (value_heads, _) = model.cache_shapes
    queries_and_keys = (heads + key_heads) * model.head_size
    # the values, and an output of every head
    values = (heads + value_heads) * model.value_size
    stream = 2 * (4 + size) * width  # the float32 stream before each norm, and the norm's result
    # queries and keys twice, before and after RoPE; values once
    stored = (4 + size) * queries_and_keys + size * values
    if model.attn_implementation in ("eager", "mine"):
        stored += (4 + size) * heads * length  # every attention weight, also those that are 0
    elif device.attention == "blocked" and length <= LONGEST:
        stored += size * heads * length // 2  # the lower triangle: no token looks ahead
    # linear attention, in float32: q, k and v after each step, and the products within a chunk
    key_size = model.linear_key_head_dim or model.head_size
    channels = 2 * key_size + (model.linear_value_head_dim or model.head_size)
    linear = 4 * heads * (9 * channels + 6 * min(64, length))
    layers = []
    for has_experts, is_linear in zip(model.has_experts, model.is_linear, strict=True):
        inner = model.intermediate_size or 0
        if has_experts:
            inner = model.num_experts_per_tok * (model.moe_intermediate_size or 0)
        feed_forward = (4 if model.gated_mlp else 2) * size * inner
        layers.append(stream + (linear if is_linear else stored) + feed_forward)
    token = sum(layers)
    # Only the inputs of layers are kept. In the backward pass one layer at a time is whole again.
    if run.train.activation_checkpointing:
        token = 4 * width * len(layers) + max(layers)
    chunk = min(rows * length, CHUNK.get(device.device.type, CHUNK_ELSEWHERE))
    return {
        "weights": sum(x.nbytes for x in lm.parameters()),
        "gradients": gradients,
        "optimizer state": state,
        "kept for the backward pass": rows * length * (token + 4 * width),
        # with their gradient
        "logits of a chunk of the loss": chunk * (model.vocab_size or 0) * (4 + size),
    }


# A weight belongs to the first of these that its name contains: q_norm is a norm, not attention.
PARTS = {"norm": "norm", "embed": "embedding", "self_attn": "attention"}
PARTS |= {"mlp": "feed_forward", "lm_head": "head"}


def parameter_counts(lm: LanguageModel) -> dict[str, int]:
    """Count the weights of each part, by their names. A tied matrix counts once, as embedding."""
    counts = dict.fromkeys(PARTS.values(), 0)
    for name, parameter in lm.named_parameters():
        part = next(part for word, part in PARTS.items() if word in name)
        counts[part] += parameter.numel()
    return counts | {"total": lm.num_parameters()}


def size_in_words(number: float) -> str:
    """Write bytes in decimal units: 1 kB = 1000 B."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= size:
            return f"{number / size:,.2f} {unit}"
    return f"{number:,.0f} B"


def kv_cache_bytes(
    model: ModelConfig,
    tokens: int,
    bytes_per_number: int,
    kv_heads: int = 0,
) -> int:
    """Return the exact bytes of one sequence in a KVCache. kv_heads: instead of the model's."""
    # 2 * H_kv * D numbers a token and layer; with a latent, its size and that of the rotary part.
    # A sliding layer holds window - 1 tokens at most.
    numbers = 2 * kv_heads * model.head_size if kv_heads else model.cache_numbers
    held = [min(tokens, window - 1) if window else tokens for window in model.windows]
    # linear attention keeps no keys
    held = [count for count, is_linear in zip(held, model.is_linear, strict=True) if not is_linear]
    return sum(held) * numbers * bytes_per_number


def with_vocabulary(run: RunConfig) -> tuple[RunConfig, str]:
    """Return the config with the size of its vocabulary, perhaps an estimate, and its source."""
    tokenizer = run.data.tokenizer
    size = run.model.vocab_size
    source = "model.vocab_size"
    if size is None and tokenizer.kind == "pretrained":
        size = train_tokenizer(tokenizer, []).vocab_size
        source = f"of the tokenizer in {tokenizer.path}"
    elif size is None:
        sizes = {"byte": 256 + len(SPECIAL_TOKENS), "char": ASSUMED_CHAR_VOCABULARY}
        size = sizes.get(tokenizer.kind, tokenizer.vocab_size or DEFAULT_VOCAB_SIZE)
        size = round_up(size)
        source = f"of data.tokenizer: {tokenizer.kind}"
        if tokenizer.kind != "byte":
            source = f"an estimate {source}; a small text fills less"
    model = run.model.model_copy(update={"vocab_size": size})
    return run.model_copy(update={"model": model}), source


# -------------------------------------------------------------------------------------------------
# the command


def main() -> None:
    parser = command_parser(__doc__)
    add_config(parser)
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: what this machine has")
    gigabytes = "of the device; 1 GB = 1e9 bytes"
    add_number(parser, "--memory-gb", None, gigabytes, least=0.001, kind=float)
    add_number(parser, "--tflops", None, "its peak; default: a guess", least=0.001, kind=float)
    usual = hardware.GPU_SHARE
    add_number(parser, "--mfu", usual, "share of it", least=0.001, most=1, kind=float)
    args = parser.parse_intermixed_args()
    run, source = with_vocabulary(load_run_config(args.config, args.overrides))
    model = run.model
    length = run.data.sequence_length
    lm = on_meta(model)
    if args.device == "cuda" and not torch.cuda.is_available():  # planned for another machine
        precision = "bf16" if run.train.precision == "auto" else run.train.precision
        # that GPU is not here, so plan with what any GPU has
        device = Device(torch.device("cuda"), precision, False, "auto", ())
    else:
        train = run.train.model_copy(update={"device": args.device or run.train.device})
        device = resolve_device(run.model_copy(update={"train": train}))
    kind = device.device.type
    print(f"{run.name}: {model.in_words()}, vocabulary {model.vocab_size:,}\n  ({source})\n")

    counts = parameter_counts(lm)
    if model.num_experts:
        counts["active for a token"] = num_active_parameters(lm)
    shares = [(name, n, n / counts["total"]) for name, n in counts.items() if n]
    rows = [(name.replace("_", " "), f"{n:,}", f"{share:.1%}") for name, n, share in shares]
    print(table(("Parameters (exact)", "", "share"), rows) + "\n")

    # a micro-batch as the run would take it, and the largest that fits
    micro_batch = micro_batch_rows(run, device)
    needed = step_memory(run, micro_batch, device)
    needed["all of it"] = sum(needed.values())
    sizes = [(part, size_in_words(size)) for part, size in needed.items()]
    memory = (args.memory_gb * 1e9, "--memory-gb") if args.memory_gb else memory_of(kind)
    if memory is not None:
        usable = f"{USABLE_SHARE:.0%} of {size_in_words(memory[0])} ({memory[1]})"
        most = largest_micro_batch(run, memory[0], device)
        sizes.append((f"rows that fit into {usable}", f"{most:,}"))
    at_a_time = f"{micro_batch:,} of the {run.rows_per_step:,} rows of a step × {length:,} tokens"
    print(table((f"Memory, {at_a_time} at a time", f"{device.precision} on {kind}"), sizes))
    print("The first three are exact. Without torch.compile, the fourth may grow by half.\n")

    # the cache under MHA, GQA and MQA, and MLA if it is that: of a token, and of the longest text
    heads = model.num_attention_heads
    choices = {heads: f"MHA ({heads})", 1: "MQA (1)"}
    with suppress(ValueError):  # few heads have no GQA
        choices.setdefault(kv_heads_of("gqa", heads), f"GQA ({kv_heads_of('gqa', heads)})")
    choices.setdefault(model.kv_heads, f"GQA ({model.kv_heads})")
    # from many heads to few, so each line needs less memory than the one above
    names = dict(sorted(choices.items(), reverse=True))
    if model.attention == "mla":
        names[0] = f"MLA ({model.kv_lora_rank} + {model.rotary_size})"
    longest = model.max_position_embeddings
    caches = []
    for kv_heads, name in names.items():
        sizes_of_tokens = [kv_cache_bytes(model, tokens, 2, kv_heads) for tokens in (1, longest)]
        caches.append((name, *(f"{size:,}" for size in sizes_of_tokens)))
    columns = ("Key-value cache in bf16, bytes (exact)", "a token", f"{longest:,} tokens")
    print(table(columns, caches) + "\n")

    # FLOPs, and the minutes of the training steps alone
    speed = hardware.guess_speed(kind, device.precision, args.tflops or 0, args.mfu)
    seconds = hardware.guess_seconds(run, run.train.tokens_per_step, speed)
    steps = run.max_steps or int((run.train.max_minutes or 0.0) * 60 / seconds)
    tokens = steps * run.train.tokens_per_step
    flops = flops_per_token(lm, length)
    work = [
        ("a token, training (3 × forward)", f"{flops / 1e6:,.2f} MFLOP"),
        (f"all {tokens:,} tokens of the run", f"{tokens * flops / 1e15:,.3f} PFLOP"),
        (f"minutes at {speed / 1e12:.3g} TFLOPS, a guess", f"{steps * seconds / 60:,.1f}"),
    ]
    print(table((f"Compute, rows of {length:,} tokens", ""), work))
    print("python -m train.doctor times real steps.")
