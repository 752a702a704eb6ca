"""The keys of `model.rope_scaling`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from configs.bounds import MOST_FACTOR, MOST_POSITIONS
from configs.meaning import Section

SCALINGS = ("none", "linear", "yarn")  # what a command may be asked for


class RopeScaling(Section):
    """How to bring positions beyond the training length back into the range that the model knows.

    linear   every angle divided by `factor` (position interpolation, Chen et al. 2023, arXiv 2306.15595)
    yarn     slow pairs divided by `factor`, fast ones kept, a ramp in between (Peng et al. 2023, arXiv 2309.00071)
    """

    rope_type: Literal["linear", "yarn"] = Field(
        description="linear: divide every angle by factor | yarn: keep the fast pairs of numbers, divide the slow ones."
    )
    factor: float = Field(ge=1, le=MOST_FACTOR, description="Longest text from now on / longest text in training.")
    original_max_position_embeddings: int | None = Field(
        None, ge=1, le=MOST_POSITIONS, description="yarn: the longest text in tokens that the model was trained on."
    )
    beta_fast: float = Field(
        32.0, gt=0, le=MOST_FACTOR, description="yarn: pairs that turn more often than this are kept."
    )
    beta_slow: float = Field(
        1.0, gt=0, le=MOST_FACTOR, description="yarn: pairs that turn less often than this are divided by factor."
    )
    attention_factor: float | None = Field(
        None,
        gt=0,
        le=MOST_FACTOR,
        description="yarn: queries and keys are multiplied by this; null = 0.1 ln(factor) + 1.",
    )

    @model_validator(mode="after")
    def _check(self) -> RopeScaling:
        if self.rope_type == "yarn":
            if self.original_max_position_embeddings is None:
                raise ValueError("yarn needs original_max_position_embeddings: the sequence length it was trained on")
            if self.beta_fast <= self.beta_slow:
                raise ValueError(f"beta_fast ({self.beta_fast}) must be above beta_slow ({self.beta_slow})")
        elif unused := sorted(self.model_fields_set - {"rope_type", "factor"} - self._unset()):
            raise ValueError(f"linear has no {unused[0]}: leave it out, or use rope_type: yarn")
        return self

    def _unset(self) -> set[str]:
        """Fields whose value is their default, given or not."""
        return {name for name, field in RopeScaling.model_fields.items() if getattr(self, name) == field.default}
