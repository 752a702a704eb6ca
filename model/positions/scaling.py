"""The keys of `model.rope_scaling`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from configs.schema import Section

SCALINGS = ("none", "linear", "yarn")  # what a command may be asked for
KEYS = {  # which keys each kind has
    "linear": ("rope_type", "factor"),
    "yarn": (
        "rope_type", "factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "attention_factor"
    ),
    "llama3": ("rope_type", "factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"),
}  # fmt: skip


class RopeScaling(Section):
    """How to bring positions beyond the training length back into the range that the model knows.

    linear   every angle divided by `factor` (position interpolation, Chen et al. 2023, arXiv 2306.15595)
    yarn     slow pairs divided by `factor`, fast ones kept, a ramp in between (Peng et al. 2023, arXiv 2309.00071)
    llama3   the same with a ramp over wavelengths, as Llama 3.1 was trained (Grattafiori et al. 2024, arXiv 2407.21783)
    """

    rope_type: Literal["linear", "yarn", "llama3"] = Field(
        description="linear: divide every angle by factor | yarn: keep the fast pairs of numbers, divide the slow ones "
        "| llama3: likewise, as Llama 3.1 does."
    )
    factor: float = Field(ge=1, description="Longest text from now on / longest text in training.")
    original_max_position_embeddings: int | None = Field(
        None,
        ge=1,
        description="yarn, llama3: the longest text in tokens that the model was trained on.",
    )
    beta_fast: float = Field(32.0, gt=0, description="yarn: pairs that turn more often than this are kept.")
    beta_slow: float = Field(1.0, gt=0, description="yarn: pairs that turn less often than this are divided by factor.")
    attention_factor: float | None = Field(
        None,
        gt=0,
        description="yarn: queries and keys are multiplied by this; null = 0.1 ln(factor) + 1.",
    )

    low_freq_factor: float | None = Field(
        None,
        gt=0,
        description="llama3: pairs that turn less often than this over a text of training are divided by factor.",
    )
    high_freq_factor: float | None = Field(
        None,
        gt=0,
        description="llama3: pairs that turn more often than this over a text of training are kept.",
    )

    @model_validator(mode="after")
    def _check(self) -> RopeScaling:
        kind, keys = self.rope_type, KEYS[self.rope_type]
        if unused := sorted(self.model_fields_set - {*keys} - self._unset()):
            has = next(other for other in reversed(KEYS) if unused[0] in KEYS[other])
            raise ValueError(f"{kind} has no {unused[0]}: leave it out, or use rope_type: {has}")
        if "original_max_position_embeddings" in keys and self.original_max_position_embeddings is None:
            raise ValueError(f"{kind} needs original_max_position_embeddings: the sequence length it was trained on")
        if kind == "yarn" and self.beta_fast <= self.beta_slow:
            raise ValueError(f"beta_fast ({self.beta_fast}) must be above beta_slow ({self.beta_slow})")
        if kind == "llama3":
            low, high = self.low_freq_factor, self.high_freq_factor
            if low is None or high is None:
                raise ValueError("llama3 needs low_freq_factor and high_freq_factor: Llama 3.1 has 1.0 and 4.0")
            if high <= low:
                raise ValueError(f"high_freq_factor ({high}) must be above low_freq_factor ({low})")
        return self

    def written(self) -> dict[str, Any]:
        """The keys of this kind that have a value, as config.json has them."""
        return self.model_dump(include={*KEYS[self.rope_type]}, exclude_none=True)

    def _unset(self) -> set[str]:
        """Fields whose value is their default, given or not."""
        return {name for name, field in RopeScaling.model_fields.items() if getattr(self, name) == field.default}
