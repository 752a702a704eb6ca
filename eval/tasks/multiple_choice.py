"""Which of several endings of a context does a model find likeliest? Multiple choice.

Zellers et al. 2019, HellaSwag (arXiv 1905.07830); the names acc and acc_norm are lm-evaluation-harness's.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from configs.command import InputError
from data.tokenizer import Tokenizer
from eval.tasks.files import checked_text, field, json_records
from eval.tasks.likelihood import accuracy_error, begun, check_length, token_log_probs
from model import LanguageModel


class MultipleChoice(NamedTuple):
    """A context, its possible endings, and the number of the right one. where: what an error calls it, `file:line`."""

    where: str
    context: str
    endings: tuple[str, ...]
    label: int


def read_multiple_choice(path: str | Path, limit: int | None = None) -> list[MultipleChoice]:
    """HellaSwag's records (`ctx`, `endings`, `label`) of a .jsonl or .json file. Raises InputError."""
    return [_checked(where, record) for where, record in json_records(Path(path), limit)]


def _checked(where: str, record: dict[str, Any]) -> MultipleChoice:
    context = checked_text(where, field(where, record, "ctx"), "`ctx`", may_be_empty=True)
    endings, label = field(where, record, "endings"), field(where, record, "label")
    if not isinstance(endings, list) or len(endings) < 2:
        raise InputError(f"{where}: `endings` must be a list of two texts or more, not {str(endings)[:40]!r}")
    texts = tuple(checked_text(where, ending, f"ending {n} of `endings`") for n, ending in enumerate(endings))
    number = int(label) if isinstance(label, str) and label.isdecimal() else label  # some copies hold "3"
    if type(number) is not int or not 0 <= number < len(texts):
        raise InputError(f"{where}: `label` is {label!r}: it must be a whole number, 0 to {len(texts) - 1}")
    return MultipleChoice(where, context, texts, number)


def score_multiple_choice(
    lm: LanguageModel, tokenizer: Tokenizer, questions: Sequence[MultipleChoice], delimiter: str = " "
) -> list[list[float]]:
    """ln p of every ending of every question, given its context. Raises InputError for what exceeds the context.

    Context and ending are encoded as one text, with `delimiter` between them where neither brings white space. All
    endings of a question are scored after the same tokens: those that the context, its last white space left out, and
    every whole text begin with. So white space between the two, and a token that reaches from one into the other,
    belong to the ending.
    """
    wholes, firsts = list[list[int]](), list[int]()
    for question in questions:
        context, *texts = begun(
            tokenizer,
            [question.context.rstrip(), *(joined(question.context, one, delimiter) for one in question.endings)],
        )
        for n, ids in enumerate(texts):
            check_length(lm, ids, f"{question.where}: the context with ending {n}")
        wholes += texts
        firsts += [_shared([context, *texts])] * len(texts)
    sums = [float(log_p[first - 1 :].sum()) for first, log_p in zip(firsts, token_log_probs(lm, wholes), strict=True)]
    left = iter(sums)
    return [[next(left) for _ in question.endings] for question in questions]


def joined(context: str, ending: str, delimiter: str) -> str:
    """The text that a context and one of its endings make."""
    is_open = bool(context) and not context[-1].isspace() and not ending[0].isspace()
    return context + (delimiter if is_open else "") + ending


def _shared(sequences: Sequence[Sequence[int]]) -> int:
    """How many tokens all sequences begin with."""
    same = (len(set(column)) == 1 for column in zip(*sequences, strict=False))
    return next((n for n, is_same in enumerate(same) if not is_same), min(map(len, sequences)))


def credit(question: MultipleChoice, values: Sequence[float]) -> float:
    """1 if the right ending has the largest value, 0 if another has; 1/n where n endings, the right one too, tie."""
    best = [n for n, value in enumerate(values) if value == max(values)]
    return 1 / len(best) if question.label in best else 0.0


def per_byte(question: MultipleChoice, log_likelihoods: Sequence[float]) -> list[float]:
    """ln p divided by the bytes of the ending, the delimiter left out."""
    return [
        value / len(ending.encode("utf-8")) for value, ending in zip(log_likelihoods, question.endings, strict=True)
    ]


def figures(questions: Sequence[MultipleChoice], log_likelihoods: Sequence[Sequence[float]]) -> dict[str, Any]:
    """questions, acc (largest ln p), acc_norm (largest ln p a byte), standard errors, ties and chance."""
    both = list(zip(questions, log_likelihoods, strict=True))
    raw = [credit(*one) for one in both]
    norm = [credit(question, per_byte(question, values)) for question, values in both]
    count = len(questions)
    acc, acc_norm = sum(raw) / count, sum(norm) / count
    return {
        "questions": count,
        "acc": acc,
        "acc_stderr": accuracy_error(acc, count),
        "acc_norm": acc_norm,
        "acc_norm_stderr": accuracy_error(acc_norm, count),
        "ties": sum(0 < one < 1 for one in raw),
        "chance": sum(1 / len(question.endings) for question in questions) / count,
    }
