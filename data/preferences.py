"""Pairs of answers as tokens: a stream holds the chosen conversation of each pair, then the rejected one.

    <|bos|>…Who sang?<|im_end|>⏎<|im_start|>assistant⏎Tiko<|im_end|>⏎  <|bos|>…Who sang?…assistant⏎Belna<|im_end|>⏎
                                                      ~~~~~~~~~~~~~~                               ~~~~~~~~~~~~~~~

Only the answers (~) are marked as trained. An answer that is part of the common prompt is not.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from configs.command import InputError
from data.chat import TRAINED, encode_conversations
from data.packing import IGNORED, TokenStream, conversation_starts, trained_tokens
from data.reading.pairs import Pair
from data.tokenizer import Tokenizer

SIDES = ("chosen", "rejected")


def encode_pairs(tokenizer: Tokenizer, pairs: Sequence[Pair]) -> list[tuple[list[int], np.ndarray]]:
    """(ids, flags) of each pair: those of its two conversations, one after the other."""
    three = [conversation for pair in pairs for conversation in (pair.prompt, pair.chosen, pair.rejected)]
    encoded, result = encode_conversations(tokenizer, three), []
    for i in range(0, len(encoded), 3):
        (prompt, _), (chosen, flags), (rejected, other_flags) = encoded[i : i + 3]
        for marks in (flags, other_flags):
            marks[: len(prompt)] &= ~np.uint8(TRAINED)
        result.append((chosen + rejected, np.concatenate([flags, other_flags])))
    return result


class Pairs:
    """The pairs of a stream of which both conversations fit into `longest` tokens and have an answer to train on.
    left_out: how many do not. Raises InputError if none does.
    """

    offsets = 1

    def __init__(self, stream: TokenStream, longest: int, bos_id: int):
        starts = conversation_starts(stream, bos_id)
        sizes = np.diff(starts, append=len(stream))
        spans = np.stack([starts, sizes], axis=1).reshape(-1, 2, 2)
        fits = ((sizes <= longest) & (trained_tokens(stream, starts, sizes) > 0)).reshape(-1, 2).all(axis=1)
        if not fits.any():
            raise InputError(
                f"data.sequence_length: none of {len(spans):,} pairs fits into {longest} tokens with an answer to "
                "train on: raise it"
            )
        self._stream, self._spans = stream, spans[fits]  # pair, answer, (start, size)
        self.length, self.per_epoch, self.left_out = 2 * longest, len(self._spans), int((~fits).sum())

    def row(self, index: int, offset: int = 0) -> dict[str, np.ndarray]:
        """chosen_input_ids, chosen_labels, rejected_input_ids and rejected_labels of a pair, each (t,) int64."""
        found: dict[str, np.ndarray] = {}
        for side, (start, size) in zip(SIDES, self._spans[index].tolist(), strict=True):
            ids, flags = self._stream.read(start, size), self._stream.read_flags(start, size)
            found |= {f"{side}_input_ids": ids, f"{side}_labels": np.where(flags & TRAINED, ids, IGNORED)}
        return found
