"""All measurements of one command: every way to read, every length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from configs.command import InputError
from configs.text import table
from data.config import DataConfig
from data.tokenizer import Tokenizer
from eval.long_context import frequencies, measure
from eval.long_context.frequencies import Pairs
from eval.long_context.methods import Make, longer, methods
from eval.long_context.texts import RecallTexts, held_out_rows, recall_texts
from model import LanguageModel

POSITIONS, DISTANCES, DEPTHS = 16, 8, 8  # stretches in which means are taken
RECALLED = ("recall", "copy_gain", "recall_by_depth", "gain_by_distance", "induction_by_distance")


@dataclass
class Study:
    """What was found. numbers is what is written as JSON. Most of it is `name -> method -> one entry a length`:

    loss:                  of the same last tokens of every held-out text, however much stands before them
    loss_by_position:      its mean in stretches from the first token to the last
    recall, copy_gain:     of the tokens asked for: the share that are the likeliest; how much their loss falls
    recall_by_depth:       in stretches of the text, from its beginning to its end
    gain_by_distance, induction_by_distance: in stretches of the distance, from 0 to the length
    """

    trained: int
    lengths: list[int]
    numbers: dict[str, Any]
    pairs: dict[str, Pairs] = field(default_factory=dict)

    def table(self) -> str:
        """The loss and the recall of every method at every length."""
        header = ["", *(f"loss at {length:,}" for length in self.lengths)]
        header += [f"recall at {length:,}" for length in self.lengths]
        rows = []
        for name, losses in self.numbers["loss"].items():
            recalls = self.numbers["recall"][name]
            shown = ["–" if share is None else f"{share:.2f}" for share in recalls]
            rows.append([name, *(f"{loss:.2f}" for loss in losses), *shown])
        return table(header, rows)


def study(
    opened: Mapping[str, tuple[LanguageModel, Tokenizer]], config: DataConfig, lengths: Sequence[int], count: int
) -> Study:
    """Measure the first run in every way, and all others as they are. Raises InputError."""
    (first, (lm, tokenizer)), *others = opened.items()
    trained, longest = config.sequence_length, lengths[-1]
    ways: dict[str, Make] = methods(lm, trained)
    for path, (other, its_tokenizer) in others:
        if its_tokenizer.sha256() != tokenizer.sha256():
            raise InputError(f"{path}: has another tokenizer than {first}, so their losses cannot be compared")
        ways[_free_name(Path(path).resolve().name, ways)] = _as_it_is(other)
    for length in lengths:
        ways["none"](length)  # what cannot be read is refused before anything is measured
    text = held_out_rows(tokenizer, config, longest, count)
    found = Study(trained, list(lengths), _measured(ways, tokenizer, text, lengths, trained))
    found.numbers |= {"run": first, "trained_length": trained, "lengths": list(lengths), "texts": len(text)}
    if any(lm.config.rotates):
        for name in ("none", "linear", "yarn"):
            found.pairs[name] = frequencies.pairs(lm.config, ways[name](longest).config, trained, longest)
    return found


def _measured(
    ways: Mapping[str, Make], tokenizer: Tokenizer, text: Tensor, lengths: Sequence[int], trained: int
) -> dict[str, Any]:
    """Read everything in every way."""
    questions = {length: recall_texts(tokenizer, length, len(text)) for length in lengths}
    asked = {length: texts for length, texts in questions.items() if texts is not None}
    within = [length for length in asked if length <= trained] or list(asked)[:1]
    head = measure.best_head(ways["none"](within[-1]), asked[within[-1]]) if asked else None
    numbers: dict[str, Any] = {"last_tokens": lengths[0] // 2, "head": head}
    for name, make in ways.items():
        for length in lengths:
            model = make(length)
            losses, _ = measure.read(model, _last(text, length))
            found = {
                "loss": losses[:, -numbers["last_tokens"] :].mean().item(),
                "loss_by_position": measure.by_position(losses, POSITIONS),
            }
            for key, value in (found | _recalled(model, questions[length], head)).items():
                numbers.setdefault(key, {}).setdefault(name, []).append(value)
    return numbers


def _recalled(lm: LanguageModel, texts: RecallTexts | None, head: tuple[int, int] | None) -> dict[str, Any]:
    """What it does with random words; None for each where there are none."""
    if texts is None or head is None:
        return dict.fromkeys(RECALLED)
    gain, right = measure.copied(lm, texts)
    length, (distance, share) = texts.input_ids.shape[1], measure.induction(lm, texts, head)
    found = (
        right.mean().item(),
        gain.mean().item(),
        measure.mean_by(texts.depth, right, 1.0, DEPTHS),
        measure.mean_by(texts.distance, gain, length, DISTANCES),
        measure.mean_by(distance, share, length, DISTANCES),
    )
    return dict(zip(RECALLED, found, strict=True))


def _last(text: Tensor, length: int) -> Tensor:
    """The first token of a document, and the last tokens of every text: `length` in all."""
    return torch.cat((text[:, :1], text[:, text.shape[1] - length + 1 :]), dim=1)


def _as_it_is(lm: LanguageModel) -> Make:
    return lambda length: longer(lm, length)


def _free_name(name: str, taken: Mapping[str, Any]) -> str:
    number = 2
    free = name
    while free in taken:
        free, number = f"{name} {number}", number + 1
    return free
