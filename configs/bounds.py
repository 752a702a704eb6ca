"""How large may a number be, and why? Every number of a config and of a command line has two ends; this is the upper.

Each end lies far beyond what anyone trains, and near enough that no arithmetic with it overflows or takes minutes.
Whether a run fits this machine is another question: train/fits.py asks it.
"""

from __future__ import annotations

from collections.abc import Callable

from configs.command import InputError

MOST_STEPS = 99_999_999  # a checkpoint is named by eight digits of its step
MOST_TOKENS = 10**15  # the largest known models have read a thirtieth of it
MOST_BATCH = 2**30  # tokens of a step; the largest known batches have a sixteenth of it
MOST_POSITIONS = 2**24  # tokens of a text; float32, in which RoPE computes angles, counts no further
MOST_ROW = 2**20  # tokens of a row to train on: four times the longest that we know (Qwen2.5-1M, arXiv 2501.15383)
MOST_LAYERS = 1000  # the deepest known transformers (DeepNet, Wang et al. 2022, arXiv 2203.00555)
MOST_HEADS = 1024  # DeepSeek-V3, which has the most, has 128 (arXiv 2412.19437)
MOST_PROCESSES = 1024  # no machine has more cores
MOST_WIDTH = 2**17  # Llama 3.1 405B has 16,384 (arXiv 2407.21783)
MOST_INNER_WIDTH = 2**20  # 8/3 of the width, three times over
MOST_EXPERTS = 2**17  # Shazeer et al. 2017 had 131,072 (arXiv 1701.06538)
MOST_VOCABULARY = 2**20  # Gemma 3 has 262,208 (arXiv 2503.19786)
MOST_DOCUMENTS = 10**12  # the Common Crawl has read a third of it
MOST_TOLD = 10**9  # documents of the built-in world: telling them takes a week
MOST_QUESTIONS = 10**6  # asked or sampled: each takes a second on a small machine
MOST_BYTES = 10**13  # of text in memory
MOST_SEED = 2**63 - 1  # PyTorch's generators take no more
MOST_MINUTES = 5_256_000.0  # ten years
MOST_RATE = 1e38  # a learning rate or a decay; float32 ends at 3e38
LEAST_DRAWN = 1e-6  # of a temperature that is not 0, of top_p: float32 still divides by it, and tells tokens apart
MOST_TEMPERATURE = 100.0  # all tokens are equally likely long before
MOST_FACTOR = 1e6  # of one quantity to another
LEAST_EPSILON = 1e-30  # float32 makes zero of what is below 1e-38
MOST_RUNS = 1000  # of a sweep, at a time or by seed
MOST_ROUNDS = 10_000  # of a measurement


def whole(option: str, least: int, most: int) -> Callable[[str], int]:
    """For `type=` of an option: reads a whole number of this range. Raises InputError."""

    def read(text: str) -> int:
        digits = text.strip().removeprefix("-").removeprefix("+")
        if not (digits.isascii() and digits.isdecimal() and len(digits) <= 30 and least <= int(text) <= most):
            raise InputError(f"{option} is {_short(text)}: it must be a whole number from {least:,} to {most:,}")
        return int(text)

    return read


def number(option: str, least: float, most: float, *, above: bool = False) -> Callable[[str], float]:
    """For `type=` of an option: reads a number of this range; above: not `least` itself. Raises InputError."""

    def read(text: str) -> float:
        try:
            value = float(text if text.isascii() and "_" not in text else "nan")
        except ValueError:
            value = float("nan")
        if not least <= value <= most or (above and value == least):
            lower = f"above {least:g} and up" if above else f"from {least:g}"
            raise InputError(f"{option} is {_short(text)}: it must be a number {lower} to {most:,g}")
        return value

    return read


def numbers(option: str, least: int, most: int) -> Callable[[str], list[int]]:
    """For `type=` of an option: reads whole numbers of this range, with commas. Raises InputError."""
    one = whole(option, least, most)
    return lambda text: [one(part) for part in text.split(",")]


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}…")
