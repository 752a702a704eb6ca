"""Which texts are long enough? Held-out documents joined into one, and random words of which some come again.

No document of the built-in world is as long as four rows, so:

    held-out text   the held-out documents one after the other, cut into pieces: what the model reads in training, but
                    with more before it. If nothing breaks, the loss is the same at every position
    recall text     random words, no two alike; at the end phrases of it come again, from known places
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from random import Random

import torch
from torch import Tensor

from configs.command import InputError
from data.chat import plain_texts
from data.config import DataConfig
from data.reading.documents import documents
from data.storyworld.lexicon import lexicon
from data.storyworld.names import held_out_names
from data.tokenizer import Tokenizer

PARTS, PHRASE = 4, 4  # a phrase of four words from each quarter of the text


@dataclass(frozen=True)
class RecallTexts:
    """Random words, and phrases of them again at the end.

    input_ids: (N, T) int64, padded on the right, where nothing is asked.
    source:    (N, T) int64, for a token that is asked for, where it stood first; else -1. The first word of a phrase is
               not asked for: nothing says which phrase comes
    told:      (N,) tokens before the first phrase comes again
    """

    input_ids: Tensor
    source: Tensor
    told: Tensor

    @property
    def asked(self) -> tuple[Tensor, Tensor]:
        """Row and place of every token that is asked for."""
        rows, places = torch.nonzero(self.source >= 0, as_tuple=True)
        return rows, places

    @property
    def distance(self) -> Tensor:
        """How far back the answer stands, in tokens, for each of `asked`."""
        rows, places = self.asked
        return places - self.source[rows, places]

    @property
    def depth(self) -> Tensor:
        """Where in the text the answer stands, for each of `asked`: 0 = at the beginning, 1 = just before the end."""
        rows, places = self.asked
        return self.source[rows, places] / self.told[rows]


def held_out_rows(tokenizer: Tokenizer, config: DataConfig, length: int, count: int) -> Tensor:
    """Up to `count` pieces of the joined held-out documents, each behind a first token: (N, length).

    Raises InputError for a source that cannot be read, or holds less than one piece.
    """
    ids, wanted = list[int](), count * (length - 1)
    for document in documents(config, "validation"):
        for text in plain_texts(document):
            ids += tokenizer.encode(text)
        if len(ids) >= wanted:
            break
    pieces = min(count, len(ids) // (length - 1))
    if not pieces:
        raise InputError(f"--lengths: the held-out text has {len(ids):,} tokens, so none is {length:,} long: give less")
    rows = torch.tensor(ids[: pieces * (length - 1)]).view(pieces, length - 1)
    return torch.cat((torch.full((pieces, 1), tokenizer.bos_id), rows), dim=1)


def recall_texts(tokenizer: Tokenizer, length: int, count: int) -> RecallTexts | None:
    """`count` texts of at most `length` tokens, always the same ones; None where it is too short for the phrases."""
    words = [tokenizer.encode(f" {word}") for word in (*held_out_names(), *lexicon().song_words)]
    rows = [_recall_text(tokenizer, words, length, Random(f"recall {length} {number}")) for number in range(count)]
    found = [row for row in rows if row is not None]
    if len(found) < count:
        return None
    ids, sources = (torch.tensor([row[part] for row in found]) for part in (0, 1))
    return RecallTexts(ids, sources, torch.tensor([row[2] for row in found]))


def _recall_text(
    tokenizer: Tokenizer, words: list[list[int]], length: int, rng: Random
) -> tuple[list[int], list[int], int] | None:
    """Ids, sources and the number of tokens told, with as many words as fit."""
    words = rng.sample(words, len(words))
    begins = list(accumulate(map(len, words), initial=1))  # behind the first token of a document
    within, order = [rng.random() for _ in range(PARTS)], rng.sample(range(PARTS), PARTS)
    count = sum(end <= length for end in begins[1:])
    while (part := count // PARTS) >= PHRASE:
        firsts = [int(k * part + within[k] * (part - PHRASE + 1)) for k in order]
        again = [number for first in firsts for number in range(first, first + PHRASE)]
        told = begins[count]
        ids = [tokenizer.bos_id, *(token for word in [*words[:count], *(words[n] for n in again)] for token in word)]
        if len(ids) <= length:
            source = [-1] * told
            for place, number in enumerate(again):
                asked = place % PHRASE > 0
                source += [begins[number] + k if asked else -1 for k in range(len(words[number]))]
            padding = length - len(ids)
            return ids + [tokenizer.pad_id] * padding, source + [-1] * padding, told
        count -= 1
    return None
