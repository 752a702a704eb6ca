"""Which language does the terminal speak? Chinese where HEADLIGHT_LANG=zh or the locale says so, else English.

What a run, a chat and a notebook's checks say most often is in sentences.zh.txt: an English line, its Chinese one, an
empty line. {name} stands for anything; what {rest…} stands for is translated too. A line that is not there, and every
error, stays English, as do files: report.md is the same for everybody.
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path


def language() -> str:
    """HEADLIGHT_LANG, or else the first of the locale's variables that is set: zh, and for all others en."""
    names = ("HEADLIGHT_LANG", "LC_ALL", "LC_MESSAGES", "LANG")
    return "zh" if next(filter(None, map(os.environ.get, names)), "").lower().startswith("zh") else "en"


def translated(text: str) -> str:
    """The lines of a text in the reader's language."""
    return text if language() == "en" else "\n".join(map(in_chinese, text.split("\n")))


def in_chinese(line: str) -> str:
    for pattern, chinese in sentences():
        if found := pattern.fullmatch(line):
            parts = found.groupdict()
            return chinese.format(**{k: in_chinese(v) if k.startswith("rest") else v for k, v in parts.items()})
    return line


@cache
def sentences() -> list[tuple[re.Pattern[str], str]]:
    """(what an English line looks like, its Chinese one), in the order of the file: the first that fits counts."""
    blocks = Path(__file__).with_name("sentences.zh.txt").read_text(encoding="utf-8").strip().split("\n\n")
    pairs = [block.split("\n") for block in blocks]
    anything = r"\\s*(?P<\1>\\S.*?)"
    return [(re.compile(re.sub(r"\\\{(\w+)\\\}", anything, re.escape(english))), chinese) for english, chinese in pairs]
