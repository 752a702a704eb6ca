"""Whether a translation says the same: the same sections with the same numbers, and the same code blocks."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

FENCE = re.compile(r"^(```|~~~)")
HEADING = re.compile(r"^(#{1,6}) +(.*)$")
TARGET = re.compile(r"\]\([^)]*\)|<[^>]+>|https?://\S+")  # where a link leads, and HTML: not prose
# 1,234.5   0.3099   +0.0338   -3   but not the - between 2026-11-21; a letter may stand before (L2 H0)
NUMBER = re.compile(r"(?:(?<![\w.,)%])([+\-−]))?(\d{1,3}(?:,\d{3})+(?![\d])|\d+)(\.\d+)?")


@dataclass
class Section:
    """level: of its heading, 0 before the first. numbers: in prose, tables and comments of code. blocks: its code."""

    level: int = 0
    heading: str = ""
    numbers: Counter[str] = field(default_factory=Counter)
    blocks: list[str] = field(default_factory=list)


def sections(text: str) -> list[Section]:
    """A Markdown text, cut at its headings."""
    found, block = [Section()], None
    for line in text.splitlines():
        if FENCE.match(line):
            if block is None:
                block = [line.strip()]
            else:
                found[-1].blocks.append("\n".join(block))
                block = None
        elif block is not None:
            code, comment = _split(line)
            block.append(code)
            found[-1].numbers.update(numbers(comment))
        elif heading := HEADING.match(line):
            found.append(Section(len(heading[1]), heading[2], numbers(heading[2])))
        else:
            found[-1].numbers.update(numbers(line))
    return found


def numbers(line: str) -> Counter[str]:
    """Every number of a line, in one spelling: 1,234 is 1234, 05 is 5, − is -."""
    plain = TARGET.sub("] ", line).replace("％", "%")
    return Counter(
        (sign or "").replace("−", "-") + (whole.replace(",", "").lstrip("0") or "0") + fraction
        for sign, whole, fraction in NUMBER.findall(plain)
    )


def _split(line: str) -> tuple[str, str]:
    """A line of code, and its comment, which may be translated."""
    code, sign, comment = re.match(r"^(.*?)((?:^|\s)#\s|$)(.*)$", line).groups()  # type: ignore[union-attr]
    return code.rstrip(), comment if sign else ""


def differences(text: str, translation: str) -> list[str]:
    """What is not the same in both, one line each."""
    ours, theirs = sections(text), sections(translation)
    shape, other = ([section.level for section in part] for part in (ours, theirs))
    if shape != other:
        names = [" / ".join("#" * s.level + " " + s.heading for s in part[1:]) for part in (ours, theirs)]
        return [f"the headings differ: {names[0]} — {names[1]}"]
    found = []
    for one, two in zip(ours, theirs, strict=True):
        where = f"section {one.heading!r} ({two.heading!r})"
        missing, added = one.numbers - two.numbers, two.numbers - one.numbers
        found += [f"{where}: {number} is missing in the translation" for number in missing.elements()]
        found += [f"{where}: {number} is only in the translation" for number in added.elements()]
        if len(one.blocks) != len(two.blocks):
            found.append(f"{where}: {len(one.blocks)} code blocks, and {len(two.blocks)} in the translation")
        pairs = zip(one.blocks, two.blocks, strict=False)
        found += [f"{where}: a code block differs:\n{a}\n—\n{b}" for a, b in pairs if a != b]
    return found
