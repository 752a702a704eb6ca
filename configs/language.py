"""Print in Chinese if HEADLIGHT_LANG=zh or the locale is Chinese, else in English.

sentences.zh.txt has the lines of a run, a chat and the notebooks' checks: an English line, its
Chinese one, an empty line. Other lines, errors and files stay English. If you change an English
sentence, tests/configs/test_language.py fails.
"""

import os
import re
from functools import cache
from pathlib import Path


def language() -> str:
    """Return zh or en, by HEADLIGHT_LANG or else the first variable of the locale that is set."""
    for name in ("HEADLIGHT_LANG", "LC_ALL", "LC_MESSAGES", "LANG"):
        value = os.environ.get(name)
        if value:
            return "zh" if value.lower().startswith("zh") else "en"
    return "en"


def translated(text: str) -> str:
    """Return the lines of a text in the reader's language."""
    if language() == "en":
        return text
    return "\n".join(in_chinese(line) for line in text.split("\n"))


def in_chinese(line: str) -> str:
    # A whole line is matched, and its figures and names are put into the Chinese one. So the code
    # prints English only, and needs no keys.
    for pattern, chinese in sentences():
        match = pattern.fullmatch(line)
        if match:
            parts = match.groupdict()
            # {name} is any text; {rest…} is a sentence of its own
            for name, part in parts.items():
                if name.startswith("rest"):
                    parts[name] = in_chinese(part)
            return chinese.format(**parts)
    return line


@cache
def sentences() -> list[tuple[re.Pattern[str], str]]:
    """Return (pattern of an English line, its Chinese one) in order; the first match counts."""
    text = Path(__file__).with_name("sentences.zh.txt").read_text(encoding="utf-8")
    pairs = []
    for block in text.strip().split("\n\n"):
        english, chinese = block.split("\n")
        # {name} becomes a group; spaces in front of it only align figures
        pattern = re.sub(r"\\\{(\w+)\\\}", r"\\s*(?P<\1>\\S.*?)", re.escape(english))
        # compiled once: a run prints a line every few seconds
        pairs.append((re.compile(pattern), chinese))
    return pairs
