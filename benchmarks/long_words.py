"""What do texts cost that have no spaces, beside prose? `python -m benchmarks.long_words [--prose FILE]`

Each text is learned from and encoded by a tokenizer of its own (bpe, 2,048 ids), then prepared from file to manifest.
The numbers are seconds of computing for each megabyte, all cores together, so other work beside it disturbs little. The
aim: within three times of prose, and the same for a text twice as long.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TypeVar

from configs.command import exit_on_bad_input, number
from configs.files import read_text
from configs.text import table
from data.config import DataConfig, FilesSource, TokenizerConfig
from data.prepare import prepare
from data.storyworld import tell_many
from data.tokenizer import cut, train_tokenizer

Result = TypeVar("Result")
EXCERPT = 1 << 14  # characters, as data.prepare takes them


def drawn(alphabet: str) -> Callable[[int], str]:
    """A function of a number of bytes: that much text, drawn from the alphabet."""
    return lambda size: "".join(Random(size).choices(alphabet, k=size // len(alphabet[-1].encode())))


TEXTS: dict[str, Callable[[int], str]] = {
    "one letter": drawn("a"),
    "DNA": drawn("ACGT"),
    "letters": drawn("abcdefghijklmnopqrstuvwxyz"),
    "Chinese": drawn("".join(map(chr, range(0x4E00, 0x9FA5)))),
    "Thai": drawn("กขคงจฉชซญดตถทธนบปผพฟมยรลวสหอฮ"),
    "digits": drawn("0123456789"),
    "punctuation": drawn("!?.,;:'"),
    "apostrophes": drawn("'sstrevmld"),
    "spaces": lambda size: " " * size + "x",
    "line ends": lambda size: "\n" * size + "x",
    "white space": lambda size: drawn(" \t\r\n\u2028\u3000")(size) + "x",
    "emoji": drawn("🦊🏳🌈👩👧👦"),
    "combining marks": lambda size: "e" + "\u0301" * (size // 2),
    "base64": drawn("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"),
}


def prose(size: int) -> str:
    """Stories of the built-in world."""
    text = "\n".join(story.text for story in tell_many(0, 0, size // 400))
    return text[:size]


def main() -> int:
    parser = argparse.ArgumentParser(description="Time long words beside prose.")
    parser.add_argument("--megabytes", type=number("--megabytes", 0, above=True), default=1.0, help="size of each text")
    parser.add_argument(
        "--prose", type=Path, help="a text file to compare with (default: stories of the built-in world)"
    )
    options = parser.parse_args()
    size = int(options.megabytes * 1e6)
    rows = []
    ordinary = read_text(options.prose)[:size] if options.prose else prose(size)
    expected = measured(ordinary)
    for name, text in {"prose": None, **TEXTS}.items():
        found = measured(text(size)) if text else expected
        ratios = [f"{one:.2f} ({one / of_prose:.1f} ×)" for one, of_prose in zip(found, expected, strict=True)]
        rows.append([name, *ratios])
    print(table(["text", "learn", "encode", "prepare in all"], rows))
    return 0


def measured(text: str) -> tuple[float, float, float]:
    """Seconds of computing a megabyte: to learn from a text, to encode it, and to prepare it from a file."""
    config, megabytes = TokenizerConfig(kind="bpe"), len(text.encode()) / 1e6
    pieces = cut(text, EXCERPT)
    tokenizer, learn = timed(lambda: train_tokenizer(config, pieces))
    _, encode = timed(lambda: tokenizer.encode(text))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "text.txt"
        file.write_text(text, encoding="utf-8", newline="\n")
        data = DataConfig(source=FilesSource(kind="files", path=str(file)), tokenizer=config)
        _, whole = timed(lambda: prepare(data, Path(folder)))
    return learn / megabytes, encode / megabytes, whole / megabytes


def timed(work: Callable[[], Result]) -> tuple[Result, float]:
    """What it returns, and the seconds that all cores computed for it."""
    before = sum(os.times()[:2])
    result = work()
    return result, sum(os.times()[:2]) - before


if __name__ == "__main__":
    exit_on_bad_input(main)
