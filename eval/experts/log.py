"""experts.jsonl: what every look at the experts of a run found, one line each; written by the hook, read back here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, model_validator

from configs.files import DamagedFile, append_line, read_lines
from eval.experts.routing import Routing
from eval.run_files import EXPERTS, Warn

WORDS = 8  # of each expert
DEAD, STARVED = 0.01, 0.25  # of the fair share


class Look(BaseModel):
    """One line. share, weight: of every layer and expert, as in Routing; null = never chosen. words: the tokens that
    tell each expert from the others. loss: in nats a token, as the router chooses and with other choices."""

    model_config = ConfigDict(extra="ignore")

    step: Annotated[int, Field(ge=0)]
    tokens: Annotated[int, Field(ge=0)]
    layers: Annotated[list[int], Field(min_length=1)]
    share: list[list[Annotated[FiniteFloat, Field(ge=0, le=1)]]]
    weight: list[list[FiniteFloat | None]]
    words: list[list[list[str]]] = []
    loss: dict[str, FiniteFloat] = {}

    @model_validator(mode="after")
    def _check(self) -> Look:
        tables: list[list[Any]] = [self.share, self.weight, self.words]
        sizes = {len(row) for table in tables for row in table}
        lengths = {len(self.layers), len(self.share), len(self.weight), len(self.words) or len(self.layers)}
        if len(sizes) != 1 or 0 in sizes or len(lengths) != 1:
            raise ValueError("`layers`, `share`, `weight` and `words` must have a row for every layer, of one length")
        return self

    @property
    def experts(self) -> int:
        """How many a layer has."""
        return len(self.share[0])

    @property
    def of_fair(self) -> np.ndarray:
        """(L, E) share of every expert over its fair share: 1 is as much as the others have."""
        return np.array(self.share) * self.experts

    def under(self, limit: float) -> dict[int, list[int]]:
        """Layer -> the experts with less than this part of their fair share, of the layers that have some."""
        found = {
            layer: np.flatnonzero(row < limit).tolist() for layer, row in zip(self.layers, self.of_fair, strict=True)
        }
        return {layer: experts for layer, experts in found.items() if experts}


def look_of(found: Routing, step: int, tokens: int) -> Look:
    """The line for this routing, without words and losses."""
    weight = [[None if np.isnan(value) else round(float(value), 4) for value in row] for row in found.weight]
    share = found.share.round(6).tolist()
    return Look(step=step, tokens=tokens, layers=found.layers, share=share, weight=weight)


def characteristic_ids(found: Routing) -> np.ndarray:
    """(L, E, WORDS) ids that tell an expert from the others, the strongest first; -1 where there are not so many.

    By p(id | expert) ln( p(id | expert) / p(id) ): what an id adds to the divergence between the expert's tokens and
    all tokens. So an id must be frequent there and more frequent than elsewhere.
    """
    of_expert = found.ids / np.maximum(1, found.ids.sum(-1, keepdims=True))
    of_all = found.ids.sum(1, keepdims=True) / np.maximum(1, found.ids.sum((1, 2), keepdims=True))
    with np.errstate(divide="ignore", invalid="ignore"):
        score = np.where(of_expert > 0, of_expert * np.log(of_expert / of_all), 0.0)
    best = np.argsort(-score, axis=-1, kind="stable")[..., :WORDS]
    return np.where(np.take_along_axis(score, best, -1) > 0, best, -1)


def write(directory: Path, look: Look) -> None:
    """Append a line to the run's experts.jsonl."""
    append_line(directory / EXPERTS, look.model_dump(exclude_defaults=True))


def read(directory: Path, warn: Warn) -> list[Look]:
    """The looks of a run, in order, all of the model that the last one saw; none without the file."""
    try:
        found: list[Any] = read_lines(directory / EXPERTS, warn, Look)
    except DamagedFile as error:
        if (directory / EXPERTS).exists():
            warn(str(error))
        return []
    return [look for look in found if look.layers == found[-1].layers and look.experts == found[-1].experts]
