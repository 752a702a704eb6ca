"""Held-out tokens in memory, for the tests of probes."""

from dataclasses import dataclass

import numpy as np

from data.tokenizer import Tokenizer


@dataclass
class Ids:
    """A stream of tokens in memory."""

    ids: np.ndarray

    def __len__(self) -> int:
        return len(self.ids)

    def read(self, start: int, length: int) -> np.ndarray:
        return self.ids[start : start + length]


def stream(tokenizer: Tokenizer, texts: list[str]) -> Ids:
    return Ids(np.array([token for ids in tokenizer.encode_documents(texts) for token in ids]))
