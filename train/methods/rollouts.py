"""What does the model answer, and what is it worth? The batches of GRPO: questions, sampled answers, advantages.

Batch k is a function of (seed, k, weights): the questions and the random numbers come from (seed, k), the answers from
the weights. So nothing is saved, and a stopped run resumes exactly. With grpo.num_iterations a batch serves several
steps. Then a checkpoint between these holds it, since the weights that drew it are gone.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import chain
from random import Random
from statistics import fmean
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from configs.command import InputError
from data.batches import IGNORED, Batch
from data.chat import prompt_ids
from data.prepare import PreparedData
from data.reply import CALL
from eval.questions import Asked
from eval.tools.answers import write_answers
from eval.tools.calls import described, said_by_user
from model import LanguageModel
from train.config import RunConfig
from train.machine.distributed import World
from train.methods.asking import questions_to_draw
from train.methods.grpo_keys import GRPOConfig
from train.methods.rewards import find_reward, rewards_of
from train.objective import BatchSource

REPORTED = ("reward", "reward_variance", "skipped_groups", "answer_length")  # means over all answers of a step
OF_TOOLS = ("tool_calls", "tool_errors")  # of an answer, with grpo.tools
COLUMNS = ("input_ids", "labels", "drawn_log_probs", "advantages", "copies", "weights")  # of a batch
EPSILON = 1e-4  # of the division by a standard deviation, as in TRL
ATTEMPTS = 1000  # to find a question that fits


@dataclass(frozen=True)
class Answer:
    """One sampled answer.

    ids: with its end token, if it came, and with the responses of tools. log_probs: ln of the probability each was
    drawn with. own: which of ids the model wrote; only these are trained on. text: what is rewarded, the last turn's
    content. calls, errors: how many calls were run, and how many of these failed.
    """

    group: int
    ids: tuple[int, ...]
    log_probs: Tensor
    text: str
    own: tuple[bool, ...]
    calls: int = 0
    errors: int = 0


class Rollouts(BatchSource):
    """Questions of the training text, each with a group of answers that the model samples itself.

    A batch holds the answers of groups whose rewards differ, right-padded, with their questions in front: input_ids and
    labels (B, T), where only answers are labels; drawn_log_probs (B, T), aligned with labels; advantages (B,); weights
    (B, T), what a token counts; copies (B,), how often the answer was drawn: equal ones are one row. Where no group's
    rewards differ there is one row, of 0 copies: there is nothing to learn. Its figures are those of REPORTED.
    """

    def __init__(self, config: RunConfig, data: PreparedData, world: World, device: torch.device):
        assert config.grpo is not None
        self.settings, self.world, self.device = config.grpo, world, device
        self.seed, self.tokenizer = config.seed, data.tokenizer
        self.rows_per_batch, self.row_length = config.rows_per_step, config.data.sequence_length
        self.groups = self.rows_per_batch // self.settings.group_size
        if self.groups % world.size or world.shares_model:
            raise InputError(
                f"{world.size} processes cannot share the {self.groups} questions of a step evenly, each with a model "
                "of its own: set train.processes=1, or train.parallel=ddp and a multiple of them"
            )
        self.draw_question = questions_to_draw(config.data)
        self.reward = find_reward(self.settings.reward)
        self.steps_per_batch = self.settings.num_iterations
        self.drawn: tuple[int, Batch] | None = None  # what is trained on: the step that drew it, and the batch
        self.tools = described(self.settings.tools)
        if self.tools:
            self.tokenizer.special_id(CALL)  # raises where the tokenizer knows no calls

    def upcoming(self, first: int, stop: int, lm: LanguageModel) -> Generator[Batch]:
        for k in range(first, stop):
            drawn_at = k - k % self.steps_per_batch
            if self.drawn is None or self.drawn[0] != drawn_at:
                self.drawn = drawn_at, self.batch(drawn_at, lm)
            yield self.drawn[1]

    def kept(self, k: int) -> dict[str, Tensor]:
        if self.drawn is None or k % self.steps_per_batch == 0:
            return {}  # the next batch is a new one
        first, batch = self.drawn
        others = {"step": first, "row_ids": batch.row_ids, "figures": list(batch.figures.values())}
        return batch.tensors | {name: torch.tensor(value) for name, value in others.items()}

    def restore(self, kept: dict[str, Tensor]) -> None:
        if kept:  # the file has its tensors in another order
            figures = dict(zip(reported_names(self.settings), kept["figures"].tolist(), strict=True))
            batch = Batch({name: kept[name] for name in COLUMNS}, kept["row_ids"].tolist(), figures)
            self.drawn = int(kept["step"]), batch

    def batch(self, k: int, lm: LanguageModel) -> Batch:
        """New questions, and the answers that lm gives. Nothing is remembered: what a trial asks for changes no run."""
        mine = range(self.world.rank, self.groups, self.world.size)
        questions, prompts = zip(*(self.question(k, number) for number in mine), strict=True)
        answers = self.sample(k, lm, prompts, [said_by_user(question.messages) for question in questions])
        values, problem = [], ""
        try:
            values = rewards_of(self.reward, [questions[a.group] for a in answers], [a.text for a in answers])
        except InputError as error:
            problem = str(error)
        counted = [(sum(answer.own), answer.calls, answer.errors) for answer in answers]
        everywhere = self.world.gather((problem, values, counted))  # so that all processes stop, or none does
        problems, of_all, counted_of_all = zip(*everywhere, strict=True)
        if any(problems):
            raise InputError(next(filter(None, problems)))
        deviations = spread(torch.tensor(list(chain(*of_all))), self.settings.group_size)
        reported = [
            fmean(chain(*of_all)),
            float(deviations.square().mean()),
            float((deviations == 0).float().mean()),
            *map(fmean, zip(*chain(*counted_of_all), strict=True)),
        ][: len(reported_names(self.settings))]
        return self.rows(prompts, answers, torch.tensor(values), torch.tensor(reported))

    def question(self, k: int, number: int) -> tuple[Asked, list[int]]:
        """Question `number` of step k, and its prompt's ids."""
        rng = Random(f"question {self.seed} {k} {number}")
        room = self.row_length - self.settings.max_new_tokens
        for _ in range(ATTEMPTS):
            question = self.draw_question(rng)
            if question is None:
                continue  # a conversation in which nothing is asked
            ids = prompt_ids(self.tokenizer, question.messages, self.tools or question.tools)
            if len(ids) <= room:
                return question, ids
        raise InputError(
            f"data.sequence_length ({self.row_length}): no question{' with its tools' * bool(self.tools)} fits beside "
            f"grpo.max_new_tokens ({self.settings.max_new_tokens}): raise it"
        )

    def sample(
        self, k: int, lm: LanguageModel, prompts: tuple[list[int], ...], said: Sequence[str] = ()
    ) -> list[Answer]:
        """A group of answers to each prompt. said: what the user said in each, for tools."""
        written = write_answers(
            lm,
            self.tokenizer,
            prompts,
            max_new_tokens=self.settings.max_new_tokens,
            temperature=self.settings.temperature,
            rng=Random(f"answers {self.seed} {k} {self.world.rank}"),
            copies=self.settings.group_size,
            tools=self.tools,
            said=said,
        )
        return [
            Answer(
                row // self.settings.group_size,
                tuple(one.ids),
                torch.tensor(one.log_probs),
                one.reply(self.tokenizer),
                tuple(one.own),
                one.calls,
                one.errors,
            )
            for row, one in enumerate(written)
        ]

    def rows(self, prompts: tuple[list[int], ...], answers: list[Answer], rewards: Tensor, reported: Tensor) -> Batch:
        """What is trained on. A process none of whose groups' rewards differ has one answer, which weighs nothing."""
        worth = advantages(rewards, self.settings.group_size, self.settings.scale_advantages).tolist()
        differ = spread(rewards, self.settings.group_size) > 0
        equal: dict[tuple[Any, ...], list[int]] = {}  # group, ids, own, worth -> answers that have them
        for row, answer in enumerate(answers):
            if differ[answer.group] or not (differ.any() or row):
                equal.setdefault((answer.group, answer.ids, answer.own, worth[row]), []).append(row)
        chosen = sorted(
            equal.values(), key=lambda rows: len(prompts[answers[rows[0]].group]) + len(answers[rows[0]].ids)
        )
        first = [rows[0] for rows in chosen]
        counts = torch.tensor([len(rows) for rows in chosen]) * differ.any()
        lengths = torch.tensor([sum(answers[row].own) for row in first])  # tools' tokens weigh nothing
        both = self.world.gather((int(counts.sum()), int((counts * lengths).sum())))
        kept, tokens = (sum(each) for each in zip(*both, strict=True))
        per_token = {
            "sequence": 1 / lengths,
            "token": torch.full_like(counts, kept / max(1, tokens), dtype=torch.float32),
            "fixed": torch.full_like(counts, 1 / self.settings.max_new_tokens, dtype=torch.float32),
        }[self.settings.mean]
        columns: dict[str, list[Tensor]] = {"input_ids": [], "labels": [], "drawn_log_probs": []}
        for row in first:
            prompt, ids = torch.tensor(prompts[answers[row].group]), torch.tensor(answers[row].ids)
            columns["input_ids"].append(torch.cat([prompt, ids]))
            trained = ids.masked_fill(~torch.tensor(answers[row].own), IGNORED)
            columns["labels"].append(torch.cat([torch.full_like(prompt, IGNORED), trained]))
            columns["drawn_log_probs"].append(torch.cat([torch.zeros(len(prompt)), answers[row].log_probs]))
        padding = {"input_ids": self.tokenizer.pad_id, "labels": IGNORED, "drawn_log_probs": 0}
        tensors = {name: pad_sequence(rows, True, padding[name]) for name, rows in columns.items()}
        tensors["advantages"] = torch.tensor([worth[row] for row in first])
        tensors["copies"] = counts
        tensors["weights"] = (counts * per_token)[:, None] * (tensors["labels"] != IGNORED)
        return Batch(tensors, first, dict(zip(reported_names(self.settings), reported.tolist(), strict=True)))


def reported_names(settings: GRPOConfig) -> tuple[str, ...]:
    """The figures of a step that are known before its loss."""
    return (*REPORTED, *OF_TOOLS) if settings.tools else REPORTED


def spread(rewards: Tensor, group_size: int) -> Tensor:
    """Standard deviation of each group's rewards: (groups * group_size,) -> (groups,).

    Exactly 0 where all are equal. The mean of eight times 0.1 is not 0.1, and optimizers scale whatever is left of such
    a difference up to a whole step.
    """
    groups = rewards.view(-1, group_size)
    return groups.std(dim=1).where(groups.amax(dim=1) > groups.amin(dim=1), 0.0)


def advantages(rewards: Tensor, group_size: int, scaled: bool) -> Tensor:
    """How much better than the mean of its group an answer is; scaled: in standard deviations. Both (answers,)."""
    groups, deviations = rewards.view(-1, group_size), spread(rewards, group_size)[:, None]
    better = (groups - groups.mean(dim=1, keepdim=True)).where(deviations > 0, 0.0)
    if scaled:
        better = better / (deviations + EPSILON)
    return better.flatten()
