"""Which Hugging Face architecture is a model? One short file each, and the list of them.

A config is written as the first family in FAMILIES that can express it; READ_ONLY are others that are read. To add an
architecture, write a `Family` in a file of its own and add it here.
"""

from __future__ import annotations

import json

from model.config import ModelConfig
from model.families.deepseek_v3 import DEEPSEEK_V3
from model.families.family import PLAIN, Family, Fields
from model.families.gpt2 import GPT2
from model.families.headlight import HEADLIGHT
from model.families.llama import LLAMA
from model.families.ministral import MINISTRAL
from model.families.mistral import MISTRAL
from model.families.olmo2 import OLMO2
from model.families.qwen2 import QWEN2
from model.families.qwen3 import QWEN3
from model.families.qwen3_moe import QWEN3_MOE
from model.families.smollm3 import SMOLLM3

__all__ = ["FAMILIES", "Family", "NoFamily", "family_of", "fitting_family", "readable"]

FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (LLAMA, QWEN3, MINISTRAL, QWEN2, OLMO2, SMOLLM3, GPT2, DEEPSEEK_V3, QWEN3_MOE, HEADLIGHT)
}

READ_ONLY = {MISTRAL.model_type: MISTRAL}  # what they are, one of the above is too


def readable() -> dict[str, Family]:
    """Every architecture whose directories load."""
    return FAMILIES | READ_ONLY


class NoFamily(ValueError):
    """No architecture has these parts together. keys: the fields of ModelConfig that are not as usual."""

    def __init__(self, message: str, keys: list[str]):
        super().__init__(message)
        self.keys = keys


def fitting_family(config: ModelConfig) -> Family | None:
    """The family that a model is saved as, if there is one."""
    return next((family for family in FAMILIES.values() if not family.differences(config)), None)


def family_of(config: ModelConfig) -> Family:
    """The family that a model is saved as. Raises NoFamily, with the nearest one and the remedy, if none can be it."""
    if (fitting := fitting_family(config)) is not None:
        return fitting
    found = [(family, family.differences(config)) for family in FAMILIES.values()]
    unusual = [key for key, value in PLAIN.items() if getattr(config, key) != value]
    # the nearest changes least of what was asked for, then least in all
    by_distance = [
        (len(different.keys() & unusual), len(different), number, family.model_type, different)
        for number, (family, different) in enumerate(found)
        if "loadable_elsewhere" not in different
    ]
    *_, nearest, different = min(by_distance)
    raise NoFamily(
        f"no architecture of transformers is this model. The nearest, {nearest}, has {_listed(different, ': ')} only: "
        f"set {_listed(different, '=', 'model.')}, or model.loadable_elsewhere=false, with which only Headlight can "
        "load it",
        unusual,
    )


def _listed(values: Fields, between: str, before: str = "") -> str:
    return " and ".join(f"{before}{key}{between}{json.dumps(value)}" for key, value in values.items()).replace('"', "")
