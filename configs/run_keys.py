"""The keys of a run that belong to no section: its name, its place, its seed, and where its figures go."""

from __future__ import annotations

import re
import unicodedata
from typing import Annotated, Any, Literal

from pydantic import Field

from configs.meaning import Meaning, Section
from configs.paths import PathText


class TrackingConfig(Section):
    """The `tracking:` section; metrics.jsonl is always written."""

    wandb: Literal["offline", "online", "disabled"] = Field(
        "offline", description="offline: written to disk, for `wandb sync` later | online | disabled."
    )
    project: str = Field("headlight", description="Name of the project in wandb.")
    tensorboard: bool = Field(False, description="Write event files for TensorBoard, in the run's directory.")


class RunKeys(Section):
    """What RunConfig (train/config.py) adds its sections to. Rooms below `train` know these keys too."""

    name: Annotated[str, Meaning.BOOKKEEPING] = Field(
        "",
        description="Name of the run and of its directory, in letters, digits, spaces and `_ . + = -`. "
        "Empty = the YAML file's name.",
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
    rungs: Annotated[dict[str, dict[str, Any]] | None, Meaning.BOOKKEEPING] = Field(
        None,
        description="Variants for train.sweep: a name, and the keys that it changes. train.pretrain takes no notice: "
        "it trains the config itself, the baseline.",
        examples=[{"learned-positions": {"model.position_embedding": "learned"}}],
    )
    tracking: Annotated[TrackingConfig, Meaning.BOOKKEEPING] = Field(
        TrackingConfig(), description="Where figures go, besides metrics.jsonl."
    )


MOST_LETTERS, MOST_BYTES = 100, 200  # of a name; file systems take 255 bytes, and some files add to it
OF_WINDOWS = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)  # devices, not files


def problem_of_name(name: str) -> str:
    """What is wrong with the name of a run, "" for nothing. It must do as a folder's name on every system.

    Letters of any script will do: a mark that has a meaning for a shell, for Markdown or for a terminal will not.
    """
    wrong = next((c for c in name if c not in " _.+=-" and unicodedata.category(c)[0] not in "LMN"), "")
    if wrong:
        return f"holds {wrong!a}: use letters, digits, spaces and _ . + = -"
    if len(name) > MOST_LETTERS or len(name.encode("utf-8")) > MOST_BYTES:
        return f"has {len(name)} letters, {len(name.encode('utf-8'))} bytes: {MOST_LETTERS} and {MOST_BYTES} at most"
    if not name or name[0] in " .-+=" or name[-1] in " ." or unicodedata.category(name[0])[0] == "M":
        return "must begin with a letter or a digit, and not end in a dot or a space"
    return "is the name of a device on Windows: choose another" if OF_WINDOWS.fullmatch(name) else ""
