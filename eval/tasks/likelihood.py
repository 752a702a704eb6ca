"""How likely is a text? ln p of its tokens, which all tasks are made of, and the standard error of a mean."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from configs.command import InputError
from data.tokenizer import Tokenizer
from eval.language_modeling import evaluating
from model import LanguageModel

NUMBERS = 1 << 24  # logits of one batch: 64 MB in float32, and as much again for their softmax
BLOCK = 64  # neighbouring tokens that count as one observation
BLOCKS = 20  # at least this many; in a shorter text, of fewer tokens each


@torch.no_grad()
def token_log_probs(lm: LanguageModel, sequences: Sequence[Sequence[int]]) -> list[Tensor]:
    """ln p of every token of a sequence but its first, given those before it: (T - 1,) in float64, on the CPU.

    Sequences of equal ids are read once, so their numbers are exactly equal. Computed in float32, like lengths
    together, padded on the right: rounding apart (up to 3e-5 in runs/demo) the number is that of the sequence alone.
    Raises ValueError for a sequence that is too short or, with its last token left out, too long for the context, and
    for a model whose logits are non-finite.
    """
    if any(len(ids) < 2 for ids in sequences):
        raise ValueError("a text has no tokens for this tokenizer, so nothing can be scored: leave it out")
    device = next(lm.parameters()).device
    read: dict[tuple[int, ...], Tensor] = {}
    with evaluating(lm):
        for batch in _batches(lm, sorted({tuple(ids) for ids in sequences}, key=len)):
            # padding on the right needs no mask: nothing looks to the right
            rows = [torch.tensor(ids) for ids in batch]
            ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(device)
            logits = lm(ids[:, :-1]).float()  # (rows, T - 1, V)
            log_p = (logits.gather(2, ids[:, 1:, None])[:, :, 0] - logits.logsumexp(dim=-1)).cpu().double()
            for key, row in zip(batch, log_p, strict=True):
                read[key] = row[: len(key) - 1].clone()  # a view would keep the whole batch in memory
    if not all(bool(log_p.isfinite().all()) for log_p in read.values()):
        raise ValueError("the model's logits are non-finite: its weights are damaged, or its training diverged")
    return [read[tuple(ids)] for ids in sequences]


def _batches(lm: LanguageModel, sequences: Sequence[tuple[int, ...]]) -> Iterator[list[tuple[int, ...]]]:
    """Sequences, sorted by length, in batches whose largest tensor has at most NUMBERS numbers (one row at least)."""
    most_tokens = NUMBERS // max(lm.lm_head.out_features, 3 * (lm.config.intermediate_size or 0))
    batch: list[tuple[int, ...]] = []
    for ids in sequences:
        if batch and (len(batch) + 1) * len(ids) > most_tokens:
            yield batch
            batch = []
        batch.append(ids)
    if batch:
        yield batch


def begun(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Each text as a document begins: the first token of a document, then the text; no last token."""
    return [[tokenizer.bos_id, *ids] for ids in tokenizer.encode_many(texts)]


def check_length(lm: LanguageModel, ids: Sequence[int], what: str) -> None:
    """Raises InputError if these tokens, the first one included, do not fit into the context."""
    if len(ids) > lm.config.max_position_embeddings:
        longest = lm.config.max_position_embeddings - 1
        reason = (
            f"has {len(ids) - 1} tokens, and the context has room for {longest} after the first token of a document"
        )
        raise InputError(f"{what} {reason}: shorten it, or leave it out")


def accuracy_error(share: float, count: int) -> float:
    """Standard error of a share of `count` independent answers (binomial): √(p (1 - p) / n)."""
    return math.sqrt(share * (1 - share) / count)


def mean_error(values: Tensor) -> float:
    """Standard error of the mean of a sequence (N,) whose neighbours are alike: blocks of it are the observations.

    √(Σ_b (sum of b - mean · length of b)² · B / (B - 1)) / N over B blocks of 64 values, or of fewer so that there are
    20. With blocks of one value this is the usual s / √N. NaN for a single value.
    """
    count = len(values)
    blocks = (values - values.mean()).split(max(1, min(BLOCK, count // BLOCKS)))
    if len(blocks) < 2:
        return math.nan
    squares = sum(float(block.sum()) ** 2 for block in blocks)
    return math.sqrt(squares * len(blocks) / (len(blocks) - 1)) / count


def unknown_tokens(tokenizer: Tokenizer, texts: Sequence[str]) -> int:
    """How many characters of these texts the tokenizer has no token for: it writes one and the same for all of them."""
    if tokenizer.unk_id is None:
        return 0
    return sum(ids.count(tokenizer.unk_id) for ids in tokenizer.encode_many(texts))
