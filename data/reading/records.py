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
    **{"tool": "tool", "observation": "tool", "function": "tool"},
}
LISTS = ("messages", "conversations")  # the names of a list of messages
QUESTIONS = ("instruction", "prompt", "question", "query", "input")  # the names of what the user asks, without a list
ANSWERS = ("output", "completion", "answer", "response")  # and of the answer beside it
SYSTEMS = ("system", "system_prompt")
TOOLS = ("tools", "functions")
# A message's own switch, as projects name it (weight: OpenAI, Mistral; training: axolotl; loss: ms-swift, XTuner;
# loss_mask: VeOmni, slime; masked: torchtune), and the value that trains on the message.
SWITCHES = {"weight": 1, "train": 1, "training": 1, "trainable": 1, "loss": 1, "loss_mask": 1, "masked": 0}
UNCLEAR = ("mask", "loss_scale", "train_detail", "training_detail")  # no single meaning, or more than on and off
KTO = ("label", "kto_tag")  # whether an answer is a good one
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
        if text_field in record:
            raise BadRecord(
                f"field `{text_field}` is null: leave the record out, or name another data.source.text_field"
            )
        remedy = "name the one with the text in data.source.text_field"
        if any(name in record for name in (*LISTS, *ANSWERS)):
            remedy = "it is a conversation, so set data.records: conversations (or data.source.text_field)"
        raise BadRecord(f"has no field `{text_field}` (it has {_names(record)}): {remedy}")
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        value = "\n".join(value)
    return _checked(value, f"field `{text_field}`")


def conversation_of(record: Any) -> Conversation:
    """The conversation in a record of any layout that docs/data_formats.md lists. Raises BadRecord."""
    if not isinstance(record, dict):
        remedy = ": set data.records: text" if isinstance(record, str) else ""
        raise BadRecord(f"is {_kind(record)}, not an object with a field `messages` or `conversations`{remedy}")
    fields = given_fields(record)
    if "chosen" in fields and "rejected" in fields:
        raise BadRecord(
            "is a preference pair (`chosen` and `rejected`): set data.records: pairs for train.dpo, or keep the chosen "
            "answers"
        )
    messages = messages_in(fields)
    if system := system_in(fields):
        if messages and (messages[0].get("role") or messages[0].get("from")) in ("system", "developer"):
            raise BadRecord("has a field `system` and a system message as well: keep one of them")
        messages = [*system, *messages]
    conversation = checked_conversation(messages, tools_in(fields))
    if not any(message.role == "assistant" and _is_trained_on(message) for message in conversation.messages):
        some = any(message.role == "assistant" for message in conversation.messages)
        what = "no assistant message of weight 1" if some else "no assistant message"
        raise BadRecord(f"has {what}, so there is nothing to learn: leave it out")
    return conversation


def given_fields(record: dict) -> dict:
    """The fields that are not null. Raises BadRecord for one that says what is trained on in a way that is not
    followed."""
    fields = {name: value for name, value in record.items() if value is not None}
    for name in (*KTO, *SWITCHES, *UNCLEAR):
        value = fields.get(name)
        if str(value).lower() in ("true", "false", "0", "1", "0.0", "1.0") and value != SWITCHES.get(name):
            remedy = "switches the whole record on or off: leave out records instead, or give messages a `weight`"
            if name in KTO:
                remedy = "says whether the answer is a good one (KTO): keep the records with a good one, without it"
            raise BadRecord(f"has a field `{name}` ({value!r:.40}), which {remedy}")
    return fields


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
                lists_of_tools.append(tools_in(message))
        except BadRecord as error:
            raise BadRecord(f"message {number}: {error}") from None
    return Conversation(tuple(checked), _only(lists_of_tools))


def tools_in(fields: dict) -> tuple[dict, ...]:
    """The tools that a record or a message lists."""
    return _only([_tools(fields.get(name) or ()) for name in TOOLS])


def _only(lists_of_tools: list[tuple[dict, ...]]) -> tuple[dict, ...]:
    given = [one for one in lists_of_tools if one]
    if len(given) > 1:
        raise BadRecord("lists its tools in more than one place: keep one of them")
    return given[0] if given else ()


def system_in(fields: dict) -> list[dict]:
    """The system message of a record that has it in a field."""
    texts = {_field(fields, name) for name in SYSTEMS if fields.get(name)}
    if len(texts) > 1:
        raise BadRecord("has `system` and `system_prompt`, which differ: keep one of them")
    return [_said("system", text) for text in texts]


def asked_in(fields: dict) -> list[dict]:
    """What the user asks in fields of their own, with the `history` before it. `instruction` and `input` are one
    question (Alpaca), and so are `prompt` and `query`. Raises BadRecord if other fields ask something else."""
    messages = []
    for pair in _list(fields.get("history") or [], "field `history`", "[question, answer] pairs"):
        if not (isinstance(pair, list | tuple) and len(pair) == 2 and all(isinstance(text, str) for text in pair)):
            raise BadRecord(f"field `history` must be a list of [question, answer] pairs, not hold {str(pair)[:40]!r}")
        messages += [_said("user", pair[0]), _said("assistant", pair[1])]
    if isinstance(fields.get("prompt"), list) and "instruction" not in fields:
        return messages + messages_in({"messages": fields["prompt"]})
    texts = {name: _field(fields, name) for name in QUESTIONS if name in fields}
    asked = {name: text for name, text in texts.items() if text}
    first = next(iter(asked), "")
    second = {"instruction": ("input", "query"), "prompt": ("query",)}.get(first, ())
    used = [first, *[name for name in second if name in asked][:1]]
    question = "\n".join(asked[name] for name in used if name)
    for name, text in asked.items():  # the same again, or a prompt that was made of the instruction
        made_of_it = first == "instruction" and asked[first].strip() in text
        if not made_of_it and text.strip() not in question:
            raise BadRecord(f"has `{first}` and `{name}`, which ask different things: put the whole question into one")
    return [*messages, _said("user", question)] if texts else messages


def messages_in(fields: dict) -> list[dict]:
    """A record of any layout -> messages with a `role` or `from` each, not yet checked."""
    for name in LISTS:
        if name in fields:
            messages = _list(fields[name], f"field `{name}`", "messages")
            for number, message in enumerate(messages, 1):
                if not isinstance(message, dict):
                    raise BadRecord(f"message {number} is {_kind(message)}: it must be an object with role and content")
            return messages
    answer = next((name for name in ANSWERS if name in fields), "output" if "instruction" in fields else None)
    if answer is None or not any(name in fields for name in QUESTIONS):
        layouts = "see docs/data_formats.md for the layouts that are known"
        remedy = "set data.records: text" if "text" in fields else layouts
        raise BadRecord(f"holds no conversation (it has {_names(fields)}): {remedy}")
    if isinstance(fields.get("prompt"), list) and isinstance(fields[answer], list):
        return asked_in(fields) + messages_in({"messages": fields[answer]})
    if isinstance(fields.get("prompt"), list):
        _field(fields, "prompt")
    return [*asked_in(fields), _said("assistant", _field(fields, answer))]


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
    if fields.get("function_call") and fields.get("tool_calls"):
        raise BadRecord("has `function_call` and `tool_calls`: keep one of them")
    calls = () if name == "function_call" else _calls(fields.get("tool_calls") or fields.get("function_call") or ())
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
    weight = _weight(fields)
    switch = next((name for name in SWITCHES if name != "weight" and name in fields), None)
    if role != "assistant" and weight and switch:
        raise BadRecord(f"`{switch}` is {fields[switch]!r:.40}, but only what the assistant says can be trained on")
    return Message(role, content, reasoning, calls, weight, parts)


def _weight(fields: dict) -> int:
    """Whether a message, or a part of one, is trained on."""
    weights = {}
    for name, on in SWITCHES.items():
        if name in fields:
            value = fields[name]
            if value not in (0, 1):
                raise BadRecord(
                    f"`{name}` is {value!r:.40}: use {on}, or {1 - on} for an answer that is not trained on"
                )
            weights[name] = int(value == on)
    if unclear := [name for name in UNCLEAR if name in fields]:
        raise BadRecord(f"`{unclear[0]}` means different things in different projects: use `weight` (1 or 0) instead")
    if len(set(weights.values())) > 1:
        raise BadRecord(f"{' and '.join(f'`{name}`' for name in weights)} contradict each other: keep one of them")
    return next(iter(weights.values()), 1)


def _parts(raw: Any, is_plain: bool) -> tuple[tuple[str, int], ...]:
    """The parts of an answer, if one of them has a weight of its own. is_plain: it neither thinks nor calls tools."""
    if not isinstance(raw, list) or not any(part.get(name) is not None for part in raw for name in SWITCHES):
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


def _names(record: dict) -> str:
    return ", ".join(str(name) or "one without a name" for name in record) or "no fields"


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", int: "a number"}
    return names.get(type(value), "null" if value is None else "a number" if isinstance(value, float) else "not text")
