"""How large is a model, and how much does a token cost? Counted on modules that are built without memory."""

from __future__ import annotations

import torch
from torch import nn

from model.config import ModelConfig
from model.transformer import LanguageModel, labelled

PARTS = ("embedding", "attention", "feed_forward", "norm", "head")


def on_meta(config: ModelConfig) -> LanguageModel:
    """The model with shapes and no numbers: no memory, no random number drawn. Raises ValueError without vocab_size."""
    with torch.device("meta"):
        return LanguageModel(config)


def parameter_counts(config: ModelConfig) -> dict[str, int]:
    """Numbers in each of PARTS, as the modules say, and their `total`. A tied matrix counts once, as embedding."""
    part_of: dict[nn.Parameter, str] = {}
    for parameter, part in labelled(on_meta(config), "part", "other"):
        part_of.setdefault(parameter, part)
    counts = dict.fromkeys(PARTS, 0)
    for parameter, part in part_of.items():
        counts[part] = counts.get(part, 0) + parameter.numel()
    return counts | {"total": sum(counts.values())}


def flops_per_token(config: ModelConfig, sequence_length: int, *, training: bool = True) -> float:
    """Floating-point operations a token costs, in rows of `sequence_length` tokens.

    forward = 2 * (matrix parameters, head included, embedding not: it is looked up)
              + 4 * H * D * (keys that a token sees), summed over the layers
    training = 3 * forward: the backward pass multiplies twice what the forward pass multiplies once.

    Kaplan et al. 2020 (arXiv 2001.08361), table 1; Chowdhery et al. 2022, PaLM (2204.02311), appendix B. Both count
    every key of the row. Here a token sees itself and what came before: (T + 1) / 2 keys on average, fewer in a
    window. Not counted: document boundaries, norms, softmax, RoPE and the optimizer.
    """
    forward = _forward_flops(on_meta(config), sequence_length)
    return 3 * forward if training else forward


def _forward_flops(module: nn.Module, sequence_length: int) -> float:
    """What the module itself says, if it has `flops_per_token`; a linear layer's product; else the sum of its parts."""
    own = getattr(module, "flops_per_token", None)
    if own is not None:
        return own(sequence_length)
    if isinstance(module, nn.Linear):
        return 2 * module.weight.numel()
    return sum(_forward_flops(child, sequence_length) for child in module.children())
