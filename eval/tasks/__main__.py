"""How well does a run do on a test set? Minimal pairs, multiple choice, perplexity of a text, questions on stories.

Every number comes with its standard error and its chance level; docs/tasks.md says how each is computed.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from configs.command import InputError, exit_on_bad_input, whole
from configs.text import table as markdown_table
from eval.load_model import add_device_option, open_checkpoint, trained_length

if TYPE_CHECKING:  # torch is imported after the arguments have been read
    from data.tokenizer import Tokenizer
    from eval.questions import Question
    from model import LanguageModel


@dataclass
class Result:
    """The result of a task: file (or class of questions) -> figures; and one line per record, for --records.

    total: the figures of all files together, where there are several. notes: what a reader of the table must know.
    """

    figures: dict[str, dict[str, Any]]
    records: list[dict[str, Any]]
    total: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def minimal_pairs(lm: LanguageModel, tokenizer: Tokenizer, given: argparse.Namespace) -> Result:
    """Accuracy on the pairs of a file, of every file of a folder, or of the built-in world."""
    from eval.questions import source_of
    from eval.tasks.likelihood import unknown_tokens
    from eval.tasks.minimal_pairs import figures, mean_of_files, read_pairs, score_pairs, storyworld_pairs

    if given.minimal_pairs == "storyworld":
        files = {"held-out stories": storyworld_pairs(source_of(given.run), given.limit)}
    else:
        files = read_pairs(given.minimal_pairs, given.limit)
    pairs = [pair for in_file in files.values() for pair in in_file]
    scores = score_pairs(lm, tokenizer, pairs)
    of_file, at = {}, 0
    for name, in_file in files.items():
        of_file[name] = figures(scores[at : at + len(in_file)])
        at += len(in_file)
    records = [
        {"where": pair.where, "log_likelihood_good": score.good, "log_likelihood_bad": score.bad}
        for pair, score in zip(pairs, scores, strict=True)
    ]
    total = mean_of_files(list(of_file.values())) if len(of_file) > 1 else {}
    unknown = unknown_tokens(tokenizer, [sentence for pair in pairs for sentence in (pair.good, pair.bad)])
    return Result(of_file, records, total, _unknown(unknown))


def multiple_choice(lm: LanguageModel, tokenizer: Tokenizer, given: argparse.Namespace) -> Result:
    """acc and acc_norm on the questions of a file."""
    from eval.tasks.likelihood import unknown_tokens
    from eval.tasks.multiple_choice import figures, read_multiple_choice, score_multiple_choice

    questions = read_multiple_choice(given.multiple_choice, given.limit)
    scored = score_multiple_choice(lm, tokenizer, questions, given.delimiter)
    records = [
        {"where": question.where, "label": question.label, "log_likelihoods": values}
        for question, values in zip(questions, scored, strict=True)
    ]
    unknown = unknown_tokens(tokenizer, [text for one in questions for text in (one.context, *one.endings)])
    name = Path(given.multiple_choice).name
    return Result({name: figures(questions, scored)}, records, notes=_unknown(unknown))


def text(lm: LanguageModel, tokenizer: Tokenizer, given: argparse.Namespace) -> Result:
    """Loss, perplexity and bits per byte of a text file, taken as one document."""
    from eval.tasks.files import text_of
    from eval.tasks.likelihood import unknown_tokens
    from eval.tasks.text import check_windows, figures, text_ids, text_log_probs

    window, stride = check_windows(lm, given.window, given.stride)
    chosen = "".join(islice(io.StringIO(text_of(Path(given.text))), given.limit))
    ids = text_ids(tokenizer, chosen)
    log_probs = text_log_probs(lm, ids, window, stride)
    values = figures(log_probs, len(chosen.encode("utf-8")), lm.lm_head.out_features)
    labels = tokenizer.token_labels(ids[1:])
    records = [{"token": label, "log_likelihood": x} for label, x in zip(labels, log_probs.tolist(), strict=True)]
    notes = [f"windows of {window} tokens, {stride} apart"] if len(ids) > window else []
    notes += _unseen_places(trained_length(given.run), min(window, len(ids)))
    notes += _unknown(unknown_tokens(tokenizer, [chosen]))
    return Result({Path(given.text).name: values | {"window": window, "stride": stride}}, records, notes=notes)


def questions(lm: LanguageModel, tokenizer: Tokenizer, given: argparse.Namespace) -> Result:
    """Exact match on questions about held-out stories, with names like those of training and with others."""
    from eval.questions import Score, ask, held_out_questions, is_right, score, source_of
    from eval.tasks.likelihood import accuracy_error

    def figures(one: Score) -> dict[str, Any]:
        stderr = accuracy_error(one.exact_match, one.asked)
        values = {"questions": one.asked, "exact_match": one.exact_match, "exact_match_stderr": stderr}
        return values | {"chance": one.chance, "best_guess": one.guess}

    source, result = source_of(given.run), Result({}, [])
    for new_names in (False, True):
        asked = list(islice(held_out_questions(source, new_names=new_names), given.limit))
        replies = ask(lm, tokenizer, asked)
        if left_out := replies.count(None):
            longest = lm.config.max_position_embeddings
            result.notes.append(f"{left_out} of {len(asked)} questions left out: longer than {longest} tokens")
        if left_out == len(asked):
            raise InputError(f"{given.run}: none of {len(asked)} questions fits into the context")
        for kind, one in score(asked, replies).items():
            result.figures[f"{kind}, new names" if new_names else kind] = figures(one)
        result.records += [
            _answer(question, reply, is_right(question, reply), new_names)
            for question, reply in zip(asked, replies, strict=True)
        ]
    return result


def _answer(question: Question, reply: str | None, is_right: bool, new_names: bool) -> dict[str, Any]:
    said = {"question": question.messages[-1]["content"], "right": question.reply, "reply": reply}
    return {"class": question.kind, "new_names": new_names, **said, "is_right": is_right}


def _unseen_places(trained: int | None, read: int) -> list[str]:
    if trained is None or read <= trained:
        return []
    return [f"trained on rows of {trained} tokens, read in windows of {read}: --window {trained} may well do better"]


def _unknown(count: int) -> list[str]:
    note = f"{count} characters are unknown to the tokenizer: one and the same token stands for all of them"
    return [note] if count else []


TASKS = {"minimal_pairs": minimal_pairs, "multiple_choice": multiple_choice, "text": text, "questions": questions}


def table(task: str, result: Result) -> str:
    """The figures as a Markdown table."""
    if task == "text":
        return "\n\n".join(_text_table(name, values) for name, values in result.figures.items())
    rows = result.figures | ({f"mean of {len(result.figures)} files": result.total} if result.total else {})
    shown = [key for key in next(iter(rows.values())) if not key.endswith("_stderr")]
    heading = "class" if task == "questions" else "file"
    cells = [[name, *(_cell(values, key) for key in shown)] for name, values in rows.items()]
    return markdown_table([heading, *shown], cells)


def _cell(values: dict[str, Any], key: str) -> str:
    if isinstance(values[key], int):
        return f"{values[key]:,}"
    error = values.get(f"{key}_stderr")
    return f"{values[key]:.1%}" + ("" if error is None else f" ± {error:.1%}")


def _text_table(name: str, values: dict[str, Any]) -> str:
    rows = []
    for key, shown, digits in (
        ("loss", "loss (nats a token)", 4),
        ("perplexity", "perplexity", 3),
        ("bits_per_byte", "bits per byte", 4),
    ):
        measured = f"{values[key]:,.{digits}f} ± {values[f'{key}_stderr']:,.{digits}f}"
        rows.append([shown, measured, f"{values[f'{key}_chance']:,.{digits}f}"])
    size = f"{name}: {values['tokens']:,} tokens, {values['bytes']:,} bytes"
    return markdown_table([size, "measured", "chance"], rows)


def parsed() -> argparse.Namespace:
    """The command line. Raises InputError for options that cannot be combined."""
    parser = argparse.ArgumentParser(prog="python -m eval.tasks", description=__doc__)
    parser.add_argument("run", help="a run or a checkpoint directory, for example runs/demo")
    add = parser.add_argument
    add("--minimal-pairs", metavar="FILE", help="BLiMP's .jsonl, Zorro's .txt, a folder of these, or: storyworld")
    add("--multiple-choice", metavar="FILE", help=".jsonl with ctx, endings and label, as HellaSwag's")
    add("--text", metavar="FILE", help="perplexity of a text file, as one document")
    add("--questions", action="store_true", help="exact answers to questions about held-out stories")
    add(
        "--limit",
        type=whole("--limit", 1),
        metavar="N",
        help="the first N pairs of every file, N questions, or N lines of the text",
    )
    add(
        "--window",
        type=whole("--window", 1),
        metavar="TOKENS",
        help="of --text: tokens read together; default: the whole context",
    )
    add(
        "--stride",
        type=whole("--stride", 1),
        metavar="TOKENS",
        help="of --text: tokens from window to window; default: half a window",
    )
    add("--delimiter", metavar="TEXT", help="of --multiple-choice: between context and ending; default: a space")
    add_device_option(parser)
    add("--json", action="store_true", help="print one JSON object instead of a table")
    add("--records", metavar="FILE", help="also write a JSON line for every pair, question or token")
    given = parser.parse_args()
    chosen = [task for task in TASKS if getattr(given, task) not in (None, False)]
    flags = [f"--{task.replace('_', '-')}" for task in (chosen or TASKS)]
    if len(chosen) != 1:
        raise InputError(f"{' and '.join(flags)} are given: give one" if chosen else f"give one of {', '.join(flags)}")
    given.task = chosen[0]
    for option, task in (("window", "text"), ("stride", "text"), ("delimiter", "multiple_choice")):
        if getattr(given, option) is not None and task != given.task:
            raise InputError(f"--{option} belongs to --{task.replace('_', '-')}: leave it out with {flags[0]}")
    given.delimiter = " " if given.delimiter is None else given.delimiter
    return given


def main() -> int:
    given = parsed()
    lm, tokenizer, directory = open_checkpoint(given.run, given.device)
    try:
        result = TASKS[given.task](lm, tokenizer, given)
    except (OSError, ValueError) as error:
        raise InputError(str(error)) from None
    if given.records:
        _write(Path(given.records), result.records)
    if given.json:
        answer = {"run": given.run, "checkpoint": str(directory), "task": given.task}
        answer |= (
            {"results": result.figures} | ({"mean": result.total} if result.total else {}) | {"notes": result.notes}
        )
        print(json.dumps(_without_nan(answer), ensure_ascii=False))
    else:
        print(table(given.task, result))
        for note in result.notes:
            print(note, file=sys.stderr)
    return 0


def _write(file: Path, records: Sequence[dict[str, Any]]) -> None:
    lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    try:
        with file.open("w", encoding="utf-8") as out:
            out.writelines(lines)
    except OSError as error:
        raise InputError(f"--records: {file} cannot be written: {error.strerror}") from None


def _without_nan(value: Any) -> Any:
    """JSON has no word for "not known" but null."""
    if isinstance(value, dict):
        return {key: _without_nan(one) for key, one in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value


if __name__ == "__main__":
    exit_on_bad_input(main)
