"""Check a message of a conversation, in any of the spellings that docs/data_formats.md lists."""

import ast
import json
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]
ROLES: dict[str, Role] = {
    "system": "system", "developer": "system", "user": "user", "human": "user",
    "assistant": "assistant", "gpt": "assistant", "chatgpt": "assistant",
    "function_call": "assistant", "tool": "tool", "observation": "tool", "function": "tool",
}  # fmt: skip
TOOLS = ("tools", "functions")
# In the order in which transformers looks for them.
REASONING = ("reasoning_content", "thinking", "reasoning")
# Other projects' names for `weight`. They do not all mean the same, so they are refused.
SWITCHES = ("train", "training", "trainable", "loss", "loss_mask", "masked", "mask")
# A chat template writes nested values by recursion, which Python limits.
MAX_NESTING = 100


class BadRecord(ValueError):
    """A record that cannot be used: the reason and a remedy. The caller adds file and line."""


@dataclass(frozen=True)
class Message:
    """One turn."""

    role: Role
    content: str
    reasoning_content: str = ""
    # {"name": …, "arguments": a dict or JSON text} each
    tool_calls: tuple[dict, ...] = ()
    # 0 for an answer that is not trained on, as in OpenAI's files. Weights are not in `repr`, from
    # which the hash of a conversation is made.
    weight: int = field(default=1, repr=False)
    # (text, weight) of each part of the content, if parts have weights of their own
    parts: tuple[tuple[str, int], ...] = field(default=(), repr=False)


Messages = tuple[Message, ...]


def read_message(raw: Any) -> Message:
    """Check one message in any of the spellings. Raises BadRecord."""
    if not isinstance(raw, dict):
        raise BadRecord(f"is of type {type(raw).__name__}: use an object with role and content")
    fields = {name: value for name, value in raw.items() if value is not None}
    is_sharegpt = "from" in fields and "role" not in fields
    role_field = "from" if is_sharegpt else "role"
    body = "value" if is_sharegpt else "content"
    name = fields.get(role_field)
    value = fields.get(body, "")
    if not isinstance(name, str) or name not in ROLES:
        raise BadRecord(f"{role_field} {name!r} is not known: use one of {', '.join(ROLES)}")
    role = ROLES[name]
    # ShareGPT: the content of a function_call is the call
    is_call = name == "function_call"
    calls = read_calls(
        value if is_call else fields.get("tool_calls") or fields.get("function_call")
    )
    if not calls and (is_call or body not in fields):
        raise BadRecord(f'has no `{body}` (it has {names_of(fields)}): give a text, or ""')
    if is_call:
        value = ""

    # OpenAI's files may have content in parts, with a weight each
    parts = value if isinstance(value, list) else [{"type": "text", "text": value}]
    for part in parts:
        is_text = isinstance(part, dict) and part.get("type") == "text"
        if not is_text or not isinstance(part.get("text"), str):
            raise BadRecord(f"`{body}` is {value!r:.60}: use text, models read text only")
    content = read_text("".join(part["text"] for part in parts), f"`{body}`")
    # a set: the same thoughts may be in two fields
    thoughts = {read_text(fields[key], f"`{key}`") for key in REASONING if fields.get(key)}
    if len(thoughts) > 1:
        raise BadRecord(f"has different thoughts in two of {', '.join(REASONING)}: keep one")
    reasoning = "".join(thoughts)
    if role != "assistant" and (reasoning or calls):
        raise BadRecord(f"role {name!r} cannot think or call tools: only assistant messages can")
    if role == "assistant" and not reasoning:
        reasoning, content = split_thinking(content)

    weights = tuple((part["text"], _weight(part)) for part in parts)
    if all(part.get("weight") is None for part in parts):
        weights = ()
    elif role != "assistant" or reasoning or calls:
        raise BadRecord(
            "a part has a `weight`: only answers without thoughts and calls can have it"
        )
    return Message(role, content, reasoning, calls, _weight(fields), weights)


def _weight(fields: dict) -> int:
    # 1 or 0, of a message or of a part of one
    for name in ("weight", *SWITCHES):
        value = fields.get(name)
        if value is not None and (name in SWITCHES or value not in (0, 1)):
            raise BadRecord(f"`{name}` is {value!r:.40}: use `weight`, 1 or 0 (0: not trained on)")
    return 0 if fields.get("weight") == 0 else 1


def split_thinking(content: str) -> tuple[str, str]:
    """Split an answer that begins with <think>…</think> into (reasoning, the rest)."""
    # Line ends around the tags belong to them. If the prompt has begun the thoughts, only </think>
    # is left, on a line of its own.
    before, end, rest = content.partition("</think>")
    is_whole = before.lstrip("\n").startswith("<think>")
    is_alone = "<think>" not in before and before.endswith("\n") and rest[:1] in ("", "\n")
    # a story may mention </think>; only a whole or an alone tag means thoughts
    if not end or not (is_whole or is_alone):
        return "", content
    return before.lstrip("\n").removeprefix("<think>").strip("\n"), rest.lstrip("\n")


# tools and their calls


def read_calls(raw: Any) -> tuple[dict, ...]:
    """Return tool calls as {"name", "arguments"} each. Raises BadRecord."""
    calls = []
    for call in _functions(raw, "`tool_calls`"):
        name = call["name"]
        arguments = call.get("arguments")
        if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
            arguments = {}
        if not isinstance(_parsed(arguments, f"the arguments of {name}"), dict):
            raise BadRecord(f"the arguments of {name} must be an object, not {arguments!r:.40}")
        calls.append({"name": name, "arguments": arguments})
    return tuple(calls)


def untagged(message: Message) -> Message:
    """Read calls and a tool's answer that are text between tags, as in Hermes' files."""
    text = message.content.strip()
    is_tagged = text.startswith("<tool_response>\n") and text.endswith("\n</tool_response>")
    if message.role == "tool" and is_tagged:
        answers = re.split(r"\n?</?tool_response>\n?", text)
        return replace(message, content="\n".join(answer for answer in answers if answer))
    content, *rest = message.content.split("<tool_call>")
    # nothing but calls may follow the first one
    tagged = [re.fullmatch(r"\s*(\{.*\})\s*</tool_call>\s*", text, re.DOTALL) for text in rest]
    if message.role != "assistant" or message.parts or not rest or not all(tagged):
        return message
    calls = read_calls([_call(match[1]) for match in tagged if match])
    return replace(message, content=content.rstrip("\n"), tool_calls=(*message.tool_calls, *calls))


def _call(text: str) -> Any:
    # JSON, or what Python prints for a dict, with single quotes
    with suppress(ValueError, RecursionError):
        return json.loads(text)
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise BadRecord(
            f"a <tool_call> is not JSON, repair it or remove the tags: {error}"
        ) from None


def read_tools(holders: Iterable[dict]) -> tuple[dict, ...]:
    """Return the tools that a record, or one of its messages, lists. Raises BadRecord."""
    lists = [_functions(fields.get(name), "`tools`") for fields in holders for name in TOOLS]
    lists = [tools for tools in lists if tools]
    if any(tools != lists[0] for tools in lists):
        raise BadRecord("has two different lists of `tools`: keep one of them")
    return lists[0] if lists else ()


def _functions(raw: Any, name: str) -> tuple[dict, ...]:
    # tools or calls, without the {"function": …} that OpenAI has around each
    value = _parsed(raw, name)
    functions = []
    for entry in [value] if isinstance(value, dict) else read_list(value, name):
        if isinstance(entry, dict):
            entry = entry.get("function") or entry
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise BadRecord(f'{name} must hold objects with a "name" each')
        functions.append(entry)
    # a table can hold dates and bytes, which JSON cannot
    try:
        read_text(json.dumps(functions, ensure_ascii=False), name)
    except (TypeError, RecursionError) as error:
        raise BadRecord(f"{name} cannot be written as JSON: {error}") from None
    return tuple(functions)


# values; `name` is the field in an error message


def read_list(value: Any, name: str) -> list:
    """Return a list, or the JSON text of one; [] for null."""
    value = _parsed(value, name)
    if not isinstance(value, list | tuple):
        raise BadRecord(f"{name} is of type {type(value).__name__}: it must be a list")
    return list(value)


def _parsed(value: Any, name: str) -> Any:
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else None
        except (ValueError, RecursionError) as error:
            raise BadRecord(f"{name} is not valid JSON: {error}") from None
    if _is_deeper(value, MAX_NESTING):
        raise BadRecord(f"{name} must not be nested more than {MAX_NESTING} deep")
    return [] if value is None else value


def _is_deeper(value: Any, levels: int) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    parts = value if isinstance(value, list | tuple) else ()
    return levels < 0 or any(_is_deeper(part, levels - 1) for part in parts)


def read_text(value: Any, name: str) -> str:
    """Return a text. Raises BadRecord for another type, and for half a character."""
    if not isinstance(value, str):
        raise BadRecord(f"{name} is of type {type(value).__name__}: it must be a text")
    # JSON can spell half a character, "\ud83d", which has no bytes
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise BadRecord(f"{name} holds half a surrogate pair: repair or remove it") from None
    return value


def names_of(record: dict) -> str:
    names = [f"`{name}`" for name, value in record.items() if value is not None]
    return ", ".join(names) or "no fields"
