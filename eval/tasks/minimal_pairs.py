"""Which of two sentences does a model find likelier, the good one or its broken twin? Minimal pairs.

Warstadt et al. 2020, BLiMP (arXiv 1912.00582); Zorro: Huebner et al. 2021, BabyBERTa (CoNLL 2021).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from configs.command import InputError
from data.config import StoryworldSource
from data.reading.files import kind_of
from data.storyworld import Story, parse, tell
from data.tokenizer import Tokenizer
from eval.tasks.files import JSON, check_kind, checked_text, field, json_records, text_of
from eval.tasks.likelihood import accuracy_error, begun, check_length, token_log_probs
from model import LanguageModel

KINDS = (*JSON, ".txt")
CHANCE = 0.5
FIELDS = ("sentence_good", "sentence_bad")  # BLiMP's


class Pair(NamedTuple):
    """where: what an error calls it, `file:line`."""

    where: str
    good: str
    bad: str


class PairScore(NamedTuple):
    """ln p of either sentence: the sum over its tokens, given the first token of a document."""

    good: float
    bad: float

    @property
    def credit(self) -> float:
        """1 if the good one is likelier, 0 if the bad one is, 1/2 for a tie."""
        return 0.5 if self.good == self.bad else float(self.good > self.bad)


def read_pairs(path: str | Path, limit: int | None = None) -> dict[str, list[Pair]]:
    """Name -> the pairs of a file, or of every file of a folder; the first `limit` of each. Raises InputError.

    .jsonl and .json: BLiMP's records, with `sentence_good` and `sentence_bad`. .txt: Zorro's lines, a bad sentence
    before each good one.
    """
    path = Path(path)
    if not path.is_dir():
        check_kind(path, KINDS)
        return {path.name: list(_pairs_in(path, limit))}
    files = sorted(file for file in path.iterdir() if file.is_file() and kind_of(file) in KINDS)
    if not files:
        raise InputError(f"{path}: the folder holds no file of these kinds: {' '.join(KINDS)}")
    return {file.name: list(_pairs_in(file, limit)) for file in files}


def _pairs_in(file: Path, limit: int | None) -> Iterator[Pair]:
    if kind_of(file) in JSON:
        for where, record in json_records(file, limit):
            good, bad = (checked_text(where, field(where, record, key), f"`{key}`") for key in FIELDS)
            yield Pair(where, good, bad)
        return
    lines = text_of(file).rstrip().split("\n")
    if len(lines) % 2:
        raise InputError(f"{file}:{len(lines)}: a bad sentence without its good twin: lines must come in pairs")
    for at in range(0, len(lines), 2)[:limit]:
        bad, good = (checked_text(f"{file}:{at + n}", lines[at + n - 1].strip("\r"), "the line") for n in (1, 2))
        yield Pair(f"{file}:{at + 1}", good, bad)


def storyworld_pairs(source: StoryworldSource, limit: int | None = None) -> list[Pair]:
    """Held-out stories of the built-in world, and their twins: a name that was mentioned before, replaced by another.

    The twin is broken for sure: the world's own reader refuses it. A story with a single name has none.
    """
    stories = (tell(source.seed, index, "validation", source.level) for index in range(source.validation_documents))
    pairs = (pair for number, story in enumerate(stories) if (pair := _swapped(number, story, source.level)))
    return list(islice(pairs, limit))


def _swapped(number: int, story: Story, level: int) -> Pair | None:
    """The twin of a story; which of the names that could be swapped is decided by the story's number."""
    places, named = [], list[int]()  # people named so far
    for mention in story.mentions:
        if mention.form == "" and mention.entity in story.people:
            others = [one for one in named if one != mention.entity]
            if mention.entity in named and others:
                places.append((mention, story.people[others[number % len(others)]]))
            named += [mention.entity] if mention.entity not in named else []
    if not places:
        return None
    mention, name = places[number % len(places)]
    twin = story.text[: mention.start] + name + story.text[mention.end :]
    try:
        parse(twin, level)
    except ValueError:
        return Pair(f"held-out story {number}", story.text, twin)
    return None


def score_pairs(lm: LanguageModel, tokenizer: Tokenizer, pairs: Sequence[Pair]) -> list[PairScore]:
    """ln p of both sentences of every pair. Raises InputError for a sentence that is longer than the context."""
    ids = begun(tokenizer, [sentence for pair in pairs for sentence in (pair.good, pair.bad)])
    for n, one in enumerate(ids):
        check_length(lm, one, f"{pairs[n // 2].where}: the {('good', 'bad')[n % 2]} sentence")
    sums = [float(log_p.sum()) for log_p in token_log_probs(lm, ids)]
    return [PairScore(good, bad) for good, bad in zip(sums[::2], sums[1::2], strict=True)]


def figures(scores: Sequence[PairScore]) -> dict[str, Any]:
    """pairs, accuracy (a tie counts half), its standard error, ties and chance of the pairs of one file."""
    accuracy = sum(score.credit for score in scores) / len(scores)
    return {
        "pairs": len(scores),
        "accuracy": accuracy,
        "accuracy_stderr": accuracy_error(accuracy, len(scores)),
        "ties": sum(score.credit == 0.5 for score in scores),
        "chance": CHANCE,
    }


def mean_of_files(files: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Mean accuracy of several files, each counting alike (as BLiMP's overall figure does), and its standard error."""
    errors = [one["accuracy_stderr"] for one in files]
    return {
        "pairs": sum(one["pairs"] for one in files),
        "accuracy": sum(one["accuracy"] for one in files) / len(files),
        "accuracy_stderr": math.hypot(*errors) / len(files),
        "ties": sum(one["ties"] for one in files),
        "chance": CHANCE,
    }
