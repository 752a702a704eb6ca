"""Recall of facts, and the heads that look them up: `python -m eval.lookups runs/recall`

Held-out documents have facts and questions with known answers. The hook `recall` counts right
answers during training.
"""

from collections import defaultdict
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from configs.command import InputError, add_number, command_parser, exit_on_bad_input
from configs.text import table
from data.config import StoryworldSource
from data.tokenizer import Tokenizer
from eval.attention.capture import capture, layers_with_weights, without_weights
from eval.attention.controls import ablated
from eval.language_modeling import predictions
from eval.load_model import add_device_option, open_model
from eval.questions import source_of
from model import LanguageModel
from storyworld import recall
from storyworld.recall import RecallQuestion


class Exam(NamedTuple):
    """Documents as tokens, and their questions."""

    ids: Tensor  # (B, T), padded on the right
    words: list[list[tuple[int, int]]]  # for each row, the first and last token of each word
    questions: list[RecallQuestion]
    row: Tensor  # of each question
    first: Tensor  # and last token of each answer
    last: Tensor
    people: int


def held_out(source: StoryworldSource, tokenizer: Tokenizer, documents: int = 64) -> Exam:
    """Make an exam of the first held-out documents. Raises InputError without facts."""
    if source.recall is None:
        raise InputError("data.source.recall is null: this source has no questions")
    rows = []
    words: list[list[tuple[int, int]]] = []
    questions: list[RecallQuestion] = []
    question_rows = []
    answers = []
    for row in range(documents):
        document = recall(source.seed, row, source.recall, held_out=True)
        ids = [tokenizer.bos_id]
        spans = []
        for piece in tokenizer.encode_many([f" {word}" for word in document.words]):
            spans.append((len(ids), len(ids) + len(piece) - 1))
            ids += piece
        rows.append(torch.tensor(ids))
        words.append(spans)
        for question in document.questions:
            questions.append(question)
            question_rows.append(row)
            answers.append(spans[question.word])
    padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=tokenizer.pad_id)
    first, last = torch.tensor(answers).T
    row_numbers = torch.tensor(question_rows)
    return Exam(padded, words, questions, row_numbers, first, last, source.recall.people)


def right(lm: LanguageModel, exam: Exam) -> Tensor:
    """Return True for each question that the model answers right: (questions,) bool."""
    _, is_likeliest = predictions(lm, exam.ids)  # (B, T)
    # An answer is right if each of its tokens is the likeliest one, given all text before it. Then
    # no token from its first to its last adds to this count.
    wrong_until = (~is_likeliest).long().cumsum(1)  # (B, T)
    return wrong_until[exam.row, exam.last] == wrong_until[exam.row, exam.first - 1]


def figures(exam: Exam, answers: Tensor) -> dict[str, float]:
    """Return the share of right answers (questions,), also for each sort of question.

    one:     a name is given
    several: all words of a fact are given
    chance:  the share if any of the people is named
    """
    groups: dict[tuple[str, int], list[bool]] = defaultdict(list)  # (sort, its number)
    for question, is_right in zip(exam.questions, answers.tolist(), strict=True):
        groups[question.kind, -1].append(is_right)
        # distance_32: the fact is 17 to 32 words before the answer
        # groups that double: so near and far have about as many questions each
        next_power_of_two = 1 << (question.distance - 1).bit_length()
        groups["distance", next_power_of_two].append(is_right)
        if question.kind == "several":
            # needs_2: at least two of the words decide
            groups["needs", question.needs].append(is_right)
    values = {"accuracy": sum(answers.tolist()) / len(answers)}
    for (name, number), group in sorted(groups.items()):
        values[name if number < 0 else f"{name}_{number}"] = sum(group) / len(group)
    return values | {"chance": 1 / exam.people}


def half_at(lines: list[dict[str, Any]]) -> int | None:
    """Return the step of the phase change: the first with more than half of the answers right."""
    return next((line["step"] for line in lines if line["accuracy"] > 0.5), None)


def lookups(lm: LanguageModel, exam: Exam) -> tuple[Tensor, Tensor]:
    """Measure every head where words of a fact ask for its name.

    Layers are those with attention weights. Returns (layer, head, 3): its mean weight on the fact
    of the right person, of a person who shares some of the words, and of one who shares none; and
    (layer, head): the share of right answers without the head.
    """
    chosen = [i for i, question in enumerate(exam.questions) if question.kind == "several"]
    device = lm.device
    # of all documents at once; the loop below only reads from them
    maps = capture(lm, exam.ids.to(device))
    weights = maps.weights  # (layer, B, head, query, key)
    sums = torch.zeros(weights.shape[0], weights.shape[2], 3)
    counts = torch.zeros(3)
    for i in chosen:
        question = exam.questions[i]
        row = int(exam.row[i])
        words = exam.words[row]
        # the token before the answer predicts it
        from_answer = weights[:, row, :, int(exam.first[i]) - 1]  # (layer, head, key)
        word_ids = [exam.ids[row, first : last + 1].tolist() for first, last in words]
        clues = [word_ids[clue] for clue in question.clues]
        facets = len(clues)
        # a person's fact is a name and its facets
        for start in range(0, exam.people * (1 + facets), 1 + facets):
            end = start + facets
            if start == question.fact:
                group = 0
            elif any(word in clues for word in word_ids[start + 1 : end + 1]):
                group = 1
            else:
                group = 2
            sums[..., group] += from_answer[..., words[start][0] : words[end][1] + 1].sum(-1)
            counts[group] += 1
    without = torch.zeros(sums.shape[:2])
    # note: heads that do the same lookup can replace each other
    for layer, head in product(*map(range, without.shape)):
        with ablated(lm, [(maps.layers[layer], head)]):
            without[layer, head] = right(lm, exam)[chosen].float().mean()
    return sums / counts, without


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("run", help="a run of configs/recall.yaml, or a checkpoint of it")
    add_number(parser, "--documents", 16, "held-out documents")
    add_device_option(parser)
    args = parser.parse_args()
    source = source_of(args.run)
    lm, tokenizer = open_model(args.run, args.device)
    layers = layers_with_weights(lm.config)
    if not layers:
        raise InputError(f"{args.run}: {without_weights(lm.config)}")
    attention, without = lookups(lm, held_out(source, tokenizer, args.documents))
    rows = []
    for layer, head in product(*map(range, without.shape)):
        shares = (*attention[layer, head], without[layer, head])
        rows.append([f"layer {layers[layer]} head {head}", *(f"{share:.1%}" for share in shares)])
    header = ["looks at", "right person", "shares a word", "shares none", "right without it"]
    print(table(header, rows))


if __name__ == "__main__":
    exit_on_bad_input(main)
