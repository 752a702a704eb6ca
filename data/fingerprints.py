"""Which document is it? A number for every text, which decides its split, and a set that holds many of them."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np


def fingerprint(text: str) -> int:
    """64 bits of the text's SHA-256: the same on every machine, in [0, 2**64)."""
    return number_of(hashlib.sha256(text.encode("utf-8", "surrogatepass")))


def number_of(digest: Any) -> int:
    """The number of a text that was hashed piece by piece: digest is a hashlib object."""
    return int.from_bytes(digest.digest()[:8], "big")


class Seen:
    """A set of 64-bit numbers, in 8 bytes each, for more documents than a Python set could hold.

    New numbers are in a small set, older ones in sorted arrays. Two arrays of about the same size become one.
    """

    RECENT = 1 << 16

    def __init__(self) -> None:
        self._recent: set[int] = set()
        self._older: list[np.ndarray] = []  # sorted, each more than twice as long as the next

    def add(self, number: int) -> bool:
        """Remember a number; True if it was there before."""
        if number in self._recent or any(_holds(numbers, number) for numbers in self._older):
            return True
        self._recent.add(number)
        if len(self._recent) >= self.RECENT:
            self._older.append(np.array(sorted(self._recent), dtype=np.uint64))
            self._recent.clear()
            while len(self._older) > 1 and len(self._older[-2]) <= 2 * len(self._older[-1]):
                merged = np.concatenate([self._older.pop(), self._older.pop()])
                merged.sort()
                self._older.append(merged)
        return False


def _holds(numbers: np.ndarray, number: int) -> bool:
    at = int(np.searchsorted(numbers, np.uint64(number)))
    return at < len(numbers) and int(numbers[at]) == number
