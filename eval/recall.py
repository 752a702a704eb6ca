"""Does it recall what it has just read? Held-out documents of facts and questions, every answer of which is known.

An answer is right when each of its tokens is the likeliest one, given all text before it. The hook `recall` counts
while a model learns, eval/lookups.py looks at the heads.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from data.config import StoryworldSource
from data.storyworld import Recall, recall
from data.storyworld.recall import RecallQuestion
from data.tokenizer import Tokenizer
from eval.language_modeling import predictions
from model import LanguageModel

DOCUMENTS = 64  # of an evaluation


@dataclass(frozen=True)
class Exam:
    """Documents as tokens. ids (B, T); row, first, last: each question's row, and the tokens of its answer; questions:
    what is asked; words: for each row, the tokens (first, last) of each of its words."""

    ids: Tensor
    questions: list[RecallQuestion]
    row: Tensor
    first: Tensor
    last: Tensor
    words: list[list[tuple[int, int]]]
    people: int


def held_out(source: StoryworldSource, tokenizer: Tokenizer, documents: int = DOCUMENTS) -> Exam:
    """The first held-out documents of a source. Raises ValueError where it has none of recall."""
    if source.recall is None:
        raise ValueError("data.source.recall is null: this source asks nothing")
    shape = source.recall.model_dump()
    texts = [recall(source.seed, index, held_out=True, **shape) for index in range(documents)]
    return exam(texts, tokenizer, source.recall.people)


def exam(documents: list[Recall], tokenizer: Tokenizer, people: int) -> Exam:
    """Documents of equally many words as rows of tokens, padded on the right."""
    rows, words, row_of, answers = [], [], [], []
    questions: list[RecallQuestion] = []
    for row, document in enumerate(documents):
        row_ids, spans = [tokenizer.bos_id], []
        for piece in tokenizer.encode_many([f" {word}" for word in document.words]):
            spans.append((len(row_ids), len(row_ids) + len(piece) - 1))
            row_ids += piece
        rows.append(torch.tensor(row_ids))
        words.append(spans)
        questions += document.questions
        row_of += [row] * len(document.questions)
        answers += [spans[question.word] for question in document.questions]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=tokenizer.pad_id)
    first, last = torch.tensor(answers).T
    return Exam(ids, questions, torch.tensor(row_of), first, last, words, people)


def right(lm: LanguageModel, of: Exam) -> Tensor:
    """Which of the questions are answered right: (questions,) bool."""
    _, is_likeliest = predictions(lm, of.ids)  # (B, T)
    wrong_until = (~is_likeliest).long().cumsum(1)
    return wrong_until[of.row, of.last] == wrong_until[of.row, of.first - 1]


def figures(of: Exam, answers: Tensor) -> dict[str, float]:
    """Share of right answers: accuracy, and that of every sort of question. answers: (questions,) bool.

    one: a name is given. several: all words of a fact are given; needs_2: two of them decide, at least. distance_32:
    the fact is 17 to 32 words before the answer. chance: of naming any of the people.
    """
    groups: dict[tuple[str, int], list[bool]] = defaultdict(list)  # of a sort, and its number
    for question, is_right in zip(of.questions, answers.tolist(), strict=True):
        next_power_of_two = 1 << (question.distance - 1).bit_length()
        needs = [("needs", question.needs)] * (question.kind == "several")
        for sort in (question.kind, -1), ("distance", next_power_of_two), *needs:
            groups[sort].append(is_right)
    values = {"accuracy": sum(answers.tolist()) / len(answers)}
    for (name, number), group in sorted(groups.items()):
        values[name if number < 0 else f"{name}_{number}"] = sum(group) / len(group)
    return values | {"chance": 1 / of.people}


def half_at(lines: list[dict[str, Any]]) -> int | None:
    """The step of the phase change: of the first line of the log with more than half of the answers right, if any."""
    return next((line["step"] for line in lines if line["accuracy"] > 0.5), None)
