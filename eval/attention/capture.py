"""Take q and k out of every layer while the fast kernel runs, and recompute the weights that it hides.

A picture cannot lie: weights @ v must equal what the kernel returned, or the capture raises.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from model import LanguageModel
from model.attention import repeat_kv
from model.attention_backends import attention_weights
from model.masks import MaskSpec, boolean_mask

# largest |weights @ v - kernel output|, as a share of the largest |output|
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-4, torch.bfloat16: 3e-2, torch.float16: 5e-3}


@dataclass(frozen=True)
class AttentionMaps:
    """weights (layer, B, head, query, key) float32 on the CPU; rows sum to 1 over the keys.

    tokens (B, T): the input ids. labels: one string per layer and head kept, with their true numbers.
    layers, heads: those numbers. num_key_value_heads: of the model, for grouping.
    """

    weights: Tensor
    tokens: Tensor
    labels: list[list[str]]
    layers: list[int]
    heads: list[int]
    num_attention_heads: int
    num_key_value_heads: int


@torch.no_grad()
def capture(
    lm: LanguageModel,
    input_ids: Tensor,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    attention_mask: Tensor | None = None,
    document_ids: Tensor | None = None,
) -> AttentionMaps:
    """Run input_ids (B, T) through the model once and return every head's attention weights.

    layers, heads: which ones to keep; default all. Leaves mode, gradients and random state as they were.
    Raises ValueError for a layer or head that does not exist, and RuntimeError, naming the layer, if the
    recomputed weights do not give what the kernel gave.
    """
    layer_numbers = _chosen("layer", layers, lm.config.num_hidden_layers)
    head_numbers = _chosen("head", heads, lm.config.num_attention_heads)
    kept: dict[int, Tensor] = {}

    places = torch.arange(input_ids.shape[1], device=input_ids.device)

    def record(layer: int, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> None:
        window = lm.config.windows[layer]  # the mask is built here anew, whatever form the backend's has
        mask = boolean_mask(MaskSpec(places, places, len(input_ids), attention_mask, document_ids, window))
        weights = attention_weights(q.float(), k.float(), mask)  # (B, H, T, S), in float32
        _check(layer, weights, v, out)
        kept[layer] = weights[:, head_numbers].cpu()

    modules = [lm.attention_modules()[i] for i in layer_numbers]
    was_training = lm.training
    lm.eval()
    try:
        for module in modules:
            module.recorder = record
        lm(input_ids, attention_mask=attention_mask, document_ids=document_ids)
    finally:
        for module in modules:
            module.recorder = None
        lm.train(was_training)
    groups = lm.config.num_key_value_groups
    labels = [[f"L{layer} H{head} (KV {head // groups})" for head in head_numbers] for layer in layer_numbers]
    return AttentionMaps(
        torch.stack([kept[layer] for layer in layer_numbers]),
        input_ids.cpu(),
        labels,
        layer_numbers,
        head_numbers,
        lm.config.num_attention_heads,
        lm.config.kv_heads,
    )


def _check(layer: int, weights: Tensor, v: Tensor, out: Tensor) -> None:
    expected = weights @ repeat_kv(v.float(), weights.shape[1] // v.shape[1])
    error = (expected - out.float()).abs().max().item()
    allowed = TOLERANCE[out.dtype] * max(out.abs().max().item(), 1e-6)
    if not error <= allowed:
        raise RuntimeError(
            f"layer {layer}: the recomputed attention weights do not give the kernel's output (largest difference "
            f"{error:.2e}, allowed {allowed:.2e}): mask, scale, RoPE or the order of key/value heads differ"
        )


def _chosen(what: str, wanted: Sequence[int] | None, count: int) -> list[int]:
    if wanted is None:
        return list(range(count))
    for number in wanted:
        if not 0 <= number < count:
            raise ValueError(f"{what} {number} does not exist: this model has {what}s 0 to {count - 1}")
    return list(wanted)
