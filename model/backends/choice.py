"""Which device computes, and which code computes attention: what each backend can serve, and what `auto` chooses.

    eager           the formula, written out (model/attention.py); memory grows with T * S
    flash           PyTorch's flash kernel and only that; masks become lengths                  (flash.py)
    flash3, flash4  the same on FlashAttention-3 / -4, where installed
    flex            FlexAttention: masks as code, compiled into the kernel                      (flex.py)
    sdpa            torch.nn.functional.scaled_dot_product_attention; PyTorch picks the kernel  (sdpa.py);
                    on a CPU, sliding windows are computed in chunks                            (banded.py)
    sdpa_math, sdpa_efficient, sdpa_cudnn   one of its other kernels
    blocked         bfloat16 matrix products over blocks of queries, for training on a CPU      (blocked.py)
    varlen          documents laid end to end even where there is one a row                     (varlen.py)

All give the same numbers. Tested on a CPU: eager, sdpa, flash, sdpa_math, blocked, flex (forward). Trained with on a
GPU (an H100): eager, sdpa, flash, flex, varlen. Not tested yet: flash3, flash4, sdpa_efficient, sdpa_cudnn.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch.nn.attention import SDPBackend

from model.attention import AttentionFunction, eager
from model.backends.banded import any_kernel_or_banded, band_or_mask
from model.backends.blocked import LONGEST, blocked
from model.backends.flash import flash, lengths_or_mask
from model.backends.flex import block_mask, flex
from model.backends.sdpa import only
from model.backends.varlen import sequences, varlen
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
    padding: bool = False
    windows: bool = False
    after_cached_tokens: bool = False  # several queries at once behind cached keys: causality needs a mask
    static_cache: bool = False
    compiled: bool = False
    value_dim: int | None = None  # None: as head_dim

    @property
    def mask(self) -> str | None:
        """The mask that causality alone does not cover, in words."""
        names = {
            "documents": self.documents,
            "padding": self.padding,
            "a sliding window": self.windows,
            "tokens behind a cache": self.after_cached_tokens,
            "a static cache": self.static_cache,
        }
        return next((name for name, there in names.items() if there), None)


@dataclass(frozen=True)
class Backend:
    """compute(q, k, v, mask, dropout); mask: a MaskSpec in the form that compute wants; limits: see `why_not`."""

    compute: AttentionFunction
    mask: Callable[[MaskSpec], Mask] = boolean_mask
    limits: Callable[[Situation], str | None] | None = None


def _cuda_limits(here: Situation) -> str | None:
    return None if here.device == "cuda" else "needs CUDA: use sdpa"


def _half_limits(here: Situation) -> str | None:
    if here.dtype in HALF:
        return None
    return f"computes in 16 bits, not in {_name(here.dtype)}: use sdpa, or train.precision: bf16"


def _flash_limits(here: Situation) -> str | None:
    """What the flash kernel cannot serve: plain, or with the lengths of documents in place of a mask."""
    if here.value_dim not in (None, here.head_dim):
        sizes = f"{here.value_dim}, and queries and keys {here.head_dim}"
        return f"takes values as large as keys, and v_head_dim is {sizes}: use sdpa, or set v_head_dim: {here.head_dim}"
    if here.device == "cpu":
        return "has no dropout on CPU: use sdpa, or attention_dropout: 0" if here.dropout else None
    if here.device != "cuda":
        return f"has no kernel on {here.device}: use sdpa"
    if problem := _half_limits(here):
        return problem
    if here.head_dim > 256:
        return f"takes heads of at most 256, not {here.head_dim}: use sdpa, or a smaller head_dim"
    return _no_dropout_with(here.mask) if here.dropout and here.mask else None


def _no_dropout_with(what: str) -> str:
    """PyTorch's varlen_attn always calls its kernel with a dropout of 0."""
    return f"has no dropout with {what}: use sdpa, or attention_dropout: 0"


def _varlen_limits(here: Situation) -> str | None:
    problem = _cuda_limits(here) or _flash_limits(here)
    return problem or (_no_dropout_with("lengths") if here.dropout else None)


def _newer_flash_limits(package: str, capabilities: tuple[int, ...]) -> Callable[[Situation], str | None]:
    def limits(here: Situation) -> str | None:
        if here.device != "cuda":
            return "needs CUDA: use flash or sdpa"
        major = torch.cuda.get_device_capability()[0]
        if major not in capabilities:
            return f"is not for a GPU of compute capability {major}: use flash or sdpa"
        if not _is_installed(package):
            return f"needs the package {package}, which is not installed: install it, or use flash"
        return NO_DROPOUT if here.dropout else _flash_limits(here)

    return limits


def _cudnn_limits(here: Situation) -> str | None:
    return _cuda_limits(here) or _half_limits(here)


def _blocked_limits(here: Situation) -> str | None:
    if here.device != "cpu":
        return "is for CPUs: use sdpa"
    if here.dropout:
        return NO_DROPOUT
    if here.gradients and here.dtype != torch.bfloat16:
        return f"trains in bfloat16, not in {_name(here.dtype)}: use sdpa, or train.precision: bf16"
    return None


def _flex_limits(here: Situation) -> str | None:
    if here.device not in ("cpu", "cuda"):
        return f"has no kernel on {here.device}: use sdpa"
    if here.dropout:
        return NO_DROPOUT
    if here.device == "cuda" and here.compiled and here.dtype not in HALF:
        return "failed on a GPU in float32, compiled with a model: use sdpa, or train.precision: bf16"
    if here.gradients and here.device == "cpu":
        return "has no gradients on CPU: train with sdpa, or use torch.no_grad()"
    return None


# AttentionImplementation in names.py lists the names once more, because a JSON Schema needs them written out
BACKENDS: dict[str, Backend] = {
    "eager": Backend(eager),
    "flash": Backend(flash(), lengths_or_mask, _flash_limits),
    "flex": Backend(flex, block_mask, _flex_limits),
    "flash3": Backend(flash("FA3"), lengths_or_mask, _newer_flash_limits("flash_attn_interface", (9,))),
    "flash4": Backend(flash("FA4"), lengths_or_mask, _newer_flash_limits("flash_attn.cute", (9, 10))),
    "sdpa": Backend(any_kernel_or_banded, band_or_mask),
    "sdpa_efficient": Backend(only(SDPBackend.EFFICIENT_ATTENTION), limits=_cuda_limits),
    "sdpa_cudnn": Backend(only(SDPBackend.CUDNN_ATTENTION), limits=_cudnn_limits),
    "sdpa_math": Backend(only(SDPBackend.MATH)),
    "blocked": Backend(blocked, limits=_blocked_limits),
    "varlen": Backend(varlen, sequences, _varlen_limits),
}


def choose_device(wanted: str = "auto") -> torch.device:
    """The device to compute on. auto: a CUDA GPU if there is one, else Apple's (mps), else the CPU.

    Raises ValueError for a device that this machine does not have.
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    has_mps = torch.backends.mps.is_available()
    if wanted == "auto":
        return torch.device("cuda" if gpus else "mps" if has_mps else "cpu")
    try:
        device = torch.device(wanted)
    except RuntimeError:
        raise ValueError(f"{wanted}: unknown device: use auto, cpu, cuda, cuda:1 or mps") from None
    available = {"cpu": 1, "cuda": gpus, "mps": int(has_mps)}
    if (device.index or 0) >= available.get(device.type, 0):
        have = ", ".join(f"{kind} ({count})" if count > 1 else kind for kind, count in available.items() if count)
        raise ValueError(f"{wanted}: not available here: use auto or one of: {have}")
    return device


def why_not(name: str, here: Situation) -> str | None:
    """One line: why a backend cannot serve, and what to do instead. None if nothing is known against it."""
    limits = BACKENDS[name].limits
    reason = limits(here) if limits is not None else None
    return reason and f"attn_implementation: {name} {reason}"


def choose_attention(here: Situation, avoid: Mapping[str, str] = MappingProxyType({})) -> tuple[str, str]:
    """What `auto` stands for, and why: (backend, reason). avoid: backends that it must not take, and why.

    sdpa serves everything. On a CPU that trains in bfloat16, blocked is faster (EXPERIMENTS.md). On a GPU, faster ones
    are tried in turn, on small tensors against the formula: the newest flash kernel that is installed first. Where
    documents or windows hide something, also PyTorch's own, then flex; both skip what is hidden. Without them, that is
    sdpa's first choice anyway. In float32 it is sdpa: there is no flash kernel, and flex, compiled with a model, read
    memory that was not its own (an H100, PyTorch 2.11). eager is what is left where even sdpa is to be avoided.
    """
    reasons = {
        "blocked": f"fastest in bfloat16 on a CPU; PyTorch's kernel for rows of more than {LONGEST} tokens",
        "sdpa": "PyTorch picks its kernel" + (f"; on {here.device} none is faster" if here.device != "cuda" else ""),
        "eager": "the formula itself, which is the slowest",
    }
    candidates = []
    if here.device == "cuda" and here.dtype in HALF:
        candidates = ["flash4", "flash3", *(["flash", "flex"] if here.documents or here.windows else [])]
    elif here.device == "cpu" and here.gradients and why_not("blocked", here) is None:
        candidates = ["blocked"]
    rejected: list[str] = []
    for name in [*candidates, "sdpa"]:
        problem = why_not(name, here) or avoid.get(name)
        if problem is None and here.device == "cuda" and name != "sdpa":
            problem = try_out(name, here)
        if problem is None:
            reason = reasons.get(name, "it is fastest with this mask and passed a trial against the formula")
            return name, "; ".join([reason, *rejected])
        rejected.append(f"not {name}: {problem.removeprefix(f'attn_implementation: {name} ')}")
    return "eager", "; ".join([reasons["eager"], *rejected])


def try_out(name: str, here: Situation) -> str | None:
    """Compute something small with a backend and with the formula; returns what went wrong, or None.

    Catches every error of a kernel, because a trial is for finding them.
    """
    try:
        worst = worst_error(name, here)
    except Exception as error:
        return f"failed in a trial ({type(error).__name__}: {(str(error).splitlines() or [''])[0][:100]})"
    allowed = allowed_error(here.dtype)
    return None if worst <= allowed else f"differed from the formula in a trial by {worst:.1e} of the largest entry"


def worst_error(name: str, here: Situation) -> float:
    """How far a backend is from the formula in float64: the largest error of its output and of its gradients, each as a
    share of the largest entry. Two rows of 192 tokens. Raises whatever the kernel raises.
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
        spec = MaskSpec(places, places, 2, None, documents, 50 if here.windows else None, here.mask is None)
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


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # the parent of a dotted name is missing
        return False


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
