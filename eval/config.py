"""EvalConfig: what is looked at while training, and how often."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class AttentionConfig(_Section):
    """The attention heatmaps."""

    every: int = Field(100, ge=0, description="Draw every head each so many steps; 0 = never.")
    text: str | None = Field(None, description="The text looked at; default: the first held-out document.")
    max_tokens: int = Field(32, ge=2, le=128, description="How many of its tokens are shown.")


class EvalConfig(_Section):
    """The `eval:` section."""

    every: int = Field(100, ge=0, description="Evaluate each so many steps; 0 = only at the end.")
    max_tokens: int | None = Field(
        65536, ge=2, description="Held-out tokens an evaluation reads while training; null = all."
    )
    final_max_tokens: int | None = Field(
        None, ge=2, description="Held-out tokens the last evaluation reads; null = all."
    )
    floor_documents: int = Field(
        200,
        ge=0,
        description="Whole held-out stories compared with the entropy floor at the end (storyworld).",
    )
    prompts: list[str] = Field([""], description="Fixed prompts continued at every evaluation.")
    sample_tokens: int = Field(160, ge=1, description="Longest continuation, in tokens.")
    temperature: float = Field(0.8, ge=0, description="Of the samples; 0 = greedy.")
    top_p: float | None = Field(0.95, gt=0, le=1, description="Of the samples; null = off.")
    questions: int = Field(
        0,
        ge=0,
        description="Held-out questions asked at every evaluation, the first and the last too (storyworld "
        "conversations); 0 = none.",
    )
    attention: AttentionConfig = Field(AttentionConfig(), description="The attention heatmaps.")
