"""A kernel did not compute what capture recomputed. What did it compute instead? Used only after a mismatch."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from model.attention import attention_weights, repeat_kv
from model.rope import apply_rotary

UNKNOWN = "mask, scale, RoPE or the order of key/value heads differ, in a way that none of the usual mistakes explains"


def likely_cause(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, mask: Tensor, cos: Tensor, sin: Tensor, allowed: float
) -> str:
    """The mistake that, made on purpose, gives the kernel's output `out` (B, H, T, D) but for `allowed`; in words.

    q (B, H, T, D), k and v (B, H_kv, S, D), float32, after QK-norm and RoPE; mask (B or 1, 1, T, S) as it should be.
    cos, sin (…, T, what RoPE turned): the last numbers of a head, or all.
    """
    for cause, instead in _mistakes(q, k, v, mask, cos, sin):
        if (instead - out).abs().max() <= allowed:
            return cause
    return _other_heads(q, k, v, out, mask, allowed) or UNKNOWN


def _mistakes(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, cos: Tensor, sin: Tensor) -> Iterator[tuple[str, Tensor]]:
    D = q.shape[-1]
    everything = torch.ones(1, 1, q.shape[2], k.shape[2], dtype=torch.bool, device=q.device)
    yield "the kernel used no mask and looked at every key", _attend(q, k, v, everything)
    causal = everything.tril(k.shape[2] - q.shape[2])
    yield "the kernel used the causal mask alone, without documents, padding or window", _attend(q, k, v, causal)
    scales = {"did not divide by sqrt(head_dim)": D**0.5, "divided by head_dim instead of its square root": D**-0.5}
    for words, factor in (scales | {f"scaled the logits by {f:g}": f for f in (2.0, 0.5)}).items():
        yield f"the kernel {words}", _attend(q * factor, k, v, mask)
    if k.shape[2] == q.shape[2]:
        plain_q, plain_k = (_turned_back(x, cos, sin) for x in (q, k))
        yield "the kernel got queries and keys without RoPE", _attend(plain_q, plain_k, v, mask)
        yield "the kernel got queries without RoPE", _attend(plain_q, k, v, mask)
        yield "the kernel got keys without RoPE", _attend(q, plain_k, v, mask)
    groups = q.shape[1] // k.shape[1]
    tiled_k, tiled_v = (x.repeat(1, groups, 1, 1) for x in (k, v))
    if groups > 1:
        yield "key/value heads were tiled (0 1 0 1) and not repeated (0 0 1 1)", _attend(q, tiled_k, tiled_v, mask)


def _turned_back(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Queries or keys as they were before RoPE, which may have turned only the last numbers of a head."""
    left_alone = x.shape[-1] - cos.shape[-1]
    return torch.cat((x[..., :left_alone], apply_rotary(x[..., left_alone:], cos, -sin)), dim=-1)


def _other_heads(q: Tensor, k: Tensor, v: Tensor, out: Tensor, mask: Tensor, allowed: float) -> str | None:
    """Which query heads read another key/value head than their own."""
    groups = q.shape[1] // k.shape[1]
    own_v = repeat_kv(v, groups)
    wrong: dict[int, int] = {}
    for other in range(k.shape[1]):
        weights = attention_weights(q, k[:, [other]], mask)
        for values in (own_v, v[:, [other]]):
            fits = (weights @ values - out).abs().amax((0, 2, 3)) <= allowed
            wrong |= {h: other for h in fits.nonzero().flatten().tolist() if h // groups != other}
    if not wrong:
        return None
    listed = ", ".join(f"query head {h} reads key/value head {other}" for h, other in sorted(wrong.items())[:4])
    return f"key/value heads are in another order: {listed}{', …' if len(wrong) > 4 else ''}"


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return attention_weights(q, k, mask) @ repeat_kv(v, q.shape[1] // v.shape[1])
