"""The attention backends, what each can serve, and what `auto` takes. Also: which device computes.

A backend that you ask for and that cannot serve is an error with its reason: only `auto` falls
back. train.doctor checks the numbers of each kernel on your machine.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from configs.command import InputError, usable_cores
from model.attention import AttentionFunction, eager
from model.backends import kernels, mine, names
from model.config import ModelConfig
from model.kv_cache import KVCache
from model.loss import compute_dtype
from model.masks import Mask, MaskSpec, boolean_mask, has_previous

HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Situation:
    """The demands on a backend in one forward pass."""

    device: str
    # the kernel's: autocast's, if that is enabled
    dtype: torch.dtype
    head_dim: int
    # None: as head_dim
    value_dim: int | None = None
    windows: bool = False
    dropout: float = 0.0
    gradients: bool = False
    documents: bool = False
    # also with a cache: its tokens need a mask or lengths, too
    padding: bool = False
    compiled: bool = False

    @classmethod
    def of(cls, model: ModelConfig, device: str, dtype: torch.dtype, **others: Any) -> Situation:
        """Take the heads and the windows from this model."""
        windows = model.sliding_window is not None
        return cls(device, dtype, model.head_size, model.value_size, windows, **others)

    @property
    def masked(self) -> bool:
        """True if causality is not the only rule of who may see whom."""
        return self.documents or self.padding or self.windows


def _flash_limits(here: Situation) -> str | None:
    if here.value_dim not in (None, here.head_dim):
        return "takes values as large as keys"
    if here.device not in ("cpu", "cuda"):
        return f"has no kernel on {here.device}"
    # with any of these it reads lengths on a GPU, and that kernel has no dropout
    if here.dropout and here.masked:
        return "has no dropout with documents, windows or padding"
    if here.device == "cpu":
        return "has no dropout" if here.dropout else None
    if here.dtype not in HALF:
        return "computes in 16 bits only (train.precision: bf16)"
    if here.head_dim > 256:
        return f"takes heads of at most 256, not {here.head_dim}"
    # The compiler cannot trace this call. A run checks its GPU before it compiles anything.
    if torch.cuda.is_available() and not torch.compiler.is_compiling():
        generation, _ = torch.cuda.get_device_capability()
        if generation < 8:
            return f"is not for a GPU of compute capability {generation}"
    return None


def _varlen_limits(here: Situation) -> str | None:
    if here.device != "cuda":
        return "needs CUDA"
    return "has no dropout" if here.dropout else _flash_limits(here)


def _flex_limits(here: Situation) -> str | None:
    if here.device not in ("cpu", "cuda"):
        return f"has no kernel on {here.device}"
    if here.dropout:
        return "has no dropout"
    if here.device == "cuda" and here.compiled and here.dtype not in HALF:
        # on an H100 with PyTorch 2.11
        return "read foreign memory on a GPU in float32, compiled with a model"
    return "has no gradients on CPU" if here.gradients and here.device == "cpu" else None


def _blocked_limits(here: Situation) -> str | None:
    if here.device != "cpu":
        return "is for CPUs"
    if here.dropout:
        return "has no dropout"
    return "does not train in float16" if here.gradients and here.dtype == torch.float16 else None


def _mine_limits(here: Situation) -> str | None:
    if here.compiled:
        return "is not compiled: set train.compile=false"
    return "has no dropout" if here.dropout else mine.problem()


@dataclass(frozen=True)
class Backend:
    """A way to compute attention."""

    # with the signature of `eager` in model/attention.py
    compute: AttentionFunction
    # turns a MaskSpec into the form that `compute` reads
    mask: Callable[[MaskSpec], Mask] = boolean_mask
    # returns why it cannot serve, or None
    limits: Callable[[Situation], str | None] | None = None


BACKENDS: dict[str, Backend] = names.BACKENDS
BACKENDS |= {
    # the formula, written out (model/attention.py); memory grows with T * S
    "eager": Backend(eager),
    # PyTorch's flash kernel and only that; masks become lengths
    "flash": Backend(kernels.flash, kernels.lengths_or_mask, _flash_limits),
    # FlexAttention: masks as code, compiled into the kernel
    "flex": Backend(kernels.flex, kernels.block_mask, _flex_limits),
    # torch.nn.functional.scaled_dot_product_attention: PyTorch picks the kernel
    "sdpa": Backend(kernels.sdpa, kernels.chunks_or_mask),
    # matrix products over blocks of queries, for training on a CPU
    "blocked": Backend(kernels.blocked, boolean_mask, _blocked_limits),
    # documents laid end to end even if each row is one document
    "varlen": Backend(kernels.flash, kernels.sequences, _varlen_limits),
    # a function that the user wrote, in training
    "mine": Backend(mine.attend, mine.whole_mask, _mine_limits),
}


def why_not(name: str, here: Situation) -> str | None:
    """Return why a backend cannot serve, for example "has no dropout"; None if nothing is known."""
    if name not in BACKENDS:  # a resumed run had one that is no longer registered
        return "is unknown"
    limits = BACKENDS[name].limits
    return limits(here) if limits is not None else None


def masks_for(decoder: Any, spec: MaskSpec, kv_cache: KVCache | None) -> dict[int | None, Mask]:
    """Return the mask of each kind of layer: window -> mask, in the form of the model's backend.

    decoder: a Decoder of model/transformer.py. Raises ValueError if the backend cannot serve this.
    """
    # one mask for all layers of a kind, and an error before anything is computed
    name = decoder.backend
    config = decoder.config
    weight = decoder.embed_tokens.weight
    here = Situation.of(
        config,
        spec.query_positions.device.type,
        compute_dtype(weight),
        dropout=config.attention_dropout if decoder.training else 0.0,
        gradients=torch.is_grad_enabled() and any(p.requires_grad for p in decoder.parameters()),
        documents=spec.document_ids is not None,
        padding=spec.attention_mask is not None or kv_cache is not None,
        compiled=torch.compiler.is_compiling(),
    )
    problem = why_not(name, here)
    if problem is not None:
        remedy = "use sdpa, which serves everything"
        raise ValueError(f"attn_implementation: {name} {problem}: {remedy}")
    specs = spec.of_layers(config.windows, kv_cache)
    masks = {window: BACKENDS[name].mask(layer_spec) for window, layer_spec in specs.items()}
    if config.smear_keys:  # one kind of layer, which also reads where documents begin
        return {window: (mask, has_previous(specs[window])) for window, mask in masks.items()}
    return masks


def choose_attention(here: Situation) -> tuple[str, str]:
    """Return the backend that `auto` takes, and why: (backend, reason)."""
    candidates: list[str] = []
    if here.device == "cuda" and here.dtype in HALF and (here.documents or here.windows):
        candidates = ["flash", "flex"]  # they skip what documents or windows hide
    elif here.device == "cpu" and here.gradients:
        candidates = ["blocked"]  # faster in training (FINDINGS.md#backends)
    rejected = ""
    for name in candidates:
        problem = why_not(name, here)
        if problem is None:
            return name, "the fastest that can serve here" + rejected
        rejected += f"; not {name}: {problem}"
    return "sdpa", "PyTorch picks its kernel" + rejected


def choose_device(device: str = "auto", option: str = "--device") -> torch.device:
    """Return the device to compute on. auto: a CUDA GPU, else Apple's (mps), else the CPU.

    Raises InputError, with the option's name, if this machine does not have it.
    """
    counts = {"cuda": 0, "mps": int(torch.backends.mps.is_available()), "cpu": 1}
    if torch.cuda.is_available():
        counts["cuda"] = torch.cuda.device_count()
    kinds = [kind for kind, count in counts.items() if count]
    names = list(kinds)
    for kind in kinds:
        names += [f"{kind}:{number}" for number in range(counts[kind])]
    name = kinds[0] if device == "auto" else device
    if name not in names:
        available = ", ".join(kinds)
        raise InputError(f"{option} {device}: not available here: use auto or one of: {available}")
    # PyTorch counts the cores of the machine, not the quota of a container.
    if name == "cpu" and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(min(torch.get_num_threads(), usable_cores()))
    return torch.device(name)
