"""What does a record of preferences say? One prompt, a chosen answer and a rejected one, in any of the known layouts.

MiniMind: `chosen` and `rejected` are whole conversations. TRL: the same, or only the answers, with `prompt` beside
them; texts or messages. OpenAI: `input`, `preferred_output`, `non_preferred_output`. LLaMA-Factory: `conversations` or
`instruction` beside the two answers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from data.reading.records import (
    LISTS,
    QUESTIONS,
    SYSTEMS,
    TOOLS,
    BadRecord,
    Conversation,
    Message,
    asked_in,
    checked_conversation,
    given_fields,
    messages_in,
    system_in,
    tools_in,
)

NAMES = (("chosen", "rejected"), ("preferred_output", "non_preferred_output"))
READ = (*NAMES[0], *QUESTIONS, *SYSTEMS, *TOOLS, "history")  # fields that may hold text, all of them read
NOTHING_SHARED = "{} have no common prompt: let both begin with it, or add a field `prompt`"
Messages = tuple[Message, ...]


@dataclass(frozen=True)
class Pair:
    """Two conversations that begin alike: their first `shared` messages are the prompt, the rest are the answers."""

    chosen: Conversation
    rejected: Conversation
    shared: int

    @property
    def both(self) -> tuple[Conversation, Conversation]:
        return self.chosen, self.rejected

    @property
    def prompt(self) -> Conversation:
        return Conversation(self.chosen.messages[: self.shared], self.chosen.tools)

    @property
    def answers(self) -> list[Conversation]:
        """What is trained on."""
        return [Conversation(one.messages[self.shared :]) for one in self.both]


def pair_of(record: Any) -> Pair:
    """The pair in a record of any layout that docs/data_formats.md lists. Raises BadRecord."""
    if not isinstance(record, dict):
        raise BadRecord(
            "is not an object with `chosen` and `rejected`: see docs/data_formats.md for the layouts of pairs"
        )
    fields = given_fields(record)
    names = next((names for names in NAMES if any(name in fields for name in names)), NAMES[0])
    for name in names:
        if name not in fields:
            raise BadRecord(
                f"has no `{name}`, which a pair needs (it has {', '.join(map(str, fields)) or 'no fields'}): add it"
            )
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
    given = []
    for name, answer in zip(names, answers, strict=True):
        messages = [answer] if isinstance(answer, dict) else answer
        if not isinstance(messages, list) or not messages or not all(isinstance(one, dict) for one in messages):
            raise BadRecord(f"`{name}` must be a text or a list of messages, as the other answer is")
        given.append(checked_conversation(messages))
    listed = [each for each in (tools, *(one.tools for one in given)) if each]
    if any(tools != listed[0] for tools in listed):
        raise BadRecord("the prompt and the two answers list different tools: give all of them the same")
    chosen, rejected = (
        Conversation(_joined(prompt, one.messages, name), listed[0] if listed else ())
        for name, one in zip(names, given, strict=True)
    )
    if chosen == rejected:
        raise BadRecord(f"{both} are equal, so there is nothing to prefer: leave the pair out")
    pairs = zip(chosen.messages, rejected.messages, strict=False)  # how many messages both begin with
    shared = next((i for i, (one, other) in enumerate(pairs) if one != other), None)
    shared = min(len(chosen.messages), len(rejected.messages)) if shared is None else shared
    if not _turns(chosen.messages[:shared]):
        raise BadRecord(NOTHING_SHARED.format(both))
    for name, one in zip(names, (chosen, rejected), strict=True):
        if shared >= len(one.messages) or one.messages[shared].role != "assistant":
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
        given, tools = messages_in({"messages": there["messages"]}), tools_in(there) or tools_in(fields)
    else:
        given, tools = asked_in({name: value for name, value in fields.items() if value != ""}), tools_in(fields)
        lists = [fields[name] for name in LISTS if name in fields]
        if not given and lists:
            given = messages_in({"messages": lists[0]})
        elif given and lists and fields.get("chosen") not in lists:  # one that is the chosen answer adds nothing
            raise BadRecord("has its prompt as messages and in a field of its own: keep one of them")
    if not (messages := [*system_in(fields), *given]):
        return (), tools
    conversation = checked_conversation(messages, tools)
    if conversation.messages[-1].role == "assistant":
        raise BadRecord("the prompt ends with an answer: leave that one out, or ask something behind it")
    return conversation.messages, conversation.tools


def _split(answers: Sequence[str], fields: dict) -> tuple[str, list[str]]:
    """Texts that hold the prompt: it is what both begin with, up to the last white space before two answers."""
    texts = {name: value for name, value in fields.items() if isinstance(value, str) and name not in READ}
    if unread := [name for name, text in texts.items() if len(text.split()) > 1]:
        raise BadRecord(
            f"has no prompt that is known, but a text in `{unread[0]}`: name it `prompt` if it is that, otherwise "
            "leave it out"
        )
    both = [text.rstrip() for text in answers]
    alike = next((i for i, (a, b) in enumerate(zip(*both, strict=False)) if a != b), min(map(len, both)))
    common = re.sub(r"\S*$", "", both[0][:alike]).rstrip()
    if not common:
        raise BadRecord(NOTHING_SHARED.format("`chosen` and `rejected`"))
    return common, [text[len(common) :].lstrip() for text in answers]


def _joined(prompt: Messages, answer: Messages, name: str) -> Messages:
    """A prompt and an answer, where the answer may hold the prompt, a longer one, or its end: each message once."""
    asked, turns = _turns(prompt), _turns(answer)
    system, own = prompt[: len(prompt) - len(asked)], answer[: len(answer) - len(turns)]
    if system and own and not _same(system, own):
        raise BadRecord(f"`{name}` has another system message than the prompt: keep one of them")
    system = own or system
    if _holds(turns[:-1], asked):
        return system + turns
    if not turns or turns[0].role == "assistant":  # the answer alone
        return system + asked + turns
    for size in range(min(len(asked), len(turns) - 1), 0, -1):
        if _same(asked[-size:], turns[:size]):
            return system + asked[:-size] + turns
    raise BadRecord(f"`{name}` begins with another question than the prompt: give the answer alone, or no prompt")


def _turns(messages: Messages) -> Messages:
    """Without the system messages at the beginning."""
    first = next((i for i, message in enumerate(messages) if message.role != "system"), len(messages))
    return messages[first:]


def _same(some: Messages, others: Messages) -> bool:
    """Whether the messages say the same, white space around them aside."""

    def said(message: Message) -> tuple:
        return message.role, message.content.strip(), message.reasoning_content.strip(), message.tool_calls

    return list(map(said, some)) == list(map(said, others))


def _holds(messages: Messages, some: Messages) -> bool:
    """Whether these messages stand among the others, one behind the other."""
    return any(_same(messages[i : i + len(some)], some) for i in range(len(messages) - len(some) + 1))
