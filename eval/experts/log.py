"""experts.jsonl: what was measured of the experts of a run, a line each time. And what a reader sees of it: a line on
the terminal, a part of report.md, a tab of the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import BaseModel, Field, FiniteFloat

from configs.text import escape, table
from eval.run_files import EXPERTS, Count, Warn, read_log

if TYPE_CHECKING:
    from eval.experts.routing import Routing

WORDS = 8  # of each expert
DEAD, STARVED = 0.01, 0.25  # of the fair share
MOST = 20_000  # numbers of shares in a page: with more, lines in the middle are left out
CHOICES = {
    "random": "other experts, drawn at random",
    "all alike": "all experts, each with the same weight",
}


class ExpertUse(BaseModel):
    """One line. share, weight: of every layer and expert, as in Routing; null = never chosen. words: the tokens that
    tell each expert from the others. loss: in nats a token, as the router chooses and with other choices."""

    step: Count
    tokens: Count
    layers: Annotated[list[int], Field(min_length=1)]
    share: list[list[Annotated[FiniteFloat, Field(ge=0, le=1)]]]
    weight: list[list[FiniteFloat | None]]
    words: list[list[list[str]]] = []
    loss: dict[str, FiniteFloat] = {}

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
        places = [np.flatnonzero(row < limit).tolist() for row in self.of_fair]
        return {layer: experts for layer, experts in zip(self.layers, places, strict=True) if experts}


def use_of(routing: Routing, step: int, tokens: int) -> ExpertUse:
    """The line for this routing, without words and losses."""
    weight = [[None if np.isnan(value) else round(float(value), 4) for value in row] for row in routing.weight]
    share = routing.share.round(6).tolist()
    return ExpertUse(step=step, tokens=tokens, layers=routing.layers, share=share, weight=weight)


def characteristic_ids(routing: Routing) -> np.ndarray:
    """(L, E, WORDS) ids that tell an expert from the others, the strongest first; -1 where there are not so many.

    By p(id | expert) ln( p(id | expert) / p(id) ): what an id adds to the divergence between the expert's tokens and
    all tokens. So an id must be frequent there and more frequent than elsewhere.
    """
    of_expert = routing.ids / np.maximum(1, routing.ids.sum(-1, keepdims=True))
    of_all = routing.ids.sum(1, keepdims=True) / np.maximum(1, routing.ids.sum((1, 2), keepdims=True))
    with np.errstate(divide="ignore", invalid="ignore"):
        score = np.where(of_expert > 0, of_expert * np.log(of_expert / of_all), 0.0)
    best = np.argsort(-score, axis=-1, kind="stable")[..., :WORDS]
    return np.where(np.take_along_axis(score, best, -1) > 0, best, -1)


def read(directory: Path, warn: Warn) -> list[ExpertUse]:
    """The lines of a run, in order, all of the model that the last one saw; none without the file."""
    lines: list[ExpertUse] = read_log(directory / EXPERTS, ExpertUse, warn)
    return [line for line in lines if line.layers == lines[-1].layers and line.experts == lines[-1].experts]


# ---------------------------------------------------------------------------------------------------------
# what a reader sees


def in_a_line(use: ExpertUse) -> str:
    """How evenly the tokens are shared out, and which experts are dead: for the terminal."""
    of_fair = use.of_fair
    layer, expert = divmod(int(of_fair.argmin()), use.experts)
    weakest = f"L{use.layers[layer]} E{expert} with {of_fair.min():.2f} of a fair share"
    return f"experts: the weakest is {weakest}; {_dead(use)}"


def _dead(use: ExpertUse) -> str:
    dead = [f"L{layer} E{', E'.join(map(str, experts))}" for layer, experts in use.under(DEAD).items()]
    return f"dead: {'; '.join(dead)}" if dead else "none is dead"


def findings(lines: list[ExpertUse]) -> list[str]:
    """Lines of Markdown: the balance of every layer, what the router's choice is worth, and which words go where."""
    last = lines[-1]
    starved = last.under(STARVED)
    count = sum(map(len, starved.values()))
    many = {0: "No expert has", 1: "1 expert has"}.get(count, f"{count} experts have")
    balance = f"{many} less than {STARVED:g} of a fair share of the tokens; {_dead(last)}."
    page = ["## Experts", "", f"{last.experts} in each of {len(last.layers)} layers. {balance}", ""]
    rows: list[tuple[str, ...]] = []
    for i, (layer, shares) in enumerate(zip(last.layers, last.of_fair, strict=True)):
        mean = sum(share * (weight or 0.0) for share, weight in zip(last.share[i], last.weight[i], strict=True))
        weakest, strongest = (f"{shares[at]:.2f} (E{at})" for at in (shares.argmin(), shares.argmax()))
        names = ", ".join(f"E{expert}" for expert in starved.get(layer, [])) or "none"
        rows.append((f"L{layer}", weakest, strongest, f"{mean:.2f}", names))
    page += [table(("Layer", "weakest", "strongest", "mean weight", f"under {STARVED:g}"), rows), ""]
    page += ["Shares are parts of a fair share: 1 = as many tokens as every other expert.", ""]
    if (own := last.loss.get("learned")) is not None:
        page += [
            f"- Every token sent to {where}: the loss rises by {last.loss[name] - own:.3f} nats, from {own:.3f}."
            for name, where in CHOICES.items()
            if name in last.loss
        ]
        page += [""]
    if last.words:
        page += ["The tokens that tell an expert from the others of its layer:", ""]
        rows = [
            (f"L{layer} E{expert}", f"{share:.2f}", " ".join(words))
            for layer, shares, of_layer in zip(last.layers, last.of_fair, last.words, strict=True)
            for expert, (share, words) in enumerate(zip(shares, of_layer, strict=True))
        ]
        page += [table(("Expert", "share", "tokens"), rows), ""]
    return page


def for_viewer(lines: Sequence[ExpertUse]) -> dict[str, Any] | None:
    """What the page shows: layers, experts and every line, in order, ready for JSON; None for no line."""
    if not lines:
        return None
    last = lines[-1]
    most = max(2, MOST // (len(last.layers) * last.experts))
    places = np.linspace(0, len(lines) - 1, min(most, len(lines))).round().astype(int)
    steps = [
        {
            "step": line.step,
            "tokens": line.tokens,
            "share": line.of_fair.round(3).tolist(),
            "weight": line.weight,
            "words": [[[escape(word) for word in words] for words in layer] for layer in line.words],
            "loss": line.loss,
        }
        for line in (lines[place] for place in places)
    ]
    return {"layers": last.layers, "experts": last.experts, "steps": steps, "dead": DEAD, "starved": STARVED}
