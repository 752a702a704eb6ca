"""Changes to a trained model: more tokens, other positions, another number of key/value heads."""

import copy
from typing import Any

import torch
from torch import nn

from model.config import ModelConfig
from model.rope import RotaryEmbedding
from model.transformer import LanguageModel


@torch.no_grad()
def add_rows(lm: LanguageModel, vocab_size: int) -> None:
    """Add rows for new token ids to embedding and head, each the mean of the other rows.

    So none of them is likely, and logits of earlier ids do not change (Hewitt 2021,
    https://nlp.stanford.edu/~johnhew/vocab-expansion.html).
    """
    embedding = lm.model.embed_tokens
    head = lm.lm_head
    for module, size in ((embedding, "num_embeddings"), (head, "out_features")):
        old = module.weight
        mean = old.double().mean(0, keepdim=True).to(old.dtype)  # double: the same on every machine
        module.weight = nn.Parameter(torch.cat([old, mean.expand(vocab_size - len(old), -1)]))
        setattr(module, size, vocab_size)
    if lm.config.tie_word_embeddings:
        head.weight = embedding.weight
    lm.config = lm.model.config = lm.config.model_copy(update={"vocab_size": vocab_size})


def with_config(lm: LanguageModel, **changes: Any) -> LanguageModel:
    """Return a second model with the same weights and a config with `changes`.

    No weight may depend on them: a window, scaled RoPE, more positions.
    """
    config = ModelConfig.model_validate(lm.config.model_dump() | changes)
    shared = {id(weight): weight for weight in lm.parameters()}  # deepcopy takes them as copied
    other = copy.deepcopy(lm, shared)
    other.config = other.model.config = config
    rotary_emb = RotaryEmbedding(config.rotary_size, config.rope_theta, config.rope_scaling)
    other.model.rotary_emb = rotary_emb.to(lm.device)
    return other


def with_rope_scaling(lm: LanguageModel, kind: str, factor: float, trained: int) -> LanguageModel:
    """Return a model that shares the weights, with RoPE scaled for texts `factor` times as long.

    kind: a rope_type, or `none`. trained: longest text in training, in tokens. Raises ValueError.
    """
    if kind == "none":
        return with_config(lm, rope_scaling=None)
    if not any(lm.config.rotates):
        raise ValueError("this model has no RoPE: leave it out")
    largest = 2**24 / trained  # float32 counts no further
    if not 1 <= factor <= largest:
        raise ValueError(
            f"the factor is {factor:g}: for texts of {trained:,} tokens use 1 to {largest:,g}"
        )
    scaling: dict[str, Any] = {"rope_type": kind, "factor": float(factor)}
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = trained
    longest = max(lm.config.max_position_embeddings, int(factor * trained))
    return with_config(lm, rope_scaling=scaling, max_position_embeddings=longest)


def convert_kv_heads(lm: LanguageModel, num_key_value_heads: int) -> LanguageModel:
    """Return a new model with another number of key/value heads.

    Fewer heads: a group becomes one, with the mean of its rows of `k_proj` and `v_proj` (Ainslie
    et al. 2023, arXiv 2305.13245, section 2.1). Training must continue: the paper spends another
    5 % of the steps. More heads: rows are repeated, which computes the same.

        4 -> 2   k0, k1 -> (k0 + k1) / 2          2 -> 4   k0 -> k0, k0
                 k2, k3 -> (k2 + k3) / 2                   k1 -> k1, k1

    Without QK-norm, the new score is the mean of the group's scores. With it, the mean has full
    length again, but a head with longer raw keys outweighs the others. Raises ValueError unless
    every new head is made of whole old ones.
    """
    config = lm.config
    query_heads = config.num_attention_heads
    old = config.kv_heads
    new = num_key_value_heads
    allowed = [old]
    is_gpt2 = config.loadable_elsewhere and config.position_embedding == "learned"
    # in those, every query head has its own keys or values
    has_own = config.attention == "mla" or is_gpt2 or any(config.is_linear)
    if not has_own and config.kv_sharing == "both":
        divisors = [n for n in range(1, query_heads + 1) if query_heads % n == 0]
        allowed = [n for n in divisors if old % n == 0 or n % old == 0]
    if new not in allowed:
        numbers = ", ".join(map(str, allowed))
        raise ValueError(
            f"num_key_value_heads ({new}) does not fit {query_heads} query heads, {old} keys: "
            f"use {numbers}"
        )
    tensors = lm.state_dict()
    parts = ["k_proj.weight", "k_proj.bias", "v_proj.weight", "v_proj.bias", "self_attn.smear"]
    if config.qk_norm == "whole":  # with a gain for every number of every head
        parts.append("k_norm.weight")
    for name in [name for name in tensors if name.endswith(tuple(parts))]:
        heads = tensors[name].unflatten(0, (old, -1))  # (old, D, …): rows, or numbers of a bias
        if new > old:
            # query head h reads key head h // groups: copies are neighbours, 0 0 1 1, not 0 1 0 1
            heads = heads.repeat_interleave(new // old, dim=0)
        else:
            heads = heads.unflatten(0, (new, -1)).mean(dim=1)  # (new, old / new, D, …)
        tensors[name] = heads.flatten(0, 1)
    # the new model draws weights, which are replaced: protect the global generator
    with torch.random.fork_rng(devices=[]):
        values = config.model_dump() | {"num_key_value_heads": new}
        converted = LanguageModel(ModelConfig(**values))
    converted.load_state_dict(tensors)
    converted.set_attn_implementation(lm.attn_implementation)
    return converted.to(next(lm.parameters())).train(lm.training)
