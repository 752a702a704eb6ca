"""The chat template, the Jinja text that every program renders a conversation with, and how it is rendered here.

The template of a model directory decides: ours for our own models, theirs for a foreign one. It is somebody else's
program, so it runs in Jinja's sandbox, with what transformers gives it.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from data.reading.messages import BadRecord

CHAT_TEMPLATE = Path(__file__).with_name("chat_template.jinja").read_text(encoding="utf-8")
# Part of what makes prepared chats and pairs themselves. Raise it when a record gets other ids (data/chat.py and
# data/reading/records.py included) and record the new digest; tests/storyworld/test_versions.py says which. A comment
# needs no new version.
CHAT_TEMPLATE_VERSION = 2
CHAT_TEMPLATE_DIGESTS = {1: "954ab88876cda5aa", 2: "fc8f6cd6252004d9"}
# Begins the marks inside a rendered text. No message can hold it, because this number is drawn for each process
PRIVATE = f"\ufdd0{secrets.token_hex(8)}"
BLOCK = f"{PRIVATE}|\ufdd1"  # where a {% generation %} block begins, and where it ends


class CannotRender(BadRecord):
    """A chat template refuses a conversation, or is none. The message is the template's own."""


class Piece(NamedTuple):
    """Part of a rendered conversation.

    special: it is one special token, written by the template; otherwise it is plain text, whatever
    it looks like. block: the {% generation %} block that it is in, from 0; None outside of them.
    flags: of its tokens, by data/chat.py. joint: no token reaches across its end; the parts of an
    answer have the tokens of the whole.
    """

    text: str
    special: bool
    block: int | None
    flags: int = 0
    joint: bool = True


class ChatTemplate:
    """sources: "default", and "tool_use" for conversations with tools, where there is one. tokens: bos_token and others
    by the names that templates know. specials: the special tokens of the tokenizer."""

    def __init__(self, sources: Mapping[str, str], tokens: Mapping[str, str], specials: Iterable[str]):
        self.sources, self.tokens = sources, tokens
        self.specials = sorted(specials, key=len, reverse=True)  # the longest one that fits is meant
        self._special = re.compile(f"({'|'.join(map(re.escape, self.specials)) or '(?!)'})")
        self._number = {token: i for i, token in enumerate(self.specials)}

    def source(self, tools: Any = None) -> str:
        """The Jinja text for a conversation with these tools."""
        wanted = "tool_use" if tools and self.sources.get("tool_use") else "default"
        return self.sources.get(wanted) or next(iter(self.sources.values()))

    @property
    def variables(self) -> list[str]:
        """What the template can be told besides a conversation: enable_thinking, for example.

        A name that the template sets before it reads it is its own.
        """
        environment = _compiled(self.source()).environment
        tree = environment.parse(self.source())
        given = {"messages", "tools", "documents", "add_generation_prompt", *self.tokens, *environment.globals}
        first: dict[str, str] = {}
        for node in sorted(tree.find_all(nodes.Name), key=lambda node: (node.lineno, node.ctx != "load")):
            first.setdefault(node.name, node.ctx)
        return sorted(name for name in find_undeclared_variables(tree) - given if first[name] == "load")

    def render(self, messages: Sequence[dict], tools: Sequence[dict] | None = None, **variables: Any) -> list[Piece]:
        """The conversation in pieces; their joined texts are what transformers' apply_chat_template writes.

        variables: for the template, add_generation_prompt among them. Raises CannotRender.
        """
        given = {"messages": messages, "tools": tools or None, "documents": None, "add_generation_prompt": False}
        try:
            text = _compiled(self.source(tools)).render(self.tokens | self._hidden(given | variables))
        except Exception as error:  # whatever a stranger's program may raise
            raise CannotRender(f"the chat template refuses the conversation: {error}") from None
        pieces = []
        for number, part in enumerate(text.split(BLOCK)):  # every second part is a block
            block, texts = number // 2 if number % 2 else None, self._special.split(part)  # text, special, text, …
            pieces += [Piece(self._shown(text), i % 2 == 1, block) for i, text in enumerate(texts) if text]
        return pieces

    def _hidden(self, value: Any) -> Any:
        """The same with another spelling of special tokens in it, so that those of the template alone are special."""
        if isinstance(value, str):
            return self._special.sub(lambda token: f"{PRIVATE}{self._number[token[0]]}\ufdd1", value)
        if isinstance(value, dict):
            return {self._hidden(key): self._hidden(part) for key, part in value.items()}
        return [self._hidden(part) for part in value] if isinstance(value, list | tuple) else value

    def _shown(self, text: str) -> str:
        return re.sub(f"{PRIVATE}(\\d+)\ufdd1", lambda hidden: self.specials[int(hidden[1])], text)


class _Generation(Extension):
    """transformers' {% generation %}, which marks what the assistant writes."""

    tags = {"generation"}  # noqa: RUF012  # Jinja reads it from the class

    def parse(self, parser: Any) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

    def _marked(self, caller: Any) -> str:
        return f"{BLOCK}{caller()}{BLOCK}"


class _Namespace(Namespace):
    """Without names that lead into Python: from one of them the sandbox can be left."""

    def __init__(self, /, *given: Any, **named: Any) -> None:
        super().__init__()
        for name, value in dict(*given, **named).items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise TemplateError(f"a namespace cannot hold {name!r}")
        super().__setitem__(name, value)


@lru_cache(maxsize=64)
def _compiled(source: str) -> Template:
    """A template with what transformers gives it."""

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def as_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:  # Jinja's own is for HTML
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    extensions = [_Generation, "jinja2.ext.loopcontrols"]
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    environment.filters["tojson"] = as_json
    environment.globals |= {
        "raise_exception": raise_exception,
        "strftime_now": lambda form: datetime.now().strftime(form),
        "dict": lambda *given, **named: dict(*given, **named),  # not the class, which leads into Python
        "namespace": _Namespace,
    }
    return environment.from_string(source)
