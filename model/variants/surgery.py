"""Changes to a model that is trained already: more tokens, other positions, fewer or more key/value heads."""

from __future__ import annotations

import torch

from model.config import ModelConfig
from model.transformer import LanguageModel


def convert_kv_heads(lm: LanguageModel, num_key_value_heads: int) -> LanguageModel:
    """Return a new model with another number of key/value heads; the one given stays as it is.

    Fewer heads: the heads that will share a key/value become one, whose `k_proj` and `v_proj` rows
    are their mean (Ainslie et al. 2023, arXiv 2305.13245, section 2.1). Training must continue from
    there: the paper spends another 5 % of the steps. More heads: each head's rows are repeated, which
    computes the same.

        4 -> 2   k0, k1 -> (k0 + k1) / 2          2 -> 4   k0 -> k0, k0
                 k2, k3 -> (k2 + k3) / 2                   k1 -> k1, k1

    Without QK-norm a key is linear in x, so the pooled head's score is the mean of the scores that the
    query had with each head of the group. With QK-norm, the mean is taken before the norm, which brings
    it back to full length; but a head with longer raw keys outweighs the others. With qk_norm: whole,
    `k_norm.weight` has a gain for every head, which is pooled in the same way.

    Device, dtype, attention backend and training mode are those of `lm`; no random number is drawn. Raises ValueError
    unless every query head keeps one key/value head, made of whole old ones.
    """
    old, wanted = lm.config, num_key_value_heads
    heads, present = old.num_attention_heads, old.kv_heads
    allowed = [n for n in range(1, heads + 1) if heads % n == 0 and (present % n == 0 or n % present == 0)]
    if old.attention == "mla" or (old.loadable_elsewhere and old.position_embedding == "learned"):  # gpt2
        allowed = [present]  # every query head has a key and a value of its own there
    if wanted not in allowed:
        use = ", ".join(map(str, allowed))
        raise ValueError(f"num_key_value_heads ({wanted}) does not fit {heads} query heads, {present} keys: use {use}")
    tensors = lm.state_dict()
    parts: tuple[str, ...] = ("k_proj.weight", "k_proj.bias", "v_proj.weight", "v_proj.bias")
    parts += ("k_norm.weight",) if old.qk_norm == "whole" else ()
    for name in [name for name in tensors if name.endswith(parts)]:
        by_head = tensors[name].unflatten(0, (present, -1))  # (present, D, …): rows, or numbers of a bias
        if wanted > present:  # query head h reads key head h // groups: copies lie side by side, 0 0 1 1, not 0 1 0 1
            by_head = by_head.repeat_interleave(wanted // present, dim=0)
        else:
            by_head = by_head.unflatten(0, (wanted, -1)).mean(dim=1)
        tensors[name] = by_head.flatten(0, 1)
    with torch.random.fork_rng(devices=[]):  # its random weights are overwritten: the global generator stays as it is
        converted = LanguageModel(ModelConfig(**(old.model_dump() | {"num_key_value_heads": wanted})))
    converted.load_state_dict(tensors)
    converted.set_attn_implementation(lm.attn_implementation)
    return converted.to(next(lm.parameters())).train(lm.training)
