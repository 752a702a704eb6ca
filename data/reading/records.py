"""Read a record as a text or a conversation; pairs.py reads pairs.

Layouts are recognised by their field names. docs/data_formats.md shows one of each.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from data.reading.messages import (
    REASONING,
    ROLES,
    SWITCHES,
    TOOLS,
    BadRecord,
    Message,
    Messages,
    Role,
    names_of,
    read_list,
    read_message,
    read_text,
    read_tools,
    untagged,
)

# A record has a list of messages, or a question and an answer in fields of their own.
LISTS = ("messages", "conversations", "conversation")
# Each question with the fields that may hold its second half (Alpaca's `input`).
QUESTIONS = {
    "instruction": ("input", "query"), "prompt": ("query",), "question": (), "query": (),
    "input": (),
}  # fmt: skip
CONTEXTS = ("context", "passage", "document", "article", "schema")
ANSWERS = ("output", "completion", "answer", "response")
SYSTEMS = ("system", "system_prompt")
SPEAKERS = ("role", "from")
# The usual names of each field that data.chat_fields can name. It can name a role as well.
USUAL: dict[str, Collection[str]] = {
    "messages": LISTS, "question": QUESTIONS, "context": CONTEXTS, "answer": ANSWERS,
    "system": SYSTEMS, "tools": TOOLS, "history": ["history"], "role": SPEAKERS,
    "content": ["content", "value"], "weight": ["weight"],
    "chosen": ["chosen", "preferred_output"], "rejected": ["rejected", "non_preferred_output"],
}  # fmt: skip
# Fields of a whole record that say if its answer is a good one (KTO's are the first two).
VERDICTS = ("label", "kto_tag", "weight", *SWITCHES)
Names = Mapping[str, str | None] | None


@dataclass(frozen=True)
class Conversation:
    """Messages, and the tools that the assistant may call: {"name", "parameters", …} each."""

    messages: Messages
    tools: tuple[dict, ...] = ()


def text_of(record: Any, text_field: str = "text") -> str:
    """Return the text of a record, or a record that is a text itself; it may be "".

    text_field: `a.b` is field b of the object in field a. Raises BadRecord.
    """
    if not isinstance(record, dict):
        return read_text(record, "the record")
    value = _field(record, text_field)
    if value is None:
        raise BadRecord(
            f"has no field `{text_field}` (it has {names_of(record)}): name the text's field in "
            "data.source.text_field, or set data.records: conversations"
        )
    # a list of sentences or paragraphs
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        value = "\n".join(value)
    return read_text(value, f"field `{text_field}`")


def _field(record: dict, path: str) -> Any:
    # a name with a dot in it comes before the field of an object
    value = record.get(path)
    if value is None:
        value = record
        for name in path.split("."):
            value = value.get(name) if isinstance(value, dict) else None
    return value


def conversation_of(record: Any, names: Names = None) -> Conversation:
    """Return the conversation in a record. names: data.chat_fields. Raises BadRecord."""
    fields = usual_fields(record, names)
    if "chosen" in fields and "rejected" in fields:
        raise BadRecord("is a pair: set data.records: pairs, or keep only the chosen answers")
    messages = take_listed(fields, names)
    if not messages:
        name, answer = _take(fields, ANSWERS)
        if answer is None or fields.keys().isdisjoint(QUESTIONS):
            raise BadRecord(
                f"holds no conversation (it has {names_of(record)}): set data.records: text, or "
                "name question and answer with data.chat_fields={question: …, answer: …}"
            )
        messages = [*take_question(fields), *as_messages(answer, name)]
    conversation = checked_conversation(messages, read_tools([fields]), names)
    system = take_system(fields)
    if system and conversation.messages[0].role == "system":
        raise BadRecord("has a field `system` and a system message as well: keep one of them")
    check_rest(fields, (*system, *conversation.messages), ANSWERS)
    # an answer is trained on if its weight, and that of a part, is 1
    for message in conversation.messages:
        weights = [weight for _, weight in message.parts] or [1]
        if message.role == "assistant" and message.weight and any(weights):
            break
    else:
        raise BadRecord(
            "has no assistant message of weight 1 to learn from: leave it out, or give an empty "
            'answer, "", for train.grpo with a reward of your own'
        )
    return Conversation((*system, *map(untagged, conversation.messages)), conversation.tools)


def checked_conversation(
    messages: Sequence[Message | dict], tools: Any = (), names: Names = None
) -> Conversation:
    """Check messages in any known spelling; an answer may be missing. Raises BadRecord."""
    if not messages:
        raise BadRecord("holds no messages: give some, or leave the record out")
    checked = []
    for number, message in enumerate(messages, 1):
        raw = asdict(message) if isinstance(message, Message) else _renamed(message, names)
        try:
            checked.append(read_message(raw))
        except BadRecord as error:
            raise BadRecord(f"message {number}: {error}") from None
    # MiniMind keeps the tools in the system message
    holders = [message for message in messages if isinstance(message, dict)]
    return Conversation(tuple(checked), read_tools([{"tools": tools}, *holders]))


# the fields of a record; `take_…` removes those that it reads


def usual_fields(record: Any, names: Names) -> dict:
    """Return the fields that are not null, by their usual names. Raises BadRecord."""
    if not isinstance(record, dict):
        kind = type(record).__name__
        raise BadRecord(f"is of type {kind}, not an object with messages (or data.records: text)")
    # tables have null in columns that a row does not use
    fields = {k: value for k, value in _renamed(record, names).items() if value is not None}
    # a bad answer would be trained on like a good one
    for name in VERDICTS:
        if str(fields.get(name)).lower() in ("true", "false", "0", "1"):
            raise BadRecord(f"has `{name}` for the whole record: keep the good answers, without it")
    return fields


def _renamed(fields: Any, names: Names) -> Any:
    # fields get their usual names; one in `names` replaces others of the same meaning
    if not isinstance(fields, dict) or not names:
        return fields
    replaced: set[str] = set()
    usual = {}
    for name in names.keys() & USUAL.keys():
        own_name = names[name]
        value = None if own_name is None else _field(fields, own_name)
        if value is not None or own_name is None:
            usual[name] = value
            replaced |= {own_name or name, *USUAL[name]}
    renamed = {key: value for key, value in fields.items() if key not in replaced} | usual
    roles = {own_name: role for role, own_name in names.items() if role in ROLES}
    for key in SPEAKERS:
        if key in renamed:
            renamed[key] = roles.get(str(renamed[key]), renamed[key])
    return renamed


def _take(fields: dict, names: Sequence[str]) -> tuple[str, Any]:
    # the first of these fields that is not empty, or else the first
    present = [name for name in names if name in fields]
    if not present:
        return names[0], None
    # an empty field beside a full one is a column that this row does not use
    name = next((name for name in present if fields[name]), present[0])
    return name, fields.pop(name)


def take_listed(fields: dict, names: Names) -> list:
    """Return the messages of a record that lists them."""
    name, value = _take(fields, LISTS)
    entries = read_list(value, f"field `{name}`")
    # of texts, every second is an answer
    if all(isinstance(entry, str) for entry in entries):
        roles: list[Role] = ["user", "assistant"]
        return [Message(roles[i % 2], text) for i, text in enumerate(entries)]
    messages: list[Any] = []
    for entry in entries:
        # an entry may be an object with a question and its answer
        keys = _renamed(entry, names).keys() if isinstance(entry, dict) else set()
        if not keys.isdisjoint(ANSWERS) and keys.isdisjoint({*LISTS, *SPEAKERS}):
            messages += conversation_of(entry, names).messages
        else:
            messages.append(entry)
    return messages


def take_question(fields: dict) -> list:
    """Return the question in fields of its own, with the `history` before it."""
    messages: list[Any] = []
    for turns in read_list(fields.pop("history", None), "field `history`"):
        if not isinstance(turns, list | tuple) or len(turns) != 2:
            raise BadRecord(f"field `history`: use [question, answer] pairs, not {turns!r:.40}")
        messages += [Message("user", turns[0]), Message("assistant", turns[1])]
    # a prompt may be a list of messages
    if isinstance(fields.get("prompt"), list):
        return [*messages, *fields.pop("prompt")]
    name, question = _take(fields, tuple(QUESTIONS))
    if question is None:
        return messages
    question = read_text(question, f"field `{name}`")
    # at most one: Alpaca's `input`, for example
    second_half = [key for key in QUESTIONS[name] if fields.get(key)][:1]
    for key in (*second_half, *CONTEXTS):
        text = read_text(fields.pop(key, ""), f"field `{key}`")
        # a prompt may have been made of the context
        if key in second_half or text.strip() not in question:
            question = f"{question}\n{text}" if question else text
    dialogue = read_dialogue(question)
    # it ends with "Assistant:"
    if dialogue and not dialogue[-1].content:
        dialogue.pop()
    return [*messages, *(dialogue or [Message("user", question)])]


def take_system(fields: dict) -> Messages:
    """Return the system message of a record that has it in a field."""
    name, text = _take(fields, SYSTEMS)
    return (Message("system", read_text(text, f"field `{name}`")),) if text else ()


def read_dialogue(text: str) -> list[Message]:
    """Return the turns of a dialogue in one text, as HH-RLHF has; [] for any other text."""
    # turns: speaker, text, speaker, text …
    before, *turns = re.split(r"(?:^|\n+)(Human|Assistant): ?", text.lstrip())
    if before or turns[:1] != ["Human"] or "Assistant" not in turns[::2]:
        return []
    pairs = zip(turns[::2], turns[1::2], strict=True)
    return [Message(ROLES[name.lower()], content) for name, content in pairs]


def as_messages(value: Any, name: str) -> list:
    """Return an answer as a list: of a text, a message or a list of messages."""
    if isinstance(value, str):
        return [Message("assistant", value)]
    return [value] if isinstance(value, dict) else read_list(value, f"field `{name}`")


def check_rest(fields: dict, messages: Messages, names: Sequence[str]) -> None:
    """Check that the remaining fields repeat the messages. Raises BadRecord if text is lost."""
    # a record may repeat its question
    questions = [m.content.strip() for m in messages if m.role == "user" and m.content.strip()]
    contents = [message.content for message in messages]
    contents += [message.reasoning_content for message in messages]
    text_fields = (*names, *QUESTIONS, *CONTEXTS, *SYSTEMS, *LISTS, *REASONING)
    for name in (*text_fields, "tool_calls", "function_call", "history"):
        text = str(fields.get(name) or "").strip()
        # a prompt may be a template with the question in it
        is_template = name == "prompt" and questions and questions[-1] in text
        if not is_template and not any(text in content for content in contents):
            usual = next((key for key, names in USUAL.items() if name in names), "messages")
            raise BadRecord(
                f"has a field `{name}` that would be lost, because no message holds it: put it "
                f"into one, or ignore it with data.chat_fields={{{usual}: null}}"
            )
