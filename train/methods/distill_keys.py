"""DistillConfig: what a student learns from its teacher (train/distill.py)."""

from __future__ import annotations

from pydantic import Field

from configs.schema import PathText, Section


class DistillConfig(Section):
    """Distillation (train/distill.py): who teaches, and how the student is compared with it."""

    teacher: PathText = Field(
        min_length=1, description="The run or model directory to learn from. It must have the same tokenizer."
    )
    beta: float = Field(
        0.0,
        ge=0,
        le=1,
        description="How two distributions are compared: 0 = forward KL, the student covers all that the teacher finds "
        "likely | 1 = reverse KL, it keeps to what the teacher finds likeliest | between = the generalised "
        "Jensen-Shannon divergence.",
    )
    temperature: float = Field(
        1.0,
        ge=0.05,
        description="Divides the logits of both: above 1, unlikely tokens count more.",
    )
    hard_share: float = Field(
        0.1, ge=0, le=1, description="Share of the ordinary loss on the text's own tokens; the rest is the teacher's."
    )
    on_policy: float = Field(
        0.0, ge=0, le=1, description="Share of the steps whose text the student writes itself. 0 = none."
    )
    max_new_tokens: int = Field(
        128, ge=1, description="Tokens that the student writes in a row of such a step, at most."
    )
