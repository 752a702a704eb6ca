"""How well does a run do on a test set? Minimal pairs, multiple choice, perplexity of a text.

Every number comes with its standard error and its chance level; docs/measure.md says how each is computed.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import sys
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from configs.command import InputError, exit_on_bad_input, whole
from configs.text import table as markdown_table
from data.tokenizer import Tokenizer
from eval.language_modeling import bits_per_byte
from eval.load_model import add_device_option, open_checkpoint, trained_length
from eval.questions import source_of
from eval.tasks import mean_error, text_log_probs
from eval.tasks.choices import ChoiceRecord, PairRecord, figures, read_questions, score, storyworld_pairs, text_of
from model import LanguageModel

FORMS = {"loss": ",.4f", "perplexity": ",.3f", "bits_per_byte": ",.4f"}  # of a figure; of all others: a share


class Result(NamedTuple):
    """figures: by file. records: one for each question or token, for --records. texts: all that was read. mean: the
    figures of all files together, where there are several. note: what a reader of the table must know."""

    figures: dict[str, dict[str, Any]]
    records: list[dict[str, Any]]
    texts: list[str]
    mean: dict[str, Any] | None = None
    note: str = ""


def choices(lm: LanguageModel, tokenizer: Tokenizer, given: argparse.Namespace) -> Result:
    """acc and acc_norm on the questions of a file, or on the pairs of a file, of a folder, or of the built-in world."""
    if given.minimal_pairs == "storyworld":
        files = {"held-out stories": storyworld_pairs(source_of(given.run), given.limit)}
    else:
        kind = PairRecord if given.minimal_pairs else ChoiceRecord
        files = read_questions(Path(given.minimal_pairs or given.multiple_choice), kind, given.limit)
    questions = [question for in_file in files.values() for question in in_file]
    scores = score(lm, tokenizer, questions, given.delimiter)
    left, records, texts = iter(scores), [], []
    by_file = {name: figures(in_file, list(islice(left, len(in_file)))) for name, in_file in files.items()}
    for question, values in zip(questions, scores, strict=True):
        records.append({"where": question.where, "label": question.label, "log_likelihoods": values})
        texts += [question.context, *question.endings]
    mean: dict[str, Any] | None = None
    if len(files) > 1:  # each file counts alike, as in BLiMP's overall figure
        each = list(by_file.values())
        mean = {key: sum(values[key] for values in each) for key in each[0]}
        for key in ("acc", "acc_norm"):
            mean[key] /= len(each)
            mean[f"{key}_stderr"] = math.hypot(*(values[f"{key}_stderr"] for values in each)) / len(each)
        mean["chance"] /= len(each)
    return Result(by_file, records, texts, mean)


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
    for ending, nats in (("", loss), ("_stderr", error), ("_chance", math.log(words))):
        values[f"bits_per_byte{ending}"] = bits_per_byte(nats, count, size)
    labels = tokenizer.token_labels(ids[1:])
    records = [
        {"token": token, "log_likelihood": value} for token, value in zip(labels, log_probs.tolist(), strict=True)
    ]
    trained, together, note = trained_length(given.run), min(window, len(ids)), ""
    if trained is not None and together > trained:
        advice = f"--window {trained} may well do better"
        note = f"trained on rows of {trained} tokens, read in windows of {together}: {advice}"
    return Result({file.name: values}, records, [chosen], note=note)


TASKS = {"minimal_pairs": choices, "multiple_choice": choices, "text": text}


def table(result: Result) -> str:
    """The figures as a Markdown table: a row for each file."""
    lines = result.figures | ({f"mean of {len(result.figures)} files": result.mean} if result.mean else {})
    first = next(iter(lines.values()))
    shown = [key for key in first if not key.endswith(("_stderr", "_chance"))]

    def cell(values: dict[str, Any], key: str) -> str:
        form = "," if isinstance(values[key], int) else FORMS.get(key, ".1%")
        error = values.get(f"{key}_stderr")
        return f"{values[key]:{form}}" + ("" if error is None else f" ± {error:{form}}")

    rows = [[name, *(cell(values, key) for key in shown)] for name, values in lines.items()]
    if "loss_chance" in first:
        rows.append(["chance", *(f"{first[f'{key}_chance']:{FORMS[key]}}" if key in FORMS else "" for key in shown)])
    return markdown_table(["file", *shown], rows)


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
    add("--records", metavar="FILE", type=Path, help="also write a JSON line for every pair, question or token")
    given = parser.parse_args()
    name = next(task for task in TASKS if getattr(given, task) is not None)
    lm, tokenizer, directory = open_checkpoint(given.run, given.device)
    try:
        result = TASKS[name](lm, tokenizer, given)
    except ValueError as error:
        raise InputError(str(error)) from None
    notes = [result.note] if result.note else []
    no_word = -1 if tokenizer.unk_id is None else tokenizer.unk_id
    unknown = sum(ids.count(no_word) for ids in tokenizer.encode_many(result.texts))
    if unknown:
        meaning = "one and the same token stands for all of them"
        notes.append(f"{unknown} characters are unknown to the tokenizer: {meaning}")
    if given.records:
        lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in result.records)
        given.records.write_text("".join(lines), encoding="utf-8")
    if given.json:
        known = {  # JSON has no word but null for what is not a number
            name: {key: None if value != value else value for key, value in values.items()}
            for name, values in result.figures.items()
        }
        answer = {"run": given.run, "checkpoint": str(directory), "task": name, "results": known}
        answer |= {"mean": result.mean} if result.mean else {}
        print(json.dumps(answer | {"notes": notes}, ensure_ascii=False))
    else:
        print(table(result), flush=True)
        print("\n".join(notes), file=sys.stderr, end="\n" if notes else "")
    return 0


if __name__ == "__main__":
    exit_on_bad_input(main)
