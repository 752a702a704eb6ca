"""What does a record say? One object of a file or of a dataset -> a text, a conversation, or a pair of answers.

The usual layouts are recognised by their field names; docs/data_formats.md shows one of each. A field that is null
counts as missing: tables have a null in every column that a row does not use.
"""

from __future__ import annotations

import itertools
import json
import re
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
PAIRS = (("chosen", "rejected"), ("preferred_output", "non_preferred_output"))
READ = (*PAIRS[0], *QUESTIONS, *SYSTEMS, *TOOLS, "history")  # fields of a pair that may hold text, all of them read
NOTHING_SHARED = "{} have no common prompt: let both begin with it, or add a field `prompt`"
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


Messages = tuple[Message, ...]


@dataclass(frozen=True)
class Pair:
    """Two conversations that begin alike: their first `shared` messages are the prompt, the rest are the answers."""

    chosen: Conversation
    rejected: Conversation
    shared: int

    @property
    def prompt(self) -> Conversation:
        return Conversation(self.chosen.messages[: self.shared], self.chosen.tools)

    @property
    def answers(self) -> list[Conversation]:
        """What is trained on."""
        return [Conversation(one.messages[self.shared :]) for one in (self.chosen, self.rejected)]


def text_of(record: Any, text_field: str = "text") -> str:
    """The text of a record: a field (`a.b` is field b of the object in field a), or the record that is itself a text.
    A list of texts is joined by line ends. May be "". Raises BadRecord."""
    if isinstance(record, str):
        return _text(record, "the record")
    if not isinstance(record, dict):
        raise BadRecord(f"is {_kind(record)}, not an object with a field `{text_field}`")
    value: Any = record.get(text_field)
    if value is None:
        value = record
        for name in text_field.split("."):
            value = value.get(name) if isinstance(value, dict) else None
    if value is None:
        remedy = "name the one with the text in data.source.text_field"
        if any(name in record for name in (*LISTS, *ANSWERS)):
            remedy = "it is a conversation, so set data.records: conversations (or data.source.text_field)"
        given = {name: field for name, field in record.items() if field is not None}
        raise BadRecord(f"has no field `{text_field}` (it has {_names(given)}): {remedy}")
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        value = "\n".join(value)
    return _text(value, f"field `{text_field}`")


# ---------------------------------------------------------------------------------------------------------
# a conversation


def conversation_of(record: Any) -> Conversation:
    """The conversation in a record of any layout that docs/data_formats.md lists. Raises BadRecord."""
    fields = _given(record, "a field `messages` or `conversations`")
    if "chosen" in fields and "rejected" in fields:
        raise BadRecord(
            "is a preference pair (`chosen` and `rejected`): set data.records: pairs for train.dpo, or keep the chosen "
            "answers"
        )
    messages = _messages(fields)
    if system := _system(fields):
        if messages and (messages[0].get("role") or messages[0].get("from")) in ("system", "developer"):
            raise BadRecord("has a field `system` and a system message as well: keep one of them")
        messages = [*system, *messages]
    conversation = checked_conversation(messages, _tools_in(fields))
    answers = [message for message in conversation.messages if message.role == "assistant"]
    if not any(one.weight and (not one.parts or any(weight for _, weight in one.parts)) for one in answers):
        what = "no assistant message of weight 1" if answers else "no assistant message"
        raise BadRecord(f"has {what}, so there is nothing to learn: leave it out")
    return conversation


def checked_conversation(messages: Sequence[Message | dict], tools: Any = ()) -> Conversation:
    """Messages in any of the known spellings -> a Conversation, which needs no answer yet. Raises BadRecord."""
    if not messages:
        raise BadRecord("holds no messages: give one of the user and one of the assistant, or leave it out")
    checked, lists_of_tools = [], [_named(tools, "`tools`", "function schemas")]
    for number, message in enumerate(messages, 1):
        try:
            checked.append(_message(message if isinstance(message, dict) else asdict(message)))
            if isinstance(message, dict):  # MiniMind keeps the tools in the system message
                lists_of_tools.append(_tools_in(message))
        except BadRecord as error:
            raise BadRecord(f"message {number}: {error}") from None
    return Conversation(tuple(checked), _only(lists_of_tools))


def _given(record: Any, wanted: str) -> dict:
    """The fields that are not null. Raises BadRecord for one that says what is trained on in a way that is not
    followed."""
    if not isinstance(record, dict):
        remedy = ": set data.records: text" if isinstance(record, str) else ""
        raise BadRecord(f"is {_kind(record)}, not an object with {wanted}{remedy}")
    fields = {name: value for name, value in record.items() if value is not None}
    for name in (*KTO, *SWITCHES, *UNCLEAR):
        value = fields.get(name)
        if str(value).lower() in ("true", "false", "0", "1", "0.0", "1.0") and value != SWITCHES.get(name):
            remedy = "switches the whole record on or off: leave out records instead, or give messages a `weight`"
            if name in KTO:
                remedy = "says whether the answer is a good one (KTO): keep the records with a good one, without it"
            raise BadRecord(f"has a field `{name}` ({value!r:.40}), which {remedy}")
    return fields


def _messages(fields: dict) -> list[dict]:
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
        return _question(fields) + _messages({"messages": fields[answer]})
    if isinstance(fields.get("prompt"), list):
        _field(fields, "prompt")
    return [*_question(fields), {"role": "assistant", "content": _field(fields, answer)}]


def _question(fields: dict) -> list[dict]:
    """What the user asks in fields of their own, with the `history` before it. `instruction` and `input` are one
    question (Alpaca), and so are `prompt` and `query`. Raises BadRecord if other fields ask something else."""
    messages = []
    for pair in _list(fields.get("history") or [], "field `history`", "[question, answer] pairs"):
        if not (isinstance(pair, list | tuple) and len(pair) == 2 and all(isinstance(text, str) for text in pair)):
            raise BadRecord(f"field `history` must be a list of [question, answer] pairs, not hold {str(pair)[:40]!r}")
        messages += [{"role": role, "content": text} for role, text in zip(("user", "assistant"), pair, strict=True)]
    if isinstance(fields.get("prompt"), list) and "instruction" not in fields:
        return messages + _messages({"messages": fields["prompt"]})
    texts = {name: _field(fields, name) for name in QUESTIONS if name in fields}
    asking = {name: text for name, text in texts.items() if text}
    first = next(iter(asking), "")
    second = {"instruction": ("input", "query"), "prompt": ("query",)}.get(first, ())
    used = [first, *[name for name in second if name in asking][:1]]
    question = "\n".join(asking[name] for name in used if name)
    for name, text in asking.items():  # the same again, or a prompt that was made of the instruction
        made_of_it = first == "instruction" and asking[first].strip() in text
        if not made_of_it and text.strip() not in question:
            raise BadRecord(f"has `{first}` and `{name}`, which ask different things: put the whole question into one")
    return [*messages, {"role": "user", "content": question}] if texts else messages


def _system(fields: dict) -> list[dict]:
    """The system message of a record that has it in a field."""
    texts = {_field(fields, name) for name in SYSTEMS if fields.get(name)}
    if len(texts) > 1:
        raise BadRecord("has `system` and `system_prompt`, which differ: keep one of them")
    return [{"role": "system", "content": text} for text in texts]


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
    given = fields.get(body, "")
    if isinstance(given, list):  # OpenAI's content parts
        for part in given:
            if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
                kind = part.get("type") if isinstance(part, dict) else _kind(part)
                raise BadRecord(f"`{body}` holds a part that is not text ({kind}): only text can be trained on")
    content = _text("".join(part["text"] for part in given) if isinstance(given, list) else given, f"`{body}`")
    reasoning = _text(next((fields[name] for name in REASONING if name in fields), ""), "`reasoning_content`")
    role = ROLES[name]
    if role != "assistant" and (reasoning or calls):
        raise BadRecord(f"role {name!r} cannot think or call tools: only assistant messages can")
    if role == "assistant" and not reasoning:
        reasoning, content = split_thinking(content)
    if name == "function_call":
        content, calls = "", _calls(content)
        if not calls:
            raise BadRecord('calls no function: give {"name": …, "arguments": {…}}')
    parts: tuple[tuple[str, int], ...] = ()
    weight = _weight(fields)
    switch = next((name for name in SWITCHES if name != "weight" and name in fields), None)
    if role != "assistant" and weight and switch:
        raise BadRecord(f"`{switch}` is {fields[switch]!r:.40}, but only what the assistant says can be trained on")
    if isinstance(given, list) and any(part.get(name) is not None for part in given for name in SWITCHES):
        if role != "assistant" or reasoning or calls:
            raise BadRecord(
                "a part of its content has a `weight`: only an assistant message without thinking and tool calls can "
                "have that, so leave it out"
            )
        parts = tuple((p["text"], _weight({key: p[key] for key in p if p[key] is not None})) for p in given)
    return Message(role, content, reasoning, calls, weight, parts)


def _weight(fields: dict) -> int:
    """Whether a message, or a part of one, is trained on."""
    weights = {}
    for name, on in SWITCHES.items():
        if name in fields:
            if fields[name] not in (0, 1):
                raise BadRecord(
                    f"`{name}` is {fields[name]!r:.40}: use {on}, or {1 - on} for an answer that is not trained on"
                )
            weights[name] = int(fields[name] == on)
    if unclear := [name for name in UNCLEAR if name in fields]:
        raise BadRecord(f"`{unclear[0]}` means different things in different projects: use `weight` (1 or 0) instead")
    if len(set(weights.values())) > 1:
        raise BadRecord(f"{' and '.join(f'`{name}`' for name in weights)} contradict each other: keep one of them")
    return next(iter(weights.values()), 1)


def split_thinking(content: str) -> tuple[str, str]:
    """An answer that begins with <think>…</think> -> (reasoning, the rest). Line ends at both ends of the reasoning and
    before the rest belong to the tags and are dropped, nothing else."""
    if not content.startswith("<think>") or "</think>" not in content:
        return "", content
    reasoning, rest = content.removeprefix("<think>").split("</think>", 1)
    return reasoning.strip("\n"), rest.lstrip("\n")


def _calls(raw: Any) -> tuple[dict, ...]:
    """Tool calls, with or without OpenAI's {"function": …} around each -> {"name", "arguments"} each."""
    calls = _parsed(raw, "`tool_calls`")
    result = []
    for call in _named([calls] if isinstance(calls, dict) else calls, "`tool_calls`", "calls"):
        arguments = call.get("arguments")
        if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
            arguments = {}
        if not isinstance(_parsed(arguments, f"the arguments of {call['name']}"), dict):
            raise BadRecord(f"the arguments of {call['name']} must be an object, not {_kind(arguments)}")
        result.append({"name": call["name"], "arguments": arguments})
    return tuple(result)


def _named(raw: Any, what: str, of_what: str) -> tuple[dict, ...]:
    """Objects with a name each, without OpenAI's {"function": …} around them, that can be written as JSON."""
    named = []
    for given in _list(raw, what, of_what):
        function = given["function"] if isinstance(given, dict) and given.get("function") else given
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise BadRecord(f'{what} must hold objects with a "name" each')
        named.append(function)
    try:  # a table can hold dates and bytes, which JSON cannot
        _text(json.dumps(named, ensure_ascii=False) if named else "", what)
    except (TypeError, RecursionError) as error:
        raise BadRecord(f"{what} cannot be written as JSON: {error}") from None
    return tuple(named)


def _tools_in(fields: dict) -> tuple[dict, ...]:
    """The tools that a record or a message lists."""
    return _only([_named(fields.get(name) or (), "`tools`", "function schemas") for name in TOOLS])


def _only(lists_of_tools: list[tuple[dict, ...]]) -> tuple[dict, ...]:
    given = [tools for tools in lists_of_tools if tools]
    if len(given) > 1:
        raise BadRecord("lists its tools in more than one place: keep one of them")
    return given[0] if given else ()


# ---------------------------------------------------------------------------------------------------------
# a pair: one prompt, a chosen answer and a rejected one


def pair_of(record: Any) -> Pair:
    """The pair in a record of any layout that docs/data_formats.md lists. Raises BadRecord.

    MiniMind: `chosen` and `rejected` are whole conversations. TRL: the same, or only the answers, with `prompt` beside
    them; texts or messages. OpenAI: `input`, `preferred_output`, `non_preferred_output`. LLaMA-Factory:
    `conversations` or `instruction` beside the two answers.
    """
    fields = _given(record, "`chosen` and `rejected`")
    names = next((names for names in PAIRS if any(name in fields for name in names)), PAIRS[0])
    for name in names:
        if name not in fields:
            raise BadRecord(f"has no `{name}`, which a pair needs (it has {_names(fields)}): add it")
    both = f"`{names[0]}` and `{names[1]}`"
    prompt, tools = _prompt(fields)
    answers = [fields[name] for name in names]
    if all(isinstance(answer, str) for answer in answers):
        if prompt and prompt[-1].role != "system":
            question = prompt[-1].content
            ends = [answer[len(question) :] if answer.startswith(question) else "" for answer in answers]
            if question.strip() and all(end[:1].isspace() for end in ends):
                raise BadRecord(f"{both} begin with the prompt, which stands beside them too: keep it in one place")
        else:
            question, answers = _split(answers, fields)
            prompt = (*prompt, Message("user", question))
        answers = [[{"role": "assistant", "content": answer}] for answer in answers]
    conversations = []
    for name, answer in zip(names, answers, strict=True):
        messages = [answer] if isinstance(answer, dict) else answer
        if not isinstance(messages, list) or not messages or not all(isinstance(one, dict) for one in messages):
            raise BadRecord(f"`{name}` must be a text or a list of messages, as the other answer is")
        conversation = checked_conversation(messages)
        conversations.append(_behind(prompt, conversation.messages, name))
        if conversation.tools and tools and conversation.tools != tools:
            raise BadRecord("the prompt and the two answers list different tools: give all of them the same")
        tools = tools or conversation.tools
    chosen, rejected = (Conversation(messages, tools) for messages in conversations)
    if chosen == rejected:
        raise BadRecord(f"{both} are equal, so there is nothing to prefer: leave the pair out")
    alike = (one == other for one, other in zip(*conversations, strict=False))  # how many messages both begin with
    shared = sum(itertools.takewhile(bool, alike))
    if not _turns(chosen.messages[:shared]):
        raise BadRecord(NOTHING_SHARED.format(both))
    for name, messages in zip(names, conversations, strict=True):
        if shared >= len(messages) or messages[shared].role != "assistant":
            raise BadRecord(f"`{name}` has no answer of the assistant behind the common prompt: add it")
    if not _holds(chosen.messages[:shared], _turns(prompt)):
        raise BadRecord(f"the prompt does not stand before the place where {both} differ")
    return Pair(chosen, rejected, shared)


def _prompt(fields: dict) -> tuple[Messages, tuple[dict, ...]]:
    """The prompt that stands beside the answers, () where they hold it; and the tools."""
    if "preferred_output" in fields or "non_preferred_output" in fields:  # OpenAI's
        there = fields.get("input")
        if not isinstance(there, dict) or "messages" not in there:
            raise BadRecord('has no `input` with messages: give {"messages": […]}')
        given, tools = _messages({"messages": there["messages"]}), _tools_in(there) or _tools_in(fields)
    else:
        given, tools = _question({name: value for name, value in fields.items() if value != ""}), _tools_in(fields)
        lists = [fields[name] for name in LISTS if name in fields]
        if not given and lists:
            given = _messages({"messages": lists[0]})
        elif given and lists and fields.get("chosen") not in lists:  # one that is the chosen answer adds nothing
            raise BadRecord("has its prompt as messages and in a field of its own: keep one of them")
    if not (messages := [*_system(fields), *given]):
        return (), tools
    conversation = checked_conversation(messages, tools)
    if conversation.messages[-1].role == "assistant":
        raise BadRecord("the prompt ends with an answer: leave that one out, or ask something behind it")
    return conversation.messages, conversation.tools


def _split(answers: Sequence[str], fields: dict) -> tuple[str, list[str]]:
    """Texts that hold the prompt: it is what both begin with, up to the last white space before two answers."""
    unread = [name for name, text in fields.items() if isinstance(text, str) and name not in READ]
    if unread := [name for name in unread if len(fields[name].split()) > 1]:
        raise BadRecord(
            f"has no prompt that is known, but a text in `{unread[0]}`: name it `prompt` if it is that, otherwise "
            "leave it out"
        )
    alike = itertools.takewhile(
        lambda both: both[0] == both[1], zip(*(text.rstrip() for text in answers), strict=False)
    )
    common = re.sub(r"\S*$", "", "".join(letter for letter, _ in alike)).rstrip()
    if not common:
        raise BadRecord(NOTHING_SHARED.format("`chosen` and `rejected`"))
    return common, [text[len(common) :].lstrip() for text in answers]


def _behind(prompt: Messages, answer: Messages, name: str) -> Messages:
    """A prompt and an answer, where the answer may hold the prompt, a longer one, or its end: each message once."""
    question, turns = _turns(prompt), _turns(answer)
    system, own = prompt[: len(prompt) - len(question)], answer[: len(answer) - len(turns)]
    if system and own and not _same(system, own):
        raise BadRecord(f"`{name}` has another system message than the prompt: keep one of them")
    system = own or system
    if _holds(turns[:-1], question):
        return system + turns
    if not turns or turns[0].role == "assistant":  # the answer alone
        return system + question + turns
    for size in range(min(len(question), len(turns) - 1), 0, -1):
        if _same(question[-size:], turns[:size]):
            return system + question[:-size] + turns
    raise BadRecord(f"`{name}` begins with another question than the prompt: give the answer alone, or no prompt")


def _turns(messages: Messages) -> Messages:
    """Without the system messages at the beginning."""
    return tuple(itertools.dropwhile(lambda message: message.role == "system", messages))


def _same(some: Messages, others: Messages) -> bool:
    """Whether the messages say the same, white space around them aside."""
    return [(m.role, m.content.strip(), m.reasoning_content.strip(), m.tool_calls) for m in some] == [
        (m.role, m.content.strip(), m.reasoning_content.strip(), m.tool_calls) for m in others
    ]


def _holds(messages: Messages, some: Messages) -> bool:
    """Whether these messages stand among the others, one behind the other."""
    return any(_same(messages[i : i + len(some)], some) for i in range(len(messages) - len(some) + 1))


# ---------------------------------------------------------------------------------------------------------
# fields


def _list(value: Any, what: str, of_what: str) -> list:
    value = _parsed(value, what)
    if not isinstance(value, list | tuple):
        raise BadRecord(f"{what} is {_kind(value)}: it must be a list of {of_what}")
    return list(value)


def _parsed(value: Any, what: str) -> Any:
    """A value that may be JSON text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value) if value.strip() else []
    except (ValueError, RecursionError) as error:
        raise BadRecord(f"{what} is not valid JSON: {error}") from None


def _field(fields: dict, name: str) -> str:
    """A field that must exist and be a text."""
    if name not in fields:
        raise BadRecord(f"has no field `{name}` (it has {_names(fields)}): add it, or leave the record out")
    return _text(fields[name], f"field `{name}`")


def _text(value: Any, what: str) -> str:
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
