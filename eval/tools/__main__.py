"""Count right answers with and without a calculator: `python -m eval.tools runs/sums_grpo`

The last question of each held-out conversation is asked twice: with the calculator, whose calls are
run, and without.
"""

from itertools import islice

from configs.command import InputError, add_number, command_parser, exit_on_bad_input
from configs.text import table
from data.chat import prompt_ids
from data.reading.documents import documents
from eval.load_model import add_device_option, open_model
from eval.questions import data_config_of, is_right, question_of
from eval.tools import SCHEMAS, Written, write_answers

ROWS = 64  # So many questions are answered at a time.


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("run", help="a run that was trained on conversations of a file")
    add_number(parser, "--questions", 400, "how many")
    add_number(parser, "--max-new-tokens", 96, "of an answer, responses of tools included")
    add_device_option(parser)
    args = parser.parse_args()
    data = data_config_of(args.run)
    if data.records != "conversations":
        raise InputError(
            f"{args.run}: data.records is {data.records}: "
            f"only conversations hold questions with answers"
        )
    all_questions = filter(None, map(question_of, documents(data, "validation")))
    questions = list(islice(all_questions, args.questions))
    if not questions:
        raise InputError(
            f"{args.run}: no held-out conversation ends with an answer of the assistant"
        )
    lm, tokenizer = open_model(args.run, args.device)
    rows = []
    # the same questions without tools show what the calls are worth
    for heading, tools in (("calculator", SCHEMAS), ("no tools", ())):
        answers: list[Written] = []
        # in batches, because each row keeps its keys and values in memory
        for start in range(0, len(questions), ROWS):
            chunk = questions[start : start + ROWS]
            answers += write_answers(
                lm,
                tokenizer,
                [prompt_ids(tokenizer, question.messages, tools) for question in chunk],
                max_new_tokens=args.max_new_tokens,
                tools=bool(tools),
            )
        replies = [answer.reply(tokenizer) for answer in answers]
        right = sum(map(is_right, questions, replies)) / len(questions)
        calling = sum(answer.calls > 0 for answer in answers) / len(questions)
        calls = sum(answer.calls for answer in answers)  # one answer may call several times
        # max: without tools nobody calls
        failed = sum(answer.errors for answer in answers) / max(1, calls)
        rows.append([heading, f"{right:.1%}", f"{calling:.1%}", f"{failed:.1%}"])
    print(table([f"{len(questions)} questions", "right", "calling", "failed calls"], rows))


if __name__ == "__main__":
    exit_on_bad_input(main)
