"""The sections of the methods that come after pretraining. Each is null, which is off, or holds the method's keys.

A method adds its section here, its defaults to configs/base.yaml (null), and its page to train/documentation.py.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from configs.command import InputError
from configs.schema import RunKeys, Tag
from model.lora_config import LoraConfig
from train.methods.distill_keys import DistillConfig
from train.methods.dpo_keys import DPOConfig
from train.methods.grpo_keys import GRPOConfig

SCRIPTS = {
    "dpo": "train.dpo",
    "grpo": "train.grpo",
    "distill": "train.distill",
}  # section -> the only script that reads it


class Methods(RunKeys):
    """What RunConfig (train/config.py) inherits."""

    dpo: Annotated[DPOConfig | None, Tag.IDENTITY] = Field(
        None,
        description="Learning from pairs of answers, with train.dpo. null = its defaults.",
        examples=[{"beta": 0.1, "loss": "sigmoid", "label_smoothing": 0.0}],
    )
    lora: Annotated[LoraConfig | None, Tag.IDENTITY] = Field(
        None, description="Train small adapters beside the frozen matrices of init_from. null = train every matrix."
    )
    distill: Annotated[DistillConfig | None, Tag.IDENTITY] = Field(
        None,
        description="Learning from another model's probabilities, with train.distill.",
        examples=[{"teacher": "runs/demo", "beta": 0.0, "temperature": 1.0, "hard_share": 0.1}],
    )
    grpo: Annotated[GRPOConfig | None, Tag.IDENTITY] = Field(
        None,
        description="Reinforcement learning on sampled answers, with train.grpo.",
        examples=[{"reward": "exact_match", "group_size": 8}],
    )

    @model_validator(mode="after")
    def _check_methods(self) -> Methods:
        if self.lora is not None and getattr(self, "init_from", None) is None:
            raise ValueError(
                "lora trains beside the matrices of a trained model: set init_from, for example init_from=runs/demo"
            )
        return self


def script_of(config: Any) -> str | None:
    """The only script that can do what a RunConfig says; None where train.pretrain or train.sft can."""
    named = [script for section, script in SCRIPTS.items() if getattr(config, section) is not None]
    if len(named) > 1:
        raise InputError(f"the config has sections of {' and '.join(named)}: set all but one of them to null")
    return named[0] if named else "train.dpo" if config.data.records == "pairs" else None


def check_script(config: Any, script: str) -> None:
    """Raises InputError where the config asks for another method than this script's."""
    own = script_of(config)
    if own is not None and script in {"train.pretrain", "train.sft", *SCRIPTS.values()} and script != own:
        section = next((section for section in SCRIPTS if getattr(config, section) is not None), "data.records: pairs")
        raise InputError(f"{script} knows nothing of `{section}`: use python -m {own}")
