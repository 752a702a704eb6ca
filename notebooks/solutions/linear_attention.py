"""Linear attention: a memory that does not grow, token by token and in chunks. 30 minutes.

Softmax attention keeps all keys and values. Here a head keeps one matrix, the memory S (K, V):
K numbers of a key, V of a value. A token with query q, key k, value v and a share β does this:

    returned   = Sᵀ k                    what the memory has for this key
    correction = β (v - returned)        the delta rule: with β = 1, S returns v afterwards
    S          = S + k correctionᵀ
    output     = Sᵀ q

Keys of two numbers, values of one, and q = k:

    token 1    k = 1, 0       v = 10   β = 1      returned  0      correction 10     S = 10, 0
    token 2    k = 0.6, 0.8   v = 20   β = 1      returned  6      correction 14     S = 18.4, 11.2
    token 3    k = 1, 0       v = 30   β = 0.5    returned 18.4    correction 5.8    S = 24.2, 11.2
                                                  outputs 10, 20, 24.2

1. Write `recurrent`, one turn of the loop for each token. Text is written like this.
2. Training has all tokens at once, and a loop over tokens is slow. Write `chunked`: the same
   numbers, for a chunk of C tokens together. A correction needs those before it in the chunk:

       correction_i = β_i (v_i - Sᵀ k_i - Σ_j<i (k_i · k_j) correction_j)

   Here S is the memory before the chunk. In the example all three tokens are a chunk, and S = 0:

       correction_3 = 0.5 (30 - 0 - 1 · 10 - 0.6 · 14) = 5.8

   Move the sum to the left, and you have C equations: (I + A) corrections = sides, where A_ij is
   β_i (k_i · k_j) for j < i, and 0 elsewhere. Row i of sides is β_i (v_i - Sᵀ k_i). To solve them:

       torch.linalg.solve_triangular(A, sides, upper=False, unitriangular=True)

   It takes the I for granted. An output reads the memory before the chunk, and the corrections of
   the tokens j ≤ i, each by q_i · k_j. Then bring S up to date for the next chunk.

Yang et al. 2024 (arXiv 2406.06484). In Headlight: model/variants/linear_attention.py, where the
memory also forgets, so every product has a factor for the time in between.
"""

from __future__ import annotations

import torch
from torch import Tensor


def recurrent(q: Tensor, k: Tensor, v: Tensor, beta: Tensor) -> Tensor:
    """q, k (B, H, T, K), v (B, H, T, V), beta (B, H, T) -> outputs (B, H, T, V)."""
    memory = torch.zeros(*k.shape[:2], k.shape[3], v.shape[3])  # (B, H, K, V)
    outputs = []
    for t in range(k.shape[2]):
        # <solution>
        key = k[:, :, t, :, None]  # (B, H, K, 1)
        returned = (memory * key).sum(dim=2)  # (B, H, V)
        correction = beta[:, :, t, None] * (v[:, :, t] - returned)
        memory = memory + key * correction[:, :, None]
        outputs.append((memory * q[:, :, t, :, None]).sum(dim=2))
        # </solution>
    return torch.stack(outputs, dim=2)


def chunked(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, size: int) -> Tensor:
    """Return what `recurrent` returns, from `size` tokens at a time."""
    memory = torch.zeros(*k.shape[:2], k.shape[3], v.shape[3])  # (B, H, K, V)
    outputs = []
    for start in range(0, k.shape[2], size):
        chunk = slice(start, start + size)
        queries, keys, values = q[:, :, chunk], k[:, :, chunk], v[:, :, chunk]  # (B, H, C, …)
        shares = beta[:, :, chunk, None]  # (B, H, C, 1)
        # <solution>
        system = (shares * (keys @ keys.mT)).tril(-1)  # (B, H, C, C)
        sides = shares * (values - keys @ memory)  # (B, H, C, V)
        corrections = torch.linalg.solve_triangular(system, sides, upper=False, unitriangular=True)
        scores = (queries @ keys.mT).tril()  # (B, H, C, C), without a softmax
        outputs.append(queries @ memory + scores @ corrections)
        memory = memory + keys.mT @ corrections
        # </solution>
    return torch.cat(outputs, dim=2)
