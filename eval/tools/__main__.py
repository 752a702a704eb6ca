"""Does it call, and does that help? `python -m eval.tools runs/sums_grpo`

The last question of each held-out conversation is asked twice: with tools, whose calls are run, and without.
"""

from __future__ import annotations

import argparse
from random import Random
from typing import TYPE_CHECKING

from configs.command import InputError, exit_on_bad_input, number, whole
from configs.text import table
from eval.opening import add_device_option, open_model
from eval.tools.calls import SCHEMAS, described, said_by_user

if TYPE_CHECKING:  # torch takes seconds to import, and --help should not
    from data.tokenizer import Tokenizer
    from eval.questions import Asked
    from model import LanguageModel

NAMES = tuple(schema["name"] for schema in SCHEMAS)
ROWS = 64  # questions that are answered at a time


def figures(
    lm: LanguageModel,
    tokenizer: Tokenizer,
    questions: list[Asked],
    names: list[str],
    temperature: float = 0.0,
    max_new_tokens: int = 96,
) -> dict[str, float]:
    """Shares of the questions whose answers are right, and that call; and of the calls that failed."""
    from data.chat import prompt_ids
    from eval.questions import is_right
    from eval.tools.answers import write_answers

    tools, rng, right, calling, calls, errors = described(names), Random(0), 0, 0, 0, 0
    for start in range(0, len(questions), ROWS):
        asked = questions[start : start + ROWS]
        answers = write_answers(
            lm,
            tokenizer,
            [prompt_ids(tokenizer, question.messages, tools) for question in asked],
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            rng=rng,
            tools=tools,
            said=[said_by_user(question.messages) for question in asked],
        )
        replies = (answer.reply(tokenizer) for answer in answers)
        right += sum(map(is_right, asked, replies))
        calling += sum(answer.calls > 0 for answer in answers)
        calls += sum(answer.calls for answer in answers)
        errors += sum(answer.errors for answer in answers)
    count = max(1, len(questions))
    return {"right": right / count, "calling": calling / count, "failed calls": errors / max(1, calls)}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m eval.tools",
        description="Ask a run the questions of its held-out chats, with tools and without.",
    )
    parser.add_argument("run", help="a run that was trained on conversations of a file")
    parser.add_argument(
        "--tools", nargs="+", choices=NAMES, default=["calculator"], help="what it may call (calculator)"
    )
    parser.add_argument("--questions", type=whole("--questions", 1), default=400, help="how many (400)")
    parser.add_argument(
        "--max-new-tokens",
        type=whole("--max-new-tokens", 1),
        default=96,
        metavar="N",
        help="of an answer, responses of tools included (96)",
    )
    parser.add_argument(
        "--temperature",
        type=number("--temperature", 0),
        default=0.0,
        help="0, the default = always the likeliest token",
    )
    add_device_option(parser)
    given = parser.parse_args()
    from itertools import islice

    from data.reading.documents import documents
    from eval.questions import data_config_of, question_of

    file, data = data_config_of(given.run)
    if data.records != "conversations":
        raise InputError(f"{file}: data.records is {data.records}: only conversations hold questions with answers")
    found = (question_of(one) for one in documents(data, "validation"))
    questions = list(islice((question for question in found if question is not None), given.questions))
    if not questions:
        raise InputError(f"{file}: no held-out conversation ends with an answer of the assistant")
    lm, tokenizer = open_model(given.run, given.device)
    rows = []
    for heading, names in ((", ".join(given.tools), given.tools), ("no tools", [])):
        found_figures = figures(lm, tokenizer, questions, names, given.temperature, given.max_new_tokens)
        rows.append([heading, *(f"{share:.1%}" for share in found_figures.values())])
    print(table([f"{len(questions)} questions", "right", "calling", "failed calls"], rows))
    return 0


if __name__ == "__main__":
    exit_on_bad_input(main)
