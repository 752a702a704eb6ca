"""Which Hugging Face architecture is a model? One short file each, and the list of them.

A config is written as the first family in FAMILIES that can express it. To add an architecture, write a `Family` in a
file of its own and add it here.
"""

from __future__ import annotations

from model.config import ModelConfig
from model.families.family import Family
from model.families.llama import LLAMA
from model.families.ministral import MINISTRAL
from model.families.qwen3 import QWEN3
from model.families.qwen3_moe import QWEN3_MOE

__all__ = ["FAMILIES", "Family", "family_of"]

FAMILIES: dict[str, Family] = {family.model_type: family for family in (LLAMA, QWEN3, MINISTRAL, QWEN3_MOE)}


def family_of(config: ModelConfig) -> Family:
    """The family that a model is saved as. Raises ValueError, with each family's reason, if none can express it."""
    reasons = []
    for family in FAMILIES.values():
        reason = family.cannot_express(config)
        if reason is None:
            return family
        reasons.append(f"{family.model_type}: {reason}")
    raise ValueError(f"no Hugging Face architecture that Headlight writes can be this model ({'; '.join(reasons)})")
