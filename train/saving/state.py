"""What does a run need besides tensors to resume? training/trainer_state.json, field by field.

Its fields say what they may hold, and a file that holds something else is refused: somebody wrote it, or a disk did.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict

from configs.bounds import MOST_STEPS
from configs.checkpoints import STATE, training_folder
from configs.command import InputError
from configs.read_back import DamagedFile, checked, read_json
from model.backends import AttentionImplementation

Step = Annotated[int, Strict(), Field(ge=0, le=MOST_STEPS)]
Count = Annotated[int, Strict(), Field(ge=0, le=2**62)]
Positive = Annotated[int, Strict(), Field(ge=1, le=2**31)]
Loss = Annotated[float, Strict(), Field(allow_inf_nan=False, ge=-1e300, le=1e300)]
Seconds = Annotated[float, Strict(), Field(allow_inf_nan=False, ge=0, le=1e12)]
Text = Annotated[str, Strict(), Field(max_length=200)]
Name = Annotated[str, Strict(), Field(pattern=r"^[\w-]{1,128}$")]
Amount = Annotated[int, Strict(), Field(ge=0, le=2**31)] | Loss  # a whole number stays one
SCALER = {"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"}


class Resolved(BaseModel):
    """What `auto` stood for, and what else the last bits depend on (train/machine/device.py)."""

    model_config = ConfigDict(strict=True, extra="allow")

    device: Text | None = None
    precision: Literal["fp32", "tf32", "bf16", "fp16"] | None = None
    attention: AttentionImplementation | None = None
    compile: bool | Literal["auto"] | None = None
    micro_batch_size: Positive | None = None
    world_size: Positive | None = None
    torch: Text | None = None
    gpu: Text | None = None
    cpu: Text | None = None
    kernels: Text | None = None
    instructions: list[Text] | None = None
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None


class Break(BaseModel):
    """Where the last bits changed at a resume."""

    model_config = ConfigDict(strict=True, extra="forbid")

    step: Step
    what: Annotated[str, Field(max_length=10_000)]


def _are_breaks(values: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for value in values:
        Break.model_validate(value)
    return values


def _is_resolved(values: dict[str, Any]) -> dict[str, Any]:
    Resolved.model_validate(values)
    return values


def _is_scaler(values: dict[str, float]) -> dict[str, float]:
    if values and (values.keys() != SCALER or not all(0 <= value <= 1e38 for value in values.values())):
        raise ValueError("must be the state of a loss scaler")
    if values and not all(type(values[key]) is int for key in ("growth_interval", "_growth_tracker")):
        raise ValueError("must be the state of a loss scaler, which counts in whole numbers")
    return values


def _is_spikes(values: dict[str, list[float]]) -> dict[str, list[float]]:
    if values and values.keys() != {"losses"}:
        raise ValueError("must hold losses")
    return values


@dataclass
class TrainerState:
    """What a run needs besides tensors to resume: trainer_state.json.

    best_tokens: how many held-out tokens the best loss was measured on (None: all). skipped: steps that changed no
    parameter. evaluated_at: step of the newest evaluation. hooks_done: names of hooks that ran at a later one, which a
    signal cut short. at_stop: saved only because a signal came. logged: bytes of each log. identity:
    RunConfig.identity() of the run that saved. resolved: what `auto` stood for, and what else the last bits depend on.
    breaks: where that changed at a resume: {step, what}. scaler: state of the loss scaler (fp16). spikes: the last
    losses, from which a spike stands out. world_size, torch_version: of the process that saved.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    step: Step = 0
    tokens: Count = 0
    seconds: Seconds = 0.0
    best_loss: Loss | None = None
    best_step: Step | None = None
    best_tokens: Count | None = None
    skipped: Count = 0
    evaluated_at: Step | None = None
    hooks_done: list[Text] = field(default_factory=list)
    at_stop: bool = False
    logged: dict[Text, Count] = field(default_factory=dict)
    wandb_id: Name | None = None
    identity: dict[str, Any] | None = None
    resolved: Annotated[dict[str, Any], AfterValidator(_is_resolved)] = field(default_factory=dict)
    breaks: Annotated[list[dict[str, Any]], AfterValidator(_are_breaks)] = field(default_factory=list)
    scaler: Annotated[dict[str, Amount], AfterValidator(_is_scaler)] | None = None
    spikes: Annotated[dict[str, list[Loss]], AfterValidator(_is_spikes)] = field(default_factory=lambda: {"losses": []})
    world_size: Positive = 1
    torch_version: Text = torch.__version__


def read_state(directory: Path) -> TrainerState:
    """trainer_state.json of a checkpoint; a key that is missing there has its default. Raises InputError."""
    file = training_folder(directory) / STATE
    try:
        values = read_json(file)
        if "step" not in values:
            raise DamagedFile(f"{file}: `step` is missing")
        state = checked(values, str(file), TrainerState, strict=None)
        for key in ("best_step", "evaluated_at"):
            if (getattr(state, key) or 0) > state.step:
                raise DamagedFile(f"{file}: `{key}` is later than `step`")
        return state
    except DamagedFile as error:
        problem = str(error).removeprefix(f"{file}: ")
        raise InputError(
            f"{file}: cannot resume from here: {problem}; was it saved by another version of Headlight?"
        ) from None
