"""Changes to a model that is trained already: more tokens, other positions, fewer or more key/value heads."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from model.config import ModelConfig
from model.rope import RotaryEmbedding
from model.transformer import LanguageModel


@torch.no_grad()
def add_rows(lm: LanguageModel, vocab_size: int) -> None:
    """Make room for more token ids: rows of the embedding and of the head, each at first the mean of the others.

    So the new tokens start where an average one is, and none of them is likely (Hewitt 2021,
    https://nlp.stanford.edu/~johnhew/vocab-expansion.html). The logits of the earlier ids stay the same.
    """
    embedding, head = lm.model.embed_tokens, lm.lm_head
    for module, size in ((embedding, "num_embeddings"), (head, "out_features")):
        old = module.weight
        mean = old.double().mean(0, keepdim=True).to(old.dtype)  # double: the same on every machine
        module.weight = nn.Parameter(torch.cat([old, mean.expand(vocab_size - len(old), -1)]))
        setattr(module, size, vocab_size)
    if lm.config.tie_word_embeddings:
        head.weight = embedding.weight
    lm.config = lm.model.config = lm.config.model_copy(update={"vocab_size": vocab_size})


def with_config(lm: LanguageModel, **changes: Any) -> LanguageModel:
    """Return a second model with the same weights and other values for keys that no weight needs.

    Such keys are a window, scaled RoPE, more positions.
    """
    config = ModelConfig.model_validate(lm.config.model_dump() | changes)
    other = copy.deepcopy(lm, {id(weight): weight for weight in lm.parameters()})  # these are shared
    other.config = other.model.config = config
    rotary_emb = RotaryEmbedding(config.rotary_size, config.rope_theta, config.rope_scaling)
    other.model.rotary_emb = rotary_emb.to(next(lm.parameters()).device)
    return other


def with_rope_scaling(lm: LanguageModel, kind: str, factor: float, trained: int) -> LanguageModel:
    """Return the same weights, read with RoPE scaled for texts longer than those of training (docs/long_context.md).

    kind     `none`: as if it had never been scaled
    factor   longest text from now on / longest text in training
    trained  longest text in training, in tokens

    Raises ValueError.
    """
    if kind == "none":
        return with_config(lm, rope_scaling=None)
    if not any(lm.config.rotates):
        raise ValueError("this model has no RoPE: leave it out")
    if not 1 <= factor <= 2**24 / trained:  # float32 counts no further
        raise ValueError(f"the factor is {factor:g}: for texts of {trained:,} tokens use 1 to {2**24 / trained:,g}")
    scaling: dict[str, Any] = {"rope_type": kind, "factor": float(factor)}
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = trained
    longest = max(lm.config.max_position_embeddings, int(factor * trained))
    return with_config(lm, rope_scaling=scaling, max_position_embeddings=longest)


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
