"""Does it recall what it has just read? Held-out documents of facts and questions, every answer of which is known.

An answer is right when each of its tokens is the likeliest one, given all text before it. `asked` finds the tokens of
the questions; eval/hooks/recall.py counts while a model learns, eval/lookups.py looks at the heads.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from data.config import StoryworldSource
from data.storyworld import Recall, recall
from data.storyworld.recall import Asked

if TYPE_CHECKING:  # torch takes seconds to import, and the comparison of runs needs only half_at
    from torch import Tensor

    from data.tokenizer import Tokenizer
    from model import LanguageModel

DOCUMENTS = 64  # of an evaluation
HALF = 0.5  # the phase change: the first evaluation with more right answers than this share


@dataclass(frozen=True)
class Exam:
    """Documents as tokens. ids (B, T); row, first, last: each question's row, and the tokens of its answer; questions:
    what is asked; words: for each row, the tokens (first, last) of each of its words."""

    ids: Tensor
    questions: list[Asked]
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
    made = [recall(source.seed, index, held_out=True, **shape) for index in range(documents)]
    return exam(made, tokenizer, source.recall.people)


def exam(documents: list[Recall], tokenizer: Tokenizer, people: int) -> Exam:
    """Documents of equally many words as rows of tokens, padded on the right."""
    import torch

    rows, words, found = [], [], []
    for row, document in enumerate(documents):
        pieces = tokenizer.encode_many([f" {word}" for word in document.words])
        row_ids, spans = [tokenizer.bos_id], []
        for piece in pieces:
            spans.append((len(row_ids), len(row_ids) + len(piece) - 1))
            row_ids += piece
        rows.append(row_ids)
        words.append(spans)
        found += [(row, question) for question in document.questions]
    width = max(map(len, rows))
    ids = torch.tensor([row_ids + [tokenizer.pad_id] * (width - len(row_ids)) for row_ids in rows])
    spans_of = [words[row][question.word] for row, question in found]
    first, last = torch.tensor(spans_of).T
    return Exam(
        ids, [question for _, question in found], torch.tensor([row for row, _ in found]), first, last, words, people
    )


def right(lm: LanguageModel, of: Exam) -> Tensor:
    """Which of the questions are answered right: (questions,) bool."""
    import torch

    from eval.eval_mode import evaluating

    device = next(lm.parameters()).device
    with evaluating(lm), torch.no_grad():
        likeliest = lm(of.ids.to(device)).argmax(-1).cpu()  # (B, T)
    agrees = torch.ones_like(of.ids, dtype=torch.bool)
    agrees[:, 1:] = likeliest[:, :-1] == of.ids[:, 1:]
    wrong_until = (~agrees).long().cumsum(1)  # (B, T)
    return wrong_until[of.row, of.last] == wrong_until[of.row, of.first - 1]


def figures(of: Exam, answers: Tensor) -> dict[str, float]:
    """Share of right answers: accuracy, and that of every sort of question. answers: (questions,) bool.

    one: a name is given. several: all words of a fact are given; needs_2: two of them decide, at least. distance_32:
    the fact is 17 to 32 words before the answer. chance: of naming any of the people.
    """
    groups: dict[str, list[bool]] = defaultdict(list)
    for question, is_right in zip(of.questions, answers.tolist(), strict=True):
        sorts = ["accuracy", question.kind, f"distance_{_up_to(question.distance)}"]
        if question.kind == "several":
            sorts.append(f"needs_{question.needs}")
        for sort in sorts:
            groups[sort].append(is_right)
    shares = {sort: sum(found) / len(found) for sort, found in sorted(groups.items(), key=_order)}
    return {"accuracy": shares.pop("accuracy"), **shares, "chance": 1 / of.people}


def half_at(looks: list[dict[str, Any]]) -> int | None:
    """The step of the phase change, from lines with `step` and `accuracy`; None where there is none."""
    return next((look["step"] for look in looks if look["accuracy"] > HALF), None)


def _up_to(distance: int) -> int:
    """The next power of two."""
    return 1 << (distance - 1).bit_length()


def _order(group: tuple[str, list[bool]]) -> tuple[str, int]:
    sort, _, number = group[0].partition("_")
    return sort, int(number or 0)
