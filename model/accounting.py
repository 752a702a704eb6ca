"""Parameters and floating-point operations of a model, counted."""

from __future__ import annotations

from torch import nn

from model.transformer import LanguageModel


def num_active_parameters(lm: LanguageModel) -> int:
    """Return how many parameters a token uses: of the experts, only those of the ones it is sent to."""
    share = lm.config.num_experts_per_tok / (lm.config.num_experts or 1)
    return round(lm.num_parameters() - (1 - share) * lm.num_parameters(".experts."))


def flops_per_token(lm: LanguageModel, sequence_length: int, *, training: bool = True) -> float:
    """Return the floating-point operations that a token costs, in rows of `sequence_length` tokens.

    forward = 2 * (matrix parameters, head included, embedding not: it is looked up)
              + 4 * H * D * (keys that a token sees), summed over the layers: q · k, and weights @ v
    training = 3 * forward: the backward pass multiplies twice what the forward pass multiplies once; with adapters
    (model/variants/lora.py) 2 * forward, because frozen matrices have no gradient.

    Kaplan et al. 2020 (arXiv 2001.08361), table 1, but only keys that are seen count: a token's own and those before.
    Not counted: document boundaries, norms, softmax, RoPE, adapters and the optimizer.
    """
    config = lm.config
    matrices = 0.0
    for module in lm.modules():
        if isinstance(module, nn.Linear) and getattr(module, "optimizer_group", "") != "adapter":
            matrices += module.weight.numel()
    matrices += lm.num_parameters(".experts.") * config.num_experts_per_tok / (config.num_experts or 1)
    keys = 0.0  # that a token sees on average: i of them at place i = 1 … T, at most the window
    for window in config.windows:
        seen = min(window or sequence_length, sequence_length)
        keys += (seen * (seen + 1) / 2 + (sequence_length - seen) * seen) / sequence_length
    forward = 2 * matrices + 2 * config.num_attention_heads * (config.head_size + config.value_size) * keys
    passes = 3 if lm.adapters is None else 2
    return forward * (passes if training else 1)
