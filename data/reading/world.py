"""What the built-in world makes of its settings: document number `index`, a function of these and nothing else."""

from __future__ import annotations

from bisect import bisect
from dataclasses import replace
from itertools import accumulate
from random import Random
from typing import Any

from data.config import Drills, StoryworldSource
from data.reading.ledger import Split
from data.reading.pairs import Pair, pair_of
from data.reading.records import Conversation, conversation_of

Content = str | Conversation | Pair


def invented(source: StoryworldSource, index: int, split: Split, records: str) -> Content:
    """A story, a conversation about one, a pair of answers, facts and questions, or (evenly spread) repeated words."""
    from data.storyworld import REPEATED_WORDS, prefer, recall, renamed, repeated, tell

    rng = Random(f"names {source.seed} {index}")
    other_names = split == "train" and rng.random() < source.other_names
    repeats = int((index + 1) * source.repeats) > int(index * source.repeats)
    if records == "pairs":
        return pair_of(prefer(source.seed, index, split, source.level))
    if records == "conversations":
        conversation = conversation_of(talk_about(source, index, split, repeats))
        return _renamed(conversation, rng) if other_names else conversation
    if source.recall is not None:
        return recall(source.seed, index, held_out=split == "validation", **source.recall.model_dump()).text
    if repeats:
        text = repeated(source.seed, index, words=REPEATED_WORDS, held_out=split == "validation").text
    else:
        text = tell(source.seed, index, split, source.level).text
    return renamed([text], rng)[0] if other_names else text


def _renamed(conversation: Conversation, rng: Random) -> Conversation:
    """The same with names of other forms."""
    from data.storyworld import renamed

    parts = [message.parts or ((message.content, 1),) for message in conversation.messages]
    texts = iter(renamed([text for several in parts for text, _ in several], rng))
    messages = []
    for message, several in zip(conversation.messages, parts, strict=True):
        other = tuple((next(texts), weight) for _, weight in several)
        content = "".join(text for text, _ in other)
        messages.append(replace(message, content=content, parts=other if message.parts else ()))
    return replace(conversation, messages=tuple(messages))


def talk_about(source: StoryworldSource, index: int, split: Split, repeats: bool) -> dict[str, Any]:
    """A conversation about a story; or one of `repeats`, or of the drills, whose shares are drawn."""
    from data.storyworld import converse, interview, say_again
    from data.storyworld.drills import DRILLS
    from data.storyworld.interviews import Asked

    if repeats:
        return say_again(source.seed, index, split)
    drawn = Random(f"drills {source.seed} {index}").random()
    for name, share in drills_at(source, index, split):
        drawn -= share
        if drawn < 0:
            return DRILLS[name](source.seed, index, split)
    if source.chats == "mixed":
        return converse(source.seed, index, split, source.level)
    asked = Asked(
        most=source.questions,
        told=source.told,
        told_weight=source.told_weight,
        weights=source.class_weights.model_dump(),
        checked=source.checked,
        echoed=source.echoed,
    )
    return interview(source.seed, index, split, source.level, asked=asked)


def drills_at(source: StoryworldSource, index: int, split: Split) -> Drills:
    """Those of the source, or of the step of its course that document `index` is in; held-out ones are of the last."""
    if not source.course:
        return source.drills
    if split == "validation":
        return source.course[-1].drills
    ends = list(accumulate(step.weight for step in source.course))
    done = (index + 0.5) / source.documents * ends[-1]
    return source.course[min(bisect(ends, done), len(ends) - 1)].drills
