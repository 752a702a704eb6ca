"""Which weights did the fast kernel use? It returns none, so q and k are kept and the weights computed again.

A picture cannot lie: weights @ v must equal what the kernel returned, or the capture raises.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

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

    layers, heads: the true numbers of what is kept. num_attention_heads, num_key_value_heads: of the model. attention:
    heads, or mla, as in ModelConfig.
    max_logits (layer, B, head): the largest q · k / sqrt(D) among the keys that may be seen.
    With a cache, keys are all tokens so far, and queries the last ones: T queries, S keys.
    """

    weights: Tensor
    layers: list[int]
    heads: list[int]
    num_attention_heads: int
    num_key_value_heads: int
    max_logits: Tensor
    attention: str = "heads"


@torch.no_grad()
def capture(
    lm: nn.Module,
    input_ids: Tensor,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    attention_mask: Tensor | None = None,
    document_ids: Tensor | None = None,
    kv_cache: KVCache | None = None,
) -> AttentionMaps:
    """Run input_ids (B, T) through the model once and return every head's attention weights.

    lm: a LanguageModel, also compiled or inside DDP (then the plain model within runs). layers, heads: which ones to
    keep; default all. kv_cache: tokens that were read before; it grows by T. attention_mask, document_ids: as for
    LanguageModel. Leaves mode, gradients and random state as they were.
    Raises ValueError for a layer or head that does not exist, and RuntimeError, naming the layer, if the recomputed
    weights do not give what the kernel gave.
    """
    lm = getattr(lm, "module", lm)  # inside DDP
    lm = getattr(lm, "_orig_mod", lm)  # inside torch.compile
    if not isinstance(lm, LanguageModel):
        raise TypeError(f"capture reads a LanguageModel, not a {type(lm).__name__}")
    config = lm.config
    layer_numbers = _chosen("layer", layers, config.num_hidden_layers)
    head_numbers = _chosen("head", heads, config.num_attention_heads)
    # the masks are built again here, written out, whatever form the backend uses
    (B, T), cache = input_ids.shape, kv_cache if kv_cache is not None else KVCache()
    positions = cache.positions(T, input_ids.device)
    by_window = MaskSpec(positions, positions, B, attention_mask, document_ids).of_layers(config.windows, cache)
    specs = {i: replace(by_window[window], all_visible=False) for i, window in enumerate(config.windows)}
    recorder = _Recorder(head_numbers, specs, cache.length + T)
    modules = [lm.attention_modules()[i] for i in layer_numbers]
    try:
        for module in modules:
            module.recorder = recorder
        with evaluating(lm):
            lm(input_ids, attention_mask, document_ids, kv_cache=kv_cache, logits_to_keep=1)
    finally:
        for module in modules:
            module.recorder = None
    if recorder.problem:
        raise recorder.problem
    weights, max_logits = (torch.stack([x[i] for i in layer_numbers]) for x in (recorder.weights, recorder.max_logits))
    shape = config.num_attention_heads, config.kv_heads, max_logits, config.attention
    return AttentionMaps(weights, layer_numbers, head_numbers, *shape)


def _chosen(what: str, numbers: Sequence[int] | None, count: int) -> list[int]:
    numbers = list(range(count)) if numbers is None else list(numbers)
    if not numbers or not set(numbers) <= set(range(count)):
        raise ValueError(f"{what}s {numbers}: at least one of them does not exist: there are {what}s 0 to {count - 1}")
    return numbers


@dataclass
class _Recorder:
    """Hangs in the layers during one forward pass: recomputes a layer's weights, and keeps those of some heads.

    It never raises there: under FSDP2 the other processes would wait forever for this one.
    """

    heads: list[int]
    specs: dict[int, MaskSpec]
    key_count: int
    weights: dict[int, Tensor] = field(default_factory=dict)
    max_logits: dict[int, Tensor] = field(default_factory=dict)
    problem: Exception | None = None

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> None:
        precision = torch.get_float32_matmul_precision()
        is_tf32 = precision != "highest" and out.is_cuda and out.dtype == torch.float32
        tolerance = TF32_TOLERANCE if is_tf32 else TOLERANCE[out.dtype]
        torch.set_float32_matmul_precision("highest")  # tf32, like autocast, would round the products that follow
        try:
            with torch.autocast(q.device.type, enabled=False):
                self.keep(layer, q.float(), k.float(), v.float(), out, tolerance)
        finally:
            torch.set_float32_matmul_precision(precision)

    def keep(self, layer: int, q: Tensor, k: Tensor, v: Tensor, out: Tensor, tolerance: float) -> None:
        mask = boolean_mask(self.specs[layer])
        assert mask is not None
        groups, (B, _, T, _) = q.shape[1] // k.shape[1], q.shape
        q_heads, k_heads, v_heads = (x[:, self.heads] for x in (q, repeat_kv(k, groups), repeat_kv(v, groups)))
        weights, largest = torch.zeros(B, len(self.heads), T, self.key_count), torch.empty(B, len(self.heads))
        columns = self.specs[layer].key_positions.cpu()
        present = columns < self.key_count  # a static cache has room for tokens that are still to come
        first, last = int(columns[0]), int(columns[present][-1]) + 1  # a sliding window may have forgotten the first
        rows = max(1, CHUNK // (len(self.heads) * T * k.shape[2]))
        for start in range(0, B, rows):
            some = slice(start, start + rows)
            allowed, values = mask.expand(B, -1, -1, -1)[some], v_heads[some]
            scores = attention_scores(q_heads[some], k_heads[some], allowed)
            recomputed = normalise(scores, allowed)  # (rows, heads, T, S), in float32
            expected, returned = recomputed @ values, out[some][:, self.heads].float()
            limit = tolerance * max(returned.abs().max().item(), 1e-6)
            if out.dtype == torch.bfloat16:  # a large score is rounded to what may be another weight
                limit += SCORE_ROUNDING * (scores.masked_fill(~allowed, 0).abs().max() * values.abs().max()).item()
            error = (expected - returned).abs().max().item()
            if not (error <= limit or self.problem):  # of several layers, the first is named
                self.problem = RuntimeError(
                    f"layer {layer}: the recomputed attention weights do not give the kernel's output (difference "
                    f"{error:.2e}, allowed {limit:.2e}): mask, scale, RoPE or the order of key/value heads differ"
                )
                if not expected.isfinite().all():  # q, k or v, whatever the kernel made of them
                    self.problem = ValueError("activations are non-finite: weights are damaged, or training diverged")
            weights[some, :, :, first:last] = recomputed[..., present.to(recomputed.device)].cpu()
            largest[some] = scores.amax((2, 3)).cpu()
        self.weights[layer], self.max_logits[layer] = weights, largest
