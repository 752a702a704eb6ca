"""What does a record say? One object of a file or of a dataset -> a text, a conversation, or a pair of answers.

The usual layouts are recognised by their field names; docs/data_formats.md shows one of each. A field that is null
counts as missing: tables have a null in every column that a row does not use.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import cycle, dropwhile, takewhile
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]
ROLES: dict[str, Role] = {
    **{"system": "system", "developer": "system", "user": "user", "human": "user"},
    **{"assistant": "assistant", "gpt": "assistant", "chatgpt": "assistant", "function_call": "assistant"},
    **{"tool": "tool", "observation": "tool", "function": "tool"},
}
# The layouts. A record has a list of messages, or a question and an answer in fields of their own; a pair has two
# answers beside a prompt of either kind, or with the prompt in them.
LISTS = ("messages", "conversations", "conversation")
# names of what the user asks, each with those that may hold the second half of the question (Alpaca's `input`)
QUESTIONS = {"instruction": ("input", "query"), "prompt": ("query",), "question": (), "query": (), "input": ()}
CONTEXTS = ("context", "passage", "document", "article", "schema")  # what the question is about
ANSWERS = ("output", "completion", "answer", "response")
PAIRS = (("chosen", "rejected"), ("preferred_output", "non_preferred_output"))
SYSTEMS = ("system", "system_prompt")
TOOLS = ("tools", "functions")
SPEAKERS = ("role", "from")
# the usual names of what data.chat_fields can name; it can name a role as well
USUAL: dict[str, Collection[str]] = {
    **{"messages": LISTS, "question": QUESTIONS, "context": CONTEXTS, "answer": ANSWERS},
    **{"system": SYSTEMS, "tools": TOOLS, "history": ["history"], "role": SPEAKERS},
    **{"content": ["content", "value"], "chosen": [one for one, _ in PAIRS], "rejected": [one for _, one in PAIRS]},
}
Names = Mapping[str, str | None] | None
REASONING = ("reasoning_content", "thinking", "reasoning")  # in the order in which transformers looks for them
# A message's own switch, as projects name it (weight: OpenAI, Mistral; training: axolotl; loss: ms-swift, XTuner;
# loss_mask: VeOmni, slime; masked: torchtune), and the value that trains on the message.
SWITCHES = {"weight": 1, "train": 1, "training": 1, "trainable": 1, "loss": 1, "loss_mask": 1, "masked": 0}
MOST_NESTED = 100  # lists and objects in each other, in what a chat template writes
UNCLEAR = "mask"  # projects understand it in opposite ways
KTO = ("label", "kto_tag")  # whether an answer is a good one


class BadRecord(ValueError):
    """A record that cannot be used. The message gives the reason and a remedy; the caller adds which record it was."""


@dataclass(frozen=True)
class Message:
    """One turn. tool_calls: {"name": …, "arguments": a dict, or the JSON text that the record holds} each.
    weight: 0 for an answer that is read but not trained on, as in OpenAI's files.
    parts: (text, weight) of each part of the content, where parts have weights of their own."""

    role: Role
    content: str
    reasoning_content: str = ""
    tool_calls: tuple[dict, ...] = ()
    weight: int = field(default=1, repr=False)  # not part of what says whether two conversations are the same
    parts: tuple[tuple[str, int], ...] = field(default=(), repr=False)  # nor is this


Messages = tuple[Message, ...]


@dataclass(frozen=True)
class Conversation:
    """Messages, and the tools that the assistant may call: {"name": …, "description": …, "parameters": …} each."""

    messages: Messages
    tools: tuple[dict, ...] = ()


@dataclass(frozen=True)
class Pair:
    """Two conversations that begin alike: their first `shared` messages are the prompt, the rest are the answers."""

    chosen: Conversation
    rejected: Conversation
    shared: int


def text_of(record: Any, text_field: str = "text") -> str:
    """The text of a record: a field (`a.b` is field b of the object in field a), or the record that is itself a text.
    A list of texts is joined by line ends. May be "". Raises BadRecord."""
    if not isinstance(record, dict):
        return _text(record, "the record")
    value = _at(record, text_field)
    if value is None:
        remedy = "name the one with the text in data.source.text_field"
        if any(name in record for name in (*LISTS, *ANSWERS)):
            remedy = "it is a conversation, so set data.records: conversations (or data.source.text_field)"
        raise BadRecord(f"has no field `{text_field}` (it has {_names(record)}): {remedy}")
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        value = "\n".join(value)
    return _text(value, f"field `{text_field}`")


# ---------------------------------------------------------------------------------------------------------
# a conversation


def conversation_of(record: Any, names: Names = None) -> Conversation:
    """The conversation in a record of any layout that docs/data_formats.md lists. names: data.chat_fields.
    Raises BadRecord."""
    fields = _fields(record, names)
    if "chosen" in fields and "rejected" in fields:
        raise BadRecord("is a preference pair: set data.records: pairs for train.dpo, or keep the chosen answers")
    messages = _listed(fields, names)
    if not messages:
        name, answer = _take(fields, ANSWERS)
        if answer is None or QUESTIONS.keys().isdisjoint(fields):
            remedy = "say which are question and answer: data.chat_fields={question: …, answer: …}"
            if "text" in fields:
                remedy = "set data.records: text"
            raise BadRecord(f"holds no conversation (it has {_names(record)}): {remedy}")
        messages = [*_question(fields), *_as_messages(answer, name)]
    conversation, system = checked_conversation(messages, _tools(fields), names), _system(fields)
    if system and conversation.messages[0].role == "system":
        raise BadRecord("has a field `system` and a system message as well: keep one of them")
    _check_rest(fields, (*system, *conversation.messages), ANSWERS)
    answers = [message for message in conversation.messages if message.role == "assistant"]
    if not any(answer.weight and any(weight for _, weight in answer.parts or [("", 1)]) for answer in answers):
        remedy = 'leave it out, or give an empty answer, "", for train.grpo with a reward of your own'
        raise BadRecord(f"has no assistant message of weight 1, so there is nothing to learn: {remedy}")
    return Conversation((*system, *map(_untagged, conversation.messages)), conversation.tools)


def checked_conversation(messages: Sequence[Message | dict], tools: Any = (), names: Names = None) -> Conversation:
    """Messages in any of the known spellings -> a Conversation, which needs no answer yet. Raises BadRecord."""
    if not messages:
        raise BadRecord("holds no messages: give one of the user and one of the assistant, or leave it out")
    checked = []
    for number, message in enumerate(messages, 1):
        try:
            checked.append(_message(asdict(message) if isinstance(message, Message) else _renamed(message, names)))
        except BadRecord as error:
            raise BadRecord(f"message {number}: {error}") from None
    # MiniMind keeps the tools in the system message
    return Conversation(tuple(checked), _tools({"tools": tools}, *(m for m in messages if isinstance(m, dict))))


def _fields(record: Any, names: Names) -> dict:
    """The fields that are not null, by their usual names."""
    if not isinstance(record, dict):
        raise BadRecord(f"is of type {type(record).__name__}, not an object with messages (or set data.records: text)")
    fields = {name: value for name, value in _renamed(record, names).items() if value is not None}
    for name in (*KTO, *SWITCHES):  # of the whole record
        value = fields.get(name)
        if str(value).lower() in ("true", "false", "0", "1") and value != SWITCHES.get(name):
            raise BadRecord(f"has `{name}`: {value!r} for the whole record: keep the good answers, without it")
    return fields


def _renamed(given: Any, names: Names) -> Any:
    """A record or a message with its fields by their usual names. What `names` names replaces other fields that mean
    the same."""
    if not isinstance(given, dict) or not names:
        return given
    values = {name: theirs and _at(given, theirs) for name, theirs in names.items() if name in USUAL}
    meant = {name: value for name, value in values.items() if value is not None or names[name] is None}
    replaced = {key for name in meant for key in (names[name], *USUAL[name])}
    fields = {key: value for key, value in given.items() if key not in replaced} | meant
    roles = {theirs: name for name, theirs in names.items() if name in ROLES}
    return fields | {key: roles.get(str(fields[key]), fields[key]) for key in SPEAKERS if key in fields}


def _take(fields: dict, names: Sequence[str]) -> tuple[str, Any]:
    """Remove the first of these fields that is filled, or else the first that is there -> its name and its value."""
    given = sorted((name for name in names if name in fields), key=lambda name: not fields[name])
    return (given[0], fields.pop(given[0])) if given else (names[0], None)


def _check_rest(fields: dict, messages: Messages, names: Sequence[str]) -> None:
    """Check that nothing is lost: known fields that were not taken repeat what the messages say. Only a `prompt` may
    be a template with the question in it. Raises BadRecord."""
    questions = [message.content for message in messages if message.role == "user" and message.content.strip()]
    said = [part for message in messages for part in (message.content, message.reasoning_content)]
    known = (*names, *QUESTIONS, *CONTEXTS, *SYSTEMS, *LISTS, *REASONING, "tool_calls", "function_call", "history")
    for name in known:
        text = str(fields.get(name) or "").strip()
        is_template = name == "prompt" and questions and questions[-1].strip() in text
        if not is_template and not any(text in part for part in said):
            remedy = f"put it into one, or ignore it with data.chat_fields={{{name}: null}}"
            raise BadRecord(f"has a field `{name}` that would be lost, because no message holds it: {remedy}")


def _listed(fields: dict, names: Names) -> list:
    """The messages of a record that lists them; or texts, which the user and the assistant say in turn; or objects
    with a question and its answer each."""
    name, value = _take(fields, LISTS)
    listed = _list(value, f"field `{name}`")
    if all(isinstance(turn, str) for turn in listed):
        return [Message(ROLES[who], text) for who, text in zip(cycle(("user", "gpt")), listed, strict=False)]
    messages: list[Any] = []
    for turn in listed:
        keys = _renamed(turn, names).keys() if isinstance(turn, dict) else set()
        is_exchange = not keys.isdisjoint(ANSWERS) and keys.isdisjoint({*LISTS, *SPEAKERS})
        messages += conversation_of(turn, names).messages if is_exchange else [turn]
    return messages


def _question(fields: dict) -> list:
    """What the user asks in fields of their own, with the `history` before it: [question, answer] pairs."""
    messages = []
    for turns in _list(fields.pop("history", None), "field `history`"):
        if not isinstance(turns, list | tuple) or len(turns) != 2:
            raise BadRecord(f"field `history` must be a list of [question, answer] pairs, not hold {str(turns)[:40]!r}")
        messages += [Message("user", turns[0]), Message("assistant", turns[1])]
    if isinstance(fields.get("prompt"), list):
        return [*messages, *fields.pop("prompt")]
    names = [name for name in QUESTIONS if name in fields]
    if not names:
        return messages
    first = next((name for name in names if fields[name]), names[0])
    question = _text(fields.pop(first), f"field `{first}`")
    second_half = [name for name in QUESTIONS[first] if fields.get(name)][:1]
    for name in (*second_half, *CONTEXTS):
        text = _text(fields.pop(name, ""), f"field `{name}`")
        if name in second_half or text.strip() not in question:  # a prompt may have been made of the context
            question = f"{question}\n{text}" if question else text
    dialogue = _dialogue(question)
    if dialogue and not dialogue[-1].content:  # "Assistant:", behind which the answer begins
        dialogue.pop()
    return [*messages, *(dialogue or [Message("user", question)])]


def _dialogue(text: str) -> list[Message]:
    """The turns of a text that holds a whole dialogue, as those of HH-RLHF do; [] for any other text."""
    before, *turns = re.split(r"(?:^|\n+)(Human|Assistant): ?", text.lstrip())
    if before or turns[:1] != ["Human"] or "Assistant" not in turns[::2]:
        return []
    return [Message(ROLES[who.lower()], said) for who, said in zip(turns[::2], turns[1::2], strict=True)]


def _system(fields: dict) -> Messages:
    """The system message of a record that has it in a field."""
    name, text = _take(fields, SYSTEMS)
    return (Message("system", _text(text, f"field `{name}`")),) if text else ()


def _as_messages(value: Any, name: str) -> list:
    """What the assistant says in a field: a text, a message or a list of messages."""
    if isinstance(value, str):
        return [Message("assistant", value)]
    return [value] if isinstance(value, dict) else _list(value, f"field `{name}`")


def _message(raw: Any) -> Message:
    """One message of any project."""
    if not isinstance(raw, dict):
        raise BadRecord(f"is of type {type(raw).__name__}: it must be an object with role and content")
    fields = {name: value for name, value in raw.items() if value is not None}
    key, body = ("from", "value") if "from" in fields and "role" not in fields else ("role", "content")
    name = fields.get(key)
    if not isinstance(name, str) or name not in ROLES:
        raise BadRecord(f"{key} {name!r} is not known: use one of {', '.join(ROLES)}")
    role, given = ROLES[name], fields.get(body, "")
    is_call = name == "function_call"  # whose content is the call
    calls = tool_calls(given if is_call else fields.get("tool_calls") or fields.get("function_call"))
    if not calls and (is_call or body not in fields):
        raise BadRecord(f'has no `{body}` (it has {_names(fields)}): give a text, "" for an empty one')

    text = "" if is_call else given
    parts = text if isinstance(text, list) else [{"type": "text", "text": text}]  # a list: OpenAI's content parts
    for part in parts:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise BadRecord(f"`{body}` is {text!r:.60}: only text, or parts of type text, can be trained on")
    content = _text("".join(part["text"] for part in parts), f"`{body}`")
    thoughts = [_text(fields[name], f"`{name}`") for name in REASONING if fields.get(name)]
    if any(thought != thoughts[0] for thought in thoughts):
        raise BadRecord(f"has different thoughts in two of {', '.join(REASONING)}: keep one of them")
    reasoning = thoughts[0] if thoughts else ""
    if role != "assistant" and (reasoning or calls):
        raise BadRecord(f"role {name!r} cannot think or call tools: only assistant messages can")
    if role == "assistant" and not reasoning:
        reasoning, content = split_thinking(content)

    weight, switches = _weight(fields), [name for name in SWITCHES if name in fields and name != "weight"]
    if role != "assistant" and weight and switches:
        raise BadRecord(f"`{switches[0]}` asks to train on it, but only what the assistant says can be trained on")
    is_weighted = any(part.get(name) is not None for part in parts for name in SWITCHES)
    if is_weighted and (role != "assistant" or reasoning or calls):
        raise BadRecord("a part has a `weight`, which only answers without thinking and tool calls can have")
    weights = tuple((part["text"], _weight(part)) for part in parts) if is_weighted else ()
    return Message(role, content, reasoning, calls, weight, weights)


def _untagged(message: Message) -> Message:
    """A message of Hermes' files, which write calls and a tool's answer as text between tags."""
    text = message.content.strip()
    if message.role == "tool" and text.startswith("<tool_response>\n") and text.endswith("\n</tool_response>"):
        answers = re.split(r"\n?</?tool_response>\n?", text)
        return replace(message, content="\n".join(answer for answer in answers if answer))
    said, *parts = message.content.split("<tool_call>")
    calls = [re.fullmatch(r"\s*(\{.*\})\s*</tool_call>\s*", part, re.DOTALL) for part in parts]
    if message.role != "assistant" or message.parts or not calls or not all(calls):
        return message
    read = [_call(call[1]) for call in calls if call]
    return replace(message, content=said.rstrip("\n"), tool_calls=(*message.tool_calls, *tool_calls(read)))


def _call(text: str) -> Any:
    """Return a call that is written as JSON, or in Python's quotes. Raises BadRecord."""
    with suppress(ValueError, RecursionError):
        return json.loads(text)
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise BadRecord(f"a <tool_call> is not JSON ({error}): repair it, or remove the tags") from None


def _weight(fields: dict) -> int:
    """Whether a message, or a part of one, is trained on: if no switch is off."""
    switches = {name: fields[name] for name in (*SWITCHES, UNCLEAR) if fields.get(name) is not None}
    for name, value in switches.items():
        if name == UNCLEAR or value not in (0, 1):
            raise BadRecord(f"`{name}` is {value!r:.40}: use `weight`, 1 or 0 (0: it is not trained on)")
    return int(all(value == SWITCHES[name] for name, value in switches.items()))


def split_thinking(content: str) -> tuple[str, str]:
    """An answer that begins with <think>…</think> -> (reasoning, the rest). Line ends around the tags belong to them
    and are dropped, nothing else. Where a prompt has begun the thoughts, only </think> is left, on a line of its own.
    """
    before, end, rest = content.partition("</think>")
    is_whole = before.lstrip("\n").startswith("<think>")
    is_alone = "<think>" not in before and before.endswith("\n") and rest[:1] in ("", "\n")
    if not end or not (is_whole or is_alone):
        return "", content
    return before.lstrip("\n").removeprefix("<think>").strip("\n"), rest.lstrip("\n")


def tool_calls(raw: Any) -> tuple[dict, ...]:
    """Tool calls -> {"name", "arguments"} each."""
    calls = []
    for call in _named(raw, "`tool_calls`"):
        arguments = call.get("arguments")
        if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
            arguments = {}
        if not isinstance(_parsed(arguments, f"the arguments of {call['name']}"), dict):
            raise BadRecord(f"the arguments of {call['name']} must be an object, not {type(arguments).__name__}")
        calls.append({"name": call["name"], "arguments": arguments})
    return tuple(calls)


def _tools(*holders: dict) -> tuple[dict, ...]:
    """The tools that a record or its messages list."""
    lists = [_named(fields.get(name), "`tools`") for fields in holders for name in TOOLS]
    given = [tools for tools in lists if tools]
    if any(tools != given[0] for tools in given):
        raise BadRecord("has two different lists of `tools`: keep one of them")
    return given[0] if given else ()


def _named(raw: Any, what: str) -> tuple[dict, ...]:
    """Tools or calls: objects with a name each, with or without OpenAI's {"function": …} around them."""
    value = _parsed(raw, what)
    named = []
    for given in [value] if isinstance(value, dict) else _list(value, what):
        function = given["function"] if isinstance(given, dict) and given.get("function") else given
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise BadRecord(f'{what} must hold objects with a "name" each')
        named.append(function)
    try:  # a table can hold dates and bytes, which JSON cannot
        _text(json.dumps(named, ensure_ascii=False) if named else "", what)
    except (TypeError, RecursionError) as error:
        raise BadRecord(f"{what} cannot be written as JSON: {error}") from None
    return tuple(named)


# ---------------------------------------------------------------------------------------------------------
# a pair: one prompt, a chosen answer and a rejected one


def pair_of(record: Any, names: Names = None) -> Pair:
    """The pair in a record of any layout that docs/data_formats.md lists. names: data.chat_fields. Raises BadRecord.

    The answers are texts or messages. The prompt stands beside them, as in a conversation, or they hold it, or both.
    """
    fields = _fields(record, names)
    sides = next((sides for sides in PAIRS if not fields.keys().isdisjoint(sides)), PAIRS[0])
    if missing := [name for name in sides if name not in fields]:
        raise BadRecord(f"has no `{missing[0]}`, which a pair needs (it has {_names(fields)}): add it")
    answers = [fields.pop(name) for name in sides]
    dialogues = [_dialogue(answer) for answer in answers if isinstance(answer, str)]
    if len(dialogues) == 2 and all(dialogues):  # HH-RLHF writes each side as one text
        answers = dialogues
    if isinstance(fields.get("input"), dict):  # OpenAI's holds what others have beside the answers
        fields |= _fields(fields.pop("input"), names)

    # The prompt that stands beside the answers
    fields = {name: value for name, value in fields.items() if value != ""}
    messages, listed = _question(fields), _listed(fields, names)
    listed = [] if listed == answers[0] else listed  # UltraFeedback lists the chosen conversation once more
    if messages and listed:
        raise BadRecord("has its prompt as messages and in a field of its own: keep one of them")
    prompt, tools = _system(fields), _tools(fields)
    if messages or listed:
        beside = checked_conversation(messages or listed, tools, names)
        prompt, tools = (*prompt, *beside.messages), beside.tools
        if prompt[-1].role == "assistant":
            raise BadRecord("the prompt ends with an answer: leave that one out, or ask something behind it")

    # Texts may hold it: then it is what both begin with, up to the last white space before two answers
    if all(isinstance(answer, str) for answer in answers):
        if _turns(prompt):
            if all(re.match(rf"\s*{re.escape(prompt[-1].content.strip())}\s", answer) for answer in answers):
                raise BadRecord("both answers begin with the prompt that stands beside them: keep one")
        else:
            for name in fields.keys() - {*SYSTEMS, *TOOLS}:
                if isinstance(fields[name], str) and " " in fields[name].strip():
                    raise BadRecord(f"has no prompt but a text in `{name}`: name it `prompt`, or leave it out")
            letters = zip(*(answer.rstrip() for answer in answers), strict=False)
            common = "".join(a for a, _ in takewhile(lambda both: both[0] == both[1], letters))
            if not (question := re.sub(r"\S*$", "", common).rstrip()):
                raise BadRecord("has no common prompt: let both answers begin with it, or add a field `prompt`")
            prompt = (*prompt, Message("user", question))
            answers = [answer[len(question) :].lstrip() for answer in answers]

    both = [_as_messages(answer, name) for name, answer in zip(sides, answers, strict=True)]
    given = [checked_conversation(messages, names=names) for messages in both]
    chosen, rejected = (_joined(prompt, side.messages, name) for side, name in zip(given, sides, strict=True))
    tools = _tools(*({"tools": some} for some in (tools, given[0].tools, given[1].tools)))
    _check_rest(fields, chosen, [name for pair in PAIRS for name in pair])
    if chosen == rejected:
        raise BadRecord("has two answers that are equal, so there is nothing to prefer: leave the pair out")
    shared = sum(takewhile(bool, (a == b for a, b in zip(chosen, rejected, strict=False))))
    if not _turns(chosen[:shared]) or _said(_turns(prompt)) not in _said(chosen[:shared]):
        raise BadRecord(f"has no common prompt before the place where `{sides[0]}` and `{sides[1]}` differ: add one")
    if any(not side[shared:] or side[shared].role != "assistant" for side in (chosen, rejected)):
        raise BadRecord(f"`{sides[0]}` and `{sides[1]}` must have an answer of the assistant behind the common prompt")
    chosen, rejected = (tuple(map(_untagged, side)) for side in (chosen, rejected))
    return Pair(Conversation(chosen, tools), Conversation(rejected, tools), shared)


def _joined(prompt: Messages, answer: Messages, name: str) -> Messages:
    """A prompt and an answer, where the answer may hold the prompt, or a longer one: each message once."""
    question, turns = _turns(prompt), _turns(answer)
    systems = [whole[: len(whole) - len(part)] for whole, part in ((answer, turns), (prompt, question))]
    if all(systems) and _said(systems[0]) != _said(systems[1]):
        raise BadRecord(f"`{name}` begins with another system message than the prompt: keep one of them")
    system = systems[0] or systems[1]
    if not turns or turns[0].role == "assistant":  # the answer alone
        turns = question + turns
    elif _said(question) not in _said(turns[:-1]):
        raise BadRecord(f"`{name}` begins with another question than the prompt: give the answer alone")
    return system + turns


def _turns(messages: Messages) -> Messages:
    """Without the system messages at the beginning."""
    return tuple(dropwhile(lambda message: message.role == "system", messages))


def _said(messages: Messages) -> str:
    """What messages say, white space around them aside. One text is `in` another if its messages follow each other
    there."""
    return "\0".join(["", *(f"{m.role} {m.content.strip()} {m.reasoning_content.strip()}" for m in messages), ""])


# ---------------------------------------------------------------------------------------------------------
# values


def _at(record: dict, path: str) -> Any:
    """The field with this name, or with `a.b` the field b of the object in field a; None if there is none."""
    value = record.get(path)
    if value is None:
        value = record
        for name in path.split("."):
            value = value.get(name) if isinstance(value, dict) else None
    return value


def _list(value: Any, what: str) -> list:
    """A list, or the JSON text of one; [] for null."""
    value = _parsed(value, what)
    if not isinstance(value, list | tuple):
        raise BadRecord(f"{what} is of type {type(value).__name__}: it must be a list")
    return list(value)


def _parsed(value: Any, what: str) -> Any:
    """A value that may be JSON text; [] for none."""
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else None
        except (ValueError, RecursionError) as error:
            raise BadRecord(f"{what} is not valid JSON: {error}") from None
    if _is_deeper(value, MOST_NESTED):  # a template writes it by recursion
        raise BadRecord(f"{what} must not be nested more than {MOST_NESTED} deep")
    return [] if value is None else value


def _is_deeper(value: Any, levels: int) -> bool:
    """Tell if lists and objects are nested in more levels than these."""
    if isinstance(value, dict):
        value = list(value.values())
    parts = value if isinstance(value, list | tuple) else ()
    return levels < 0 or any(_is_deeper(part, levels - 1) for part in parts)


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise BadRecord(f"{what} is of type {type(value).__name__}: it must be a text")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise BadRecord(f"{what} holds half a surrogate pair, which is not a character: repair or remove it") from None
    return value


def _names(record: dict) -> str:
    return ", ".join(f"`{name}`" for name, value in record.items() if value is not None) or "no fields"
