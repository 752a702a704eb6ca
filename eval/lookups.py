"""Does it recall what it has just read, and which head looks it up? `python -m eval.lookups runs/recall`

Held-out documents of facts and questions, every answer of which is known. An answer is right when each of its tokens is
the likeliest one, given all text before it. The hook `recall` counts right answers while a model learns.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from configs.command import InputError, exit_on_bad_input, integer
from configs.text import table
from data.config import StoryworldSource
from data.tokenizer import Tokenizer
from eval.attention.capture import capture
from eval.attention.controls import ablated
from eval.language_modeling import predictions
from eval.load_model import add_device_option, open_model
from eval.questions import source_of
from model import LanguageModel
from storyworld import recall
from storyworld.recall import RecallQuestion


class Exam(NamedTuple):
    """Documents as tokens, and the questions in them."""

    ids: Tensor  # (B, T), padded on the right
    words: list[list[tuple[int, int]]]  # of each row: the tokens (first, last) of each of its words
    questions: list[RecallQuestion]
    row: Tensor  # of each question,
    first: Tensor  # and the tokens of its answer
    last: Tensor
    people: int


def held_out(source: StoryworldSource, tokenizer: Tokenizer, documents: int = 64) -> Exam:
    """The first held-out documents of a source. Raises InputError where it has none of recall."""
    if source.recall is None:
        raise InputError("data.source.recall is null: this source asks nothing")
    rows, words, questions, row_of = [], [], list[RecallQuestion](), list[int]()
    for row in range(documents):
        document = recall(source.seed, row, source.recall, held_out=True)
        ids, spans = [tokenizer.bos_id], []
        for piece in tokenizer.encode_many([f" {word}" for word in document.words]):
            spans.append((len(ids), len(ids) + len(piece) - 1))
            ids += piece
        rows.append(torch.tensor(ids))
        words.append(spans)
        questions += document.questions
        row_of += [row] * len(document.questions)
    padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=tokenizer.pad_id)
    first, last = torch.tensor(
        [words[row][question.word] for row, question in zip(row_of, questions, strict=True)]
    ).T
    return Exam(padded, words, questions, torch.tensor(row_of), first, last, source.recall.people)


def right(lm: LanguageModel, exam: Exam) -> Tensor:
    """Which of the questions are answered right: (questions,) bool."""
    _, is_likeliest = predictions(lm, exam.ids)  # (B, T)
    wrong_until = (~is_likeliest).long().cumsum(1)
    return wrong_until[exam.row, exam.last] == wrong_until[exam.row, exam.first - 1]


def figures(exam: Exam, answers: Tensor) -> dict[str, float]:
    """Share of right answers: accuracy, and that of every sort of question. answers: (questions,) bool.

    one: a name is given. several: all words of a fact are given; needs_2: two of them decide, at least. distance_32:
    the fact is 17 to 32 words before the answer. chance: of naming any of the people.
    """
    groups: dict[tuple[str, int], list[bool]] = defaultdict(list)  # of a sort, and its number
    for question, is_right in zip(exam.questions, answers.tolist(), strict=True):
        next_power_of_two = 1 << (question.distance - 1).bit_length()
        needs = [("needs", question.needs)] * (question.kind == "several")
        for sort in (question.kind, -1), ("distance", next_power_of_two), *needs:
            groups[sort].append(is_right)
    values = {"accuracy": sum(answers.tolist()) / len(answers)}
    for (name, number), group in sorted(groups.items()):
        values[name if number < 0 else f"{name}_{number}"] = sum(group) / len(group)
    return values | {"chance": 1 / exam.people}


def half_at(lines: list[dict[str, Any]]) -> int | None:
    """The step of the phase change: of the first line of the log with more than half of the answers right, if any."""
    return next((line["step"] for line in lines if line["accuracy"] > 0.5), None)


def lookups(lm: LanguageModel, exam: Exam) -> tuple[Tensor, Tensor]:
    """What every head does where a name is asked for by words: (layer, head, 3) and (layer, head).

    First the mean weight that it gives to the fact of one person: of the right one; of one who shares some of the
    words; of one who shares none. Heads of a group that look alike share one lookup. Then the share of right answers
    when the head is ablated.
    """
    chosen = [i for i, question in enumerate(exam.questions) if question.kind == "several"]
    weights = capture(
        lm, exam.ids.to(next(lm.parameters()).device)
    ).weights  # (layer, B, head, query, key)
    sums, counts = torch.zeros(weights.shape[0], weights.shape[2], 3), torch.zeros(3)
    for i in chosen:
        question, row = exam.questions[i], int(exam.row[i])
        words, from_answer = (
            exam.words[row],
            weights[:, row, :, int(exam.first[i]) - 1],
        )  # (layer, head, key)
        word_ids = [exam.ids[row, first : last + 1].tolist() for first, last in words]
        clues, facets = [word_ids[clue] for clue in question.clues], len(question.clues)
        for start in range(
            0, exam.people * (1 + facets), 1 + facets
        ):  # a name and its facets: the fact of a person
            end = start + facets
            shares_some = any(word in clues for word in word_ids[start + 1 : end + 1])
            group = 0 if start == question.fact else 1 if shares_some else 2
            sums[..., group] += from_answer[..., words[start][0] : words[end][1] + 1].sum(-1)
            counts[group] += 1
    without = torch.zeros(sums.shape[:2])
    for layer, head in product(*map(range, without.shape)):
        with ablated(lm, [(layer, head)]):
            without[layer, head] = right(lm, exam)[chosen].float().mean()
    return sums / counts, without


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Which head of a run looks up facts, and what is lost without it?"
    )
    parser.add_argument("run", help="a run of configs/recall.yaml, or a checkpoint of it")
    parser.add_argument(
        "--documents", type=integer("--documents", 1), default=16, help="held-out documents (16)"
    )
    add_device_option(parser)
    given = parser.parse_args()
    source = source_of(given.run)
    lm, tokenizer = open_model(given.run, given.device)
    attention, without = lookups(lm, held_out(source, tokenizer, given.documents))
    rows = [
        [
            f"layer {layer} head {head}",
            *(f"{share:.1%}" for share in (*attention[layer, head], without[layer, head])),
        ]
        for layer, head in product(*map(range, without.shape))
    ]
    print(
        table(
            ["looks at", "right person", "shares a word", "shares none", "right without it"], rows
        )
    )


if __name__ == "__main__":
    exit_on_bad_input(main)
