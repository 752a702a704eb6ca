"""How well does a run do on a test set? Minimal pairs, multiple choice, perplexity of a text.

Every number comes with its standard error and its chance level; docs/tasks.md says how each is computed.
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
from typing import Any

import torch
from torch import Tensor

from configs.command import InputError, exit_on_bad_input, whole
from configs.text import table as markdown_table
from data.tokenizer import Tokenizer
from eval.language_modeling import bits_per_byte
from eval.load_model import add_device_option, open_checkpoint, trained_length
from eval.questions import source_of
from eval.tasks import (
    ChoiceRecord,
    PairRecord,
    figures,
    read_questions,
    score,
    storyworld_pairs,
    text_of,
    token_log_probs,
)
from model import LanguageModel

BLOCK = 64  # neighbouring tokens that count as one observation
BLOCKS = 20  # at least this many; in a shorter text, of fewer tokens each
FORMS = {"loss": ",.4f", "perplexity": ",.3f", "bits_per_byte": ",.4f"}  # of a figure; of all others: a share
Result = tuple[dict[str, dict[str, Any]], list[str]]  # file -> its figures; all that was read


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m eval.tasks", description=__doc__)
    parser.add_argument("run", help="a run or a checkpoint directory, for example runs/demo")
    add, task = parser.add_argument, parser.add_mutually_exclusive_group(required=True).add_argument
    task("--minimal-pairs", metavar="FILE", help="BLiMP's .jsonl, Zorro's .txt, a folder of these, or: storyworld")
    task("--multiple-choice", metavar="FILE", help=".jsonl with ctx, endings and label, as HellaSwag's")
    task("--text", metavar="FILE", help="perplexity of a text file, as one document")
    first = "the first N pairs of every file, N questions, or N lines of the text"
    add("--limit", type=whole("--limit", 1), metavar="N", help=first)
    size = "of --text: tokens read together; default: the whole context"
    add("--window", type=whole("--window", 1), metavar="TOKENS", help=size)
    step = "of --text: tokens from window to window; default: half a window"
    add("--stride", type=whole("--stride", 1), metavar="TOKENS", help=step)
    between = "of --multiple-choice: between context and ending (a space)"
    add("--delimiter", metavar="TEXT", default=" ", help=between)
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
    return 0


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


if __name__ == "__main__":
    exit_on_bad_input(main)
