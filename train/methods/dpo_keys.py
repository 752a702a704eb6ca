"""The `dpo:` section."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from configs.schema import Section


class DPOConfig(Section):
    """Direct preference optimisation (train/dpo.py): a better and a worse answer to one prompt."""

    beta: float = Field(
        0.1,
        ge=1e-6,
        description="How dear it is to move away from the reference: a larger value keeps the model nearer to it.",
    )
    loss: Literal["sigmoid", "ipo"] = Field(
        "sigmoid",
        description="sigmoid = DPO's own | ipo = a wanted distance between the answers, which is not exceeded, a mean "
        "over tokens.",
    )
    label_smoothing: float = Field(
        0.0, ge=0, lt=0.5, description="sigmoid: share of pairs whose answers are swapped by mistake (robust DPO)."
    )
    sft_weight: float = Field(
        0.0,
        ge=0,
        description="What the chosen answer's own loss, a mean over its tokens, counts beside the preference: with it, "
        "the chosen answer stays likely (RPO).",
    )
