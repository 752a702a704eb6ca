"""What is asked in GRPO? Questions about stories of the built-in world, or the last question of any conversation."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from random import Random
from typing import Any

from configs.command import InputError
from data.config import DataConfig, StoryworldSource
from data.reading.documents import documents
from data.reading.world import talk_about
from eval.questions import Asked, question_of, questions_in

Draw = Callable[[Random], Asked | None]  # None: there is no question in what was drawn


def questions_to_draw(data: DataConfig) -> Draw:
    """A function that draws a question of the training text. Raises InputError where there is none."""
    source = data.source
    if isinstance(source, StoryworldSource):
        return _about_a_story(source)
    found = [question for one in documents(data, "train") if (question := question_of(one)) is not None]
    if not found:
        raise InputError("data.source: no training conversation ends with an answer of the assistant to a question")
    return lambda rng: rng.choice(found)


def _about_a_story(source: StoryworldSource) -> Draw:
    source = source.model_copy(update={"echoed": 0.0})  # names that are said again would give answers away

    @lru_cache(maxsize=4096)
    def told(index: int) -> dict[str, Any]:
        """A training conversation; making one takes longer than answering it."""
        return talk_about(source, index, "train", repeats=False)

    def draw(rng: Random) -> Asked | None:
        found = list(questions_in(told(rng.randrange(source.documents))))
        return rng.choice(found) if found else None

    return draw
