"""Which attention backend serves here, and what does `auto` choose? Which device computes?

A backend that you ask for and that cannot serve is an error that says why: only `auto` falls back. Whether a kernel
computes the right numbers on your machine is what train.doctor tries.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from configs.command import InputError, usable_cores
from model.attention import AttentionFunction, eager
from model.backends import kernels, mine
from model.config import ModelConfig
from model.masks import Mask, MaskSpec, boolean_mask

HALF = (torch.float16, torch.bfloat16)
GPUS = {"FA3": (9,), "FA4": (9, 10)}  # the generations (major compute capability) that these packages are for


@dataclass(frozen=True)
class Situation:
    """What a backend has to serve. dtype: in which the kernel computes (autocast's, where that is on)."""

    device: str
    dtype: torch.dtype
    head_dim: int
    value_dim: int | None = None  # None: as head_dim
    windows: bool = False
    dropout: float = 0.0
    gradients: bool = False
    documents: bool = False
    padding: bool = False  # or tokens of a cache: both need a mask, or lengths
    compiled: bool = False

    @classmethod
    def of(cls, config: ModelConfig, device: str, dtype: torch.dtype, **others: Any) -> Situation:
        """With the heads and the windows of this model."""
        return cls(device, dtype, config.head_size, config.value_size, config.sliding_window is not None, **others)

    @property
    def masked(self) -> bool:
        """Whether causality alone does not say who may see whom."""
        return self.documents or self.padding or self.windows


def _flash_limits(here: Situation, kernel: str | None = None) -> str | None:
    """kernel: FA3, FA4 or varlen, which only a GPU has; None: the flash kernel that a CPU has too."""
    if here.value_dim not in (None, here.head_dim):
        return "takes values as large as keys"
    if here.device != "cuda" and (kernel or here.device != "cpu"):
        return "needs CUDA" if kernel else f"has no kernel on {here.device}"
    if here.dropout and (kernel or here.masked or here.device == "cpu"):  # there is none where it reads lengths
        return "has no dropout with documents, windows or padding" if here.masked else "has no dropout"
    if here.device == "cpu":
        return None
    if here.dtype not in HALF:
        return "computes in 16 bits only (train.precision: bf16)"
    if here.head_dim > 256:
        return f"takes heads of at most 256, not {here.head_dim}"
    if torch.compiler.is_compiling():  # the compiler cannot follow what comes; it was asked before
        return None
    generation = torch.cuda.get_device_capability()[0] if torch.cuda.is_available() else None
    if generation is not None and (generation < 8 or generation not in GPUS.get(kernel or "", (generation,))):
        return f"is not for a GPU of compute capability {generation}"
    if kernel in GPUS:
        try:
            kernels.use_flash(kernel)
        except (ImportError, OSError, RuntimeError, ValueError) as error:  # a package of its own, perhaps not installed
            return f"does not start ({error})"
    return None


def _flex_limits(here: Situation) -> str | None:
    if here.device not in ("cpu", "cuda"):
        return f"has no kernel on {here.device}"
    if here.dropout:
        return "has no dropout"
    if here.device == "cuda" and here.compiled and here.dtype not in HALF:
        return "read foreign memory on a GPU in float32, compiled with a model"  # an H100 with PyTorch 2.11
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
    """compute(q, k, v, mask, dropout); mask: a MaskSpec in the form that compute wants; limits: see `why_not`."""

    compute: AttentionFunction
    mask: Callable[[MaskSpec], Mask] = boolean_mask
    limits: Callable[[Situation], str | None] | None = None


def _newer_flash(kernel: str) -> Backend:
    compute, limits = partial(kernels.flash, kernel=kernel), partial(_flash_limits, kernel=kernel)
    return Backend(compute, kernels.lengths_or_mask, limits)


BACKENDS: dict[str, Backend] = {
    # the formula, written out (model/attention.py); memory grows with T * S
    "eager": Backend(eager),
    # PyTorch's flash kernel and only that; masks become lengths
    "flash": Backend(kernels.flash, kernels.lengths_or_mask, _flash_limits),
    # FlexAttention: masks as code, compiled into the kernel
    "flex": Backend(kernels.flex, kernels.block_mask, _flex_limits),
    # as flash, on FlashAttention-3 and -4, where installed; not tested yet
    "flash3": _newer_flash("FA3"),
    "flash4": _newer_flash("FA4"),
    # torch.nn.functional.scaled_dot_product_attention: PyTorch picks the kernel
    "sdpa": Backend(kernels.sdpa, kernels.chunks_or_mask),
    # matrix products over blocks of queries, for training on a CPU
    "blocked": Backend(kernels.blocked, boolean_mask, _blocked_limits),
    # documents laid end to end even where there is one a row
    "varlen": Backend(kernels.flash, kernels.sequences, partial(_flash_limits, kernel="varlen")),
    # a function that the user wrote, in training
    "mine": Backend(mine.attend, mine.whole_mask, _mine_limits),
}


def why_not(name: str, here: Situation) -> str | None:
    """Why a backend cannot serve: "has no dropout". None if nothing is known against it."""
    limits = BACKENDS[name].limits
    return limits(here) if limits is not None else None


def choose_attention(here: Situation) -> tuple[str, str]:
    """What `auto` stands for, and why: (backend, reason).

    sdpa serves everything. In training on a CPU, blocked is faster (FINDINGS.md#backends). On a GPU in 16 bits, the
    newest flash kernel that is installed comes first. Where documents or windows hide something, PyTorch's own and flex
    follow, because they skip what is hidden.
    """
    candidates: list[str] = []
    if here.device == "cuda" and here.dtype in HALF:
        candidates = ["flash4", "flash3", *(["flash", "flex"] if here.documents or here.windows else [])]
    elif here.device == "cpu" and here.gradients:
        candidates = ["blocked"]
    rejected = ""
    for name in candidates:
        if (problem := why_not(name, here)) is None:
            return name, "the fastest that can serve here" + rejected
        rejected += f"; not {name}: {problem}"
    return "sdpa", "PyTorch picks its kernel" + rejected


def choose_device(wanted: str = "auto", option: str = "--device") -> torch.device:
    """The device to compute on. auto: a CUDA GPU if there is one, else Apple's (mps), else the CPU. Raises InputError,
    which names the option, for a device that this machine does not have."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    counts = {"cuda": gpus, "mps": int(torch.backends.mps.is_available()), "cpu": 1}
    available = [kind for kind, count in counts.items() if count]
    name = available[0] if wanted == "auto" else wanted
    if name not in (*available, *(f"{kind}:{number}" for kind in available for number in range(counts[kind]))):
        raise InputError(f"{option} {wanted}: not available here: use auto or one of: {', '.join(available)}")
    if name == "cpu" and "OMP_NUM_THREADS" not in os.environ:  # PyTorch counts cores, and no container's quota
        torch.set_num_threads(min(torch.get_num_threads(), usable_cores()))
    return torch.device(name)
