"""How well does a run do on a test set? Minimal pairs, multiple choice, perplexity of a text, questions on stories.

Every number comes with its standard error and its chance level; docs/tasks.md says how each is computed.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import sys
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from configs.command import InputError, exit_on_bad_input, whole
from configs.text import table as markdown_table
from data.tokenizer import Tokenizer
from eval.language_modeling import bits_per_byte
from eval.load_model import add_device_option, open_checkpoint, trained_length
from eval.questions import ask, held_out_questions, is_right, source_of
from eval.questions import score as score_answers
from eval.tasks import accuracy_error, mean_error, text_log_probs
from eval.tasks.choices import figures, read_multiple_choice, read_pairs, score, storyworld_pairs, text_of
from model import LanguageModel


@dataclass
class Result:
    """figures: by file, or class of questions. records: one for each pair, question or token, for --records.

    mean: the figures of all files together, where there are several. texts: all that was read. notes: what a reader
    of the table must know.
    """

    figures: dict[str, dict[str, Any]] = field(default_factory=dict)
    records: list[dict[str, Any]] = field(default_factory=list)
    mean: dict[str, Any] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def minimal_pairs(lm: LanguageModel, tokenizer: Tokenizer, given: argparse.Namespace) -> Result:
    """Accuracy on the pairs of a file, of every file of a folder, or of the built-in world."""
    if given.minimal_pairs == "storyworld":
        files = {"held-out stories": storyworld_pairs(source_of(given.run), given.limit)}
    else:
        files = read_pairs(given.minimal_pairs, given.limit)
    result = Result()
    pairs = [pair for in_file in files.values() for pair in in_file]
    scores = score(lm, tokenizer, pairs)
    left = iter(scores)
    for name, in_file in files.items():
        found = figures(in_file, list(islice(left, len(in_file))))
        share = {"accuracy": found["acc"], "accuracy_stderr": found["acc_stderr"]}
        result.figures[name] = {"pairs": len(in_file), **share, "ties": found["ties"], "chance": 0.5}
    for pair, (good, bad) in zip(pairs, scores, strict=True):
        result.records.append({"where": pair.where, "log_likelihood_good": good, "log_likelihood_bad": bad})
        result.texts += pair.endings
    if len(files) > 1:  # each file counts alike, as in BLiMP's overall figure
        each = list(result.figures.values())
        total = {key: sum(values[key] for values in each) for key in each[0]}
        error = math.hypot(*(values["accuracy_stderr"] for values in each)) / len(each)
        share = {"accuracy": total["accuracy"] / len(each), "accuracy_stderr": error}
        result.mean = total | share | {"chance": 0.5}
    return result


def multiple_choice(lm: LanguageModel, tokenizer: Tokenizer, given: argparse.Namespace) -> Result:
    """acc and acc_norm on the questions of a file."""
    result, asked = Result(), read_multiple_choice(given.multiple_choice, given.limit)
    scores = score(lm, tokenizer, asked, " " if given.delimiter is None else given.delimiter)
    result.figures[Path(given.multiple_choice).name] = figures(asked, scores)
    for question, values in zip(asked, scores, strict=True):
        result.records.append({"where": question.where, "label": question.label, "log_likelihoods": values})
        result.texts += [question.context, *question.endings]
    return result


def text(lm: LanguageModel, tokenizer: Tokenizer, given: argparse.Namespace) -> Result:
    """loss (nats a token), perplexity and bits per byte of a file, taken as one document.

    Chance is a model to which all ids of the vocabulary are equally likely. The standard errors of perplexity and bits
    per byte are that of the loss, carried over to first order.
    """
    longest = lm.config.max_position_embeddings
    window = given.window or longest
    if not 2 <= window <= longest:
        raise InputError(f"--window ({window}) must be 2 to {longest}, this model's max_position_embeddings")
    stride = given.stride or window // 2
    if stride >= window:
        raise InputError(f"--stride ({stride}) must be 1 to {window - 1}, one less than the window ({window})")
    chosen = "".join(islice(io.StringIO(text_of(Path(given.text))), given.limit))
    ids, size = [tokenizer.bos_id, *tokenizer.encode(chosen)], len(chosen.encode("utf-8"))
    log_probs = text_log_probs(lm, ids, window, stride)
    count, loss, error = len(log_probs), -float(log_probs.mean()), mean_error(log_probs)
    perplexity, words = math.exp(min(loss, 700)), lm.lm_head.out_features
    values: dict[str, Any] = {"tokens": count, "bytes": size}
    values |= {"loss": loss, "loss_stderr": error, "loss_chance": math.log(words)}
    values |= {"perplexity": perplexity, "perplexity_stderr": perplexity * error, "perplexity_chance": float(words)}
    for ending, nats in (("", loss), ("_stderr", error), ("_chance", math.log(words))):
        values[f"bits_per_byte{ending}"] = bits_per_byte(nats, count, size)
    result = Result({Path(given.text).name: values | {"window": window, "stride": stride}}, texts=[chosen])
    for label, log_p in zip(tokenizer.token_labels(ids[1:]), log_probs.tolist(), strict=True):
        result.records.append({"token": label, "log_likelihood": log_p})
    if len(ids) > window:
        result.notes.append(f"windows of {window} tokens, {stride} apart")
    trained, together = trained_length(given.run), min(window, len(ids))
    if trained is not None and together > trained:
        advice = f"--window {trained} may well do better"
        result.notes.append(f"trained on rows of {trained} tokens, read in windows of {together}: {advice}")
    return result


def questions(lm: LanguageModel, tokenizer: Tokenizer, given: argparse.Namespace) -> Result:
    """Exact match of `eval.questions`, with names like those of training and with others, and its standard error."""
    source, result = source_of(given.run), Result()
    for new_names in (False, True):
        asked = list(islice(held_out_questions(source, new_names=new_names), given.limit))
        replies = ask(lm, tokenizer, asked)
        if left_out := replies.count(None):
            longest = lm.config.max_position_embeddings
            result.notes.append(f"{left_out} of {len(asked)} questions left out: longer than {longest} tokens")
        if left_out == len(asked):
            raise InputError(f"{given.run}: none of {len(asked)} questions fits into the context")
        for kind, one in score_answers(asked, replies).items():
            share, stderr = one.exact_match, accuracy_error(one.exact_match, one.asked)
            values = {"questions": one.asked, "exact_match": share, "exact_match_stderr": stderr}
            name = f"{kind}, new names" if new_names else kind
            result.figures[name] = values | {"chance": one.chance, "best_guess": one.guess}
        for question, reply in zip(asked, replies, strict=True):
            answer = {"question": question.messages[-1]["content"], "right": question.reply, "reply": reply}
            of_class = {"class": question.kind, "new_names": new_names}
            result.records.append(of_class | answer | {"is_right": is_right(question, reply)})
    return result


TASKS = {"minimal_pairs": minimal_pairs, "multiple_choice": multiple_choice, "text": text, "questions": questions}


def table(task: str, result: Result) -> str:
    """The figures as a Markdown table."""
    if task == "text":
        ((name, values),) = result.figures.items()
        rows = []
        for key, label, digits in (
            ("loss", "loss (nats a token)", 4),
            ("perplexity", "perplexity", 3),
            ("bits_per_byte", "bits per byte", 4),
        ):
            measured = f"{values[key]:,.{digits}f} ± {values[f'{key}_stderr']:,.{digits}f}"
            rows.append([label, measured, f"{values[f'{key}_chance']:,.{digits}f}"])
        size = f"{name}: {values['tokens']:,} tokens, {values['bytes']:,} bytes"
        return markdown_table([size, "measured", "chance"], rows)
    lines = result.figures | ({f"mean of {len(result.figures)} files": result.mean} if result.mean else {})
    shown = [key for key in next(iter(lines.values())) if not key.endswith("_stderr")]

    def cell(values: dict[str, Any], key: str) -> str:
        if isinstance(values[key], int):
            return f"{values[key]:,}"
        error = values.get(f"{key}_stderr")
        return f"{values[key]:.1%}" + ("" if error is None else f" ± {error:.1%}")

    rows = [[name, *(cell(values, key) for key in shown)] for name, values in lines.items()]
    return markdown_table(["class" if task == "questions" else "file", *shown], rows)


def parse() -> argparse.Namespace:
    """The command line. Raises InputError for an option of another task."""
    parser = argparse.ArgumentParser(prog="python -m eval.tasks", description=__doc__)
    parser.add_argument("run", help="a run or a checkpoint directory, for example runs/demo")
    add, task = parser.add_argument, parser.add_mutually_exclusive_group(required=True).add_argument
    task("--minimal-pairs", metavar="FILE", help="BLiMP's .jsonl, Zorro's .txt, a folder of these, or: storyworld")
    task("--multiple-choice", metavar="FILE", help=".jsonl with ctx, endings and label, as HellaSwag's")
    task("--text", metavar="FILE", help="perplexity of a text file, as one document")
    task("--questions", action="store_true", help="exact answers to questions about held-out stories")
    first = "the first N pairs of every file, N questions, or N lines of the text"
    add("--limit", type=whole("--limit", 1), metavar="N", help=first)
    size = "of --text: tokens read together; default: the whole context"
    add("--window", type=whole("--window", 1), metavar="TOKENS", help=size)
    step = "of --text: tokens from window to window; default: half a window"
    add("--stride", type=whole("--stride", 1), metavar="TOKENS", help=step)
    add("--delimiter", metavar="TEXT", help="of --multiple-choice: between context and ending; default: a space")
    add_device_option(parser)
    add("--json", action="store_true", help="print one JSON object instead of a table")
    add("--records", metavar="FILE", type=Path, help="also write a JSON line for every pair, question or token")
    given = parser.parse_args()
    given.task = next(task for task in TASKS if getattr(given, task) not in (None, False))
    for option, of_task in (("window", "text"), ("stride", "text"), ("delimiter", "multiple_choice")):
        if getattr(given, option) is not None and of_task != given.task:
            raise InputError(f"--{option} belongs to --{of_task.replace('_', '-')}")
    return given


def main() -> int:
    given = parse()
    lm, tokenizer, directory = open_checkpoint(given.run, given.device)
    try:
        result = TASKS[given.task](lm, tokenizer, given)
    except ValueError as error:
        raise InputError(str(error)) from None
    if tokenizer.unk_id is not None:
        unknown = sum(ids.count(tokenizer.unk_id) for ids in tokenizer.encode_many(result.texts))
        if unknown:
            meaning = "one and the same token stands for all of them"
            result.notes.append(f"{unknown} characters are unknown to the tokenizer: {meaning}")
    if given.records:
        lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in result.records)
        try:
            given.records.write_text("".join(lines), encoding="utf-8")
        except OSError as error:
            raise InputError(f"--records: {given.records} cannot be written: {error.strerror}") from None
    if given.json:
        answer = {"run": given.run, "checkpoint": str(directory), "task": given.task, "results": result.figures}
        answer |= {"mean": result.mean} if result.mean else {}
        print(json.dumps(_without_nan(answer | {"notes": result.notes}), ensure_ascii=False))
    else:
        print(table(given.task, result), flush=True)
        print("\n".join(result.notes), file=sys.stderr, end="\n" if result.notes else "")
    return 0


def _without_nan(value: Any) -> Any:
    """JSON has no word for "not known" but null."""
    if isinstance(value, dict):
        return {key: _without_nan(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value


if __name__ == "__main__":
    exit_on_bad_input(main)
