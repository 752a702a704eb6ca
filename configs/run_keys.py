"""The keys of a run that belong to no section: its name, its place, its seed, and where its figures go."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from configs.meaning import Meaning, Section
from configs.paths import PathText


class TrackingConfig(Section):
    """The `tracking:` section; metrics.jsonl is always written."""

    wandb: Literal["offline", "online", "disabled"] = Field(
        "offline", description="offline: written to disk, for `wandb sync` later | online | disabled."
    )
    project: str = Field("headlight", description="Name of the project in wandb.")


class RunKeys(Section):
    """What RunConfig (train/config.py) adds its sections to. Rooms below `train` know these keys too."""

    name: Annotated[str, Meaning.BOOKKEEPING] = Field(
        "", description="Name of the run and of its directory. Empty = the YAML file's name."
    )
    output_dir: Annotated[PathText, Meaning.BOOKKEEPING] = Field(
        "runs", description="Folder that holds all run directories, and the prepared data."
    )
    seed: Annotated[int, Meaning.IDENTITY, Meaning.REPETITION] = Field(
        0, ge=0, lt=2**63, description="Decides all random choices: first weights, order of the rows, dropout."
    )
    resume: Annotated[PathText, Meaning.BOOKKEEPING] = Field(
        "auto",
        description="auto: continue the run of this name | never: refuse a directory that exists | or a checkpoint "
        "directory to continue from.",
    )
    allow_mismatch: Annotated[bool, Meaning.BOOKKEEPING] = Field(
        False, description="true: continue a run although its data or settings have changed."
    )
    tracking: Annotated[TrackingConfig, Meaning.BOOKKEEPING] = Field(
        TrackingConfig(), description="Where figures go, besides metrics.jsonl."
    )
