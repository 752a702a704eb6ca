"""Chats in which a calculator helps: `python -m eval.tools.sums sums.jsonl`

    user: What is 347 * 26?   assistant: calls the calculator   tool: 9022   assistant: It is 9022.

In half of the chats the assistant answers at once. So a small model learns to call, and to guess:
sums of three digits are too hard for it alone.
"""

import json
import sys
from pathlib import Path
from random import Random
from typing import Any

from configs.command import add_number, command_parser, exit_on_bad_input
from eval.tools import SCHEMAS, calculate

WORDINGS = ("What is {}?", "How much is {}?", "Compute {}.", "{} is how much?")
LEAST = 10
MOST = 999


def sums_chat(seed: int, index: int, calls: float) -> dict[str, Any]:
    """Return chat `index` as a record, {"messages": […], "tools": […]}.

    calls: probability that the assistant calls the calculator
    """
    rng = Random(f"sums {seed} {index}")
    # no division: its results have digits that no short answer shows
    expression = f"{rng.randint(LEAST, MOST)} {rng.choice('+-*')} {rng.randint(LEAST, MOST)}"
    value = calculate(expression)  # the answer is right, also without a call
    question = rng.choice(WORDINGS).format(expression)
    messages: list[dict[str, Any]] = [{"role": "user", "content": question}]
    if rng.random() < calls:
        call = {"name": "calculator", "arguments": {"expression": expression}}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append({"role": "tool", "content": value})
    messages.append({"role": "assistant", "content": f"It is {value}."})
    return {"messages": messages, "tools": list(SCHEMAS)}


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("file", type=Path, help="the .jsonl file to write")
    add_number(parser, "--chats", 20_000, "how many")
    args = parser.parse_args()
    args.file.parent.mkdir(parents=True, exist_ok=True)
    # "x": never overwrite a file
    with args.file.open("x", encoding="utf-8") as out:
        for index in range(args.chats):
            print(json.dumps(sums_chat(0, index, 0.5)), file=out)
    print(f"{args.file}: {args.chats:,} chats, half of them with a call", file=sys.stderr)


if __name__ == "__main__":
    exit_on_bad_input(main)
