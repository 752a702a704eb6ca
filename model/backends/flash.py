"""FlashAttention and no other kernel, in the form that fits who may see whom.

who sees whom                     on a GPU                                         elsewhere
all, up to itself                 the kernel's own causal flag                     the same
documents, windows, padding,      documents laid end to end, see varlen.py         a boolean mask
room in a static cache

The kernel on a GPU reads no mask, but it takes lengths, so it serves all masks that we have. Dao 2023 (arXiv
2307.08691); versions 3 and 4 are packages of their own (Shah et al. 2024, 2407.08608).
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.attention import SDPBackend

from model.attention import AttentionFunction
from model.backends.sdpa import only, use_flash
from model.backends.varlen import sequences, varlen
from model.masks import MaskSpec, Sequences, boolean_mask


def lengths_or_mask(spec: MaskSpec) -> Sequences | Tensor | None:
    """What the flash kernel of this device reads; None where its causal flag says it all."""
    if spec.all_visible:
        return None
    return boolean_mask(spec) if spec.query_positions.device.type == "cpu" else sequences(spec)


def flash(implementation: str | None = None) -> AttentionFunction:
    """A function with the signature of `eager`. implementation: FA3 or FA4 instead of PyTorch's own kernel."""
    dense = only(SDPBackend.FLASH_ATTENTION, implementation)

    def compute(q: Tensor, k: Tensor, v: Tensor, mask: Sequences | Tensor | None, dropout: float) -> Tensor:
        if not isinstance(mask, Sequences):
            return dense(q, k, v, mask, dropout)
        if q.is_cuda:
            use_flash(implementation)
        return varlen(q, k, v, mask, dropout)

    return compute
