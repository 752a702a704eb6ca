"""How well does a run do on a test set? Minimal pairs, multiple choice, perplexity of a text.

    python -m eval.tasks runs/demo --minimal-pairs pairs.jsonl

Every number comes with its standard error and its chance level; docs/measure.md says how each is computed. A minimal
pair is a question of two endings without context. Zellers et al. 2019, HellaSwag (arXiv 1905.07830); Warstadt et al.
2020, BLiMP (arXiv 1912.00582); Huebner et al. 2021, BabyBERTa, whose test is Zorro (CoNLL 2021). The names acc and
acc_norm are lm-evaluation-harness's.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
from pydantic import BaseModel, Field
from torch import Tensor

from configs.command import InputError, exit_on_bad_input, integer
from configs.files import checked
from configs.text import table as markdown_table
from data.config import StoryworldSource
from data.reading.files import kind_of, opened, records
from data.tokenizer import Tokenizer
from eval.language_modeling import bits_per_byte, losses_of
from eval.load_model import add_device_option, open_checkpoint, trained_length
from eval.questions import source_of
from model import LanguageModel
from storyworld import Story, read, tell

JSON, ZORRO = (".jsonl", ".json"), ".txt"
Text = Annotated[str, Field(min_length=1)]
BLOCK = 64  # neighbouring tokens that count as one observation
BLOCKS = 20  # at least this many; in a shorter text, of fewer tokens each
FORMS = {"loss": ",.4f", "perplexity": ",.3f", "bits_per_byte": ",.4f"}  # of a figure; of all others: a share
Result = tuple[dict[str, dict[str, Any]], list[str]]  # file -> its figures; all that was read


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m eval.tasks", description=__doc__)
    parser.add_argument("run", help="a run or a checkpoint directory, for example runs/demo")
    add, task = parser.add_argument, parser.add_mutually_exclusive_group(required=True).add_argument
    task("--minimal-pairs", metavar="FILE", help="BLiMP's .jsonl, Zorro's .txt, a folder of these, or: storyworld")
    task("--multiple-choice", metavar="FILE", help=".jsonl with ctx, endings and label, as HellaSwag's")
    task("--text", metavar="FILE", help="perplexity of a text file, as one document")
    add(
        "--limit", type=integer("--limit", 1), metavar="N", help="pairs or questions of each file, or lines of the text"
    )
    add(
        "--window", type=integer("--window", 1), metavar="N", help="of --text: tokens read together (the whole context)"
    )
    add("--stride", type=integer("--stride", 1), metavar="N", help="of --text: from window to window (half a window)")
    add("--delimiter", default=" ", help="of --multiple-choice: between context and ending (a space)")
    add_device_option(parser)
    add("--json", action="store_true", help="print one JSON object instead of a table")
    given = parser.parse_args()
    name = next(task for task in TASKS if getattr(given, task) is not None)
    lm, tokenizer, directory = open_checkpoint(given.run, given.device)
    try:
        results, texts = TASKS[name](lm, tokenizer, given)
    except ValueError as error:
        raise InputError(str(error)) from None
    if given.json:
        answer = {"run": given.run, "checkpoint": str(directory), "task": name, "results": results}
        # JSON has no word but null for what is not a number
        print(json.dumps(json.loads(json.dumps(answer), parse_constant=lambda _: None), ensure_ascii=False))
    else:
        print(table(results), flush=True)
    no_word = -1 if tokenizer.unk_id is None else tokenizer.unk_id
    if unknown := sum(ids.count(no_word) for ids in tokenizer.encode_many(texts)):
        meaning = "one and the same token stands for all of them"
        print(f"{unknown} characters are unknown to the tokenizer: {meaning}", file=sys.stderr)


def choices(lm: LanguageModel, tokenizer: Tokenizer, given: argparse.Namespace) -> Result:
    """acc and acc_norm on the questions of a file, or on the pairs of a file, of a folder, or of the built-in world."""
    if given.minimal_pairs == "storyworld":
        files = {"held-out stories": storyworld_pairs(source_of(given.run), given.limit)}
    else:
        kind = PairRecord if given.minimal_pairs else ChoiceRecord
        files = read_questions(Path(given.minimal_pairs or given.multiple_choice), kind, given.limit)
    questions = [question for in_file in files.values() for question in in_file]
    scores = iter(score(lm, tokenizer, questions, given.delimiter))
    results = {name: figures(in_file, list(islice(scores, len(in_file)))) for name, in_file in files.items()}
    if len(files) > 1:  # each file counts alike, as in BLiMP's overall figure
        each = list(results.values())
        mean = {key: sum(values[key] for values in each) for key in each[0]}
        for key in ("acc", "acc_norm"):
            mean[key] /= len(each)
            mean[f"{key}_stderr"] = math.hypot(*(values[f"{key}_stderr"] for values in each)) / len(each)
        results[f"mean of {len(each)} files"] = mean | {"chance": mean["chance"] / len(each)}
    return results, [text for question in questions for text in (question.context, *question.endings)]


def text(lm: LanguageModel, tokenizer: Tokenizer, given: argparse.Namespace) -> Result:
    """loss (nats a token), perplexity and bits per byte of a file, taken as one document.

    Chance is a model to which all ids of the vocabulary are equally likely. The standard errors of perplexity and bits
    per byte are that of the loss, carried over to first order.
    """
    file, longest = Path(given.text), lm.config.max_position_embeddings
    window = given.window or longest
    stride = given.stride or window // 2
    if not 1 <= stride < window <= longest:
        most = f"this model's max_position_embeddings, {longest}"
        raise InputError(f"--window ({window}) must be 2 to {most}, and --stride ({stride}) less than it")
    chosen = "".join(islice(io.StringIO(text_of(file)), given.limit))
    ids, size = [tokenizer.bos_id, *tokenizer.encode(chosen)], len(chosen.encode("utf-8"))
    log_probs = text_log_probs(lm, ids, window, stride)
    count, loss, error = len(log_probs), -float(log_probs.mean()), mean_error(log_probs)
    perplexity, words = math.exp(min(loss, 700)), lm.lm_head.out_features
    values: dict[str, Any] = {"tokens": count, "bytes": size, "window": window, "stride": stride}
    values |= {"loss": loss, "loss_stderr": error, "loss_chance": math.log(words)}
    values |= {"perplexity": perplexity, "perplexity_stderr": perplexity * error, "perplexity_chance": float(words)}
    for ending in ("", "_stderr", "_chance"):
        values[f"bits_per_byte{ending}"] = bits_per_byte(values[f"loss{ending}"], count, size)
    trained, together = trained_length(given.run), min(window, len(ids))
    if trained is not None and together > trained:
        note = f"trained on rows of {trained} tokens, read in windows of {together}"
        print(f"{note}: --window {trained} may well do better", file=sys.stderr)
    return {file.name: values}, [chosen]


TASKS = {"minimal_pairs": choices, "multiple_choice": choices, "text": text}


def table(results: dict[str, dict[str, Any]]) -> str:
    """The figures as a Markdown table: a row for each file."""
    first = next(iter(results.values()))
    shown = [key for key in first if not key.endswith(("_stderr", "_chance"))]

    def cell(values: dict[str, Any], key: str) -> str:
        form = "," if isinstance(values[key], int) else FORMS.get(key, ".1%")
        error = values.get(f"{key}_stderr")
        return f"{values[key]:{form}}" + ("" if error is None else f" ± {error:{form}}")

    rows = [[name, *(cell(values, key) for key in shown)] for name, values in results.items()]
    if "loss_chance" in first:
        rows.append(["chance", *(f"{first[f'{key}_chance']:{FORMS[key]}}" if key in FORMS else "" for key in shown)])
    return markdown_table(["file", *shown], rows)


# ---------------------------------------------------------------------------------------------------------
# questions


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
        files[file.name] = []
        for where, value, problem in islice(records(file), limit):
            if problem:
                raise InputError(f"{where}: {problem}")
            files[file.name].append(checked(value, where, kind).question(where))
        if not files[file.name]:
            raise InputError(f"{file}: is empty: give one record a line")
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
            if mention.entity not in named:
                named.append(mention.entity)
            elif others:
                places.append((mention, story.people[others[number % len(others)]]))
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
# how likely is a text?


def token_log_probs(lm: LanguageModel, sequences: Sequence[Sequence[int]]) -> list[Tensor]:
    """ln p of every token of a sequence but its first, given those before it: (T - 1,) in float64, on the CPU.

    Sequences of equal ids are read once, so their numbers are exactly equal. Rounding apart (up to 3e-5 in runs/demo),
    the number is that of the sequence alone.
    Raises ValueError for a sequence without a second token, and for a model whose logits are non-finite.
    """
    if any(len(ids) < 2 for ids in sequences):
        raise ValueError("a text has no tokens for this tokenizer, so nothing can be scored: leave it out")
    unique = list({tuple(ids): None for ids in sequences})
    log_probs = {ids: -losses.double() for ids, losses in zip(unique, losses_of(lm, unique), strict=True)}
    if not all(bool(log_p.isfinite().all()) for log_p in log_probs.values()):
        raise ValueError("the model's logits are non-finite: its weights are damaged, or its training diverged")
    return [log_probs[tuple(ids)] for ids in sequences]


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
    standard errors √(p (1 - p) / n), ties, chance. Where n endings tie, the right one among them, each counts 1/n."""
    credits: dict[str, list[float]] = {"acc": [], "acc_norm": []}
    for question, values in zip(questions, scores, strict=True):
        per_byte = [value / len(ending.encode()) for value, ending in zip(values, question.endings, strict=True)]
        for name, numbers in (("acc", values), ("acc_norm", per_byte)):
            best = [n for n, value in enumerate(numbers) if value == max(numbers)]
            credits[name].append(1 / len(best) if question.label in best else 0.0)
    result: dict[str, Any] = {"questions": (count := len(questions))}
    for name, of_questions in credits.items():
        share = sum(of_questions) / count
        result |= {name: share, f"{name}_stderr": math.sqrt(share * (1 - share) / count)}
    result["ties"] = sum(0 < credit < 1 for credit in credits["acc"])
    return result | {"chance": sum(1 / len(question.endings) for question in questions) / count}


def windows(count: int, window: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """(begin, end, first): tokens begin … end - 1 of `count` are read together, those from `first` on are scored.

    Token 0 is scored by none, every other one by exactly one, with at least window - stride tokens before it.
    With count 8, window 4, stride 2 (x = scored, . = read):

        . x x x
            . . x x
                . . x x
    """
    first = 1
    for begin in range(0, count, stride):
        end = min(begin + window, count)
        yield begin, end, first
        first = end
        if end == count:
            return


def text_log_probs(lm: LanguageModel, ids: Sequence[int], window: int, stride: int) -> Tensor:
    """ln p of every token of a text but the first: (T - 1,) in float64. Windows as `windows` lays them."""
    places = list(windows(len(ids), window, stride))
    log_probs = token_log_probs(lm, [ids[begin:end] for begin, end, _ in places])
    return torch.cat([log_p[first - begin - 1 :] for (begin, _, first), log_p in zip(places, log_probs, strict=True)])


def mean_error(values: Tensor) -> float:
    """Standard error of the mean of a sequence (N,) whose neighbours are alike: blocks of it are the observations.

    √(Σ_b (sum of b - mean · length of b)² · B / (B - 1)) / N over B blocks of 64 values, or of fewer so that there are
    20. With blocks of one value this is the usual s / √N. NaN for a single value.
    """
    count = len(values)
    blocks = (values - values.mean()).split(max(1, min(BLOCK, count // BLOCKS)))
    if len(blocks) < 2:
        return math.nan
    squares = sum(float(block.sum()) ** 2 for block in blocks)
    return math.sqrt(squares * len(blocks) / (len(blocks) - 1)) / count


if __name__ == "__main__":
    exit_on_bad_input(main)
