"""Parameters and floating-point operations of a model, counted."""

from torch import nn

from model.transformer import LanguageModel


def num_active_parameters(lm: LanguageModel) -> int:
    """Count the parameters that a token uses: of the experts, only those that it is sent to."""
    share = lm.config.num_experts_per_tok / (lm.config.num_experts or 1)
    return round(lm.num_parameters() - (1 - share) * lm.num_parameters(".experts."))


def flops_per_token(lm: LanguageModel, sequence_length: int, *, training: bool = True) -> float:
    """Return the floating-point operations of a token, in rows of `sequence_length` tokens.

    Kaplan et al. 2020 (arXiv 2001.08361), table 1, without keys that causality or a window hides.
    Not counted: document boundaries, norms, softmax, RoPE, adapters and the optimizer.
    """
    config = lm.config
    # all matrices with the head; the embedding is a table, where nothing is multiplied
    matrices = 0.0
    for module in lm.modules():
        if isinstance(module, nn.Linear) and getattr(module, "optimizer_group", "") != "adapter":
            matrices += module.weight.numel()
    experts = lm.num_parameters(".experts.")
    matrices += experts * config.num_experts_per_tok / (config.num_experts or 1)
    # average number of keys for a token: i for token i = 1 … T, at most the window
    keys = 0.0
    memories = 0  # numbers of a head in layers of linear attention
    D = config.head_size
    for window, is_linear in zip(config.windows, config.is_linear, strict=True):
        if is_linear:  # for each number: return, correct, read
            memories += (config.linear_key_head_dim or D) * (config.linear_value_head_dim or D)
            continue
        seen = min(window or sequence_length, sequence_length)
        keys += (seen * (seen + 1) / 2 + (sequence_length - seen) * seen) / sequence_length
    heads = config.num_attention_heads
    # 2 for a multiplication and an addition; q · k and weights @ v cost as many for each key
    forward = 2 * matrices + 2 * heads * ((D + config.value_size) * keys + 3 * memories)
    if not training:
        return forward
    # backward costs one forward for the gradients of the inputs, and one for those of the weights,
    # which are frozen under adapters
    return forward * (3 if lm.adapters is None else 2)
