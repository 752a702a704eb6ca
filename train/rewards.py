"""What is a reply worth? A reward is a function of a question and a reply: a finite number, the more the better.

The built-in world knows the right answer to every question. So `exact_match` cannot be wrong, and nothing can be gained
by pleasing it. `contains_answer` is here to be gamed: it pays for a reply that names everybody.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence

from configs.command import InputError
from configs.text import escape
from eval.questions import Question, is_right

Reward = Callable[[Question, str], float]


def exact_match(question: Question, reply: str) -> float:
    """1 for the right reply to the letter, 0 for every other."""
    return float(is_right(question, reply))


def contains_answer(question: Question, reply: str) -> float:
    """1 where the short answer stands anywhere in the reply, whatever else does. It can be gamed."""
    return float(question.answer.casefold() in reply.casefold())


REWARDS: dict[str, Reward] = {"exact_match": exact_match, "contains_answer": contains_answer}


def find_reward(name: str) -> Reward:
    """A reward by its name, or one of your own as `package.module:function`. Raises InputError."""
    module, _, function = name.partition(":")
    if not function:
        if name not in REWARDS:
            names = ", ".join(REWARDS)
            raise InputError(f"grpo.reward: no reward is called {name!r}: use {names}, or your own as module:function")
        return REWARDS[name]
    try:
        reward = getattr(importlib.import_module(module), function)
    except Exception as error:  # it is a user's code
        raise InputError(f"grpo.reward: {name} cannot be imported: {type(error).__name__}: {error}") from None
    if not callable(reward):
        raise InputError(f"grpo.reward: {name} is no function of a question and a reply")
    return reward


def rewards_of(reward: Reward, questions: Sequence[Question], replies: Sequence[str]) -> list[float]:
    """The reward of each reply. Raises InputError, with the number of the row, for a reward that fails there."""
    values = []
    for row, (question, reply) in enumerate(zip(questions, replies, strict=True)):
        try:
            values.append(float(reward(question, reply)))
            problem = "" if math.isfinite(values[-1]) else f"returned {values[-1]}"
        except Exception as error:  # it is a user's code
            problem = f"raised {type(error).__name__}: {error}"
        if problem:
            asked = question.messages[-1]["content"][-120:]
            raise InputError(
                f"grpo.reward {problem} for row {row}, question {escape(asked)!r}, reply {escape(reply[:120])!r}: it "
                "must return a finite number; this step is not taken"
            )
    return values
