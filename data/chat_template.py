"""Render conversations with a chat template, the Jinja text that comes with a model.

A foreign template is a stranger's program, so it runs in Jinja's sandbox, with the functions that
transformers provides.
"""

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
# The version is part of the key of prepared chats and pairs. Raise it when a record gets other ids,
# and record the new digest, which tests/storyworld/test_versions.py prints.
CHAT_TEMPLATE_VERSION = 2
CHAT_TEMPLATE_DIGESTS = {1: "954ab88876cda5aa", 2: "fc8f6cd6252004d9"}
# Marks inside a rendered text begin with this. No message can hold it: each process draws its own.
PRIVATE = f"\ufdd0{secrets.token_hex(8)}"
# A {% generation %} block is rendered between two of these.
BLOCK = f"{PRIVATE}|\ufdd1"
# A special token in a message is rendered as this, with its number.
HIDDEN = re.compile(f"{PRIVATE}(\\d+)\ufdd1")


class CannotRender(BadRecord):
    """The chat template refuses a conversation, or is not valid."""


class Piece(NamedTuple):
    """Part of a rendered conversation."""

    text: str
    # one special token, written by the template; else plain text, also if it looks special
    special: bool
    # the number of its {% generation %} block; None outside of them
    block: int | None
    # of its tokens, see data/chat.py
    flags: int = 0
    # no token reaches across its end; the parts of an answer have the tokens of the whole
    joint: bool = True


class ChatTemplate:
    """A chat template.

    - sources: "default", and perhaps "tool_use" for conversations with tools.
    - tokens: bos_token and others, by the names that templates use.
    - specials: the special tokens of the tokenizer.
    """

    def __init__(
        self, sources: Mapping[str, str], tokens: Mapping[str, str], specials: Iterable[str]
    ):
        self.sources = sources
        self.tokens = tokens
        # of two tokens with the same beginning, the longest match wins
        self.specials = sorted(specials, key=len, reverse=True)
        # (?!) never matches: there may be no special tokens
        # a group, so that `split` also returns the tokens that it cuts at
        self._special = re.compile(f"({'|'.join(map(re.escape, self.specials)) or '(?!)'})")
        self._number = {token: i for i, token in enumerate(self.specials)}

    def source(self, tools: Any = None) -> str:
        """Return the Jinja text for a conversation with these tools."""
        name = "tool_use" if tools and self.sources.get("tool_use") else "default"
        return self.sources.get(name) or next(iter(self.sources.values()))

    @property
    def variables(self) -> list[str]:
        """The names of the template's options: enable_thinking, for example."""
        environment = _compiled(self.source()).environment
        tree = environment.parse(self.source())
        usual = {"messages", "tools", "documents", "add_generation_prompt"}
        usual |= self.tokens.keys() | environment.globals.keys()
        # a name that the template sets before it reads it is no option
        first_use: dict[str, str] = {}
        # {% set x = x or 1 %} reads x before it sets it
        uses = sorted(tree.find_all(nodes.Name), key=lambda use: (use.lineno, use.ctx != "load"))
        for use in uses:
            first_use.setdefault(use.name, use.ctx)
        options = find_undeclared_variables(tree) - usual
        return sorted(name for name in options if first_use[name] == "load")

    def render(
        self, messages: Sequence[dict], tools: Sequence[dict] | None = None, **variables: Any
    ) -> list[Piece]:
        """Render a conversation in pieces: joined, they equal transformers' apply_chat_template.

        variables: options of the template, and add_generation_prompt. Raises CannotRender.
        """
        values = {
            "messages": messages,
            "tools": tools or None,
            "documents": None,
            "add_generation_prompt": False,
            **variables,
        }
        try:
            text = _compiled(self.source(tools)).render(self.tokens | self._hidden(values))
        # a stranger's program may raise anything
        except Exception as error:
            raise CannotRender(f"the chat template refuses the conversation: {error}") from None
        pieces = []
        for number, part in enumerate(text.split(BLOCK)):
            # every second part is a block; in it, every second piece is a special token
            block = number // 2 if number % 2 else None
            for i, piece in enumerate(self._special.split(part)):
                if piece:
                    # the respelled tokens of messages become text again
                    piece = HIDDEN.sub(lambda hidden: self.specials[int(hidden[1])], piece)
                    pieces.append(Piece(piece, i % 2 == 1, block))
        return pieces

    def _hidden(self, value: Any) -> Any:
        # special tokens are respelled, so that only those of the template are special
        if isinstance(value, str):
            number = self._number
            return self._special.sub(lambda token: f"{PRIVATE}{number[token[0]]}\ufdd1", value)
        if isinstance(value, dict):
            return {self._hidden(key): self._hidden(part) for key, part in value.items()}
        if isinstance(value, list | tuple):
            return [self._hidden(part) for part in value]
        return value


class _Generation(Extension):
    """transformers' {% generation %}, which marks the assistant's text."""

    # Jinja reads it from the class
    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

    def _marked(self, caller: Any) -> str:
        return f"{BLOCK}{caller()}{BLOCK}"


class _Namespace(Namespace):
    """A namespace without private names, which lead out of the sandbox."""

    def __init__(self, /, *args: Any, **named: Any) -> None:
        super().__init__()
        for name, value in dict(*args, **named).items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise TemplateError(f"a namespace cannot hold {name!r}")
        super().__setitem__(name, value)


@lru_cache(maxsize=64)
def _compiled(source: str) -> Template:
    # with the functions that transformers provides
    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    # Jinja's own filter escapes for HTML
    def as_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    # immutable: the template gets our lists of messages and must not change them
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, "jinja2.ext.loopcontrols"],
    )
    environment.filters["tojson"] = as_json
    environment.globals |= {
        "raise_exception": raise_exception,
        # some templates write today's date into the system message
        "strftime_now": lambda form: datetime.now().strftime(form),
        # a function, because the class leads into Python
        "dict": lambda *args, **named: dict(*args, **named),
        "namespace": _Namespace,
    }
    return environment.from_string(source)
