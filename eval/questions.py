"""Does it answer right about stories it has never seen? `python -m eval.questions runs/sft_demo`

Every question of the built-in world's held-out conversations has one right answer. A reply is right when it equals, to
the letter, the reply of that conversation. No training text has these stories. Each is asked about twice: with names
like those of training (Tiko, Belna, Jurim), and with names of a form that training does not have (Belora, Timovu).
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from configs.command import InputError, exit_on_bad_input, whole
from configs.files import checkpoint_directory
from configs.loader import load_config, validate
from configs.text import table as markdown_table
from data.chat import prompt_ids
from data.config import DataConfig, StoryworldSource
from data.reading.records import Conversation
from data.reply import read_reply
from data.storyworld import converse
from data.storyworld.questions import KINDS
from data.tokenizer import Tokenizer
from eval.opening import add_device_option, open_model

if TYPE_CHECKING:  # torch takes seconds to import, and --help should not
    from model import LanguageModel


TRIES = 64  # stories of `one_question`


@dataclass(frozen=True)
class Asked:
    """One question of a conversation.

    kind:       one of data.storyworld's KINDS
    messages:   everything before the reply, with the conversation's own earlier replies; the question comes last
    reply:      what the assistant says there, without thoughts: the short answer, or a sentence with it
    answer:     the short answer: "Tiko", "by the river", "yes"
    candidates: the short answers that a careless reader could give, `answer` among them
    tools:      the schemas of the tools that the conversation describes
    plot:       of the story that it is about; "" where that is not known
    """

    kind: str
    messages: tuple[dict[str, Any], ...]
    reply: str
    answer: str
    candidates: tuple[str, ...]
    tools: tuple[dict[str, Any], ...] = ()
    plot: str = ""


@dataclass(frozen=True)
class Score:
    """How many questions of one class (or of all) were asked, and how many replies were right.

    chance: share that a random pick among a question's candidates gets right
    guess:  share that the best of GUESSES gets right on these very questions: no reading, only looking
    """

    right: int
    asked: int
    chance: float
    guess: float

    @property
    def exact_match(self) -> float:
        """Share of the questions that were answered right."""
        return self.right / max(1, self.asked)


def held_out_questions(
    source: StoryworldSource, kind: str | None = None, *, new_names: bool = False
) -> Iterator[Asked]:
    """The questions of the held-out conversations, one conversation after the other (of one kind only, if given).

    new_names: the people have names of a form that no training text holds.
    """
    for index in range(source.validation_documents):
        conversation = converse(source.seed, index, "validation", source.level, held_out_names=new_names)
        yield from (question for question in questions_in(conversation) if kind in (None, question.kind))


def questions_in(conversation: dict[str, Any]) -> Iterator[Asked]:
    """The questions of one of data.storyworld's conversations, in their order."""
    for question in conversation["meta"]["questions"]:
        *before, reply = conversation["conversations"][: question["message"] + 1]
        answer, candidates = question["answer"], tuple(question["candidates"])
        plot = conversation["meta"]["plot"]
        yield Asked(question["kind"], tuple(before), reply["content"], answer, candidates, plot=plot)


def question_of(conversation: Conversation) -> Asked | None:
    """The last question of any conversation: its right reply is the last one, whatever was called in between.

    None where the assistant has not the last word, or calls a tool with it.
    """
    messages = conversation.messages
    asked = max((at for at, message in enumerate(messages) if message.role == "user"), default=None)
    if asked is None or messages[-1].role != "assistant" or messages[-1].tool_calls:
        return None
    reply = messages[-1].content
    return Asked("", tuple(map(asdict, messages[: asked + 1])), reply, reply, (reply,), conversation.tools)


def one_question(
    source: StoryworldSource, number: int, fits: Callable[[Asked], bool] = lambda _: True, *, new_names: bool = False
) -> Asked:
    """A held-out story and a question about it: the same for the same number. One that does not fit is passed by.

    Raises ValueError where none of TRIES fits.
    """
    for index in range(number * TRIES, (number + 1) * TRIES):
        told = converse(source.seed, index, "validation", source.level, "question", held_out_names=new_names)
        if fits(question := next(questions_in(told))):
            return question
    raise ValueError(f"none of {TRIES} stories fits into this model's context")


def ask(
    lm: LanguageModel,
    tokenizer: Tokenizer,
    questions: Sequence[Asked],
    rows_per_batch: int = 32,
    kv_cache: str = "dynamic",
) -> list[str | None]:
    """The model's likeliest reply to each question, decoded greedily up to the end of its turn.

    None for a prompt that, with its reply, does not fit into max_position_embeddings. A reply that does not end
    within the longest right one is cut there and ends in "…".
    """
    from model import generate, left_pad

    prompts = [prompt_ids(tokenizer, question.messages) for question in questions]
    room = [len(ids) + 1 for ids in tokenizer.encode_many([question.reply for question in questions])]
    longest = lm.config.max_position_embeddings
    fitting = [i for i in range(len(prompts)) if len(prompts[i]) + room[i] <= longest]
    order = sorted(fitting, key=lambda i: len(prompts[i]))  # like lengths together: little padding
    replies: list[str | None] = [None] * len(questions)
    device = next(lm.parameters()).device
    for start in range(0, len(order), rows_per_batch):
        chosen = order[start : start + rows_per_batch]
        ids, real = left_pad([prompts[i] for i in chosen], tokenizer.pad_id)
        output = generate(
            lm,
            ids.to(device),
            max(room[i] for i in chosen),
            temperature=0.0,
            stop_ids=tokenizer.stop_ids,
            seed=0,
            attention_mask=real.to(device),
            kv_cache=kv_cache,
        )
        for i, row in zip(chosen, output[:, ids.shape[1] :].tolist(), strict=True):
            ended = any(token in tokenizer.stop_ids for token in row)
            replies[i] = read_reply(tokenizer, row, prompts[i]).content + ("" if ended else "…")
    return replies


def is_right(question: Asked, reply: str | None) -> bool:
    """White space around it aside, the reply must be the right one to the letter. Thoughts belong to neither."""
    return reply is not None and reply.strip() == question.reply.strip()


def _core(candidate: str) -> str:
    return candidate.split(" the ")[-1]  # a story also says "to the river"


# Answers that need no understanding of the story: (all that was said, the candidates) -> one of these.
GUESSES: dict[str, Callable[[str, Sequence[str]], str]] = {
    "the first": lambda text, candidates: candidates[0],
    "the last": lambda text, candidates: candidates[-1],
    "mentioned last": lambda text, candidates: max(candidates, key=lambda one: text.rfind(_core(one))),
    "mentioned least late": lambda text, candidates: min(candidates, key=lambda one: text.rfind(_core(one))),
    "most often": lambda text, candidates: max(candidates, key=lambda one: text.count(_core(one))),
    "most rarely": lambda text, candidates: min(candidates, key=lambda one: text.count(_core(one))),
}


def score(questions: Sequence[Asked], replies: Sequence[str | None]) -> dict[str, Score]:
    """Class -> its Score, in the order of KINDS, and "all". Questions without a reply (None) do not count."""
    of_kind: dict[str, list[tuple[Asked, str]]] = defaultdict(list)
    for question, reply in zip(questions, replies, strict=True):
        if reply is not None:
            of_kind[question.kind].append((question, reply))
    scores = {kind: _score(of_kind[kind]) for kind in KINDS if of_kind[kind]}
    asked = sum(one.asked for one in scores.values())
    chance, guess = (sum(getattr(one, of) * one.asked for one in scores.values()) for of in ("chance", "guess"))
    right = sum(one.right for one in scores.values())
    return scores | {"all": Score(right, asked, chance / max(1, asked), guess / max(1, asked))}


def _score(asked: Sequence[tuple[Asked, str]]) -> Score:
    questions, count = [question for question, _ in asked], len(asked)
    texts = ["\n".join(message["content"] for message in question.messages) for question in questions]
    guessed = [max(Counter(question.answer for question in questions).values())]  # always the same answer
    for guess in GUESSES.values():
        pairs = zip(questions, texts, strict=True)
        guessed.append(sum(guess(text, question.candidates) == question.answer for question, text in pairs))
    chance = sum(1 / len(question.candidates) for question in questions) / count
    return Score(sum(is_right(*one) for one in asked), count, chance, max(guessed) / count)


def figures(scores: dict[str, Score]) -> dict[str, float | int]:
    """Scores as a line of metrics.jsonl: exact_match, chance, guess and asked, and the same for each class."""
    values: dict[str, float | int] = {}
    for kind, one in {"": scores["all"], **scores}.items():
        if kind != "all":
            ending = f"_{kind}" if kind else ""
            values |= {f"exact_match{ending}": one.exact_match, f"chance{ending}": one.chance}
            values |= {f"guess{ending}": one.guess, f"asked{ending}": one.asked}
    return values


def table(columns: dict[str, dict[str, float | int]]) -> str:
    """A Markdown table: a row for each class; exact match of each of `columns` (heading -> figures).

    The number of questions, chance and the best guess are those of the first column.
    """
    first = next(iter(columns.values()))
    rows = []
    for kind in [*(kind for kind in KINDS if f"asked_{kind}" in first), ""]:
        ending = f"_{kind}" if kind else ""
        shares = [values.get(f"exact_match{ending}") for values in columns.values()]
        shares += [first[f"chance{ending}"], first[f"guess{ending}"]]
        shown = ["–" if share is None else f"{share:.1%}" for share in shares]
        rows.append([kind or "all", first[f"asked{ending}"], *shown])
    return markdown_table(["class", "asked", *columns, "chance", "best guess"], rows)


def table_by_plot(questions: Sequence[Asked], replies: Sequence[str | None]) -> str:
    """A Markdown table: a row for each plot and class; the rows with the most wrong replies first.

    It shows whether a model is a little wrong everywhere, or right in most plots and no better than a guess in some.
    """
    found: dict[tuple[str, str], list[tuple[Asked, str]]] = defaultdict(list)
    for question, reply in zip(questions, replies, strict=True):
        if reply is not None:
            found[question.plot, question.kind].append((question, reply))
    scores = {which: _score(asked) for which, asked in found.items()}
    wrong = {which: one.asked - one.right for which, one in scores.items()}
    every = max(1, sum(wrong.values()))
    rows = [
        [", ".join(which), (one := scores[which]).asked, f"{one.exact_match:.0%}", f"{count / every:.0%}"]
        for which, count in sorted(wrong.items(), key=lambda one: (-one[1], one[0]))
    ]
    return markdown_table(["plot, class", "asked", "exact match", "of all wrong replies"], rows)


def data_config_of(run: str | Path) -> tuple[Path, DataConfig]:
    """The config.yaml of a run, and its `data:` section. Raises InputError if there is none, or it cannot be read."""
    try:
        return _data_config_of(run)
    except (OSError, ValueError) as error:
        raise InputError(str(error)) from None


def _data_config_of(run: str | Path) -> tuple[Path, DataConfig]:
    directory = checkpoint_directory(run)
    file = next(
        (at / "config.yaml" for at in (directory, *directory.parents[:2]) if (at / "config.yaml").is_file()), None
    )
    if file is None:
        raise InputError(
            f"{run}: there is no config.yaml beside it, so the held-out stories are unknown: name a run directory"
        )
    return file, validate(DataConfig, load_config(file), "data")


def source_of(run: str | Path) -> StoryworldSource:
    """The built-in world that a run was trained on. Raises InputError if it was another source."""
    file, data = data_config_of(run)
    source = data.source
    if not isinstance(source, StoryworldSource):
        raise InputError(f"{file}: data.source is of kind {source.kind}: only the storyworld has known answers")
    return source


def main() -> int:
    parser = argparse.ArgumentParser(description="Ask a run about held-out stories: exact match, class by class.")
    parser.add_argument("run", help="a run or a checkpoint directory, for example runs/sft_demo")
    parser.add_argument(
        "--documents",
        type=whole("--documents", 1),
        help="held-out conversations to ask about; default: all of them",
    )
    parser.add_argument("--class", dest="kind", metavar="CLASS", help=f"only one of {', '.join(KINDS)}")
    parser.add_argument(
        "--show",
        type=whole("--show", 0),
        default=0,
        metavar="N",
        help="print the first N wrong replies as well",
    )
    parser.add_argument(
        "--by-plot", action="store_true", help="count each plot of the stories apart as well, the worst first"
    )
    add_device_option(parser)
    given = parser.parse_args()
    if given.kind not in (None, *KINDS):
        raise InputError(f"--class {given.kind}: unknown class of questions: use one of {', '.join(KINDS)}")
    source = source_of(given.run)
    lm, tokenizer = open_model(given.run, given.device)
    documents = given.documents or source.validation_documents
    source = source.model_copy(update={"validation_documents": documents})
    columns, questions, replies = {}, [], []
    for heading, new_names in (("new names", True), ("exact match", False)):
        questions = list(held_out_questions(source, given.kind, new_names=new_names))
        replies = ask(lm, tokenizer, questions)
        columns[heading] = figures(score(questions, replies))
    print(table(dict(reversed(columns.items()))))
    if given.by_plot:
        print(f"\nBy plot, with the names of training:\n{table_by_plot(questions, replies)}")
    if left_out := replies.count(None):
        longest = lm.config.max_position_embeddings
        print(f"{left_out} of {len(questions)} questions left out: longer than {longest} tokens", file=sys.stderr)
    wrong = (pair for pair in zip(questions, replies, strict=True) if pair[1] is not None and not is_right(*pair))
    for question, reply in islice(wrong, given.show):
        print(f"\n{question.kind}: {question.messages[-1]['content']}\n  right: {question.reply}\n  wrote: {reply}")
    return 0


if __name__ == "__main__":
    exit_on_bad_input(main)
