"""Which weights did the fast kernel use? It returns none, so q and k are kept and the weights computed again.

A picture cannot lie: weights @ v must equal what the kernel returned, or the capture raises.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from eval.attention.diagnosis import likely_cause
from eval.language_modeling import evaluating
from model import LanguageModel
from model.attention import attention_scores, normalise, repeat_kv
from model.kv_cache import KVCache
from model.masks import MaskSpec, boolean_mask

# largest |weights @ v - kernel output|, as a share of the largest |output|
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-4, torch.bfloat16: 3e-2, torch.float16: 5e-3}
TF32_TOLERANCE = 5e-3  # of float32 on a GPU whose kernels may round to 10 bits (train.precision: tf32); not run yet
SCORE_ROUNDING = 2**-9  # of a score that is kept in bfloat16, as `blocked` does: its weight is wrong by score * this
CHUNK = 2**22  # scores that are computed at a time: 16 MB


@dataclass(frozen=True)
class AttentionMaps:
    """weights (layer, B, head, query, key) float32 on the CPU; rows sum to 1 over the keys (0 for padding).

    tokens (B, T): the input ids. labels: one string per layer and head kept, with their true numbers.
    layers, heads: those numbers. num_attention_heads, num_key_value_heads: of the model, for grouping.
    attention: heads, or mla, as in ModelConfig.
    max_logits (layer, B, head): the largest q · k / sqrt(D) among the keys that may be seen.
    left_out: which of the given rows and tokens are not included, in words, or "".
    With a cache, keys are all tokens so far, and queries the last ones: T queries, S keys.
    """

    weights: Tensor
    tokens: Tensor
    labels: list[list[str]]
    layers: list[int]
    heads: list[int]
    num_attention_heads: int
    num_key_value_heads: int
    max_logits: Tensor
    left_out: str = ""
    attention: str = "heads"


@dataclass
class _Recorder:
    """Hangs in the layers during one forward pass. It never raises there: under FSDP2 the other processes would
    wait forever for this one."""

    heads: list[int]
    specs: dict[int, MaskSpec]
    key_count: int
    cos_sin: tuple[Tensor, Tensor]
    weights: dict[int, Tensor] = field(default_factory=dict)
    max_logits: dict[int, Tensor] = field(default_factory=dict)
    problem: str = ""
    is_finite: bool = True

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> None:
        precision = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")  # tf32, like autocast, would round the products that follow
        try:
            with torch.autocast(q.device.type, enabled=False):
                self.keep(layer, q.float(), k.float(), v.float(), out.detach(), precision != "highest")
        finally:
            torch.set_float32_matmul_precision(precision)

    def keep(self, layer: int, q: Tensor, k: Tensor, v: Tensor, out: Tensor, rounded: bool) -> None:
        """Recompute this layer's weights and keep those of the chosen heads. rounded: the kernel may have used tf32."""
        mask = boolean_mask(self.specs[layer])
        assert mask is not None
        groups = q.shape[1] // k.shape[1]
        (B, _, T, _), chosen = q.shape, [q[:, self.heads], *(repeat_kv(x, groups)[:, self.heads] for x in (k, v))]
        weights, largest = torch.zeros(B, len(self.heads), T, self.key_count), torch.empty(B, len(self.heads))
        columns = self.specs[layer].key_positions.cpu()
        here = columns < self.key_count  # a static cache has room for tokens that are still to come
        first, last = int(columns[0]), int(columns[here][-1]) + 1  # a sliding window may have forgotten the first ones
        rows = max(1, CHUNK // (len(self.heads) * T * k.shape[2]))
        for start in range(0, B, rows):
            some = slice(start, start + rows)
            q_some, k_some, v_some = (x[some] for x in chosen)
            allowed = mask.expand(B, -1, -1, -1)[some]
            scores = attention_scores(q_some, k_some, allowed)
            found = normalise(scores, allowed)  # (rows, heads, T, S), in float32
            kept = scores.masked_fill(~allowed, 0) if out.dtype == torch.bfloat16 else None
            steepest = 0.0 if kept is None else (kept.abs().max() * v_some.abs().max()).item()
            self.check(layer, found @ v_some, out[some][:, self.heads], (q, k, v, out, mask), rounded, steepest)
            weights[some, :, :, first:last] = found[..., here.to(found.device)].cpu()
            largest[some] = scores.amax((2, 3)).cpu()
        self.weights[layer], self.max_logits[layer] = weights, largest

    def check(self, layer: int, expected: Tensor, out: Tensor, everything: Any, rounded: bool, steepest: float) -> None:
        """Note the first layer whose weights @ v (expected) is not what the kernel gave (out), and why it may be so.

        steepest: in bfloat16, where a large score is rounded to what may be another weight, the largest score times
        the largest value; else 0.
        """
        if self.problem:
            return
        error = (expected - out.float()).abs().max().item()
        tolerance = TF32_TOLERANCE if rounded and out.is_cuda and out.dtype == torch.float32 else TOLERANCE[out.dtype]
        allowed = tolerance * max(out.abs().max().item(), 1e-6) + SCORE_ROUNDING * steepest
        if not error <= allowed:
            self.is_finite = bool(expected.isfinite().all())
            q, k, v, whole, mask = everything
            cause = likely_cause(q, k, v, whole.float(), mask, *self.cos_sin, allowed)
            self.problem = (
                f"layer {layer}: the recomputed attention weights do not give the kernel's output (largest difference "
                f"{error:.2e}, allowed {allowed:.2e}): {cause}"
            )


@torch.no_grad()
def capture(
    lm: nn.Module,
    input_ids: Tensor,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    attention_mask: Tensor | None = None,
    document_ids: Tensor | None = None,
    kv_cache: KVCache | None = None,
    rows: Sequence[int] | None = None,
    max_tokens: int | None = None,
) -> AttentionMaps:
    """Run input_ids (B, T) through the model once and return every head's attention weights.

    lm: a LanguageModel, also compiled or inside DDP (then the plain model within runs). layers, heads, rows: which
    ones to keep; default all. max_tokens: how many tokens of each row are read at most. kv_cache: tokens that were
    read before; it grows by T. attention_mask, document_ids: as for LanguageModel.
    Leaves mode, gradients and random state as they were.
    Raises ValueError for a layer, head or row that does not exist, and RuntimeError, naming layer and likely cause,
    if the recomputed weights do not give what the kernel gave.
    """
    lm = plain(lm)
    input_ids, attention_mask, document_ids, left_out = _bounded(
        input_ids, attention_mask, document_ids, rows, max_tokens, kv_cache
    )
    layer_numbers = _chosen("layer", layers, lm.config.num_hidden_layers)
    head_numbers = _chosen("head", heads, lm.config.num_attention_heads)
    recorder = _recorder(lm, input_ids, attention_mask, document_ids, kv_cache, head_numbers)
    modules = [lm.attention_modules()[i] for i in layer_numbers]
    try:
        for module in modules:
            module.recorder = recorder
        with evaluating(lm):
            lm(input_ids, attention_mask, document_ids, kv_cache=kv_cache, logits_to_keep=1)
    finally:
        for module in modules:
            module.recorder = None
    if not recorder.is_finite:  # q, k or v, whatever the kernel made of them
        raise ValueError("the model's activations are non-finite: its weights are damaged, or its training diverged")
    if recorder.problem:
        raise RuntimeError(recorder.problem)
    groups = lm.config.num_key_value_groups
    reads = {head: "latent" if lm.config.attention == "mla" else f"KV {head // groups}" for head in head_numbers}
    labels = [[f"L{layer} H{head} ({reads[head]})" for head in head_numbers] for layer in layer_numbers]
    return AttentionMaps(
        torch.stack([recorder.weights[layer] for layer in layer_numbers]),
        input_ids.cpu(),
        labels,
        layer_numbers,
        head_numbers,
        lm.config.num_attention_heads,
        lm.config.kv_heads,
        torch.stack([recorder.max_logits[layer] for layer in layer_numbers]),
        left_out,
        lm.config.attention,
    )


def plain(lm: nn.Module) -> LanguageModel:
    """The LanguageModel inside what torch.compile or DDP made of it."""
    lm = getattr(lm, "module", lm)
    lm = getattr(lm, "_orig_mod", lm)
    if not isinstance(lm, LanguageModel):
        raise TypeError(f"capture reads a LanguageModel, not a {type(lm).__name__}")
    return lm


def _bounded(
    input_ids: Tensor,
    attention_mask: Tensor | None,
    document_ids: Tensor | None,
    rows: Sequence[int] | None,
    max_tokens: int | None,
    kv_cache: KVCache | None,
) -> tuple[Tensor, Tensor | None, Tensor | None, str]:
    """The asked rows and tokens of everything that is given, and what is left out, in words."""
    B, T = input_ids.shape
    row_numbers = _chosen("row", rows, B)
    if kv_cache is not None and (rows is not None or max_tokens is not None):
        raise ValueError("a kv_cache has its rows and tokens already: give neither rows nor max_tokens")
    if max_tokens is not None and max_tokens < 1:
        raise ValueError(f"max_tokens ({max_tokens}) must be 1 or more")
    kept = T if max_tokens is None else min(T, max_tokens)
    left_out = [f"tokens {kept} to {T - 1} of {T}"] if kept < T else []
    left_out += [f"{B - len(row_numbers)} of {B} rows"] if len(row_numbers) < B else []
    if not left_out and rows is None:
        return input_ids, attention_mask, document_ids, ""
    cut = [x[row_numbers, :kept] if x is not None else None for x in (input_ids, attention_mask, document_ids)]
    assert cut[0] is not None
    return cut[0], cut[1], cut[2], ", ".join(left_out)


def _recorder(
    lm: LanguageModel,
    input_ids: Tensor,
    attention_mask: Tensor | None,
    document_ids: Tensor | None,
    kv_cache: KVCache | None,
    heads: list[int],
) -> _Recorder:
    """The masks are built again here, written out, whatever form the backend uses."""
    (B, T), device = input_ids.shape, input_ids.device
    cache = kv_cache if kv_cache is not None else KVCache()
    positions, past = cache.positions(T, device), cache.length
    spec = MaskSpec(positions, positions, B, attention_mask, document_ids)
    by_window = spec.of_layers(lm.config.windows, cache)
    specs = {i: replace(by_window[window], all_visible=False) for i, window in enumerate(lm.config.windows)}
    cos_sin = lm.model.rotary_emb(positions[None], torch.float32)
    return _Recorder(heads, specs, past + T, cos_sin)


def _chosen(what: str, wanted: Sequence[int] | None, count: int) -> list[int]:
    if wanted is None:
        return list(range(count))
    if not wanted:
        raise ValueError(f"no {what} is asked for: give one of 0 to {count - 1}, or None for all")
    for number in wanted:
        if not 0 <= number < count:
            raise ValueError(f"{what} {number} does not exist: there are {what}s 0 to {count - 1}")
    return list(wanted)
