"""The `lora:` section: which matrices get adapters, and how large these are. model/lora.py is the method."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from configs.loader import Section

MOST_RANK = 4096


class LoraConfig(Section):
    """LoRA (Hu et al. 2021, arXiv 2106.09685): train two thin matrices beside each frozen one. Needs init_from."""

    rank: int = Field(
        8, ge=1, le=MOST_RANK, description="Rows of A and columns of B: how many directions a matrix may change in."
    )
    alpha: float = Field(16.0, gt=0, description="What the adapters compute is multiplied by alpha / rank.")
    dropout: float = Field(
        0.0, ge=0, lt=1, description="Share of the adapters' input that is set to zero at random in training."
    )
    target_modules: list[str] | None = Field(
        None,
        min_length=1,
        description="Names of the matrices that get adapters. null = every linear layer of the blocks.",
        examples=[["q_proj", "v_proj"]],
    )


@dataclass(frozen=True)
class Adapters:
    """What a model with adapters remembers: their config, and its base, a model directory with the hash of its weights
    (`model.lora.weights_hash`)."""

    config: LoraConfig
    base: str = ""
    base_sha256: str = ""
