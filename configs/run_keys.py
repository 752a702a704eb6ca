"""The keys of a run that belong to no section: its name, its place, its seed, and where its figures go."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from configs.meaning import Meaning, Section


class TrackingConfig(Section):
    """The `tracking:` section; metrics.jsonl is always written."""

    wandb: Literal["offline", "online", "disabled"] = Field(
        "offline", description="offline: written to disk, for `wandb sync` later | online | disabled."
    )
    project: str = Field("headlight", description="Project name in wandb.")


class RunKeys(Section):
    """What RunConfig (train/config.py) adds its sections to. Rooms below `train` know these keys too."""

    name: Annotated[str, Meaning.BOOKKEEPING] = Field(
        "", description="Names the run directory; default: the YAML file's stem."
    )
    output_dir: Annotated[str, Meaning.BOOKKEEPING] = Field(
        "runs", description="Parent of run directories and of prepared data."
    )
    seed: Annotated[int, Meaning.IDENTITY, Meaning.REPETITION] = Field(
        0, ge=0, lt=2**63, description="Seed of the weights, the row order and dropout."
    )
    resume: Annotated[str, Meaning.BOOKKEEPING] = Field(
        "auto",
        description="auto: go on where the run of this name stopped | never: refuse a directory that exists | a "
        "checkpoint directory to go on from.",
    )
    allow_mismatch: Annotated[bool, Meaning.BOOKKEEPING] = Field(
        False, description="Go on although data or settings differ from the run's own."
    )
    tracking: Annotated[TrackingConfig, Meaning.BOOKKEEPING] = Field(
        TrackingConfig(), description="Where figures go besides the disk."
    )
