"""Known test sets, and your own: minimal pairs, multiple choice, the loss of a text.

    python -m eval.tasks runs/demo --minimal-pairs pairs.jsonl

docs/measure.md has the formulas. A minimal pair is a question of two endings without context.
HellaSwag: Zellers et al. 2019 (arXiv 1905.07830). BLiMP: Warstadt et al. 2020 (arXiv 1912.00582).
Zorro: Huebner et al. 2021, BabyBERTa (CoNLL 2021).
"""

import argparse
import io
import json
import math
import sys
from collections.abc import Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
from pydantic import BaseModel, Field
from torch import Tensor

from configs.command import InputError, add_number, command_parser, exit_on_bad_input
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

Text = Annotated[str, Field(min_length=1)]
# All other figures are counts or shares.
FORMATS = {"loss": ",.4f", "perplexity": ",.3f", "bits_per_byte": ",.4f"}


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("run", help="a run or a checkpoint directory, for example runs/demo")
    task = parser.add_mutually_exclusive_group(required=True).add_argument
    task("--minimal-pairs", metavar="FILE", help="BLiMP's .jsonl, Zorro's .txt, or: storyworld")
    task("--multiple-choice", metavar="FILE", help=".jsonl with ctx, endings, label (HellaSwag)")
    task("--text", metavar="FILE", help="loss and perplexity of a text file, as one document")
    add = parser.add_argument
    add_number(parser, "--limit", None, "only the first N of each file")
    add("--delimiter", default=" ", help="between context and ending of a choice (a space)")
    add_device_option(parser)
    add("--json", action="store_true", help="print one JSON object instead of a table")
    args = parser.parse_args()
    lm, tokenizer, directory = open_checkpoint(args.run, args.device)
    try:
        if args.text:
            task_name = "text"
            results, texts = text_task(lm, tokenizer, args)
        else:
            task_name = "minimal_pairs" if args.minimal_pairs else "multiple_choice"
            results, texts = question_task(lm, tokenizer, args)
    except ValueError as error:
        raise InputError(str(error)) from None
    if args.json:
        about = {"run": args.run, "checkpoint": str(directory), "task": task_name}
        print(json.dumps(about | {"results": results}, ensure_ascii=False))
    else:
        print(table(results), flush=True)
    unk_id = -1 if tokenizer.unk_id is None else tokenizer.unk_id  # -1: no token has it
    unknown = sum(ids.count(unk_id) for ids in tokenizer.encode_many(texts))
    if unknown:
        warning = f"{unknown} characters are unknown to the tokenizer, and share one token"
        print(warning, file=sys.stderr)


def question_task(
    lm: LanguageModel,
    tokenizer: Tokenizer,
    args: argparse.Namespace,
) -> tuple[dict[str, Any], list[str]]:
    """Return file -> figures of its questions, and all texts."""
    if args.minimal_pairs == "storyworld":
        files = {"held-out stories": storyworld_pairs(source_of(args.run), args.limit)}
    elif args.minimal_pairs:
        files = read_questions(Path(args.minimal_pairs), PairRecord, args.limit)
    else:
        files = read_questions(Path(args.multiple_choice), ChoiceRecord, args.limit)
    # of all files together, so that batches are full
    questions = list(chain(*files.values()))
    scores = iter(score(lm, tokenizer, questions, args.delimiter))
    results = {}
    for name, in_file in files.items():
        # the scores come in the order of the questions, file after file
        results[name] = figures(in_file, list(islice(scores, len(in_file))))
    if len(files) > 1:
        # each file counts alike, as in BLiMP's overall figure
        each = list(results.values())
        mean = {key: sum(values[key] for values in each) for key in each[0]}
        for key in ("acc", "acc_norm", "chance"):
            mean[key] /= len(each)
        # errors of independent files add up in squares
        for key in ("acc_stderr", "acc_norm_stderr"):
            mean[key] = math.hypot(*(values[key] for values in each)) / len(each)
        results[f"mean of {len(each)} files"] = mean
    texts = [(question.context, *question.endings) for question in questions]
    return results, list(chain(*texts))


def text_task(
    lm: LanguageModel,
    tokenizer: Tokenizer,
    args: argparse.Namespace,
) -> tuple[dict[str, Any], list[str]]:
    """Return file -> loss (nats a token), perplexity and bits per byte; and the text."""
    file = Path(args.text)
    text = "".join(islice(io.StringIO(text_of(file)), args.limit))  # its first lines
    size = len(text.encode())
    # Training showed the model no positions beyond its rows.
    longest = lm.config.max_position_embeddings
    window = min(trained_length(args.run) or longest, longest)
    log_probs = text_log_probs(lm, [tokenizer.bos_id, *tokenizer.encode(text)], window)
    count = len(log_probs)
    values: dict[str, Any] = {"tokens": count, "bytes": size, "window": window}
    # Chance: all ids of the vocabulary are equally likely.
    losses = {"": -float(log_probs.mean()), "_chance": math.log(lm.lm_head.out_features)}
    for ending, loss in losses.items():
        values[f"loss{ending}"] = loss
        values[f"perplexity{ending}"] = math.exp(min(loss, 700))  # exp(710) overflows
        values[f"bits_per_byte{ending}"] = bits_per_byte(loss, count, size)
    return {file.name: values}, [text]


def table(results: dict[str, dict[str, Any]]) -> str:
    first = next(iter(results.values()))
    keys = [key for key in first if not key.endswith(("_stderr", "_chance"))]
    rows = []
    for name, values in results.items():
        row = [name]
        for key in keys:
            form = "," if isinstance(values[key], int) else FORMATS.get(key, ".1%")
            row.append(f"{values[key]:{form}}")
            if f"{key}_stderr" in values:
                row[-1] += f" ± {values[f'{key}_stderr']:{form}}"
        rows.append(row)
    if "loss_chance" in first:
        levels = {key: f"{first[f'{key}_chance']:{form}}" for key, form in FORMATS.items()}
        rows.append(["chance", *(levels.get(key, "") for key in keys)])
    return markdown_table(["file", *keys], rows)


# Questions.


class Question(NamedTuple):
    """A context, its possible endings, and the index of the right one."""

    where: str  # file:line, for errors
    context: str
    endings: tuple[str, ...]
    label: int = 0


class ChoiceRecord(BaseModel):
    """A record of HellaSwag."""

    ctx: str
    endings: Annotated[list[Text], Field(min_length=2)]
    label: int | Annotated[str, Field(pattern=r"^\d+$")]  # some copies have "3"

    def question(self, where: str) -> Question:
        label = int(self.label)
        last = len(self.endings) - 1
        if not 0 <= label <= last:
            raise InputError(f"{where}: `label` is {label}: it must be a number from 0 to {last}")
        return Question(where, self.ctx, tuple(self.endings), label)


class PairRecord(BaseModel):
    """A record of BLiMP."""

    sentence_good: Text
    sentence_bad: Text

    def question(self, where: str) -> Question:
        return Question(where, "", (self.sentence_good, self.sentence_bad))


def text_of(file: Path) -> str:
    """Return the text of a file (.gz and .zst too) without its byte order mark.

    Raises InputError for a file that is empty or not UTF-8.
    """
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
    path: Path,
    record_type: type[ChoiceRecord | PairRecord],
    limit: int | None = None,
) -> dict[str, list[Question]]:
    """Read the first `limit` questions of a file, or of each file of a folder, by its name.

    .jsonl and .json have records; .txt has Zorro's pairs. Raises InputError.
    """
    kinds = [".jsonl", ".json"]
    if record_type is PairRecord:
        kinds.append(".txt")
    paths = [path]
    if path.is_dir():
        paths = sorted(file for file in path.iterdir() if kind_of(file) in kinds)
    if not paths or kind_of(paths[0]) not in kinds:
        raise InputError(f"{path}: is, or holds, no file of these kinds: {' '.join(kinds)}")
    files: dict[str, list[Question]] = {}
    for file in paths:
        if kind_of(file) == ".txt":
            files[file.name] = read_zorro(file)[:limit]
            continue
        questions = files[file.name] = []
        for where, value, problem in islice(records(file), limit):
            if problem:
                raise InputError(f"{where}: {problem}")
            questions.append(checked(value, where, record_type).question(where))
        if not questions:
            raise InputError(f"{file}: is empty: give one record a line")
    return files


def read_zorro(file: Path) -> list[Question]:
    """Read Zorro's pairs of lines: a bad sentence, then its good twin."""
    lines = [line.strip() for line in text_of(file).rstrip().split("\n")]
    if len(lines) % 2 or "" in lines:
        number = lines.index("") + 1 if "" in lines else len(lines)
        raise InputError(
            f"{file}:{number}: lines must come in pairs, a bad sentence and its good twin"
        )
    pairs = zip(lines[1::2], lines[::2], strict=True)
    return [Question(f"{file}:{1 + 2 * n}", "", pair) for n, pair in enumerate(pairs)]


def storyworld_pairs(source: StoryworldSource, limit: int | None = None) -> list[Question]:
    """Return held-out stories, and twins with one wrong name."""
    pairs = []
    for number in range(source.validation_documents):
        story = tell(source.seed, number, "validation", source.level)
        twin = _twin(number, story, source.level)
        if twin:  # a story with a single name has none
            pairs.append(Question(f"held-out story {number}", "", (story.text, twin)))
        if len(pairs) == limit:
            break
    return pairs


def _twin(number: int, story: Story, level: int) -> str | None:
    swaps = []
    named: list[int] = []  # people named so far
    # Replace a repeated name by another earlier one; the number chooses among the swaps.
    for mention in story.mentions:
        if mention.form == "" and mention.entity in story.people:
            others = [person for person in named if person != mention.entity]
            if mention.entity not in named:
                # the first mention introduces, so no name there is wrong
                named.append(mention.entity)
            elif others:
                swaps.append((mention, story.people[others[number % len(others)]]))
    if not swaps:
        return None
    mention, name = swaps[number % len(swaps)]
    twin = story.text[: mention.start] + name + story.text[mention.end :]
    # A twin is surely wrong if the world's own reader refuses it.
    try:
        read(twin, level)
    except ValueError:
        return twin
    return None


# Log-probabilities.


def token_log_probs(lm: LanguageModel, sequences: Sequence[Sequence[int]]) -> list[Tensor]:
    """Return ln p of every token but the first: (T - 1,) float64 on the CPU.

    Raises ValueError for a sequence of one token, and for non-finite logits.
    """
    if any(len(ids) < 2 for ids in sequences):
        raise ValueError("a text has no tokens for this tokenizer: leave it out")
    # Equal sequences are read once. In another batch they might differ in the last bits, and then
    # they would not tie.
    unique = list(dict.fromkeys(tuple(ids) for ids in sequences))
    log_probs = {}
    for ids, losses in zip(unique, losses_of(lm, unique), strict=True):
        if not losses.isfinite().all():
            raise ValueError(
                "the model's logits are non-finite: its weights are damaged, "
                "or its training diverged"
            )
        log_probs[ids] = -losses.double()
    return [log_probs[tuple(ids)] for ids in sequences]


def score(
    lm: LanguageModel,
    tokenizer: Tokenizer,
    questions: Sequence[Question],
    delimiter: str = " ",
) -> list[list[float]]:
    """Return ln p of every ending of every question, given its context.

    Raises InputError for a text that is too long.
    """
    sequences: list[list[int]] = []
    shared: list[int] = []  # for each sequence, the tokens that its question's texts share
    longest = lm.config.max_position_embeddings
    for question in questions:
        texts = [question.context.rstrip()]
        for ending in question.endings:
            # one text, with the delimiter if neither part has white space where they meet
            joint = question.context[-1:] + ending[0]
            is_open = question.context and not any(map(str.isspace, joint))
            texts.append(question.context + (delimiter if is_open else "") + ending)
        context, *endings = [[tokenizer.bos_id, *ids] for ids in tokenizer.encode_many(texts)]
        # refuse a long ending before the model reads anything
        for number, ids in enumerate(endings):
            if len(ids) > longest:
                raise InputError(
                    f"{question.where}: ending {number} with its context has {len(ids) - 1} "
                    f"tokens, and this model has room for {longest - 1}"
                )
        # Scores start behind the tokens that the context and all whole texts share. So white space
        # between context and ending, and a token that spans both, belong to the ending.
        alike = [len(set(column)) == 1 for column in zip(context, *endings, strict=False)]
        sequences += endings
        shared += [[*alike, False].index(False)] * len(endings)
    log_probs = zip(shared, token_log_probs(lm, sequences), strict=True)
    # - 1: the first token has no ln p, so token `count` is at count - 1
    sums = iter([float(log_p[count - 1 :].sum()) for count, log_p in log_probs])
    return [[next(sums) for _ in question.endings] for question in questions]


def figures(questions: Sequence[Question], scores: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Return questions, acc, acc_norm, their standard errors √(p (1 - p) / n), ties and chance.

    acc:      share of questions whose right ending has the largest ln p
    acc_norm: the same with ln p a byte of the ending
    """
    credits: dict[str, list[float]] = {"acc": [], "acc_norm": []}
    for question, values in zip(questions, scores, strict=True):
        # bytes, because a tokenizer must not decide how long an ending is
        sizes = [len(ending.encode()) for ending in question.endings]
        per_byte = [value / size for value, size in zip(values, sizes, strict=True)]
        for name, numbers in (("acc", values), ("acc_norm", per_byte)):
            # if n endings tie, the right one among them counts 1/n
            is_best = [value == max(numbers) for value in numbers]
            credits[name].append(is_best[question.label] / sum(is_best))
    count = len(questions)
    result: dict[str, Any] = {"questions": count}
    for name, numbers in credits.items():
        share = sum(numbers) / count
        result |= {name: share, f"{name}_stderr": math.sqrt(share * (1 - share) / count)}
    result["ties"] = sum(0 < credit < 1 for credit in credits["acc"])
    result["chance"] = sum(1 / len(question.endings) for question in questions) / count
    return result


def text_log_probs(lm: LanguageModel, ids: Sequence[int], window: int) -> Tensor:
    """Return ln p of every token of a text but the first: (T - 1,) float64.

    Windows overlap by half, and each one scores its new tokens:

        . x x x
            . . x x
                . . x x
    """
    # half a window of context at least: with none, the first tokens of each window would be guesses
    step = window // 2
    old = window - step  # already scored by the window before
    begins = range(0, max(1, len(ids) - old), step)
    first, *others = token_log_probs(lm, [ids[begin : begin + window] for begin in begins])
    # - 1: a window's first token has no ln p
    return torch.cat([first, *(log_p[old - 1 :] for log_p in others)])


if __name__ == "__main__":
    exit_on_bad_input(main)
