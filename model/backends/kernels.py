"""Fast attention: PyTorch's kernels sdpa, flash and flex, with what each reads in place of a boolean mask, and blocked.

Every backend has the signature of `eager` in model/attention.py; the mask is in the form that it reads, None = causal.
Values may have another size than keys (model/variants/latent_attention.py); then the output has theirs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import attention as torch_attention
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
from torch.nn.attention.flex_attention import flex_attention as flex_kernel

from model.attention import fused, in_kernel_dtype, repeat_kv
from model.loss import compute_dtype
from model.masks import MaskSpec, boolean_mask, causal, not_padding, same_document, within_window

TAKES_GROUPS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 12)  # of varlen_attn: grouped heads
SMALLEST = 32  # tokens of a chunk; products of smaller ones are not faster
FEWEST = 4  # chunks of a row, for which it pays
BLOCK, LONGEST = 64, 1024  # queries of a block, and of a row that is computed in blocks
HIDDEN = -1e30  # a score whose weight is zero


def use_flash(kernel: str | None) -> None:
    """Set which flash kernel PyTorch calls, None = its own. The switch is global, so every call on a GPU sets it."""
    if torch_attention.current_flash_attention_impl() == kernel:
        return
    if kernel is None:
        torch_attention.restore_flash_attention_impl()
    else:
        torch_attention.activate_flash_attention_impl(kernel)


# ---------------------------------------------------------------------------------------------------------
# sdpa: PyTorch picks the kernel. On a CPU, a sliding window is computed chunk by chunk.
#
#   chunks of keys      0   1   2   3      A chunk of queries sees its own keys and those of the chunk before, no
#   chunk of queries    x   .   .   .      others. So attention costs two chunks a token, however long the row is. A
#                       x   x   .   .      boolean mask over the whole row gives the same numbers, and every product is
#                       .   x   x   .      computed for it: five times the time for a window of 16 in 512 tokens.
#                       .   .   x   x


def sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
    """A mask for fewer queries than there are is that of chunks: `chunks_or_mask`."""
    if q.is_cuda:
        use_flash(None)
    length, size = q.shape[2], q.shape[2] if mask is None else mask.shape[2]
    if size == length:
        return fused(q, k, v, mask, dropout)
    chunks = q.transpose(1, 2).reshape(-1, size, *q.shape[1::2]).transpose(1, 2)  # (B N, H, C, D)
    out = fused(chunks, _two_chunks(k, size), _two_chunks(v, size), mask, dropout)
    return out.transpose(1, 2).reshape(-1, length, *out.shape[1::2]).transpose(1, 2)


def _two_chunks(x: Tensor, size: int) -> Tensor:
    """(B, H, T, D) -> (B N, H, 2 C, D): every chunk, with the one before it in front."""
    chunks = F.pad(x.transpose(1, 2), (0, 0, 0, 0, size, 0)).unflatten(1, (-1, size))
    return torch.cat([chunks[:, :-1], chunks[:, 1:]], dim=2).flatten(0, 1).transpose(1, 2)


def chunks_or_mask(spec: MaskSpec) -> Tensor | None:
    """For rows on a CPU whose window is short, without padding or cached tokens: which of two chunks of keys each query
    of a chunk of C sees, (B * chunks, 1, C, 2 C). Else as `boolean_mask`."""
    queries, keys, window = spec.query_positions, spec.key_positions, spec.sliding_window
    size = max(SMALLEST, 1 << ((window or 1) - 1).bit_length())  # so a window never reaches behind the chunk before
    whole_chunks = len(queries) == len(keys) >= FEWEST * size and len(queries) % size == 0
    if window is None or queries.device.type != "cpu" or spec.attention_mask is not None or not whole_chunks:
        return boolean_mask(spec)
    # the positions and documents of both chunks of keys; in front of the first chunk there is none
    queries = queries.view(-1, size, 1)
    keys = F.pad(keys, (size, 0), value=-1).unfold(0, 2 * size, size)[:, None]
    mask = (causal(queries, keys) & within_window(queries, keys, window) & (keys >= 0))[None]  # (1, N, C, 2 C)
    if (documents := spec.document_ids) is not None:
        of_keys = F.pad(documents, (size, 0), value=-1).unfold(1, 2 * size, size)
        mask = mask & same_document(documents.view(len(documents), -1, size, 1), of_keys[:, :, None])
    return mask.expand(spec.batch_size, -1, -1, -1).flatten(0, 1)[:, None]


# ---------------------------------------------------------------------------------------------------------
# flash: FlashAttention and no other kernel (Dao 2023, arXiv 2307.08691). On a CPU it reads a boolean mask. On a GPU it
# reads none, but it takes lengths (PyTorch's varlen_attn), and they say all that our masks say: no score is computed
# that a mask would forbid. FlashAttention-3 (Shah et al. 2024, 2407.08608) and 4 are packages of their own.
#
#   documents   0 0 1 1 1 | 3 3 3 3 3      two rows of five tokens, three documents
#   starts      0 2 5 5   | 0 5 5 5        per row, filled up with the row's length (data.packing.document_starts)
#   cu_seqlens  0 2 5 5 5 5 10 10 10 10 10   all rows end to end, each with its end; two equal numbers are an empty
#                                            document, which costs nothing
#   padding         . . a b c | d e f g h      real tokens come first in their row, padding is a document of its own
#   cu_seqlens      0 3 5 10 10
#   static cache    a b c . . | d e f . .      three tokens written, room for five; one query a row
#   of the keys     0 3 5 8 10
#   of the queries  0 1 1 2 2                  so nobody asks the room that is left


@dataclass(frozen=True)
class Sequences:
    """Where each document begins among the queries and among the keys, rows laid end to end.

    cu_queries, cu_keys (documents + 1,) int32: cumulative lengths. window: tokens seen to the left and right; -1 = all.
    query_order, key_order: in which order the B * T and B * S tokens are laid, with padding last in each row.
    real_queries (B, T): which queries are real tokens. All three are None without padding.
    """

    cu_queries: Tensor
    cu_keys: Tensor
    window: tuple[int, int]
    query_order: Tensor | None = None
    key_order: Tensor | None = None
    real_queries: Tensor | None = None


def flash(
    q: Tensor, k: Tensor, v: Tensor, mask: Sequences | Tensor | None, dropout: float, kernel: str | None = None
) -> Tensor:
    """kernel: FA3 or FA4 instead of PyTorch's own. With lengths, padding as a query gets zeros, and there is no
    dropout: it is refused earlier (model/backends/choice.py)."""
    if q.is_cuda:
        use_flash(kernel)
    if not isinstance(mask, Sequences):
        with torch_attention.sdpa_kernel(torch_attention.SDPBackend.FLASH_ATTENTION):
            return fused(q, k, v, mask, dropout)
    from torch.nn.attention.varlen import varlen_attn  # loads the compiler, which takes a second

    (B, H, T, D), S, out_dtype = q.shape, k.shape[2], v.dtype
    if not TAKES_GROUPS:
        k, v = repeat_kv(k, H // k.shape[1]), repeat_kv(v, H // v.shape[1])
    grouped: dict[str, Any] = {"enable_gqa": k.shape[1] != H} if TAKES_GROUPS else {}
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in in_kernel_dtype(q, k, v))  # (B * T, H, D), (B * S, H_kv, D)
    if mask.query_order is not None:
        q, k, v = q[mask.query_order], k[mask.key_order], v[mask.key_order]
    # T and S are upper bounds of a document's length, which is enough for the kernel
    out: Any = varlen_attn(q, k, v, mask.cu_queries, mask.cu_keys, T, S, window_size=mask.window, **grouped)
    if mask.query_order is not None:
        out = torch.empty_like(out).index_copy(0, mask.query_order, out)
    out = out.view(B, T, H, D).transpose(1, 2)
    if mask.real_queries is not None:
        out = out.masked_fill(~mask.real_queries[:, None, :, None], 0.0)
    return out.to(out_dtype)


def lengths_or_mask(spec: MaskSpec) -> Sequences | Tensor | None:
    """What the flash kernel of this device reads; None where its causal flag says it all."""
    on_cpu = spec.query_positions.device.type == "cpu"
    return boolean_mask(spec) if on_cpu or spec.all_visible else sequences(spec)


def sequences(spec: MaskSpec) -> Sequences:
    """The predicates of a MaskSpec as lengths. The tokens of a document must stand together: an id that returns later
    in a row begins a new document here. A window counts real tokens, so padding must stand at an end of the row.

    Each row begins with its documents. Behind them is what nobody may see, as one document more: padding, and the room
    of a static cache. So shapes are fixed, and nothing is read back from the GPU. The kernel aligns the queries and
    keys of a document at their ends.
    """
    B, real = spec.batch_size, spec.real_keys
    window = (-1 if spec.sliding_window is None else spec.sliding_window - 1, 0)
    real_keys = (spec.key_positions <= spec.query_positions[-1]).expand(B, -1)  # not the room of a static cache
    if real is not None:
        real_keys = real_keys & not_padding(real)
    real_queries = real_keys[:, spec.query_positions - spec.key_positions[0]]
    if spec.document_ids is None:
        starts = torch.zeros(B, 1, dtype=torch.int32, device=real_keys.device)
    else:
        starts = spec.document_starts if spec.document_starts is not None else find_starts(spec.document_ids)
        starts = F.pad(real_keys.cumsum(1), (1, 0)).gather(1, starts.long())  # behind the real tokens before it
    lengths = _cumulative(starts, real_queries), _cumulative(starts, real_keys)
    if real is None:
        return Sequences(*lengths, window)
    return Sequences(*lengths, window, _real_first(real_queries), _real_first(real_keys), real_queries)


def _cumulative(starts: Tensor, real: Tensor) -> Tensor:
    """Where each document begins when rows stand end to end, and the end of the last: starts (B, N), real (B, n)."""
    rows, length = real.shape
    starts = torch.cat((starts, real.sum(1, keepdim=True)), dim=1)  # behind them, what nobody may see
    starts = starts + torch.arange(rows, device=real.device)[:, None] * length
    return F.pad(starts.flatten(), (0, 1), value=rows * length).int()


def _real_first(real: Tensor) -> Tensor:
    """The tokens of each row in a new order, padding last: (B, n) -> (B * n,), places in the rows end to end."""
    rows = torch.arange(len(real), device=real.device)[:, None] * real.shape[1]
    return ((~real).int().argsort(dim=1, stable=True) + rows).flatten()


def find_starts(document_ids: Tensor) -> Tensor:
    """Where documents begin in each row, filled up with T, for batches that do not say it: (B, T) -> (B, N).

    Waits for the GPU once, to learn N, the most of a row. A compiled model must know it in advance: there N is T.
    """
    T = document_ids.shape[1]
    begins = F.pad(document_ids[:, 1:] != document_ids[:, :-1], (1, 0), value=True)
    starts = torch.where(begins, torch.arange(T, device=begins.device), T).sort(dim=1).values
    return starts if torch.compiler.is_compiling() else starts[:, : int(begins.sum(1).max())]


# ---------------------------------------------------------------------------------------------------------
# flex: the mask is a function of (row, head, query, key) that is compiled into the kernel. Blocks of 128 x 128 scores
# in which nothing is visible are never computed, so packed documents and windows save time (Dong et al. 2024, arXiv
# 2412.05496). On a CPU it has no gradients and is not compiled: inside a compiled model PyTorch 2.13 fails.


def flex(q: Tensor, k: Tensor, v: Tensor, mask: BlockMask | Tensor | None, dropout: float) -> Tensor:
    if not isinstance(mask, BlockMask):
        return fused(q, k, v, mask, dropout)
    kernel = flex_kernel_compiled() if q.is_cuda and not torch.compiler.is_compiling() else flex_kernel
    with torch.autocast(q.device.type, enabled=False):
        q, k, values = in_kernel_dtype(q, k, v)
        out: Any = kernel(q, k, values, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1])
    return out.to(v.dtype)


def block_mask(spec: MaskSpec) -> BlockMask | Tensor | None:
    """The same predicates as in `boolean_mask`, asked for one (row, query, key) at a time."""
    if len(spec.query_positions) == 1:  # there are no blocks to skip
        return boolean_mask(spec)
    real, documents = spec.real_keys, spec.document_ids

    def visible(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        asks, answers = spec.query_positions[query], spec.key_positions[key]
        allowed = causal(asks, answers)
        if spec.sliding_window is not None:
            allowed = allowed & within_window(asks, answers, spec.sliding_window)
        if real is not None:
            allowed = allowed & not_padding(real[row, key])
        if documents is not None:
            allowed = allowed & same_document(documents[row, query], documents[row, key])
        return allowed

    rows = None if real is None and documents is None else spec.batch_size  # None: all rows alike
    queries, keys = len(spec.query_positions), len(spec.key_positions)
    return create_block_mask(visible, rows, None, queries, keys, device=spec.query_positions.device)


@cache
def flex_kernel_compiled() -> Any:
    """FlexAttention as one fused kernel; uncompiled, it writes out every score. It is compiled for each kind of mask,
    and for each length until PyTorch takes the length as a variable. After eight times PyTorch would stop."""
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 64)
    return torch.compile(flex_kernel)


# ---------------------------------------------------------------------------------------------------------
# blocked: causal attention as matrix products over blocks of queries, the fastest way to train on a CPU.
#
#   key    0 1 2 3 | 4 5 6 7      A block of queries multiplies the keys up to its own end and no others, so almost half
#   query  x . . .                of the square is never computed. The query heads that share a key/value head are rows
#          x x . .                of one matrix: nothing is repeated, and a few large products replace many small ones.
#          x x x .                The weights are kept for the backward pass, T * T / 2 per head, so this is for rows of
#          x x x x                at most LONGEST tokens. PyTorch's kernel keeps none. It takes over beyond that, in
#          ---------------        float32 without gradients, in other dtypes, and where the numbers of queries and
#          x x x x | x . . .      keys differ (FINDINGS.md#backends).


def blocked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
    """The signature of `eager`. Products in the dtype of training, the softmax in float32."""
    length, dtype = q.shape[2], compute_dtype(v)
    pays = dtype == torch.bfloat16 or (dtype == torch.float32 and torch.is_grad_enabled())
    if not pays or dropout or not 1 < length <= LONGEST or k.shape[2] != length:
        return fused(q, k, v, mask, dropout)
    with torch.autocast(q.device.type, enabled=False):
        bias = None if mask is None else torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, HIDDEN)
        out = _Blocked.apply(q, k, v, bias, dtype)
        if mask is not None:  # a row that may attend to nothing gets zeros
            out = out * mask.any(dim=-1, keepdim=True)
    return out.to(v.dtype)


class _Blocked(torch.autograd.Function):
    """q (B, H, T, D), k and v (B, H_kv, T, D), bias (B or 1, 1, T, T) or None -> (B, H, T, D) in dtype."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
        ctx.dtypes = [x.dtype for x in (q, k, v)]
        q = q * q.shape[-1] ** -0.5  # before it is rounded
        rows, keys, values = _as_rows(q.to(dtype), k.shape[1]), _as_rows(k.to(dtype)), _as_rows(v.to(dtype))
        groups, kv_heads = q.shape[1] // k.shape[1], k.shape[1]
        weights, outs = [], []
        for first in range(0, q.shape[2], BLOCK):
            end = min(first + BLOCK, q.shape[2])
            scores = rows[:, first * groups : end * groups] @ keys[:, :end].mT
            # the lowest score, in place, for what the block's queries may not see
            if bias is None:
                triangle = torch.full((end - first, end - first), HIDDEN, dtype=scores.dtype, device=scores.device)
                scores.view(-1, end - first, groups, end)[..., first:] += triangle.triu(1)[:, None]
            else:
                scores.view(-1, kv_heads, end - first, groups, end).add_(bias[:, :, first:end, None, :end])
            weights.append(scores.softmax(dim=-1))
            outs.append(weights[-1] @ values[:, :end])
        ctx.save_for_backward(rows, keys, values, *weights)
        return _as_heads(torch.cat(outs, dim=1), (*q.shape[:3], v.shape[3]))

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        rows, keys, values, *weights = ctx.saved_tensors
        (grad,) = grad_outputs
        (batch, heads, length, _), kv_heads, head_dim = grad.shape, keys.shape[0] // grad.shape[0], keys.shape[2]
        groups, grad = heads // kv_heads, _as_rows(grad, kv_heads)
        row_grads, key_grad, value_grad = [], torch.zeros_like(keys), torch.zeros_like(values)
        for first, weight in zip(range(0, length, BLOCK), weights, strict=True):
            end = weight.shape[2]
            block = slice(first * groups, end * groups)
            weight_grad = grad[:, block] @ values[:, :end].mT
            score_grad = torch._softmax_backward_data(weight_grad, weight, -1, weight.dtype)
            value_grad[:, :end] += weight.mT @ grad[:, block]
            key_grad[:, :end] += score_grad.mT @ rows[:, block]
            row_grads.append(score_grad @ keys[:, :end])
        q_grad = _as_heads(torch.cat(row_grads, dim=1), (batch, heads, length, head_dim)) * head_dim**-0.5
        k_grad, v_grad = (x.view(batch, kv_heads, length, -1) for x in (key_grad, value_grad))
        of_q, of_k, of_v = ctx.dtypes
        return q_grad.to(of_q), k_grad.to(of_k), v_grad.to(of_v), None, None


def _as_rows(x: Tensor, kv_heads: int | None = None) -> Tensor:
    """(B, H, T, D) -> (B * H_kv, T * groups, D): the heads of a group follow one another at each token."""
    batch, heads, length, head_dim = x.shape
    kv_heads = kv_heads or heads
    x = x.view(batch, kv_heads, heads // kv_heads, length, head_dim)
    return x.transpose(2, 3).reshape(batch * kv_heads, -1, head_dim)


def _as_heads(rows: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The way back, in memory as (B, T, H, D), which is how the projections want it."""
    batch, heads, length, head_dim = shape
    x = rows.view(batch, -1, length, heads * batch // rows.shape[0], head_dim)  # (B, H_kv, T, groups, D)
    return x.transpose(1, 2).reshape(batch, length, heads, head_dim).transpose(1, 2)
