"""What does a record of preferences say? One prompt, a chosen answer and a rejected one, in any of the known layouts.

MiniMind: `chosen` and `rejected` are whole conversations. TRL: the same, or only the answers, with `prompt` beside
them; texts or messages. OpenAI: `input`, `preferred_output`, `non_preferred_output`. LLaMA-Factory: `conversations` or
`instruction` beside the two answers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from data.reading.records import BadRecord, Conversation, Message, checked_conversation

NAMES = (("chosen", "rejected"), ("preferred_output", "non_preferred_output"))
PROMPTS = ("prompt", "conversations", "messages", "instruction")  # the names of a prompt beside the answers


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
    fields = {name: value for name, value in record.items() if value is not None}
    names = next((names for names in NAMES if any(name in fields for name in names)), NAMES[0])
    for name in names:
        if name not in fields:
            raise BadRecord(
                f"has no `{name}`, which a pair needs (it has {', '.join(map(str, fields)) or 'no fields'}): add it"
            )
    prompt, tools = _prompt(fields)
    answers = [fields[name] for name in names]
    if all(isinstance(answer, str) for answer in answers):
        if not prompt:
            prompt, answers = _split(*answers)
        answers = [[{"role": "assistant", "content": answer}] for answer in answers]
    chosen, rejected = (_conversation(prompt, answer, tools, name) for name, answer in zip(names, answers, strict=True))
    if chosen == rejected:
        raise BadRecord(f"`{names[0]}` and `{names[1]}` are equal, so there is nothing to prefer: leave the pair out")
    return Pair(chosen, rejected, _shared(chosen.messages, rejected.messages, names))


def _prompt(fields: dict) -> tuple[list, Any]:
    """The prompt as messages, [] where the answers hold it; and the tools."""
    tools = fields.get("tools") or ()
    given: Any = next((fields[name] for name in PROMPTS if name in fields), [])
    if "preferred_output" in fields or "non_preferred_output" in fields:  # OpenAI's
        there = fields.get("input")
        if not isinstance(there, dict) or "messages" not in there:
            raise BadRecord('has no `input` with messages: give {"messages": […]}')
        given, tools = there["messages"], there.get("tools") or tools
    elif "instruction" in fields and fields.get("input"):
        given = f"{given}\n{fields['input']}"
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    if not isinstance(given, list):
        raise BadRecord("`prompt` is neither a text nor a list of messages")
    system = [{"role": "system", "content": fields["system"]}] if fields.get("system") else []
    return [*system, *given], tools


def _split(chosen: str, rejected: str) -> tuple[list, list[str]]:
    """Texts that hold the prompt: it is what both begin with, up to the last white space."""
    alike = next((i for i, (a, b) in enumerate(zip(chosen, rejected, strict=False)) if a != b), None)
    common = re.sub(r"\S*$", "", chosen[:alike]).rstrip()
    if not common:
        raise BadRecord(
            "`chosen` and `rejected` have no common prompt: let both begin with it, or add a field `prompt`"
        )
    return [{"role": "user", "content": common}], [text[len(common) :].lstrip() for text in (chosen, rejected)]


def _conversation(prompt: list, answer: Any, tools: Any, name: str) -> Conversation:
    messages = [answer] if isinstance(answer, dict) else answer
    if not isinstance(messages, list) or not messages or not all(isinstance(one, dict) for one in messages):
        raise BadRecord(f"`{name}` must be a text or a list of messages, as the other answer is")
    whole = checked_conversation(messages, tools)
    if prompt:
        before = checked_conversation(prompt).messages
        if whole.messages[: len(before)] != before:  # the answer alone
            whole = checked_conversation([*prompt, *messages], tools)
    return whole


def _shared(chosen: tuple[Message, ...], rejected: tuple[Message, ...], names: tuple[str, str]) -> int:
    """How many messages both begin with, all of them before an answer."""
    pairs = zip(chosen, rejected, strict=False)
    shared = next((i for i, (one, other) in enumerate(pairs) if one != other), min(len(chosen), len(rejected)))
    if not shared:
        raise BadRecord(
            f"`{names[0]}` and `{names[1]}` have no common prompt: let both begin with it, or add a field `prompt`"
        )
    for name, messages in zip(names, (chosen, rejected), strict=True):
        if shared >= len(messages) or messages[shared].role != "assistant":
            raise BadRecord(f"`{name}` has no answer of the assistant behind the common prompt: add it")
    return shared
