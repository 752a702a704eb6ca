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


def active_parameters(config: ModelConfig) -> int:
    """Numbers that a token meets: of a mixture of experts, only those of the experts that it is sent to."""
    return on_meta(config).num_active_parameters()


def flops_per_token(config: ModelConfig, sequence_length: int, *, training: bool = True) -> float:
    """Floating-point operations that a token costs in a model of this shape (LanguageModel.flops_per_token)."""
    return on_meta(config).flops_per_token(sequence_length, training=training)
