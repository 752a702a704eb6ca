"""Questions about stories that a model has never seen: `python -m eval.questions runs/sft_demo`

They come from the built-in world's held-out conversations. A reply is right if it equals the reply
there to the letter. Questions are asked with names as in training (Tiko, Belna, Jurim), and with
names of a form that training does not have (Belora, Timovu).
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from configs.command import (
    InputError,
    add_number,
    command_parser,
    exit_on_bad_input,
    still_busy,
)
from configs.text import table
from data.chat import prompt_ids
from data.config import DataConfig, StoryworldSource
from data.reading.records import Conversation
from data.tokenizer import Tokenizer
from eval.load_model import add_device_option, data_config, open_model
from eval.tools import write_answers
from model import LanguageModel
from storyworld import converse
from storyworld.questions import KINDS

TRIES = 64  # `one_question` tries so many stories.
ROWS = 32  # `ask` answers so many questions at a time.


@dataclass(frozen=True)
class Question:
    """One question of a conversation."""

    kind: str  # one of storyworld's KINDS
    messages: tuple[dict[str, Any], ...]  # before the reply; the question is the last one
    reply: str  # the assistant's, without thoughts: the short answer, or a sentence with it
    answer: str  # the short answer: "Tiko", "by the river", "yes"
    candidates: tuple[str, ...]  # short answers of a careless reader, `answer` among them
    tools: tuple[dict[str, Any], ...] = ()  # schemas of the conversation's tools
    plot: str = ""  # of its story, if known


def held_out_questions(source: StoryworldSource, *, new_names: bool = False) -> Iterator[Question]:
    """Yield the questions of the held-out conversations.

    new_names: use names that no training text has
    """
    for index in range(source.validation_documents):
        conversation = converse(
            source.seed, index, "validation", source.level, held_out_names=new_names
        )
        yield from questions_in(conversation)


def questions_in(conversation: dict[str, Any]) -> Iterator[Question]:
    """Yield the questions of one of storyworld's conversations."""
    for question in conversation["meta"]["questions"]:
        *before, reply = conversation["conversations"][: question["message"] + 1]
        yield Question(
            question["kind"],
            tuple(before),
            reply["content"],
            question["answer"],
            tuple(question["candidates"]),
            plot=conversation["meta"]["plot"],
        )


def question_of(conversation: Conversation) -> Question | None:
    """Return the last question of any conversation; the right reply is the last message.

    None if the last message is not an answer of the assistant.
    """
    messages = conversation.messages
    users = [i for i, message in enumerate(messages) if message.role == "user"]
    if not users or messages[-1].role != "assistant" or messages[-1].tool_calls:
        return None
    # An answer may follow calls of tools: the question is the last message of the user.
    before = tuple(map(asdict, messages[: users[-1] + 1]))
    reply = messages[-1].content
    return Question("", before, reply, reply, (reply,), conversation.tools)


def one_question(
    source: StoryworldSource,
    number: int,
    fits: Callable[[Question], bool],
) -> Question:
    """Return a held-out story and a question that fits, the same for the same number.

    Raises ValueError if none of TRIES stories fits.
    """
    # each number has stories of its own
    for index in range(number * TRIES, (number + 1) * TRIES):
        story = converse(
            source.seed, index, "validation", source.level, "question", held_out_names=False
        )
        question = next(questions_in(story))
        if fits(question):
            return question
    raise ValueError(f"none of {TRIES} stories fits into this model's context")


def ask(
    lm: LanguageModel,
    tokenizer: Tokenizer,
    questions: Sequence[Question],
    kv_cache: str = "dynamic",
) -> list[str | None]:
    """Return the model's greedy reply to each question; "…" ends one that was cut.

    None if prompt and right reply do not fit into the context.
    """
    prompts = [prompt_ids(tokenizer, question.messages) for question in questions]
    right_replies = tokenizer.encode_many([question.reply for question in questions])
    room = [len(ids) + 1 for ids in right_replies]  # + 1: the end of the turn
    longest = lm.config.max_position_embeddings
    order = [i for i in range(len(prompts)) if len(prompts[i]) + room[i] <= longest]
    order.sort(key=lambda i: len(prompts[i]))  # like lengths together: little padding
    replies: list[str | None] = [None] * len(questions)
    for start in range(0, len(order), ROWS):
        chosen = order[start : start + ROWS]
        answers = write_answers(
            lm,
            tokenizer,
            [prompts[i] for i in chosen],
            # a reply longer than all right ones is wrong: do not wait for its end
            max_new_tokens=max(room[i] for i in chosen),
            kv_cache=kv_cache,
        )
        for i, answer in zip(chosen, answers, strict=True):
            replies[i] = answer.reply(tokenizer)
    return replies


def is_right(question: Question, reply: str | None) -> bool:
    """Compare with the right reply to the letter, without outer white space and thoughts."""
    return reply is not None and reply.strip() == question.reply.strip()


def guesses(question: Question) -> list[str]:
    """Answer without understanding: by a candidate's place in the list or in the text."""
    text = "\n".join(message["content"] for message in question.messages)
    candidates = question.candidates
    # for "by the river" search "river": a story also has "to the river"
    words = {candidate: candidate.split(" the ")[-1] for candidate in candidates}
    answers = [candidates[0], candidates[-1]]
    for measure in (text.rfind, text.count):
        values = {candidate: measure(words[candidate]) for candidate in candidates}
        # the latest or the earliest last mention; most or fewest mentions
        answers.append(max(candidates, key=values.__getitem__))
        answers.append(min(candidates, key=values.__getitem__))
    return answers


def figures(questions: Sequence[Question], replies: Sequence[str | None]) -> dict[str, float | int]:
    """Return a line of metrics.jsonl, over all questions and for each class (`_where`).

    exact_match: share of right replies
    asked:       number of questions with a reply
    chance:      expected share of a random pick among the candidates
    guess:       share of the best of `guesses`, or of always the same answer
    """
    answered = []
    for question, reply in zip(questions, replies, strict=True):
        if reply is not None:
            answered.append((question, is_right(question, reply)))
    classes: dict[str, dict[str, float | int]] = {}
    for kind in KINDS:
        chosen = [question for question, _ in answered if question.kind == kind]
        count = len(chosen)
        if not count:
            continue
        right = [correct for question, correct in answered if question.kind == kind]
        hits = [[guess == question.answer for guess in guesses(question)] for question in chosen]
        same_answer = max(Counter(question.answer for question in chosen).values())
        classes[kind] = {
            "exact_match": sum(right) / count,
            "chance": sum(1 / len(question.candidates) for question in chosen) / count,
            # the best rule is chosen on these very questions, so it is a strong opponent
            "guess": max(same_answer, *map(sum, zip(*hits, strict=True))) / count,
            "asked": count,
        }
    count = max(1, len(answered))
    values = {"exact_match": sum(correct for _, correct in answered) / count}
    for name in ("chance", "guess"):
        values[name] = sum(group[name] * group["asked"] for group in classes.values()) / count
    values["asked"] = len(answered)
    for kind, group in classes.items():
        for name, value in group.items():
            values[f"{name}_{kind}"] = value
    return values


def table_of_classes(columns: dict[str, dict[str, float | int]]) -> str:
    """Return a Markdown table: a row a class, with the exact match of each column.

    columns: heading -> figures; the first one also gives number of questions, chance and guess
    """
    first = next(iter(columns.values()))
    rows = []
    for kind in (*KINDS, ""):
        suffix = f"_{kind}" if kind else ""
        if f"asked{suffix}" not in first:
            continue
        shares = [values.get(f"exact_match{suffix}") for values in columns.values()]
        shares += [first[f"chance{suffix}"], first[f"guess{suffix}"]]
        cells = ["–" if share is None else f"{share:.1%}" for share in shares]
        rows.append([kind or "all", first[f"asked{suffix}"], *cells])
    return table(["class", "asked", *columns, "chance", "best guess"], rows)


def table_of_plots(questions: Sequence[Question], replies: Sequence[str | None]) -> str:
    """Return a Markdown table of plots and classes, most wrong replies first."""
    answers = defaultdict(list)
    for question, reply in zip(questions, replies, strict=True):
        if reply is not None:
            answers[f"{question.plot}, {question.kind}"].append(is_right(question, reply))
    # max: a model that makes no mistake has nothing to divide by
    all_wrong = max(1, sum(right.count(False) for right in answers.values()))
    rows = []
    for name, right in sorted(answers.items(), key=lambda item: (-item[1].count(False), item[0])):
        share = right.count(False) / all_wrong
        rows.append([name, len(right), f"{sum(right) / len(right):.0%}", f"{share:.0%}"])
    return table(["plot, class", "asked", "exact match", "of all wrong replies"], rows)


def data_config_of(run: str | Path) -> DataConfig:
    """Read the `data:` section of a run's config.yaml. Raises InputError."""
    data = data_config(run)
    if data is None:
        raise InputError(f"{run}: there is no config.yaml of its run: name a run")
    return data


def source_of(run: str | Path) -> StoryworldSource:
    """Return the built-in world that a run was trained on. Raises InputError for other data."""
    source = data_config_of(run).source
    if not isinstance(source, StoryworldSource):
        raise InputError(
            f"{run}: data.source is of kind {source.kind}: only the storyworld has known answers"
        )
    return source


def main() -> None:
    parser = command_parser(__doc__)
    add = parser.add_argument
    add("run", help="a run or a checkpoint directory, for example runs/sft_demo")
    about = "held-out conversations to ask about; default: all of them"
    add_number(parser, "--documents", None, about)
    add_number(parser, "--show", 0, "print the first N wrong replies as well", least=0)
    add("--by-plot", action="store_true", help="also count each plot, the worst first")
    add_device_option(parser)
    args = parser.parse_args()
    source = source_of(args.run)
    lm, tokenizer = open_model(args.run, args.device)
    if args.documents:
        # the first ones, so a smaller number asks a part of the same questions
        source = source.model_copy(update={"validation_documents": args.documents})

    def answer(new_names: bool) -> tuple[list[Question], list[str | None]]:
        questions = list(held_out_questions(source, new_names=new_names))
        with still_busy(f"asking {len(questions):,} questions"):
            return questions, ask(lm, tokenizer, questions)

    # first, because the replies with the names of training are still needed below
    new_figures = figures(*answer(new_names=True))
    questions, replies = answer(new_names=False)
    columns = {"exact match": figures(questions, replies), "new names": new_figures}
    print(table_of_classes(columns))
    if args.by_plot:
        print(f"\nBy plot, with the names of training:\n{table_of_plots(questions, replies)}")
    count = 0
    for question, reply in zip(questions, replies, strict=True):
        if count < args.show and reply is not None and not is_right(question, reply):
            count += 1
            print(f"\n{question.kind}: {question.messages[-1]['content']}")
            print(f"  right: {question.reply}\n  wrote: {reply}")


if __name__ == "__main__":
    exit_on_bad_input(main)
