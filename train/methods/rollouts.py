"""GRPO's questions, the reward of a reply, and the batch of answers. train/grpo.py samples them.

A reward is a function of a question and a reply: a finite number, the more the better. In the
built-in world every question has one right answer, so `exact_match` cannot be gamed.
`contains_answer` is here to be gamed: a reply that names everybody gets the full reward.
"""

import math
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from functools import lru_cache
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from configs import IGNORED
from configs.command import InputError
from configs.text import escape
from data.batches import Batch
from data.chat import prompt_ids
from data.config import DataConfig, StoryworldSource
from data.packing import PreparedData
from data.reading.documents import documents, talk_about
from data.reply import CALL
from eval.hooks import import_named
from eval.questions import Question, is_right, question_of, questions_in
from eval.tools import SCHEMAS, Written
from model import LanguageModel
from train.config import RunConfig
from train.machine.distributed import World
from train.objective import BatchSource

# The tensors of a batch, in its order.
COLUMNS = ("input_ids", "labels", "drawn_log_probs", "advantages", "copies", "weights")
FIGURE = "figure "  # A checkpoint has it before the name of a figure.
ATTEMPTS = 1000  # If so many questions are too long, none fits.
# Among this many questions, a larger share of equal replies means that they are placeholders.
ENOUGH = 20
NEARLY_ALL = 0.95
# A function that draws a question; None: the document that was drawn has none.
Draw = Callable[[Random], Question | None]
Reward = Callable[[Question, str], float]


class AnswerBatches(BatchSource):
    """Batches of sampled answers; train/grpo.py samples them.

    A batch has the answers of groups whose rewards differ, each after its question, right-padded:

    input_ids, labels     (B, T)  only answers are labels
    drawn_log_probs       (B, T)  aligned with labels
    weights               (B, T)  of each token in the loss
    advantages            (B,)
    copies                (B,)    how often the answer was drawn: equal ones share a row
    """

    # Questions and random numbers come from (seed, k, row), the answers from the weights. So
    # nothing is saved, and a stopped run resumes exactly. But with grpo.num_iterations a batch
    # serves several steps. A checkpoint between them holds it, for the weights that drew it are
    # gone.

    def __init__(self, config: RunConfig, data: PreparedData, world: World, device: torch.device):
        assert config.grpo is not None
        self.settings = config.grpo
        self.world = world
        self.seed = config.seed
        self.tokenizer = data.tokenizer
        self.rows_per_batch = config.rows_per_step
        self.row_length = config.data.sequence_length
        self.groups = self.rows_per_batch // self.settings.group_size
        if self.groups % world.size or world.shares_model:
            problem = f"{world.size} processes cannot share {self.groups} questions"
            raise InputError(f"{problem}: set train.processes=1")
        self.numbers = range(world.rank, self.groups, world.size)  # this process's questions
        self.draw_question = questions_to_draw(config.data, self.settings.reward)
        self.reward: Reward = import_named("grpo.reward", self.settings.reward, REWARDS)
        self.steps_per_batch = self.settings.num_iterations
        self.drawn: tuple[int, Batch] | None = None  # the newest batch, and the step that drew it
        self.tools = SCHEMAS if self.settings.tools else ()
        if self.tools:
            self.tokenizer.special_id(CALL)  # raises if the tokenizer has no token for a call

    def upcoming(self, first: int, stop: int, lm: LanguageModel) -> Generator[Batch]:
        for k in range(first, stop):
            drawn_at = k - k % self.steps_per_batch
            if self.drawn is None or self.drawn[0] != drawn_at:
                self.drawn = drawn_at, self.batch(drawn_at, lm)
            yield self.drawn[1]

    def state_tensors(self, k: int) -> dict[str, Tensor]:
        if self.drawn is None or k % self.steps_per_batch == 0:
            return {}  # the next batch is a new one
        first, batch = self.drawn
        others: dict[str, Any] = {FIGURE + name: value for name, value in batch.figures.items()}
        others |= {"step": first, "row_ids": batch.row_ids}
        return batch.tensors | {name: torch.tensor(value) for name, value in others.items()}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        if tensors:
            columns = {name: tensors[name] for name in COLUMNS}  # a file has another order
            figures = {
                name.removeprefix(FIGURE): float(value)
                for name, value in tensors.items()
                if name.startswith(FIGURE)
            }
            self.drawn = int(tensors["step"]), Batch(columns, tensors["row_ids"].tolist(), figures)

    def question(self, k: int, number: int) -> tuple[Question, list[int]]:
        """Return question `number` of step k, and the ids of its prompt."""
        rng = Random(f"question {self.seed} {k} {number}")
        for _ in range(ATTEMPTS):
            question = self.draw_question(rng)
            if question is None:
                continue
            ids = prompt_ids(self.tokenizer, question.messages, self.tools or question.tools)
            if len(ids) + self.settings.max_new_tokens <= self.row_length:
                return question, ids
        tools = " with its tools" * bool(self.tools)
        raise InputError(
            f"data.sequence_length: no question{tools} fits beside grpo.max_new_tokens: raise it"
        )

    def rows(
        self,
        answers: Sequence[Written],
        advantages: Tensor,
        differ: Tensor,
        figures: dict[str, float],
    ) -> Batch:
        """Return the batch of answers. advantages (answers,). differ (groups,): rewards differ."""
        values = advantages.tolist()
        size = self.settings.group_size

        # Equal answers become one row, which is computed once. If no rewards differ, there is
        # nothing to learn: take one answer and 0 copies of it, since a batch needs a row.
        equal: dict[tuple[Any, ...], list[int]] = {}
        for row, answer in enumerate(answers):
            if differ[row // size] or not (differ.any() or row):
                key = (row // size, tuple(answer.ids), tuple(answer.own), values[row])
                equal.setdefault(key, []).append(row)

        def length(rows: list[int]) -> int:
            return len(answers[rows[0]].prompt) + len(answers[rows[0]].ids)

        copies = sorted(equal.values(), key=length)  # so micro-batches need little padding
        first = [rows[0] for rows in copies]
        counts = torch.tensor([len(rows) for rows in copies]) * differ.any()  # (B,)

        # The weight of a token (B,). Tokens that a tool wrote are not the model's own.
        lengths = torch.tensor([sum(answers[row].own) for row in first])  # (B,)
        everywhere = self.world.gather((int(counts.sum()), int((counts * lengths).sum())))
        all_answers, all_tokens = map(sum, zip(*everywhere, strict=True))  # of all processes
        per_token = {
            "sequence": 1 / lengths,
            "token": torch.full_like(counts, all_answers / max(1, all_tokens), dtype=torch.float32),
            "fixed": torch.full_like(counts, 1 / self.settings.max_new_tokens, dtype=torch.float32),
        }[self.settings.mean]
        ids = []
        labels = []
        drawn = []
        for row in first:
            answer = answers[row]
            prompt = torch.tensor(answer.prompt)
            new = torch.tensor(answer.ids)
            ids.append(torch.cat([prompt, new]))
            trained = new.masked_fill(~torch.tensor(answer.own), IGNORED)
            labels.append(torch.cat([torch.full_like(prompt, IGNORED), trained]))
            drawn.append(torch.cat([torch.zeros(len(prompt)), torch.tensor(answer.log_probs)]))
        tensors = {
            "input_ids": pad_sequence(ids, True, self.tokenizer.pad_id),
            "labels": pad_sequence(labels, True, IGNORED),
            "drawn_log_probs": pad_sequence(drawn, True),
            "advantages": advantages[first],
            "copies": counts,
        }
        tensors["weights"] = (counts * per_token)[:, None] * (tensors["labels"] != IGNORED)
        # Round figures as a checkpoint does, so that a resumed run logs the same.
        in_float32 = torch.tensor([*figures.values()]).tolist()
        return Batch(tensors, first, dict(zip(figures, in_float32, strict=True)))


# --------------------------------------------------------------------------------------------------
# questions and rewards


def questions_to_draw(data: DataConfig, reward: str) -> Draw:
    """Return a function that draws a question of the training text.

    Raises InputError if there is none, or if a built-in reward would compare with placeholders.
    """
    source = data.source
    if not isinstance(source, StoryworldSource):  # the last question of a conversation
        all_questions = map(question_of, documents(data, "train"))
        questions = [question for question in all_questions if question is not None]
        if not questions:
            raise InputError(
                "data.source: no training conversation ends with a question and its answer"
            )
        reply, count = Counter(question.reply for question in questions).most_common(1)[0]
        if reward in REWARDS and len(questions) >= ENOUGH and count > NEARLY_ALL * len(questions):
            problem = f"{count:,} of {len(questions):,} right replies are {escape(reply[:40])!r}"
            remedy = "give real ones, or name a reward of your own, module:function"
            raise InputError(
                f"data.source: {problem}, and grpo.reward={reward} pays for these: {remedy}"
            )
        return lambda rng: rng.choice(questions)
    if source.recall is not None:
        raise InputError("data.source.recall: train.grpo needs conversations: set recall to null")
    # Questions about a story. Repeated names would give answers away.
    world = source.model_copy(update={"echoed": 0.0})

    @lru_cache(maxsize=4096)  # making a conversation takes longer than answering it
    def conversation(index: int) -> dict[str, Any]:
        return talk_about(world, index, "train", repeats=False)

    def draw(rng: Random) -> Question | None:
        questions = list(questions_in(conversation(rng.randrange(world.documents))))
        return rng.choice(questions) if questions else None

    return draw


def exact_match(question: Question, reply: str) -> float:
    """Return 1 for the right reply to the letter, 0 for every other."""
    return float(is_right(question, reply))


def contains_answer(question: Question, reply: str) -> float:
    """Return 1 if the short answer is anywhere in the reply, whatever else is. Easily gamed."""
    return float(question.answer.casefold() in reply.casefold())


# The built-in values of grpo.reward; others are module:function.
REWARDS = {name: f"{__name__}:{name}" for name in ("exact_match", "contains_answer")}


def rewards_of(
    reward: Reward, questions: Sequence[Question], replies: Sequence[str]
) -> tuple[list[float], str]:
    """Return the reward of each reply, and the problem of the first that failed, or ""."""
    values = []
    for row, (question, reply) in enumerate(zip(questions, replies, strict=True)):
        try:
            values.append(float(reward(question, reply)))
            problem = "" if math.isfinite(values[-1]) else f"returned {values[-1]}"
        except Exception as error:  # a user's code may raise anything
            problem = f"raised {type(error).__name__}: {error}"
        if problem:
            text = question.messages[-1]["content"][-120:]
            return values, (
                f"grpo.reward {problem} for row {row}, question {escape(text)!r}, reply "
                f"{escape(reply[:120])!r}: it must return a finite number; this step is not taken"
            )
    return values, ""
