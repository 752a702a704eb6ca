"""What each attention backend can serve, and what `auto` chooses. Which device computes.

A backend that you ask for and that cannot serve is an error with the reason and the remedy: only `auto` falls back.
Whether a kernel computes the right numbers on your machine is what train.doctor tries; `auto` avoids what it found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch

from model.attention import AttentionFunction, eager
from model.backends.blocked import LONGEST, blocked
from model.backends.flash import flash, lengths_or_mask, sequences, varlen
from model.backends.flex import block_mask, flex
from model.backends.sdpa import band_or_mask, sdpa, use_flash
from model.masks import Mask, MaskSpec, boolean_mask

HALF = (torch.float16, torch.bfloat16)
NO_DROPOUT = "has no dropout: use sdpa, or attention_dropout: 0"


@dataclass(frozen=True)
class Situation:
    """What a backend has to serve. dtype: in which the kernel computes (autocast's, where that is on)."""

    device: str
    dtype: torch.dtype
    head_dim: int
    num_key_value_groups: int = 1
    dropout: float = 0.0
    gradients: bool = False
    documents: bool = False
    padding: bool = False  # or tokens of a cache: both need a mask, or lengths
    windows: bool = False
    compiled: bool = False
    value_dim: int | None = None  # None: as head_dim

    @property
    def masked(self) -> bool:
        """Whether causality alone does not say who may see whom."""
        return self.documents or self.padding or self.windows


@dataclass(frozen=True)
class Backend:
    """compute(q, k, v, mask, dropout); mask: a MaskSpec in the form that compute wants; limits: see `why_not`."""

    compute: AttentionFunction
    mask: Callable[[MaskSpec], Mask] = boolean_mask
    limits: Callable[[Situation], str | None] | None = None


def _flash_limits(here: Situation) -> str | None:
    if here.value_dim not in (None, here.head_dim):
        sizes = f"{here.value_dim}, and queries and keys {here.head_dim}"
        return f"takes values as large as keys, and v_head_dim is {sizes}: use sdpa, or set v_head_dim: {here.head_dim}"
    if here.device == "cpu":
        return NO_DROPOUT if here.dropout else None
    if here.device != "cuda":
        return f"has no kernel on {here.device}: use sdpa"
    if here.dtype not in HALF:
        return "computes in 16 bits only: use sdpa, or train.precision: bf16"
    if here.head_dim > 256:
        return f"takes heads of at most 256, not {here.head_dim}: use sdpa, or a smaller head_dim"
    if here.dropout and here.masked:  # the kernel with lengths always has a dropout of 0
        return "has no dropout with documents, windows or padding: use sdpa, or attention_dropout: 0"
    return _gpu_lacks(range(8, 100))


def _varlen_limits(here: Situation) -> str | None:
    if here.device != "cuda":
        return "needs CUDA: use flash or sdpa"
    return NO_DROPOUT if here.dropout else _flash_limits(here)


def _flash3_limits(here: Situation) -> str | None:
    return _varlen_limits(here) or _gpu_lacks((9,), "FA3")


def _flash4_limits(here: Situation) -> str | None:
    return _varlen_limits(here) or _gpu_lacks((9, 10), "FA4")


def _gpu_lacks(generations: Sequence[int], implementation: str | None = None) -> str | None:
    """Why a flash kernel does not run on this GPU. Not asked while compiling: the compiler cannot follow the questions,
    and who compiles a model has chosen its backend before."""
    if torch.compiler.is_compiling():
        return None
    if torch.cuda.is_available() and torch.cuda.get_device_capability()[0] not in generations:
        return f"is not for a GPU of compute capability {torch.cuda.get_device_capability()[0]}: use sdpa"
    if implementation is None:
        return None
    try:
        use_flash(implementation)
    except (ImportError, OSError, RuntimeError, ValueError) as error:  # a package of its own, which may not be there
        return f"does not start ({error}): install its package, or use flash"
    return None


def _flex_limits(here: Situation) -> str | None:
    if here.device not in ("cpu", "cuda"):
        return f"has no kernel on {here.device}: use sdpa"
    if here.dropout:
        return NO_DROPOUT
    # an H100 with PyTorch 2.11 read memory there that was not its own
    if here.device == "cuda" and here.compiled and here.dtype not in HALF:
        return "failed on a GPU in float32, compiled with a model: use sdpa, or train.precision: bf16"
    if here.gradients and here.device == "cpu":
        return "has no gradients on CPU: train with sdpa, or use torch.no_grad()"
    return None


def _blocked_limits(here: Situation) -> str | None:
    if here.device != "cpu":
        return "is for CPUs: use sdpa"
    if here.dropout:
        return NO_DROPOUT
    if here.gradients and here.dtype != torch.bfloat16:
        return "trains in bfloat16 only: use sdpa, or train.precision: bf16"
    return None


# AttentionImplementation lists the names once more, because a JSON Schema needs them written out
BACKENDS: dict[str, Backend] = {
    "eager": Backend(eager),
    "flash": Backend(flash(), lengths_or_mask, _flash_limits),
    "flex": Backend(flex, block_mask, _flex_limits),
    "flash3": Backend(flash("FA3"), lengths_or_mask, _flash3_limits),
    "flash4": Backend(flash("FA4"), lengths_or_mask, _flash4_limits),
    "sdpa": Backend(sdpa, band_or_mask),
    "blocked": Backend(blocked, boolean_mask, _blocked_limits),
    "varlen": Backend(varlen, sequences, _varlen_limits),
}


def why_not(name: str, here: Situation) -> str | None:
    """One line: why a backend cannot serve, and what to do instead. None if nothing is known against it."""
    limits = BACKENDS[name].limits
    reason = limits(here) if limits is not None else None
    return reason and f"attn_implementation: {name} {reason}"


def choose_attention(here: Situation, avoid: Mapping[str, str] = MappingProxyType({})) -> tuple[str, str]:
    """What `auto` stands for, and why: (backend, reason). avoid: backends that it must not take, and why.

    sdpa serves everything. On a CPU that trains in bfloat16, blocked is faster (EXPERIMENTS.md). On a GPU in 16 bits,
    the newest flash kernel that is installed comes first. Where documents or windows hide something, PyTorch's own and
    flex follow, because they skip what is hidden. Without them, that is sdpa's first choice anyway. eager is what is
    left where even sdpa is to be avoided.
    """
    candidates = []
    if here.device == "cuda" and here.dtype in HALF:
        candidates = ["flash4", "flash3", *(["flash", "flex"] if here.documents or here.windows else [])]
    elif here.device == "cpu" and here.gradients and here.dtype == torch.bfloat16:
        candidates = ["blocked"]
    reasons = {
        "blocked": f"fastest in bfloat16 on a CPU; PyTorch's kernel for rows of more than {LONGEST} tokens",
        "sdpa": "PyTorch picks its kernel" + (f"; on {here.device} none is faster" if here.device != "cuda" else ""),
    }
    rejected: list[str] = []
    for name in [*candidates, "sdpa"]:
        problem = why_not(name, here) or avoid.get(name)
        if problem is None:
            return name, "; ".join([reasons.get(name, "the fastest that can serve here"), *rejected])
        rejected.append(f"not {name}: {problem.removeprefix(f'attn_implementation: {name} ')}")
    return "eager", "; ".join(["the formula itself, which is the slowest", *rejected])


def worst_error(name: str, here: Situation) -> float:
    """How far a backend is from the formula in float64: the largest error of its output and of its gradients, each as a
    share of the largest entry. Two rows of 192 tokens. Raises whatever the kernel raises. For train.doctor.
    """
    length, kv_heads = 192, 2
    generator = torch.Generator().manual_seed(0)
    heads = (kv_heads * here.num_key_value_groups, kv_heads, kv_heads)
    sizes = (here.head_dim, here.head_dim, here.value_dim or here.head_dim)
    shapes = [(2, count, length, size) for count, size in zip(heads, sizes, strict=True)]
    inputs = [torch.randn(shape, generator=generator).to(here.dtype) for shape in shapes]
    results = []
    for backend, device, dtype in (("eager", "cpu", torch.float64), (name, here.device, here.dtype)):
        places = torch.arange(length, device=device)
        documents = (places[None] // 70).expand(2, length) if here.documents else None
        spec = MaskSpec(places, places, 2, None, documents, 50 if here.windows else None, not here.masked)
        q, k, v = leaves = [x.to(device, dtype).requires_grad_(here.gradients) for x in inputs]
        out = BACKENDS[backend].compute(q, k, v, BACKENDS[backend].mask(spec), 0.0)
        above = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view(out.shape).to(out.dtype).to(device)
        grads = torch.autograd.grad(out, leaves, above) if here.gradients else ()
        results.append([x.detach().cpu().double() for x in (out, *grads)])
    errors = [(found - exact).abs().max() / exact.abs().max() for exact, found in zip(*results, strict=True)]
    return float(torch.stack(errors).max())  # NaN, if the kernel gave one


def allowed_error(dtype: torch.dtype) -> float:
    """Of `worst_error`: some ten times what the rounding of this dtype costs."""
    return 5e-2 if dtype in HALF else 1e-3


def choose_device(wanted: str = "auto") -> torch.device:
    """The device to compute on. auto: a CUDA GPU if there is one, else Apple's (mps), else the CPU.

    Raises ValueError for a device that this machine does not have.
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    available = {"cpu": 1, "cuda": gpus, "mps": int(torch.backends.mps.is_available())}
    if wanted == "auto":
        return torch.device("cuda" if gpus else "mps" if available["mps"] else "cpu")
    try:
        device = torch.device(wanted)
    except RuntimeError:
        raise ValueError(f"{wanted}: unknown device: use auto, cpu, cuda, cuda:1 or mps") from None
    if (device.index or 0) >= available.get(device.type, 0):
        have = ", ".join(f"{kind} ({count})" if count > 1 else kind for kind, count in available.items() if count)
        raise ValueError(f"{wanted}: not available here: use auto or one of: {have}")
    return device
