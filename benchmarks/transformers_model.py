"""How fast is transformers? Its model with the same weights, trained beside ours."""

from __future__ import annotations

import tempfile
from typing import Any

from benchmarks.step import Step, our_step
from benchmarks.timing import Clock, alternate
from benchmarks.training import seconds_of
from configs.command import InputError
from configs.text import table
from model import LanguageModel, save
from train.budget import micro_batch_rows
from train.config import RunConfig
from train.machine.device import Device, resolve_device

NOT_INSTALLED = "to compare with transformers, install that package: pip install -r requirements-dev.txt"


def in_transformers(lm: LanguageModel, **options: Any) -> Any:
    """transformers' model with identical weights, read from the directory that Headlight saves.

    options: of `from_pretrained`. Raises InputError if the package is not installed.
    """
    try:
        from transformers import AutoModelForCausalLM
        from transformers.utils.logging import disable_progress_bar
    except ImportError:
        raise InputError(NOT_INSTALLED) from None

    disable_progress_bar()
    with tempfile.TemporaryDirectory() as directory:
        save(lm, directory)
        return AutoModelForCausalLM.from_pretrained(directory, **options)


def compare_training(run: RunConfig, rounds: int, skip: list[str], clock: Clock) -> None:
    """Print ours and theirs, plain and compiled, taking turns: the same architecture, rows, AdamW and precision."""
    run = run.model_copy(update={"data": run.data.model_copy(update={"isolate_documents": False})})
    device = resolve_device(run)
    rows, length = micro_batch_rows(run, device), run.data.sequence_length
    steps: dict[str, Step] = {}
    for compiled in (False, True):
        name = ", compiled" if compiled else ""
        if compiled and "compile" in skip:
            continue
        steps[f"Headlight{name}"], lm, _ = our_step(run, device, rows, compiled, adamw=True)
        steps[f"transformers{name}"] = their_step(lm, run, device, rows, compiled)
    first = {name: seconds_of(step, device.device, clock) for name, step in steps.items()}
    seconds = alternate(steps, rounds, device.device, patience_s=60.0 * rounds, clock=clock)
    measure = list(steps)[-1]
    tokens = rows * length
    lines = [
        [name, f"{tokens / took:,.0f}", f"{1e3 * took:,.1f}", f"{seconds[measure] / took:.2f}", f"{first[name]:.1f}"]
        for name, took in seconds.items()
    ]
    print(
        f"{tokens:,} tokens a step, rows of {length}, {device.precision}, attention {device.attention}, "
        f"forward + backward + clip + fused AdamW, medians of {rounds} alternating steps"
    )
    print(table(["", "tokens/s", "ms a step", f"ratio to {measure}", "first step, s"], lines))


def gpt2_like(run: RunConfig) -> Any:
    """transformers' GPT-2 with random weights, as wide and deep as a config's model, with its heads and vocabulary.

    nanoGPT's model has this architecture: learned positions, LayerNorm, GELU, an MLP four times as wide, tied weights.
    Radford et al. 2019. Raises InputError if the package is not installed.
    """
    try:
        from transformers import GPT2Config, GPT2LMHeadModel
    except ImportError:
        raise InputError(NOT_INSTALLED) from None
    model = run.model
    config = GPT2Config(
        vocab_size=model.vocab_size or 0,
        n_positions=run.data.sequence_length,
        n_embd=model.hidden_size,
        n_layer=model.num_hidden_layers,
        n_head=model.num_attention_heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    config._attn_implementation = "sdpa"
    return GPT2LMHeadModel(config)


def their_step(lm: LanguageModel, run: RunConfig, device: Device, rows: int, compiled: bool, other: Any = None) -> Step:
    """The same step with transformers' model, fused AdamW and its own loss; run.data.isolate_documents is false.

    other: a model of its own instead of one with lm's weights."""
    other = other or in_transformers(lm, attn_implementation="sdpa")
    other.config.use_cache = False
    return our_step(run, device, rows, compiled, adamw=True, other=other)[0]
