"""experts.jsonl: what was measured of the experts of a run, a line each time. And what a reader sees of it: a line on
the terminal, a part of report.md, a tab of the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, Field, FiniteFloat

from configs.text import escape, table
from data.tokenizer import Tokenizer
from eval.run_files import EXPERTS, Count, Warn, read_log

WORDS = 8  # of each expert
DEAD, STARVED = 0.01, 0.25  # of the fair share
MOST = 20_000  # numbers of shares in a page: with more, lines in the middle are left out


@dataclass(frozen=True)
class Routing:
    """Of every layer that has experts, over some text; L such layers, E experts, V ids.

    share: (L, E) share of the layer's choices that are this expert; a row adds up to 1. weight: (L, E) mean weight of
    the expert where it was chosen, NaN where it never was. ids: (L, E, V) how often a token with this id chose it.
    """

    layers: list[int]
    share: np.ndarray
    weight: np.ndarray
    ids: np.ndarray


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

    def figures(self) -> dict[str, float]:
        """For the log and result.json."""
        return {"weakest": float(self.of_fair.min()), "strongest": float(self.of_fair.max()), **self.loss}

    def under(self, limit: float) -> dict[int, str]:
        """Layer -> "E0, E3", the experts with less than this part of their fair share, of the layers that have some."""
        weak = ((layer, np.flatnonzero(row < limit)) for layer, row in zip(self.layers, self.of_fair, strict=True))
        return {layer: ", ".join(f"E{expert}" for expert in experts) for layer, experts in weak if len(experts)}

    def in_words(self) -> str:
        """How evenly the tokens are shared out, and which experts are dead."""
        layer, expert = divmod(int(self.of_fair.argmin()), self.experts)
        weakest = f"L{self.layers[layer]} E{expert} with {self.of_fair.min():.2f} of a fair share"
        dead = "; ".join(f"L{layer} {experts}" for layer, experts in self.under(DEAD).items())
        return f"the weakest is {weakest}; {f'dead: {dead}' if dead else 'none is dead'}"


def use_of(routing: Routing, step: int, tokens: int, tokenizer: Tokenizer) -> ExpertUse:
    """The line for this routing, without losses."""
    weight = [[None if np.isnan(value) else round(float(value), 4) for value in row] for row in routing.weight]
    labels, best = tokenizer.token_labels, characteristic_ids(routing).tolist()
    words = [[labels(x for x in ids if x >= 0) for ids in layer] for layer in best]
    share = routing.share.round(6).tolist()
    return ExpertUse(step=step, tokens=tokens, layers=routing.layers, share=share, weight=weight, words=words)


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


def findings(last: ExpertUse) -> list[str]:
    """Lines of Markdown: the balance of every layer, what the router's choice is worth, and which words go where."""
    page = ["## Experts", "", f"{last.experts} in each of {len(last.layers)} layers: {last.in_words()}.", ""]
    rows, starved = [], last.under(STARVED)
    for layer, shares in zip(last.layers, last.of_fair, strict=True):
        weakest, strongest = (f"{shares[at]:.2f} (E{at})" for at in (shares.argmin(), shares.argmax()))
        rows.append((f"L{layer}", weakest, strongest, starved.get(layer, "none")))
    page += [table(("Layer", "weakest", "strongest", f"under {STARVED:g}"), rows), ""]
    page += ["Shares are parts of a fair share: 1 = as many tokens as every other expert.", ""]
    if "random" in last.loss:
        losses = f"the loss rises from {last.loss['learned']:.3f} to {last.loss['random']:.3f} nats."
        page += [f"Every token sent to other experts, drawn at random: {losses}", ""]
    if last.words:
        words_of = [
            (f"L{layer} E{expert}", f"{share:.2f}", " ".join(words))
            for layer, shares, of_layer in zip(last.layers, last.of_fair, last.words, strict=True)
            for expert, (share, words) in enumerate(zip(shares, of_layer, strict=True))
        ]
        page += ["The tokens that tell an expert from the others of its layer:", ""]
        page += [table(("Expert", "share", "tokens"), words_of), ""]
    return page


def for_viewer(lines: Sequence[ExpertUse]) -> dict[str, Any] | None:
    """What the page shows: layers, experts and every line, in order, ready for JSON; None for no line."""
    if not lines:
        return None
    last = lines[-1]
    most = max(2, MOST // (len(last.layers) * last.experts))
    places = np.linspace(0, len(lines) - 1, min(most, len(lines))).round().astype(int)
    steps = [
        line.model_dump(include={"step", "tokens", "weight", "loss"})
        | {
            "share": line.of_fair.round(3).tolist(),
            "words": [[[escape(word) for word in words] for words in layer] for layer in line.words],
        }
        for line in (lines[place] for place in places)
    ]
    return {"layers": last.layers, "experts": last.experts, "steps": steps, "dead": DEAD, "starved": STARVED}
