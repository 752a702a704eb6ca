"""Sampling: from logits to the next token. 20 minutes.

A language model gives every token a number, its logit. Softmax turns logits into probabilities,
and then you draw a token. Three settings change the probabilities before that, in this order:

    temperature   divide the logits by it, then softmax. Below 1 the likeliest tokens gain, above 1
                  the others do. Temperature 0 means greedy: the likeliest token gets probability 1.
    top_k         keep the k likeliest tokens, and those that are exactly as likely as the k-th.
                  With a k above V, keep all.
    top_p         sort the remaining tokens, the likeliest first. Keep tokens until the sum of their
                  probabilities is top_p or more. Keep the one that reaches top_p, too.

A dropped token has probability 0. After each filter, divide the others by their sum, so that the
sum is 1 again. An example: four tokens have the probabilities 0.5, 0.3, 0.15 and 0.05.

    top_k=2                0.625  0.375  0      0          0.5 / 0.8 and 0.3 / 0.8
    top_p=0.6              0.625  0.375  0      0          0.5 is too little, 0.5 + 0.3 is enough
    top_p=0.4              1      0      0      0
    top_k=2, top_p=0.6     1      0      0      0          after top_k the first has 0.625: enough
    temperature=0.5        0.685  0.247  0.062  0.007      each squared, divided by their sum

Shapes: logits (B, V), one row for each text, V tokens. Filter every row by itself.
A filter can set logits to -inf: softmax gives them exactly 0. For top_p, `sort` also returns the
old place of each token, and `scatter` puts values back there.
Write `probabilities`, then `sample`: `torch.multinomial` draws, and takes a generator.

The same in Headlight: `next_token` in model/generation.py.
Top-p: Holtzman et al. 2019, arXiv 1904.09751.
"""

from __future__ import annotations

import torch
from torch import Tensor


def probabilities(
    logits: Tensor, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
) -> Tensor:
    """Return each token's probability: logits (B, V) -> (B, V). Rows sum to 1. None: no filter."""
    # <solution>
    if temperature == 0:
        return torch.nn.functional.one_hot(logits.argmax(dim=-1), logits.shape[-1]).to(logits.dtype)
    logits = logits / temperature
    if top_k is not None:
        kth = logits.topk(min(top_k, logits.shape[-1])).values[:, -1:]  # (B, 1)
        logits = logits.masked_fill(logits < kth, -torch.inf)
    if top_p is not None:
        likeliest, order = logits.softmax(dim=-1).sort(descending=True)
        before = likeliest.cumsum(dim=-1) - likeliest  # the sum before each token
        drop = torch.zeros_like(logits, dtype=torch.bool).scatter(1, order, before >= top_p)
        logits = logits.masked_fill(drop, -torch.inf)
    return logits.softmax(dim=-1)
    # </solution>


def sample(probabilities: Tensor, generator: torch.Generator) -> Tensor:
    """Draw one token of every row: (B, V) -> ids (B,). Draw all numbers from `generator`."""
    # <solution>
    return torch.multinomial(probabilities, num_samples=1, generator=generator)[:, 0]
    # </solution>
