"""Attention weights of every head, also where the kernel returns none.

The fast kernels never store their weights. So `capture` keeps q and k, computes the weights
again, and checks that weights @ v is what the kernel returned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from eval.language_modeling import evaluating
from model import LanguageModel, ModelConfig
from model.attention import attention_scores, normalise, repeat_kv
from model.kv_cache import KVCache
from model.masks import MaskSpec, boolean_mask, specs_of_layers

# The largest allowed |weights @ v - kernel output|, as a share of the largest |output|.
TOLERANCE = {
    torch.float32: 1e-4,
    torch.float64: 1e-4,
    torch.bfloat16: 3e-2,
    torch.float16: 5e-3,
}
# With train.precision: tf32, kernels round float32 to 10 bits. Not run yet.
TF32_TOLERANCE = 5e-3
# The backend `blocked` keeps scores in bfloat16, so the error of a weight grows with its score.
SCORE_ROUNDING = 2**-9
CHUNK = 2**22  # Scores are computed in chunks of 16 MB.


@dataclass(frozen=True)
class AttentionMaps:
    """Attention weights of some layers and heads."""

    # (layer, B, head, query, key) float32 on the CPU. A row sums to 1, or 0 for padding.
    # With a cache there are more keys than queries.
    weights: Tensor
    # Numbers in the model of the captured layers and heads.
    layers: list[int]
    heads: list[int]
    # As in ModelConfig.
    num_attention_heads: int
    num_key_value_heads: int
    # (layer, B, head), the largest q · k / sqrt(D) of a visible key.
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

    layers, heads: the ones to capture; default all with attention weights
    kv_cache:      tokens that were read before; it grows by T
    attention_mask, document_ids: as for LanguageModel

    Mode, gradients and random state do not change. Raises ValueError for a layer or head that
    does not exist, for a layer without weights (linear_attention), and RuntimeError if the weights
    do not reproduce the kernel's output.
    """
    # The recorder needs the plain model, not the ones around it.
    lm = getattr(lm, "module", lm)  # inside DDP
    lm = getattr(lm, "_orig_mod", lm)  # inside torch.compile
    if not isinstance(lm, LanguageModel):
        raise TypeError(f"capture reads a LanguageModel, not a {type(lm).__name__}")
    config = lm.config
    if any(config.is_linear):
        with_weights = layers_with_weights(config)
        layers = with_weights if layers is None else layers
        if not layers or not set(layers) <= set(with_weights):
            raise ValueError(without_weights(config))
    layer_numbers = _check("layer", layers, config.num_hidden_layers)
    head_numbers = _check("head", heads, config.num_attention_heads)
    # Backends have masks of their own form; here each layer's mask is built as a tensor.
    specs = specs_of_layers(config, input_ids, attention_mask, document_ids, kv_cache)
    length = 0 if kv_cache is None else kv_cache.length
    modules: list[Any] = [lm.attention_modules()[layer] for layer in layer_numbers]
    clamps = {layer: getattr(lm.attention_modules()[layer], "clamp", None) for layer in specs}
    recorder = _Recorder(head_numbers, specs, length + input_ids.shape[1], clamps)
    try:
        for module in modules:
            module.recorder = recorder
        with evaluating(lm):
            # Only the attention is of interest, so the head computes one position.
            lm(input_ids, attention_mask, document_ids, kv_cache=kv_cache, logits_to_keep=1)
    finally:
        for module in modules:
            module.recorder = None
    if recorder.problem:
        raise recorder.problem
    return AttentionMaps(
        torch.stack([recorder.weights[layer] for layer in layer_numbers]),
        layer_numbers,
        head_numbers,
        config.num_attention_heads,
        config.kv_heads,
        torch.stack([recorder.max_logits[layer] for layer in layer_numbers]),
        config.attention,
    )


def layers_with_weights(config: ModelConfig) -> list[int]:
    """Return the layers that have attention weights: all but those of linear_attention."""
    return [layer for layer, is_linear in enumerate(config.is_linear) if not is_linear]


def without_weights(config: ModelConfig) -> str:
    """Return the sentence that names the layers without attention weights."""
    numbers = [str(layer) for layer, is_linear in enumerate(config.is_linear) if is_linear]
    return f"linear_attention has no attention weights (layers {', '.join(numbers)} of this model)"


def _check(name: str, numbers: Sequence[int] | None, count: int) -> list[int]:
    numbers = list(range(count)) if numbers is None else list(numbers)
    if not numbers or not set(numbers) <= set(range(count)):
        raise ValueError(
            f"{name}s {numbers}: at least one does not exist: there are {name}s 0 to {count - 1}"
        )
    return numbers


@dataclass
class _Recorder:
    """Recompute a layer's weights in the forward pass, and keep those of some heads."""

    heads: list[int]
    specs: dict[int, MaskSpec]
    key_count: int
    # layer -> ClampedHeads of eval/attention/clamp.py, or None
    clamps: dict[int, Any]
    weights: dict[int, Tensor] = field(default_factory=dict)
    max_logits: dict[int, Tensor] = field(default_factory=dict)
    # Raised after the pass: within it, under FSDP2 the other processes would wait forever.
    problem: Exception | None = None

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> None:
        precision = torch.get_float32_matmul_precision()
        is_tf32 = precision != "highest" and out.is_cuda and out.dtype == torch.float32
        tolerance = TF32_TOLERANCE if is_tf32 else TOLERANCE[out.dtype]
        # tf32 and autocast would round
        torch.set_float32_matmul_precision("highest")
        try:
            with torch.autocast(q.device.type, enabled=False):
                self.keep(layer, q.float(), k.float(), v.float(), out, tolerance)
        finally:
            torch.set_float32_matmul_precision(precision)

    def keep(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, out: Tensor, tolerance: float
    ) -> None:
        mask = boolean_mask(self.specs[layer])  # (B or 1, 1, T, S)
        assert mask is not None
        B, H, T, _ = q.shape
        groups = H // k.shape[1]
        q = q[:, self.heads]  # (B, heads, T, D)
        k = repeat_kv(k, groups)[:, self.heads]  # (B, heads, S, D)
        v = repeat_kv(v, groups)[:, self.heads]
        weights = torch.zeros(B, len(self.heads), T, self.key_count)
        max_logits = torch.empty(B, len(self.heads))
        columns = self.specs[layer].key_positions.cpu()  # (S,)
        # A static cache has room for later tokens, and a sliding window drops the first keys.
        present = columns < self.key_count
        first = int(columns[0])
        last = int(columns[present][-1]) + 1
        rows = max(1, CHUNK // (len(self.heads) * T * k.shape[2]))
        for start in range(0, B, rows):
            chunk = slice(start, start + rows)
            allowed = mask.expand(B, -1, -1, -1)[chunk]
            values = v[chunk]
            scores = attention_scores(q[chunk], k[chunk], allowed)  # (rows, heads, T, S)
            recomputed = normalise(scores, allowed)  # float32
            for head, held in getattr(self.clamps[layer], "weights", {}).items():
                if head in self.heads:
                    recomputed[:, self.heads.index(head)] = held.expand(B, -1, -1)[chunk]
            expected = recomputed @ values  # (rows, heads, T, D)
            returned = out[chunk][:, self.heads].float()
            # 1e-6: where all outputs are 0, rounding would exceed any share of them
            limit = tolerance * max(returned.abs().max().item(), 1e-6)
            if out.dtype == torch.bfloat16:
                # a rounded large score gives another weight
                largest_score = scores.masked_fill(~allowed, 0).abs().max()
                limit += SCORE_ROUNDING * (largest_score * values.abs().max()).item()
            error = (expected - returned).abs().max().item()
            # NaN fails this comparison. The first wrong layer is the one to report.
            if not (error <= limit or self.problem):
                self.problem = RuntimeError(
                    f"layer {layer}: the recomputed attention weights do not give the kernel's "
                    f"output (difference {error:.2e}, allowed {limit:.2e}): mask, scale, RoPE or "
                    f"the order of key/value heads differ"
                )
                # With such q, k or v the comparison proves nothing.
                if not expected.isfinite().all():
                    self.problem = ValueError(
                        "activations are non-finite: weights are damaged, or training diverged"
                    )
            # to the CPU at once: all layers together may not fit on the GPU
            weights[chunk, :, :, first:last] = recomputed[..., present.to(recomputed.device)].cpu()
            max_logits[chunk] = scores.amax((2, 3)).cpu()
        self.weights[layer] = weights
        self.max_logits[layer] = max_logits
