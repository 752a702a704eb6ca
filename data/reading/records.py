"""What does a record say? One object of a file or of a dataset -> a text, or a conversation.

The usual layouts are recognised by their field names; docs/data_formats.md shows one of each. A field that is null
counts as missing: tables have a null in every column that a row does not use.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]
ROLES: dict[str, Role] = {
    **{"system": "system", "developer": "system", "user": "user", "human": "user"},
    **{"assistant": "assistant", "gpt": "assistant", "chatgpt": "assistant", "function_call": "assistant"},
    **{"tool": "tool", "observation": "tool"},
}
ANSWERS = ("completion", "answer", "response")  # the names of an answer beside a field `prompt`
LISTS = ("messages", "conversations")  # the names of a list of messages
REASONING = ("reasoning_content", "thinking", "reasoning")  # in the order in which transformers looks for them


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


@dataclass(frozen=True)
class Conversation:
    """Messages, and the tools that the assistant may call: {"name": …, "description": …, "parameters": …} each."""

    messages: tuple[Message, ...]
    tools: tuple[dict, ...] = ()


def text_of(record: Any, text_field: str = "text") -> str:
    """The text of a record: a field (`a.b` is field b of the object in field a), or the record that is itself a text.
    A list of texts is joined by line ends. May be "". Raises BadRecord."""
    if isinstance(record, str):
        return _checked(record, "the record")
    if not isinstance(record, dict):
        raise BadRecord(f"is {_kind(record)}, not an object with a field `{text_field}`")
    value: Any = record.get(text_field)
    if value is None:
        value = record
        for name in text_field.split("."):
            value = value.get(name) if isinstance(value, dict) else None
    if value is None:
        raise BadRecord(_why_no_text(record, text_field))
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        value = "\n".join(value)
    return _checked(value, f"field `{text_field}`")


def conversation_of(record: Any) -> Conversation:
    """The conversation in a record of any layout that docs/data_formats.md lists. Raises BadRecord."""
    if not isinstance(record, dict):
        remedy = ": set data.records: text" if isinstance(record, str) else ""
        raise BadRecord(f"is {_kind(record)}, not an object with a field `messages` or `conversations`{remedy}")
    fields = {name: value for name, value in record.items() if value is not None}
    if "chosen" in fields and "rejected" in fields:
        raise BadRecord(
            "is a preference pair (`chosen` and `rejected`): set data.records: pairs for train.dpo, or keep the chosen "
            "answers"
        )
    messages = _messages_in(fields)
    if fields.get("system"):
        if messages and (messages[0].get("role") or messages[0].get("from")) in ("system", "developer"):
            raise BadRecord("has a field `system` and a system message as well: keep one of them")
        messages = [{"role": "system", "content": _field(fields, "system")}, *messages]
    conversation = checked_conversation(messages, fields.get("tools") or fields.get("functions") or ())
    if not any(message.role == "assistant" and _is_trained_on(message) for message in conversation.messages):
        some = any(message.role == "assistant" for message in conversation.messages)
        what = "no assistant message of weight 1" if some else "no assistant message"
        raise BadRecord(f"has {what}, so there is nothing to learn: leave it out")
    return conversation


def _is_trained_on(message: Message) -> bool:
    return bool(message.weight) and (not message.parts or any(weight for _, weight in message.parts))


def checked_conversation(messages: Sequence[Message | dict], tools: Any = ()) -> Conversation:
    """Messages in any of the known spellings -> a Conversation, which needs no answer yet. Raises BadRecord."""
    if not messages:
        raise BadRecord("holds no messages: give one of the user and one of the assistant, or leave it out")
    checked, lists_of_tools = [], [_tools(tools)]
    for number, message in enumerate(messages, 1):
        try:
            checked.append(_message(message if isinstance(message, dict) else asdict(message)))
            if isinstance(message, dict):  # MiniMind keeps the tools in the system message
                lists_of_tools.append(_tools(message.get("tools") or message.get("functions") or ()))
        except BadRecord as error:
            raise BadRecord(f"message {number}: {error}") from None
    given = [one for one in lists_of_tools if one]
    if len(given) > 1:
        raise BadRecord("lists its tools in more than one place: keep one of them")
    return Conversation(tuple(checked), given[0] if given else ())


def _messages_in(fields: dict) -> list[dict]:
    """A record of any layout -> messages with a `role` or `from` each, not yet checked."""
    for name in LISTS:
        if name in fields:
            messages = _list(fields[name], f"field `{name}`", "messages")
            for number, message in enumerate(messages, 1):
                if not isinstance(message, dict):
                    raise BadRecord(f"message {number} is {_kind(message)}: it must be an object with role and content")
            return messages
    if "instruction" in fields:
        return _alpaca(fields)
    answer = next((name for name in ANSWERS if name in fields), None)
    if "prompt" in fields and answer is not None:
        if isinstance(fields["prompt"], list) and isinstance(fields[answer], list):
            return _messages_in({"messages": fields["prompt"] + fields[answer]})
        return [_said("user", _field(fields, "prompt")), _said("assistant", _field(fields, answer))]
    remedy = "set data.records: text" if "text" in fields else "see docs/data_formats.md for the layouts that are known"
    raise BadRecord(f"holds no conversation (it has {_names(fields)}): {remedy}")


def _alpaca(fields: dict) -> list[dict]:
    messages = []
    for pair in _list(fields.get("history") or [], "field `history`", "[question, answer] pairs"):
        if not (isinstance(pair, list | tuple) and len(pair) == 2 and all(isinstance(text, str) for text in pair)):
            raise BadRecord(f"field `history` must be a list of [question, answer] pairs, not hold {str(pair)[:40]!r}")
        messages += [_said("user", pair[0]), _said("assistant", pair[1])]
    parts = [_field(fields, "instruction"), _field(fields, "input") if "input" in fields else ""]
    question = "\n".join(part for part in parts if part)
    return [*messages, _said("user", question), _said("assistant", _field(fields, "output"))]


def _said(role: str, content: str) -> dict:
    return {"role": role, "content": content}


def _message(raw: dict) -> Message:
    fields = {name: value for name, value in raw.items() if value is not None}
    key, body = ("from", "value") if "from" in fields and "role" not in fields else ("role", "content")
    if key not in fields:
        raise BadRecord(f"has no `role` (it has {_names(fields)}): say who speaks, {', '.join(ROLES)}")
    name = fields[key]
    if not isinstance(name, str) or name not in ROLES:
        raise BadRecord(f"role {name!r} is not known: use one of {', '.join(ROLES)}")
    calls = () if name == "function_call" else _calls(fields.get("tool_calls") or ())
    if body not in fields and not calls:
        raise BadRecord(f'has no `{body}` (it has {_names(fields)}): give a text, "" for an empty one')
    content = _checked(_joined(fields.get(body, ""), body), f"`{body}`")
    reasoning = next((fields[name] for name in REASONING if name in fields), "")
    reasoning = _checked(reasoning, "`reasoning_content`")
    role = ROLES[name]
    if role != "assistant" and (reasoning or calls):
        raise BadRecord(f"role {name!r} cannot think or call tools: only assistant messages can")
    if role == "assistant" and not reasoning:
        reasoning, content = split_thinking(content)
    if name == "function_call":
        content, calls = "", _calls(content)
        if not calls:
            raise BadRecord('calls no function: give {"name": …, "arguments": {…}}')
    is_plain = role == "assistant" and not reasoning and not calls
    parts = _parts(fields.get(body), is_plain)
    return Message(role, content, reasoning, calls, _weight(fields), parts)


def _weight(fields: dict) -> int:
    weight = fields.get("weight", 1)
    if weight not in (0, 1):
        raise BadRecord(f"`weight` is {weight!r:.40}: use 1, or 0 for an answer that is not trained on")
    return int(weight)


def _parts(raw: Any, is_plain: bool) -> tuple[tuple[str, int], ...]:
    """The parts of an answer, if one of them has a weight of its own. is_plain: it neither thinks nor calls tools."""
    if not isinstance(raw, list) or not any(part.get("weight") is not None for part in raw):
        return ()
    if not is_plain:
        raise BadRecord(
            "a part of its content has a `weight`: only an assistant message without thinking and tool calls can have "
            "that, so leave it out"
        )
    return tuple((part["text"], _weight({key: part[key] for key in part if part[key] is not None})) for part in raw)


def split_thinking(content: str) -> tuple[str, str]:
    """An answer that begins with <think>…</think> -> (reasoning, the rest). Line ends at both ends of the reasoning and
    before the rest belong to the tags and are dropped, nothing else."""
    if not content.startswith("<think>") or "</think>" not in content:
        return "", content
    reasoning, rest = content.removeprefix("<think>").split("</think>", 1)
    return reasoning.strip("\n"), rest.lstrip("\n")


def _joined(content: Any, name: str) -> Any:
    """OpenAI's content parts -> one text; anything but a list stays as it is."""
    if not isinstance(content, list):
        return content
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, dict) else _kind(part)
            raise BadRecord(f"`{name}` holds a part that is not text ({kind}): only text can be trained on")
    return "".join(part["text"] for part in content)


def _calls(raw: Any) -> tuple[dict, ...]:
    """Tool calls, with or without OpenAI's {"function": …} around each -> {"name", "arguments"} each."""
    calls = _parsed(raw, "`tool_calls`")
    result = []
    for call in map(_unwrapped, [calls] if isinstance(calls, dict) else _list(calls, "`tool_calls`", "calls")):
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            raise BadRecord('`tool_calls` must hold {"name": …, "arguments": {…}} each')
        arguments = call.get("arguments")
        if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
            arguments = {}
        if not isinstance(_parsed(arguments, f"the arguments of {call['name']}"), dict):
            raise BadRecord(f"the arguments of {call['name']} must be an object, not {_kind(arguments)}")
        result.append({"name": call["name"], "arguments": arguments})
    _check_json(result, "`tool_calls`")
    return tuple(result)


def _tools(raw: Any) -> tuple[dict, ...]:
    """Function schemas, with or without OpenAI's {"type": "function", "function": …} around each."""
    tools = tuple(map(_unwrapped, _list(raw, "`tools`", "function schemas")))
    if not all(isinstance(tool, dict) and isinstance(tool.get("name"), str) for tool in tools):
        raise BadRecord('`tools` must hold {"name": …, "description": …, "parameters": {…}} each')
    _check_json(tools, "`tools`")
    return tools


def _unwrapped(function: Any) -> Any:
    return function["function"] if isinstance(function, dict) and function.get("function") else function


def _parsed(value: Any, what: str) -> Any:
    """A value that may be JSON text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value) if value.strip() else []
    except (ValueError, RecursionError) as error:
        raise BadRecord(f"{what} is not valid JSON: {error}") from None


def _list(value: Any, what: str, of_what: str) -> list:
    value = _parsed(value, what)
    if not isinstance(value, list | tuple):
        raise BadRecord(f"{what} is {_kind(value)}: it must be a list of {of_what}")
    return list(value)


def _check_json(value: Any, what: str) -> None:
    """Refuse what a table can hold and JSON cannot (dates, bytes)."""
    if not value:  # as nearly always
        return
    try:
        _checked(json.dumps(value, ensure_ascii=False), what)
    except (TypeError, RecursionError) as error:
        raise BadRecord(f"{what} cannot be written as JSON: {error}") from None


def _field(fields: dict, name: str) -> str:
    """A field that must exist and be a text."""
    if name not in fields:
        raise BadRecord(f"has no field `{name}` (it has {_names(fields)}): add it, or leave the record out")
    return _checked(fields[name], f"field `{name}`")


def _checked(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise BadRecord(f"{what} is {_kind(value)}: it must be a text")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise BadRecord(f"{what} holds half a surrogate pair, which is not a character: repair or remove it") from None
    return value


def _why_no_text(record: dict, text_field: str) -> str:
    missing = f"has no field `{text_field}` (it has {_names(record)})"
    if text_field in record:
        return f"field `{text_field}` is null: leave the record out, or name another field in data.source.text_field"
    try:
        conversation_of(record)
    except BadRecord:
        return f"{missing}: name the one with the text in data.source.text_field"
    return f"{missing}: it is a conversation, so set data.records: conversations (or data.source.text_field)"


def _names(record: dict) -> str:
    return ", ".join(str(name) or "one without a name" for name in record) or "no fields"


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", int: "a number"}
    return names.get(type(value), "null" if value is None else "a number" if isinstance(value, float) else "not text")
