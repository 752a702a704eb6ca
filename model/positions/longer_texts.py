"""How does a trained model read texts longer than those of its training? By changes that no weight depends on.

RoPE may be scaled, layers may get a window, and more positions may be allowed: when the model is opened, not before.
docs/long_context.md shows what each of these does.
"""

from __future__ import annotations

import copy
from typing import Any

from model.config import ModelConfig
from model.positions.rope import make_rotary_embedding
from model.positions.scaling import SCALINGS
from model.transformer import LanguageModel


def with_rope_scaling(lm: LanguageModel, kind: str, factor: float, trained: int) -> LanguageModel:
    """The same weights, read with RoPE scaled; with `none`, as if it had never been scaled.

    factor: longest text from now on / longest text in training, 1 or more. trained: the latter, in tokens; texts of
    factor * trained tokens are allowed from now on. Equal to a model that is loaded with such a config. Raises
    ValueError for another kind, a factor under 1 or too large, and a model without RoPE.
    """
    if kind not in SCALINGS:
        raise ValueError(f"{kind!r} is unknown: use {', '.join(SCALINGS)}")
    if not any(lm.config.rotates):
        raise ValueError(f"this model has no RoPE (position_embedding: {lm.config.position_embedding}): leave it out")
    if kind == "none":
        return with_config(lm, rope_scaling=None)
    if not 1 <= factor <= 2**24 / trained:
        raise ValueError(f"the factor is {factor:g}: for texts of {trained:,} tokens use 1 to {2**24 / trained:,g}")
    scaling: dict[str, Any] = {"rope_type": kind, "factor": float(factor)}
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = trained
    longest = max(lm.config.max_position_embeddings, int(factor * trained))
    return with_config(lm, rope_scaling=scaling, max_position_embeddings=longest)


def with_window(lm: LanguageModel, tokens: int) -> LanguageModel:
    """The same weights; every layer sees the last `tokens` tokens only, its own included."""
    return with_config(lm, sliding_window=tokens, layer_types=["sliding_attention"])


def with_config(lm: LanguageModel, **changes: Any) -> LanguageModel:
    """A second model that shares the weights of this one; its config has other values for keys that no weight needs.

    The first one stays as it is. Raises ValueError for values that a config cannot have.
    """
    config = ModelConfig.model_validate(lm.config.model_dump() | changes)
    other = copy.deepcopy(lm, {id(weight): weight for weight in lm.parameters()})  # these are shared, not copied
    other.config = other.model.config = config
    other.model.rotary_emb = make_rotary_embedding(config).to(next(lm.parameters()).device)
    for attention, window in zip(other.attention_modules(), config.windows, strict=True):
        attention.window = window
    return other
