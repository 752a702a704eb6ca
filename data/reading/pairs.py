"""Read a record with two answers to one prompt, a chosen and a rejected one."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import dropwhile
from typing import Any

from data.reading import records
from data.reading.messages import BadRecord, Message, Messages, names_of, read_tools, untagged
from data.reading.records import Conversation, Names

# TRL's names of the two answers, and OpenAI's.
SIDES = (("chosen", "rejected"), ("preferred_output", "non_preferred_output"))


@dataclass(frozen=True)
class Pair:
    """Two conversations whose first `shared` messages are the prompt, the rest the answers."""

    chosen: Conversation
    rejected: Conversation
    shared: int


def pair_of(record: Any, names: Names = None) -> Pair:
    """Return the pair in a record. names: data.chat_fields. Raises BadRecord.

    The answers are texts or messages. The prompt is in other fields, or in both answers, or both.
    """
    fields = records.usual_fields(record, names)
    # if there is no answer, the error names TRL's fields
    sides = next((pair for pair in SIDES if not fields.keys().isdisjoint(pair)), SIDES[0])
    for name in sides:
        if name not in fields:
            raise BadRecord(f"has no `{name}`, which a pair needs (it has {names_of(fields)})")
    answers = [fields.pop(name) for name in sides]
    if all(isinstance(answer, str) for answer in answers):
        dialogues = [records.read_dialogue(answer) for answer in answers]
        # HH-RLHF has each side as one text
        if all(dialogues):
            answers = dialogues
    # OpenAI's `input` holds the prompt and its tools
    if isinstance(fields.get("input"), dict):
        fields |= records.usual_fields(fields.pop("input"), names)
    fields = {name: value for name, value in fields.items() if value != ""}
    # the prompt in fields of its own; the answers may have it, too
    prompt, tools = _prompt_beside(fields, answers[0], names)
    if all(isinstance(answer, str) for answer in answers):
        if _turns(prompt):
            question = re.escape(prompt[-1].content.strip())
            if all(re.match(rf"\s*{question}\s", answer) for answer in answers):
                raise BadRecord("both answers begin with the prompt, which has a field: keep one")
        else:
            question, answers = _common_question(fields, answers)
            prompt = (*prompt, Message("user", question))

    conversations = []
    for name, answer in zip(sides, answers, strict=True):
        side = records.checked_conversation(records.as_messages(answer, name), names=names)
        conversations.append(Conversation(_joined(prompt, side.messages, name), side.tools))
    chosen, rejected = (conversation.messages for conversation in conversations)
    tools = read_tools([{"tools": tools}, *({"tools": side.tools} for side in conversations)])
    records.check_rest(fields, chosen, [name for pair in SIDES for name in pair])
    if chosen == rejected:
        raise BadRecord("has two answers that are equal: leave the pair out")
    # the prompt is what both sides have in common; they differ somewhere, so this ends
    shared = 0
    while chosen[shared : shared + 1] == rejected[shared : shared + 1]:
        shared += 1
    common = chosen[:shared]
    if not _turns(common) or _transcript(_turns(prompt)) not in _transcript(common):
        raise BadRecord("has no common prompt before the answers differ: add one")
    for name, messages in zip(sides, (chosen, rejected), strict=True):
        if len(messages) == shared or messages[shared].role != "assistant":
            raise BadRecord(f"`{name}` has no answer of the assistant after the common prompt")
    return Pair(
        Conversation(tuple(map(untagged, chosen)), tools),
        Conversation(tuple(map(untagged, rejected)), tools),
        shared,
    )


def _prompt_beside(fields: dict, answer: Any, names: Names) -> tuple[Messages, tuple[dict, ...]]:
    # take the prompt, with its tools, from the fields beside the answers
    messages = records.take_question(fields)
    listed = records.take_listed(fields, names)
    # UltraFeedback lists the chosen conversation twice
    if listed == answer:
        listed = []
    if messages and listed:
        raise BadRecord("has its prompt as messages and in a field of its own: keep one of them")
    system = records.take_system(fields)
    tools = read_tools([fields])
    if not messages and not listed:
        return system, tools
    prompt = records.checked_conversation(messages or listed, tools, names)
    if prompt.messages[-1].role == "assistant":
        raise BadRecord("the prompt ends with an answer: leave it out, or add a question")
    return (*system, *prompt.messages), prompt.tools


def _common_question(fields: dict, answers: Sequence[str]) -> tuple[str, list[str]]:
    # Return the common beginning of two texts, cut between words, and the rest of both.
    for name in fields.keys() - {*records.SYSTEMS, *records.TOOLS}:
        if isinstance(fields[name], str) and " " in fields[name].strip():
            raise BadRecord(f"has no prompt, but a text in `{name}`: call it `prompt` or remove it")
    first, second = (answer.rstrip() for answer in answers)
    length = min(len(first), len(second))
    length = next((i for i in range(length) if first[i] != second[i]), length)
    # two answers may begin with the same letters: cut back to a whole word
    question = re.sub(r"\S*$", "", first[:length]).rstrip()
    if not question:
        raise BadRecord("has no common prompt: begin both answers with it, or add a field `prompt`")
    return question, [answer[len(question) :].lstrip() for answer in answers]


def _joined(prompt: Messages, answer: Messages, name: str) -> Messages:
    # an answer may repeat the prompt, or hold a longer one
    question = _turns(prompt)
    turns = _turns(answer)
    system = prompt[: len(prompt) - len(question)]
    own_system = answer[: len(answer) - len(turns)]
    if system and own_system and _transcript(system) != _transcript(own_system):
        raise BadRecord(f"`{name}` begins with another system message than the prompt: keep one")
    # the answer alone
    if not turns or turns[0].role == "assistant":
        turns = question + turns
    elif _transcript(question) not in _transcript(turns[:-1]):
        raise BadRecord(f"`{name}` begins with another question than the prompt: give it alone")
    return (own_system or system) + turns


def _turns(messages: Messages) -> Messages:
    # without the system messages at the beginning
    return tuple(dropwhile(lambda message: message.role == "system", messages))


def _transcript(messages: Messages) -> str:
    # a text that is `in` another one if that holds the same messages in a row
    lines = [f"{m.role} {m.content.strip()} {m.reasoning_content.strip()}" for m in messages]
    return "\0".join(["", *lines, ""])
