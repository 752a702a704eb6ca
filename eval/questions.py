"""Does it answer right about stories it has never seen? `python -m eval.questions runs/sft_demo`

Every question of the built-in world's held-out conversations has one right answer. A reply is right when it equals, to
the letter, the reply of that conversation. No training text has these stories. Each is asked about twice: with names
like those of training (Tiko, Belna, Jurim), and with names of a form that training does not have (Belora, Timovu).
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from configs.command import InputError, exit_on_bad_input, integer, still_busy
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

TRIES = 64  # stories of `one_question`
ROWS = 32  # questions that are answered at a time


@dataclass(frozen=True)
class Question:
    """One question of a conversation."""

    kind: str  # one of storyworld's KINDS
    messages: tuple[dict[str, Any], ...]  # before the reply, earlier replies among them; the question comes last
    reply: str  # what the assistant says there, without thoughts: the short answer, or a sentence with it
    answer: str  # the short answer: "Tiko", "by the river", "yes"
    candidates: tuple[str, ...]  # the short answers that a careless reader could give, `answer` among them
    tools: tuple[dict[str, Any], ...] = ()  # the schemas of the tools that the conversation describes
    plot: str = ""  # of the story that it is about, where that is known


def held_out_questions(source: StoryworldSource, *, new_names: bool = False) -> Iterator[Question]:
    """The questions of the held-out conversations. new_names: the people have names that no training text holds."""
    for index in range(source.validation_documents):
        yield from questions_in(converse(source.seed, index, "validation", source.level, held_out_names=new_names))


def questions_in(conversation: dict[str, Any]) -> Iterator[Question]:
    """The questions of one of storyworld's conversations, in their order."""
    for question in conversation["meta"]["questions"]:
        *before, reply = conversation["conversations"][: question["message"] + 1]
        known = {"answer": question["answer"], "candidates": tuple(question["candidates"])}
        yield Question(question["kind"], tuple(before), reply["content"], **known, plot=conversation["meta"]["plot"])


def question_of(conversation: Conversation) -> Question | None:
    """The last question of any conversation: its right reply is the last one, whatever was called in between.

    None where the assistant has not the last word, or calls a tool with it.
    """
    messages = conversation.messages
    last = max((at for at, message in enumerate(messages) if message.role == "user"), default=None)
    if last is None or messages[-1].role != "assistant" or messages[-1].tool_calls:
        return None
    reply = messages[-1].content
    return Question("", tuple(map(asdict, messages[: last + 1])), reply, reply, (reply,), conversation.tools)


def one_question(
    source: StoryworldSource, number: int, fits: Callable[[Question], bool] = lambda _: True, *, new_names: bool = False
) -> Question:
    """A held-out story and a question about it: the same for the same number. One that does not fit is passed by.

    Raises ValueError where none of TRIES fits.
    """
    for index in range(number * TRIES, (number + 1) * TRIES):
        story = converse(source.seed, index, "validation", source.level, "question", held_out_names=new_names)
        if fits(question := next(questions_in(story))):
            return question
    raise ValueError(f"none of {TRIES} stories fits into this model's context")


def ask(
    lm: LanguageModel, tokenizer: Tokenizer, questions: Sequence[Question], kv_cache: str = "dynamic"
) -> list[str | None]:
    """The model's likeliest reply to each question, decoded greedily up to the end of its turn.

    None for a prompt that, with its reply, does not fit into max_position_embeddings. A reply that does not end
    within the longest right one is cut there and ends in "…".
    """
    prompts = [prompt_ids(tokenizer, question.messages) for question in questions]
    room = [len(ids) + 1 for ids in tokenizer.encode_many([question.reply for question in questions])]
    fitting = [i for i in range(len(prompts)) if len(prompts[i]) + room[i] <= lm.config.max_position_embeddings]
    order = sorted(fitting, key=lambda i: len(prompts[i]))  # like lengths together: little padding
    replies: list[str | None] = [None] * len(questions)
    for start in range(0, len(order), ROWS):
        chosen = order[start : start + ROWS]
        some, longest = [prompts[i] for i in chosen], max(room[i] for i in chosen)
        answers = write_answers(lm, tokenizer, some, max_new_tokens=longest, kv_cache=kv_cache)
        for i, answer in zip(chosen, answers, strict=True):
            replies[i] = answer.reply(tokenizer)
    return replies


def is_right(question: Question, reply: str | None) -> bool:
    """White space around it aside, the reply must be the right one to the letter. Thoughts belong to neither."""
    return reply is not None and reply.strip() == question.reply.strip()


def guesses(question: Question) -> list[str]:
    """Answers that need no understanding: the first candidate, the last, the one mentioned last, least late, most often
    and most rarely."""
    text, candidates = "\n".join(message["content"] for message in question.messages), question.candidates
    named = {candidate: candidate.split(" the ")[-1] for candidate in candidates}  # a story also says "to the river"
    orders = [{candidate: see(named[candidate]) for candidate in candidates} for see in (text.rfind, text.count)]
    by_looking = [choose(candidates, key=seen.__getitem__) for seen in orders for choose in (max, min)]
    return [candidates[0], candidates[-1], *by_looking]


def figures(questions: Sequence[Question], replies: Sequence[str | None]) -> dict[str, float | int]:
    """A line of metrics.jsonl; questions without a reply (None) do not count. Of all, and of each class (`_where`):

    exact_match: share of right replies. asked: how many questions.
    chance:      share that a random pick among a question's candidates gets right
    guess:       share that the best of `guesses` gets right on these very questions, or always the same answer
    """
    answered = [(question, reply) for question, reply in zip(questions, replies, strict=True) if reply is not None]
    classes: dict[str, dict[str, float | int]] = {}
    for kind in KINDS:
        of_kind = [question for question, _ in answered if question.kind == kind]
        if count := len(of_kind):
            right = [[guess == question.answer for guess in guesses(question)] for question in of_kind]
            always_the_same = max(Counter(question.answer for question in of_kind).values())
            classes[kind] = {
                "exact_match": sum(is_right(*pair) for pair in answered if pair[0].kind == kind) / count,
                "chance": sum(1 / len(question.candidates) for question in of_kind) / count,
                "guess": max(always_the_same, *map(sum, zip(*right, strict=True))) / count,
                "asked": count,
            }
    count = max(1, len(answered))
    values = {"exact_match": sum(is_right(*pair) for pair in answered) / count}
    for name in ("chance", "guess"):
        values[name] = sum(of_kind[name] * of_kind["asked"] for of_kind in classes.values()) / count
    values["asked"] = len(answered)
    return values | {f"{name}_{kind}": value for kind, of_kind in classes.items() for name, value in of_kind.items()}


def table_of_classes(columns: dict[str, dict[str, float | int]]) -> str:
    """A Markdown table: a row for each class; exact match of each of `columns` (heading -> figures).

    The number of questions, chance and the best guess are those of the first column.
    """
    first, rows = next(iter(columns.values())), []
    for kind in [*(kind for kind in KINDS if f"asked_{kind}" in first), ""]:
        ending = f"_{kind}" if kind else ""
        shares = [values.get(f"exact_match{ending}") for values in columns.values()]
        shares += [first[f"chance{ending}"], first[f"guess{ending}"]]
        shown = ["–" if share is None else f"{share:.1%}" for share in shares]
        rows.append([kind or "all", first[f"asked{ending}"], *shown])
    return table(["class", "asked", *columns, "chance", "best guess"], rows)


def table_of_plots(questions: Sequence[Question], replies: Sequence[str | None]) -> str:
    """A Markdown table of plots and classes, the worst first: is it a little wrong everywhere, or lost in a few?"""
    answers = defaultdict(list)
    for question, reply in zip(questions, replies, strict=True):
        if reply is not None:
            answers[f"{question.plot}, {question.kind}"].append(is_right(question, reply))
    every, rows = max(1, sum(right.count(False) for right in answers.values())), []
    for name, right in sorted(answers.items(), key=lambda item: (-item[1].count(False), item[0])):
        rows.append([name, len(right), f"{sum(right) / len(right):.0%}", f"{right.count(False) / every:.0%}"])
    return table(["plot, class", "asked", "exact match", "of all wrong replies"], rows)


def data_config_of(run: str | Path) -> DataConfig:
    """The `data:` section of a run's config.yaml. Raises InputError if there is none, or it cannot be read."""
    if (data := data_config(run)) is None:
        raise InputError(f"{run}: there is no config.yaml of its run, so the held-out stories are unknown: name a run")
    return data


def source_of(run: str | Path) -> StoryworldSource:
    """The built-in world that a run was trained on. Raises InputError if it was another source."""
    source = data_config_of(run).source
    if not isinstance(source, StoryworldSource):
        raise InputError(f"{run}: data.source is of kind {source.kind}: only the storyworld has known answers")
    return source


def main() -> None:
    parser = argparse.ArgumentParser(description="Ask a run about held-out stories: exact match, class by class.")
    add = parser.add_argument
    add("run", help="a run or a checkpoint directory, for example runs/sft_demo")
    add("--documents", type=integer("--documents", 1), help="held-out conversations to ask about; default: all of them")
    add("--show", type=integer("--show", 0), default=0, metavar="N", help="print the first N wrong replies as well")
    add("--by-plot", action="store_true", help="count each plot of the stories apart as well, the worst first")
    add_device_option(parser)
    given = parser.parse_args()
    source = source_of(given.run)
    lm, tokenizer = open_model(given.run, given.device)
    source = source.model_copy(update={"validation_documents": given.documents or source.validation_documents})
    columns, questions, replies = {}, [], []
    for heading, new_names in (("new names", True), ("exact match", False)):
        questions = list(held_out_questions(source, new_names=new_names))
        with still_busy(f"asking {len(questions):,} questions"):
            replies = ask(lm, tokenizer, questions)
        columns[heading] = figures(questions, replies)
    print(table_of_classes(dict(reversed(columns.items()))))
    if given.by_plot:
        print(f"\nBy plot, with the names of training:\n{table_of_plots(questions, replies)}")
    wrong = (pair for pair in zip(questions, replies, strict=True) if pair[1] is not None and not is_right(*pair))
    for question, reply in islice(wrong, given.show):
        print(f"\n{question.kind}: {question.messages[-1]['content']}\n  right: {question.reply}\n  wrote: {reply}")


if __name__ == "__main__":
    exit_on_bad_input(main)
