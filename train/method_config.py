"""The sections of the methods that come after pretraining. Each is null, which is off, or holds the method's keys.

A method adds its section here, its defaults to configs/base.yaml (null), and its page to train/documentation.py.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from configs.meaning import Meaning
from configs.run_keys import RunKeys
from model.lora_config import LoraConfig
from train.distill_config import DistillConfig
from train.grpo_config import GRPOConfig


class Methods(RunKeys):
    """What RunConfig (train/config.py) inherits."""

    lora: Annotated[LoraConfig | None, Meaning.IDENTITY] = Field(
        None, description="Train small adapters beside the frozen matrices of init_from. null = train every matrix."
    )
    distill: Annotated[DistillConfig | None, Meaning.IDENTITY] = Field(
        None,
        description="Learning from another model's probabilities, with train.distill.",
        examples=[{"teacher": "runs/demo", "beta": 0.0, "temperature": 1.0, "hard_share": 0.1}],
    )
    grpo: Annotated[GRPOConfig | None, Meaning.IDENTITY] = Field(
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
