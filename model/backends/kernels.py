"""Fast attention: PyTorch's kernels sdpa, flash and flex, and blocked, in matrix products.

Every backend has the signature of `eager` in model/attention.py. The mask is in the form that it
reads; None is causal. Values may have another size than keys (model/variants/latent_attention.py);
then the output has theirs.
"""

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

# From this version on, varlen_attn takes grouped heads.
TAKES_GROUPS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 12)
# sdpa: products of chunks with fewer tokens are not faster, nor are rows of fewer chunks.
SMALLEST = 32
FEWEST = 4
# blocked: queries of a block, and tokens of the longest row that is computed in blocks.
BLOCK = 64
LONGEST = 1024
# A score whose weight is zero.
HIDDEN = -1e30


# -------------------------------------------------------------------------------------------------
# sdpa: PyTorch picks the kernel. On a CPU, a sliding window is computed chunk by chunk.
#
#   chunks of keys    0 1 2 3      A chunk of queries sees its own keys and those of the chunk
#   chunk of queries  x . . .      before, however long the row is. A boolean mask over the whole
#                     x x . .      row gives the same numbers, but computes every product: five
#                     . x x .      times the time for a window of 16 in 512 tokens.
#                     . . x x


def sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
    """Read a boolean mask, or that of chunks (`chunks_or_mask`), which is for fewer queries."""
    length = q.shape[2]
    size = length if mask is None else mask.shape[2]
    if size == length:
        return fused(q, k, v, mask, dropout)
    chunks = q.transpose(1, 2).reshape(-1, size, *q.shape[1::2]).transpose(1, 2)  # (B N, H, C, D)
    out = fused(chunks, _two_chunks(k, size), _two_chunks(v, size), mask, dropout)
    return out.transpose(1, 2).reshape(-1, length, *out.shape[1::2]).transpose(1, 2)


def _two_chunks(x: Tensor, size: int) -> Tensor:
    """Put the chunk before in front of each: (B, H, T, D) -> (B N, H, 2 C, D)."""
    chunks = F.pad(x.transpose(1, 2), (0, 0, 0, 0, size, 0)).unflatten(1, (-1, size))
    return torch.cat([chunks[:, :-1], chunks[:, 1:]], dim=2).flatten(0, 1).transpose(1, 2)


def chunks_or_mask(spec: MaskSpec) -> Tensor | None:
    """Return which of two chunks of keys each query of a chunk sees: (B N, 1, C, 2 C).

    This needs a CPU, a short window, no padding and no cache. Else it is a `boolean_mask`.
    """
    queries = spec.query_positions
    keys = spec.key_positions
    window = spec.sliding_window
    if window is None or queries.device.type != "cpu" or spec.attention_mask is not None:
        return boolean_mask(spec)
    # A power of two, so that a window never reaches behind the chunk before.
    size = max(SMALLEST, 1 << (window - 1).bit_length())
    if not len(queries) == len(keys) >= FEWEST * size or len(queries) % size:
        return boolean_mask(spec)
    # The positions and documents of both chunks of keys. There is none before the first chunk.
    queries = queries.view(-1, size, 1)
    keys = F.pad(keys, (size, 0), value=-1).unfold(0, 2 * size, size)[:, None]
    mask = causal(queries, keys) & within_window(queries, keys, window) & (keys >= 0)
    mask = mask[None]  # (1, N, C, 2 C)
    documents = spec.document_ids
    if documents is not None:
        key_documents = F.pad(documents, (size, 0), value=-1).unfold(1, 2 * size, size)
        query_documents = documents.view(len(documents), -1, size, 1)
        mask = mask & same_document(query_documents, key_documents[:, :, None])
    return mask.expand(spec.batch_size, -1, -1, -1).flatten(0, 1)[:, None]


# -------------------------------------------------------------------------------------------------
# flash: FlashAttention and no other kernel (Dao 2023, arXiv 2307.08691). On a CPU it reads a
# boolean mask. On a GPU it takes lengths instead (PyTorch's varlen_attn), which can express all our
# masks: no score is computed that a mask would forbid.
#
#   documents   0 0 1 1 1 | 3 3 3 3 3      two rows of five tokens, three documents
#   starts      0 2 5 5   | 0 5 5 5        per row, filled up with its length (data/packing.py)
#   cu_seqlens  0 2 5 5 5 5 10 10 10 10 10   rows end to end, each with its end; two equal numbers
#                                            are an empty document, which costs nothing
#   padding     . . a b c | d e f g h      real tokens come first in their row, and padding is a
#                                          document of its own


@dataclass(frozen=True)
class Sequences:
    """The places where documents begin among the queries and the keys, rows laid end to end."""

    # cumulative lengths, (documents + 1,) int32
    cu_queries: Tensor
    cu_keys: Tensor
    # tokens seen to the left and right; -1 = all
    window: tuple[int, int]
    # the B * T and B * S tokens, with padding last in each row; None without padding, as the next
    query_order: Tensor | None = None
    key_order: Tensor | None = None
    # (B, T): True for real tokens
    real_queries: Tensor | None = None


FlashMask = Sequences | Tensor | None


def flash(q: Tensor, k: Tensor, v: Tensor, mask: FlashMask, dropout: float) -> Tensor:
    """Return zeros for a query that is padding. With lengths there is no dropout."""
    if not isinstance(mask, Sequences):
        with torch_attention.sdpa_kernel(torch_attention.SDPBackend.FLASH_ATTENTION):
            return fused(q, k, v, mask, dropout)
    from torch.nn.attention.varlen import varlen_attn  # loads the compiler, which takes a second

    B, H, T, D = q.shape
    S = k.shape[2]
    out_dtype = v.dtype
    grouped: dict[str, Any] = {}
    if TAKES_GROUPS:
        grouped["enable_gqa"] = k.shape[1] != H
    else:
        k = repeat_kv(k, H // k.shape[1])
        v = repeat_kv(v, H // v.shape[1])
    # rows end to end: q (B * T, H, D), k and v (B * S, H_kv, D)
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in in_kernel_dtype(q, k, v))
    if mask.query_order is not None:
        q = q[mask.query_order]
        k = k[mask.key_order]
        v = v[mask.key_order]
    # T and S are upper bounds of a document's length, which is enough for the kernel.
    lengths = (mask.cu_queries, mask.cu_keys, T, S)
    out: Any = varlen_attn(q, k, v, *lengths, window_size=mask.window, **grouped)
    if mask.query_order is not None:  # back to the order of the rows
        out = torch.empty_like(out).index_copy(0, mask.query_order, out)
    out = out.view(B, T, H, D).transpose(1, 2)
    if mask.real_queries is not None:
        out = out.masked_fill(~mask.real_queries[:, None, :, None], 0.0)
    return out.to(out_dtype)


def lengths_or_mask(spec: MaskSpec) -> FlashMask:
    """Return what the flash kernel of this device reads; None if its causal flag is enough."""
    on_cpu = spec.query_positions.device.type == "cpu"
    return boolean_mask(spec) if on_cpu or spec.all_visible else sequences(spec)


def sequences(spec: MaskSpec) -> Sequences:
    """Return the predicates of a MaskSpec as lengths.

    The tokens of a document must be neighbours: an id that returns later begins a new document. A
    window counts real tokens, so padding must be at an end of the row.
    """
    # Padding is one document more, behind the others, with the free room of a static cache. So
    # shapes are fixed, and nothing is read back from the GPU. The kernel aligns the queries and
    # keys of a document at their ends.
    B = spec.batch_size
    real = spec.real_keys
    window = (-1 if spec.sliding_window is None else spec.sliding_window - 1, 0)
    # without the free room of a static cache
    real_keys = (spec.key_positions <= spec.query_positions[-1]).expand(B, -1)
    if real is not None:
        real_keys = real_keys & not_padding(real)
    real_queries = real_keys[:, spec.query_positions - spec.key_positions[0]]
    if spec.document_ids is None:
        starts = torch.zeros(B, 1, dtype=torch.int32, device=real_keys.device)
    else:
        row_starts = spec.document_starts
        starts = find_starts(spec.document_ids) if row_starts is None else row_starts
        # a document begins behind the real tokens before it
        starts = F.pad(real_keys.cumsum(1), (1, 0)).gather(1, starts.long())
    cu_queries = _cumulative(starts, real_queries)
    cu_keys = _cumulative(starts, real_keys)
    if real is None:
        return Sequences(cu_queries, cu_keys, window)
    orders = _real_first(real_queries), _real_first(real_keys)
    return Sequences(cu_queries, cu_keys, window, *orders, real_queries)


def _cumulative(starts: Tensor, real: Tensor) -> Tensor:
    """Return where documents begin, rows end to end, and the last end: (B, N), (B, n) -> 1-d."""
    rows, length = real.shape
    starts = torch.cat((starts, real.sum(1, keepdim=True)), dim=1)  # padding is behind them
    starts = starts + torch.arange(rows, device=real.device)[:, None] * length
    return F.pad(starts.flatten(), (0, 1), value=rows * length).int()


def _real_first(real: Tensor) -> Tensor:
    """Order the tokens of each row, padding last: (B, n) -> (B * n,), indices in all rows."""
    rows = torch.arange(len(real), device=real.device)[:, None] * real.shape[1]
    return ((~real).int().argsort(dim=1, stable=True) + rows).flatten()


def find_starts(document_ids: Tensor) -> Tensor:
    """Find where documents begin in each row, filled up with T: (B, T) -> (B, N).

    N is the most of a row; in a compiled model, whose shapes are fixed, it is T.
    """
    T = document_ids.shape[1]
    begins = F.pad(document_ids[:, 1:] != document_ids[:, :-1], (1, 0), value=True)
    starts = torch.where(begins, torch.arange(T, device=begins.device), T).sort(dim=1).values
    # note: int() waits for the GPU
    return starts if torch.compiler.is_compiling() else starts[:, : int(begins.sum(1).max())]


# -------------------------------------------------------------------------------------------------
# flex: the mask is a function of (row, head, query, key) that is compiled into the kernel. Blocks
# of 128 x 128 scores in which nothing is visible are never computed, so packed documents and
# windows save time (Dong et al. 2024, arXiv 2412.05496). On a CPU it has no gradients and is not
# compiled: inside a compiled model PyTorch 2.13 fails.

FlexMask = BlockMask | Tensor | None


def flex(q: Tensor, k: Tensor, v: Tensor, mask: FlexMask, dropout: float) -> Tensor:
    if not isinstance(mask, BlockMask):
        return fused(q, k, v, mask, dropout)
    kernel: Any = flex_kernel
    if q.is_cuda and not torch.compiler.is_compiling():
        kernel = flex_kernel_compiled()
    with torch.autocast(q.device.type, enabled=False):
        q, k, values = in_kernel_dtype(q, k, v)
        out = kernel(q, k, values, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1])
    return out.to(v.dtype)


def block_mask(spec: MaskSpec) -> FlexMask:
    """Combine the predicates of `boolean_mask`, for one (row, query, key) at a time."""
    if len(spec.query_positions) == 1:  # there are no blocks to skip
        return boolean_mask(spec)
    real = spec.real_keys
    documents = spec.document_ids

    def visible(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        query_position = spec.query_positions[query]
        key_position = spec.key_positions[key]
        allowed = causal(query_position, key_position)
        if spec.sliding_window is not None:
            allowed = allowed & within_window(query_position, key_position, spec.sliding_window)
        if real is not None:
            allowed = allowed & not_padding(real[row, key])
        if documents is not None:
            allowed = allowed & same_document(documents[row, query], documents[row, key])
        return allowed

    rows = None if real is None and documents is None else spec.batch_size  # None: all rows alike
    queries = spec.query_positions
    keys = spec.key_positions
    device = queries.device
    return create_block_mask(visible, rows, None, len(queries), len(keys), device=device)


@cache
def flex_kernel_compiled() -> Any:
    """Compile FlexAttention into one fused kernel; uncompiled, it writes out every score."""
    config = torch._dynamo.config
    # It is compiled for each kind of mask, and for each length until PyTorch takes the length as a
    # variable. After eight times PyTorch would stop.
    config.recompile_limit = max(config.recompile_limit, 64)
    return torch.compile(flex_kernel)


# -------------------------------------------------------------------------------------------------
# blocked: causal attention as matrix products over blocks of queries, the fastest way to train on
# a CPU.
#
#   key    0 1 2 3 | 4 5 6 7   A block of queries multiplies the keys up to its own end, so almost
#   query  x . . .             half of the square is never computed. The query heads that share a
#          x x . .             key/value head are rows of one matrix: nothing is repeated, and a few
#          x x x .             large products replace many small ones. The weights are kept for the
#          x x x x             backward pass, T * T / 2 per head, so rows have at most LONGEST
#          ---------------     tokens. PyTorch's kernel, which keeps none, serves all else
#          x x x x | x . . .   (FINDINGS.md#backends).


def blocked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
    """Multiply in the dtype of training, with the softmax in float32."""
    length = q.shape[2]
    dtype = compute_dtype(v)
    pays = dtype == torch.bfloat16 or (dtype == torch.float32 and torch.is_grad_enabled())
    if not pays or dropout or not 1 < length <= LONGEST or k.shape[2] != length:
        return fused(q, k, v, mask, dropout)
    with torch.autocast(q.device.type, enabled=False):
        bias = None
        if mask is not None:
            bias = torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, HIDDEN)
        out = _Blocked.apply(q, k, v, bias, dtype)
        if mask is not None:  # a row that may attend to nothing gets zeros
            out = out * mask.any(dim=-1, keepdim=True)
    return out.to(v.dtype)


class _Blocked(torch.autograd.Function):
    """q (B, H, T, D), k and v (B, H_kv, T, D), bias (B or 1, 1, T, T) or None -> (B, H, T, D)."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Any, dtype: Any) -> Tensor:
        ctx.dtypes = [x.dtype for x in (q, k, v)]
        kv_heads = k.shape[1]
        groups = q.shape[1] // kv_heads
        q = q * q.shape[-1] ** -0.5  # before it is rounded
        rows = _as_rows(q.to(dtype), kv_heads)
        keys = _as_rows(k.to(dtype), kv_heads)
        values = _as_rows(v.to(dtype), kv_heads)
        weights = []
        outs = []
        for first in range(0, q.shape[2], BLOCK):
            end = min(first + BLOCK, q.shape[2])
            size = end - first
            scores = rows[:, first * groups : end * groups] @ keys[:, :end].mT
            # in place, the lowest score for what the block's queries may not see
            if bias is None:
                triangle = scores.new_full((size, size), HIDDEN).triu(1)
                scores.view(-1, size, groups, end)[..., first:] += triangle[:, None]
            else:
                per_head = scores.view(-1, kv_heads, size, groups, end)
                per_head.add_(bias[:, :, first:end, None, :end])
            weights.append(scores.softmax(dim=-1))
            outs.append(weights[-1] @ values[:, :end])
        ctx.save_for_backward(rows, keys, values, *weights)
        return _as_heads(torch.cat(outs, dim=1), (*q.shape[:3], v.shape[3]))

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        rows, keys, values, *weights = ctx.saved_tensors
        (grad,) = grad_outputs
        batch, heads, length, _ = grad.shape
        head_dim = keys.shape[2]
        kv_heads = keys.shape[0] // batch
        groups = heads // kv_heads
        grad = _as_rows(grad, kv_heads)
        row_grads = []
        key_grad = torch.zeros_like(keys)
        value_grad = torch.zeros_like(values)
        # out = w v, w = softmax(s), s = q kᵀ: so dv = wᵀ dout, dw = dout vᵀ, dq = ds k, dk = dsᵀ q
        for first, weight in zip(range(0, length, BLOCK), weights, strict=True):
            end = weight.shape[2]
            block = slice(first * groups, end * groups)
            weight_grad = grad[:, block] @ values[:, :end].mT
            score_grad = torch._softmax_backward_data(weight_grad, weight, -1, weight.dtype)
            value_grad[:, :end] += weight.mT @ grad[:, block]
            key_grad[:, :end] += score_grad.mT @ rows[:, block]
            row_grads.append(score_grad @ keys[:, :end])
        q_grad = _as_heads(torch.cat(row_grads, dim=1), (batch, heads, length, head_dim))
        q_grad = q_grad * head_dim**-0.5
        k_grad = key_grad.view(batch, kv_heads, length, -1)
        v_grad = value_grad.view(batch, kv_heads, length, -1)
        q_dtype, k_dtype, v_dtype = ctx.dtypes
        return q_grad.to(q_dtype), k_grad.to(k_dtype), v_grad.to(v_dtype), None, None


def _as_rows(x: Tensor, kv_heads: int) -> Tensor:
    """Put the heads of a group together at each token: -> (B * H_kv, T * groups, D)."""
    batch, heads, length, head_dim = x.shape
    x = x.view(batch, kv_heads, heads // kv_heads, length, head_dim)
    return x.transpose(2, 3).reshape(batch * kv_heads, -1, head_dim)


def _as_heads(rows: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Undo _as_rows. In memory it is (B, T, H, D), which the projections read best."""
    batch, heads, length, head_dim = shape
    groups = heads * batch // rows.shape[0]
    x = rows.view(batch, -1, length, groups, head_dim)  # (B, H_kv, T, groups, D)
    return x.transpose(1, 2).reshape(batch, length, heads, head_dim).transpose(1, 2)
