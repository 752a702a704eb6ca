"""A tokenizer: text becomes numbers. 10 minutes.

A model computes with numbers, so text becomes ids first. The simplest tokenizer gives every
character an id. It needs no training, and a small model learns well with it.

    vocabulary_of   the list of all tokens; a token's place in the list is its id
    encode          text -> ids
    decode          ids -> text

The list begins with 12 places for special tokens: PAD fills rows, BOS begins a text, EOS ends it.
No character may get their ids, so these places hold "". Then follow the characters of the text,
each once, sorted. At the end, "" is added until the length is a multiple of 64: matrix products
are faster then.

    vocabulary_of("banana")     ["", … 12 times …, "a", "b", "n", "", … up to 64 places]
    encode("nab", …)            [14, 12, 13]
    decode([1, 14, 12, 2], …)   "na"          BOS and EOS are not text

A character that is not in the list cannot be encoded: raise a ValueError that names it. To drop
it in silence would change the text.

The exercise `bpe` builds longer tokens. The same in Headlight: data/tokenizer.py.
"""

from __future__ import annotations

PAD = 0
BOS = 1
EOS = 2
SPECIAL = 12  # These ids are no characters.


def vocabulary_of(text: str) -> list[str]:
    """Return the token of every id: 12 times "", the characters, "" up to a multiple of 64."""
    # <solution>
    vocabulary = [""] * SPECIAL + sorted(set(text))
    return vocabulary + [""] * (-len(vocabulary) % 64)
    # </solution>


def encode(text: str, vocabulary: list[str]) -> list[int]:
    """Return the id of every character. Raises ValueError for a character without an id."""
    # <solution>
    id_of = {token: i for i, token in enumerate(vocabulary) if token}
    unknown = sorted(set(text) - set(id_of))
    if unknown:
        raise ValueError(f"the vocabulary has no {unknown[0]!r}")
    return [id_of[character] for character in text]
    # </solution>


def decode(ids: list[int], vocabulary: list[str]) -> str:
    """Return the text of these ids."""
    # <solution>
    return "".join(vocabulary[i] for i in ids)
    # </solution>
