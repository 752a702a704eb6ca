"""Does a text go round in circles? A small model often does, above all at temperature 0."""

from __future__ import annotations

from collections.abc import Sequence

COPIES = 5  # of one block in a row: the built-in world sings its songs up to three times, and repeats words up to four
LEAST = 20  # tokens that the copies fill: a row of dots is not a loop yet
LONGEST = 64  # tokens of a block


def repeated_block(ids: Sequence[int]) -> int:
    """How many tokens the block has that the end of `ids` repeats, at least COPIES times in a row; 0 if none does."""
    for length in range(1, LONGEST + 1):
        tokens = length * max(COPIES, -(-LEAST // length))
        if tokens > len(ids):
            if length * COPIES > len(ids):
                return 0
            continue
        if ids[-tokens:-length] == ids[len(ids) - tokens + length :]:
            return length
    return 0
