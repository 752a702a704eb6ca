"""What do the heads look at in your own text? At every checkpoint that a run keeps, in the viewer's form."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from fastapi import APIRouter
from pydantic import BaseModel, Field

from eval.attention.probes import probe_from_text
from eval.attention.record import look
from eval.attention.snapshots import Snapshot
from eval.attention.viewer.module import told
from eval.attention.viewer.page import quantise
from eval.config import AttentionConfig
from serve.errors import ApiError
from serve.limits import Limits, within
from serve.workbench import Name, Workbench, checkpoints_of

MOST_LETTERS = 2000
MOST_TOKENS = 96  # of a map: it is sent whole
MOST_CHECKPOINTS = 12


class Asked(BaseModel):
    """POST /live/runs/NAME/look."""

    text: str = Field(min_length=1, max_length=MOST_LETTERS)


def router(workbench: Workbench, limits: Limits) -> APIRouter:
    """The one route of this file."""
    routes = APIRouter()

    @routes.post("/live/runs/{name}/look")
    async def own_text(name: str, asked: Asked) -> dict[str, Any]:
        runs = workbench.library.runs()
        if name not in runs:
            raise ApiError(404, "this run has no checkpoint yet" if runs else "there is no run of this name")
        steps = spread(sorted(checkpoints_of(runs[name])))

        def looks() -> list[Snapshot]:
            return [_look(workbench, Name(name, step), asked.text) for step in steps]

        return _in_viewer(name, await within(workbench.do(looks), limits.seconds))

    return routes


def spread(steps: list[int]) -> list[int]:
    """At most MOST_CHECKPOINTS of them, the first and the last too."""
    places = np.linspace(0, len(steps) - 1, min(len(steps), MOST_CHECKPOINTS)).round().astype(int)
    return [steps[place] for place in places]


def _look(workbench: Workbench, name: Name, text: str) -> Snapshot:
    opened = workbench.find(name)
    try:
        probe = probe_from_text(opened.tokenizer, text, opened.context_length)
    except ValueError as error:
        raise ApiError(400, str(error)) from None
    return look(opened.lm, [probe], AttentionConfig(max_tokens=MOST_TOKENS), (name.step or 0, 0, 0.0))


def _in_viewer(name: str, looks: list[Snapshot]) -> dict[str, Any]:
    """As /live/runs/NAME/attention says it, and the maps with it, in base64."""
    frames = {
        f"{one.step}/{probe}": base64.b64encode(quantise(maps.weights).tobytes()).decode()
        for one in looks
        for probe, maps in one.maps.items()
    }
    return told(name, looks) | {"frames": frames, "moments": []}
