"""Which ending of a context does a model find likeliest? Multiple choice; a minimal pair is one of two without context.

Zellers et al. 2019, HellaSwag (arXiv 1905.07830); Warstadt et al. 2020, BLiMP (arXiv 1912.00582); Huebner et al. 2021,
BabyBERTa, whose test is Zorro (CoNLL 2021). The names acc and acc_norm are lm-evaluation-harness's.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, Field

from configs.command import InputError
from configs.files import checked
from data.config import StoryworldSource
from data.reading.files import kind_of, opened, records
from data.storyworld import Story, read, tell
from data.tokenizer import Tokenizer
from eval.tasks import accuracy_error, token_log_probs
from model import LanguageModel

JSON, ZORRO = (".jsonl", ".json"), ".txt"
Text = Annotated[str, Field(min_length=1)]


class Question(NamedTuple):
    """A context, its possible endings, and the number of the right one. where: what an error calls it, `file:line`."""

    where: str
    context: str
    endings: tuple[str, ...]
    label: int = 0


class ChoiceRecord(BaseModel):
    """HellaSwag's."""

    ctx: str
    endings: Annotated[list[Text], Field(min_length=2)]
    label: int | Annotated[str, Field(pattern=r"^\d+$")]  # some copies hold "3"

    def question(self, where: str) -> Question:
        label, last = int(self.label), len(self.endings) - 1
        if not 0 <= label <= last:
            raise InputError(f"{where}: `label` is {label}: it must be a whole number, 0 to {last}")
        return Question(where, self.ctx, tuple(self.endings), label)


class PairRecord(BaseModel):
    """BLiMP's."""

    sentence_good: Text
    sentence_bad: Text

    def question(self, where: str) -> Question:
        return Question(where, "", (self.sentence_good, self.sentence_bad))


# ---------------------------------------------------------------------------------------------------------
# reading


def text_of(file: Path) -> str:
    """The whole text of a file (.gz and .zst too), a byte order mark left out. Raises InputError, also for no text."""
    with opened(file) as stream:
        raw = stream.read()
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InputError(f"{file}:{line}: is not valid UTF-8: save the file as UTF-8") from None
    if not text.strip():
        raise InputError(f"{file}: is empty: give a text")
    return text


def read_questions(
    path: Path, kind: type[ChoiceRecord | PairRecord], limit: int | None = None
) -> dict[str, list[Question]]:
    """Name -> the questions of a file, or of every file of a folder; the first `limit` of each. Raises InputError.

    .jsonl and .json: records of this kind. .txt: Zorro's lines, a bad sentence before each good one.
    """
    files, kinds = {}, (*JSON, *[ZORRO] * (kind is PairRecord))
    inside = sorted(file for file in path.iterdir() if kind_of(file) in kinds) if path.is_dir() else [path]
    if not inside or kind_of(inside[0]) not in kinds:
        raise InputError(f"{path}: is, or holds, no file of these kinds: {' '.join(kinds)}")
    for file in inside:
        if kind_of(file) == ZORRO:
            lines = [line.strip() for line in text_of(file).rstrip().split("\n")]
            if len(lines) % 2 or "" in lines:
                place = lines.index("") + 1 if "" in lines else len(lines)
                raise InputError(f"{file}:{place}: lines must come in pairs, a bad sentence and its good twin")
            twins = islice(zip(lines[::2], lines[1::2], strict=True), limit)
            files[file.name] = [Question(f"{file}:{1 + 2 * n}", "", (good, bad)) for n, (bad, good) in enumerate(twins)]
            continue
        read = list(islice(records(file), limit))
        if not read:
            raise InputError(f"{file}: is empty: give one record a line")
        if problem := next((f"{line.where}: {line.problem}" for line in read if line.problem), None):
            raise InputError(problem)
        files[file.name] = [checked(line.value, line.where, kind).question(line.where) for line in read]
    return files


def storyworld_pairs(source: StoryworldSource, limit: int | None = None) -> list[Question]:
    """Held-out stories of the built-in world, and their twins: a name that was mentioned before, replaced by another.

    The twin is broken for sure: the world's own reader refuses it. A story with a single name has none.
    """
    stories = (tell(source.seed, index, "validation", source.level) for index in range(source.validation_documents))
    twins = ((number, story.text, _twin(number, story, source.level)) for number, story in enumerate(stories))
    pairs = (Question(f"held-out story {number}", "", (text, twin)) for number, text, twin in twins if twin)
    return list(islice(pairs, limit))


def _twin(number: int, story: Story, level: int) -> str | None:
    """The twin of a story; which of the names that could be swapped is decided by the story's number."""
    places, named = [], list[int]()  # people named so far
    for mention in story.mentions:
        if mention.form == "" and mention.entity in story.people:
            others = [person for person in named if person != mention.entity]
            if mention.entity in named and others:
                places.append((mention, story.people[others[number % len(others)]]))
            named += [mention.entity] if mention.entity not in named else []
    if not places:
        return None
    mention, name = places[number % len(places)]
    twin = story.text[: mention.start] + name + story.text[mention.end :]
    try:
        read(twin, level)
    except ValueError:
        return twin
    return None


# ---------------------------------------------------------------------------------------------------------
# scoring


def score(
    lm: LanguageModel, tokenizer: Tokenizer, questions: Sequence[Question], delimiter: str = " "
) -> list[list[float]]:
    """ln p of every ending of every question, given its context. Raises InputError for what exceeds the model's.

    Context and ending are encoded as one text, with `delimiter` between them where neither brings white space. All
    endings of a question are scored after the same tokens: those that the context, its last white space left out, and
    every whole text begin with. So white space between the two, and a token that reaches from one into the other,
    belong to the ending. Each text is read as the beginning of a document: its first token, and no last one.
    """
    wholes, firsts, longest = list[list[int]](), list[int](), lm.config.max_position_embeddings
    for question in questions:
        texts = [question.context.rstrip()]
        for ending in question.endings:
            is_open = question.context and not question.context[-1].isspace() and not ending[0].isspace()
            texts.append(question.context + (delimiter if is_open else "") + ending)
        context, *endings = [[tokenizer.bos_id, *ids] for ids in tokenizer.encode_many(texts)]
        for number, ids in enumerate(endings):
            if len(ids) > longest:
                size = f"has {len(ids) - 1} tokens, and the context has room for {longest - 1} after the first token"
                raise InputError(f"{question.where}: ending {number}, with what stands before it, {size}: shorten it")
        alike = [len(set(column)) == 1 for column in zip(context, *endings, strict=False)]
        wholes += endings
        firsts += [(*alike, False).index(False)] * len(endings)  # tokens that all of them begin with
    log_probs = zip(firsts, token_log_probs(lm, wholes), strict=True)
    sums = iter([float(log_p[first - 1 :].sum()) for first, log_p in log_probs])
    return [[next(sums) for _ in question.endings] for question in questions]


def figures(questions: Sequence[Question], scores: Sequence[Sequence[float]]) -> dict[str, Any]:
    """questions, acc (largest ln p), acc_norm (largest ln p a byte of the ending, without the delimiter), their
    standard errors, ties and chance. Where n endings tie, the right one among them, each counts 1/n."""

    def credit(question: Question, values: Sequence[float]) -> float:
        best = [n for n, value in enumerate(values) if value == max(values)]
        return 1 / len(best) if question.label in best else 0.0

    def per_byte(question: Question, values: Sequence[float]) -> list[float]:
        return [value / len(ending.encode()) for value, ending in zip(values, question.endings, strict=True)]

    count, credits = len(questions), list(map(credit, questions, scores))
    acc, acc_norm = sum(credits) / count, sum(map(credit, questions, map(per_byte, questions, scores))) / count
    return {
        "questions": count,
        "acc": acc,
        "acc_stderr": accuracy_error(acc, count),
        "acc_norm": acc_norm,
        "acc_norm_stderr": accuracy_error(acc_norm, count),
        "ties": sum(0 < one < 1 for one in credits),
        "chance": sum(1 / len(question.endings) for question in questions) / count,
    }
