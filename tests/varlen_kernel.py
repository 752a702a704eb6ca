"""PyTorch's two operators for attention over documents, by their documentation, on any device.

Rows of several documents laid end to end: query (total, H, D), key and value (total, H_kv, D), and
cumulative lengths. The gradient is written out, because an operator below autograd has none of its
own. The kernel's unchecked requirements, without which it reads beyond its memory, are checked.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.attention import varlen

Document = tuple[slice, slice, Tensor]


def exact(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def documents(q: Tensor, k: Tensor, cu_q: Tensor, cu_k: Tensor, scale: float, window: list[int]) -> Iterator[Document]:
    """Yield each non-empty document's queries, keys and weights (H, queries, keys).

    Ends are aligned.
    """
    ends = [cu.tolist() for cu in (cu_q, cu_k)]
    for q0, q1, k0, k1 in zip(ends[0], ends[0][1:], ends[1], ends[1][1:], strict=False):
        if q0 == q1:
            continue
        keys = k[k0:k1].repeat_interleave(q.shape[1] // k.shape[1], dim=1)
        scores = torch.einsum("qhd,khd->hqk", exact(q[q0:q1]), exact(keys)) * scale
        distance = torch.arange(k1 - k0 - (q1 - q0), k1 - k0)[:, None] - torch.arange(k1 - k0)
        hidden = (distance < 0) | ((distance > window[0]) if window[0] >= 0 else False)
        yield slice(q0, q1), slice(k0, k1), scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)


def forward(q, k, v, cu_q, cu_k, max_q, max_k, is_causal=False, scale=None, window=(-1, 0), enable_gqa=False, *rest):
    """torch_attn::_varlen_attn: the output, the logarithm of the sums (unused here), the random
    state (unused).
    """
    for x, cu, longest in ((q, cu_q, max_q), (k, cu_k, max_k)):
        assert cu.dtype == torch.int32
        assert (cu[0], cu[-1]) == (0, len(x))
        assert 0 <= (cu[1:] - cu[:-1]).min() <= (cu[1:] - cu[:-1]).max() <= longest
    assert enable_gqa == (q.shape[1] != k.shape[1])
    out = torch.zeros_like(q)
    groups = q.shape[1] // k.shape[1]
    for queries, keys, weights in documents(q, k, cu_q, cu_k, scale or q.shape[-1] ** -0.5, window):
        values = exact(v[keys].repeat_interleave(groups, dim=1))
        out[queries] = torch.einsum("hqk,khd->qhd", weights, values).to(q.dtype)
    return out, q.new_zeros(q.shape[1], len(q), dtype=torch.float32), torch.zeros(2, dtype=torch.uint64)


def backward(grad, q, k, v, out, lse, cu_q, cu_k, max_q, max_k, is_causal, rng_state, scale=None, window=(-1, 0)):
    """torch_attn::_varlen_attn_backward: the gradients of query, key and value."""
    scale = scale or q.shape[-1] ** -0.5
    groups = q.shape[1] // k.shape[1]
    grads = [torch.zeros(x.shape) for x in (q, k, v)]
    for queries, keys, weights in documents(q, k, cu_q, cu_k, scale, window):
        above = grad[queries].float()
        result = out[queries].float()
        repeated = [x[keys].repeat_interleave(groups, dim=1).float() for x in (k, v)]
        of_weights = torch.einsum("qhd,khd->hqk", above, repeated[1])
        of_scores = weights * (of_weights - (above * result).sum(-1).T[..., None]) * scale
        grads[0][queries] = torch.einsum("hqk,khd->qhd", of_scores, repeated[0])
        of_keys = torch.einsum("hqk,qhd->khd", of_scores, q[queries].float())
        of_values = torch.einsum("hqk,qhd->khd", weights, above)
        grads[1][keys], grads[2][keys] = (x.unflatten(1, (-1, groups)).sum(2) for x in (of_keys, of_values))
    return tuple(x.to(q.dtype) for x in grads)


assert varlen.varlen_attn  # importing it registers the operators
KERNELS = {
    torch.ops.torch_attn._varlen_attn.default: forward,
    torch.ops.torch_attn._varlen_attn_backward.default: backward,
}
