"""How is text shown that somebody else wrote? As text: it cannot control the terminal, and no mark in it works."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Mapping

MARKS = {"\n": "⏎\n", "\t": "⇥", "\r": "␍"} | {mark: f"⟨U+{ord(mark):04X}⟩" for mark in "⟦⟧⟨⟩⏎⇥␍"}
INVISIBLE = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # Unicode categories
HTML = {"<": "&lt;", "&": "&amp;"}
# what means something within a line: not the `_` of words_like_this, a * alone, the brackets of [0, 1], p < 0.05
WORKING = re.compile(r"[\\`|~]|\*(?=\S)|(?<=\S)\*|(?<![^\W_])_|_(?![^\W_])|<(?=[A-Za-z/!?])|&(?=#?\w+;)")
LINK = re.compile(r"\]\s*[(\[:]")
JOINERS = "\u200c\u200d"  # invisible too, but parts of Persian words and of emoji


def escape(text: str) -> str:
    """One line, with every character replaced that moves the cursor, changes colours or is invisible."""
    return "".join("⏎" if c == "\n" else _by_number(c) if _is_hidden(c) else c for c in text)


def did_you_mean(name: str, names: Mapping[str, object], likeness: float = 0.6) -> str:
    """The end of a sentence about a name that does not exist: the most similar one that does, or "".

    names: name -> how it is written in the sentence. likeness: how similar it must be, from 0 to 1.
    """
    close = difflib.get_close_matches(name, names, 1, likeness)
    return f", did you mean {names[close[0]]}?" if close else ""


def plain(text: str) -> str:
    """Lines, with the same characters replaced. Line ends and tabs stay."""
    if text.isprintable():
        return text
    return "".join(_by_number(c) if _is_hidden(c) and c not in "\n\t" else c for c in text)


def visible(text: str, specials: re.Pattern) -> str:
    """The text with visible line ends, tabs and control characters. Text that looks like a special token is marked."""
    parts = specials.split(text)
    shown = ["".join(MARKS.get(c) or (_by_number(c) if _is_hidden(c) else c) for c in part) for part in parts]
    return "".join(f"⟨text: {part}⟩" if i % 2 else part for i, part in enumerate(shown))


def _is_hidden(character: str) -> bool:
    return unicodedata.category(character) in INVISIBLE and character not in JOINERS


def _by_number(character: str) -> str:
    return f"⟨U+{ord(character):04X}⟩"


class Markdown(str):
    """Text in which marks work, because we put them there; `table` leaves it as it is."""


def markdown(text: str) -> Markdown:
    """Within a line: text that Markdown and HTML show as it is. No emphasis, link, picture or tag in it works."""
    working = re.compile(f"{WORKING.pattern}|[\\[\\]]") if LINK.search(text) else WORKING
    return Markdown(working.sub(lambda mark: HTML.get(mark[0], f"\\{mark[0]}"), escape(text)))


def code(text: str) -> Markdown:
    """Within a line: text in the type of code."""
    return Markdown(f"`{escape(text).replace('`', chr(39))}`")


def fenced(text: str) -> Markdown:
    """A block of lines in the type of code, whatever backticks are in them."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return Markdown(f"{fence}\n{plain(text)}\n{fence}")
