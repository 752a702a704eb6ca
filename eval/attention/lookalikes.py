"""Look-alikes: does an induction head find a word again that is written in another way?

An induction head attends to what followed the same token before. Olsson et al. 2022 (arXiv
2209.11895) argue that such heads also match what is only similar. Here a block of tokens comes
twice, and the second time each is another form of the same word: "the", " the" or " The".
"""

from collections import defaultdict
from random import Random

import torch
from torch import Tensor

from configs.text import table
from data.tokenizer import Tokenizer
from eval.attention.capture import capture
from eval.attention.metrics import uniform
from eval.attention.probes import BLOCK_TOKENS
from model import LanguageModel

ROWS = 16
SHOWN = 3  # So many heads, the strongest on equal tokens first.
SECOND_BLOCKS = ("the same token", "the word in another form", "another word")


def forms(tokenizer: Tokenizer) -> list[tuple[int, int]]:
    """Return pairs of tokens that are one word of two letters or more, written in two ways."""
    by_word: dict[str, list[int]] = defaultdict(list)
    for token in range(tokenizer.vocab_size):
        text = tokenizer.decode([token])
        word = text.strip().lower()
        if len(word) > 1 and word.isalpha() and token not in tokenizer.special_ids:
            by_word[word].append(token)
    return [(tokens[0], tokens[1]) for tokens in by_word.values() if len(tokens) > 1]


def lookalike_rows(tokenizer: Tokenizer, longest: int) -> dict[str, Tensor]:
    """Return rows (B, T) of each kind of second block; the first blocks are the same in all kinds.

    Raises ValueError if the vocabulary has too few words in two forms.
    """
    pairs = forms(tokenizer)
    size = min(BLOCK_TOKENS, len(pairs) // 2, (longest - 1) // 2)
    if size < 2:
        raise ValueError(f"{len(pairs)} words of its vocabulary have two forms, and 4 are needed")
    rng = Random("look-alikes")
    rows: dict[str, list[list[int]]] = {kind: [] for kind in SECOND_BLOCKS}
    for _ in range(ROWS):
        drawn = rng.sample(pairs, 2 * size)  # the second half are the other words
        first = [token for token, _ in drawn[:size]]
        second_forms = [token for _, token in drawn]
        second_blocks = (first, second_forms[:size], second_forms[size:])
        for kind, second in zip(SECOND_BLOCKS, second_blocks, strict=True):
            rows[kind].append([tokenizer.bos_id, *first, *second])
    return {kind: torch.tensor(ids) for kind, ids in rows.items()}


def lookalikes_in_words(lm: LanguageModel, tokenizer: Tokenizer) -> str:
    """Return a table: the strongest heads' induction on each kind of second block."""
    by_kind = lookalike_rows(tokenizer, lm.config.max_position_embeddings)
    length = by_kind[SECOND_BLOCKS[0]].shape[1]
    size = length // 2
    queries = torch.arange(1 + size, 2 * size)  # nothing follows the last token
    followers = queries - size + 1
    scores = {}  # kind -> (layer, head)
    for kind, rows in by_kind.items():
        maps = capture(lm, rows.to(lm.lm_head.weight.device))
        scores[kind] = maps.weights[..., queries, followers].mean((1, -1))
    same = scores[SECOND_BLOCKS[0]]
    cells = []
    for best in same.flatten().argsort(descending=True)[:SHOWN].tolist():
        layer, head = divmod(best, same.shape[1])
        values = [f"{scores[kind][layer, head]:.2f}" for kind in SECOND_BLOCKS]
        cells.append([f"L{maps.layers[layer]} H{maps.heads[head]}", *values])
    evenly = uniform(length)[queries, followers].mean()
    return (
        f"{table(['head', *SECOND_BLOCKS], cells)}\n\nInduction: attention from a token of the "
        "second block to what followed its partner in the first, mean of "
        f"{ROWS} rows. Chance is {evenly:.2f}."
    )
