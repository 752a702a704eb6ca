"""Does it call, and does that help? `python -m eval.tools runs/sums_grpo`

The last question of each held-out conversation is asked twice: with tools, whose calls are run, and without.
"""

from __future__ import annotations

import argparse
from itertools import islice
from random import Random

from configs.command import InputError, exit_on_bad_input, number, whole
from configs.text import table
from data.chat import prompt_ids
from data.reading.documents import documents
from data.tokenizer import Tokenizer
from eval.load_model import add_device_option, open_model
from eval.questions import Question, data_config_of, is_right, question_of
from eval.tools import SCHEMAS, described, said_by_user, write_answers
from model import LanguageModel

ROWS = 64  # questions that are answered at a time


def figures(
    lm: LanguageModel, tokenizer: Tokenizer, questions: list[Question], names: list[str], **options: int | float
) -> tuple[float, float, float]:
    """Shares of the questions whose answers are right, and that call; and of the calls that failed."""
    tools, rng, answers, right = described(names), Random(0), [], 0
    for start in range(0, len(questions), ROWS):
        chosen = questions[start : start + ROWS]
        prompts = [prompt_ids(tokenizer, question.messages, tools) for question in chosen]
        said = [said_by_user(question.messages) for question in chosen]
        new = write_answers(lm, tokenizer, prompts, rng=rng, tools=tools, said=said, **options)  # type: ignore[arg-type]
        right += sum(is_right(question, answer.reply(tokenizer)) for question, answer in zip(chosen, new, strict=True))
        answers += new
    calling, calls = sum(answer.calls > 0 for answer in answers), sum(answer.calls for answer in answers)
    errors = sum(answer.errors for answer in answers)
    return right / len(questions), calling / len(questions), errors / max(1, calls)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m eval.tools",
        description="Ask a run the questions of its held-out chats, with tools and without.",
    )
    parser.add_argument("run", help="a run that was trained on conversations of a file")
    names = [schema["name"] for schema in SCHEMAS]
    parser.add_argument("--tools", nargs="+", choices=names, default=["calculator"], help="may be called (calculator)")
    parser.add_argument("--questions", type=whole("--questions", 1), default=400, help="how many (400)")
    parser.add_argument(
        "--max-new-tokens",
        type=whole("--max-new-tokens", 1),
        default=96,
        metavar="N",
        help="of an answer, responses of tools included (96)",
    )
    parser.add_argument(
        "--temperature", type=number("--temperature", 0), default=0.0, help="0, the default = the likeliest token"
    )
    add_device_option(parser)
    given = parser.parse_args()
    data = data_config_of(given.run)
    if data.records != "conversations":
        raise InputError(f"{given.run}: data.records is {data.records}: only conversations hold questions with answers")
    with_answers = filter(None, map(question_of, documents(data, "validation")))
    questions = list(islice(with_answers, given.questions))
    if not questions:
        raise InputError(f"{given.run}: no held-out conversation ends with an answer of the assistant")
    lm, tokenizer = open_model(given.run, given.device)
    options = {"temperature": given.temperature, "max_new_tokens": given.max_new_tokens}
    rows = [
        [heading, *(f"{share:.1%}" for share in figures(lm, tokenizer, questions, tools, **options))]
        for heading, tools in ((", ".join(given.tools), given.tools), ("no tools", []))
    ]
    print(table([f"{len(questions)} questions", "right", "calling", "failed calls"], rows))
    return 0


if __name__ == "__main__":
    exit_on_bad_input(main)
