"""How fast do models write, one row each, beside one another?"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median

import torch

from configs.command import InputError
from model import LanguageModel, generate

DECODED, PROMPT, ROUNDS = 128, 16, 5


def decode_speeds(
    models: dict[str, LanguageModel],
    rounds: int = ROUNDS,
    caches: Mapping[str, str] | None = None,
    clock: Callable[[], float] | None = None,
) -> dict[str, float]:
    """Tokens/s of greedy decoding with a key-value cache, one row: medians of `rounds` turns, all models in each.

    caches: the kind of cache of a model that does not have the dynamic one. clock: seconds, wall-clock by default.

    Alternating, so that whatever else the machine does slows all of them alike.
    """
    kinds, clock = caches or {}, clock or time.perf_counter
    longest = min(lm.config.max_position_embeddings for lm in models.values())
    prompt = min(PROMPT, longest // 2)
    new = min(DECODED, longest - prompt)
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for turn in range(rounds + 1):
        for name, lm in models.items():
            ids = torch.arange(prompt, device=next(lm.parameters()).device)[None]
            before = clock()
            try:
                written = generate(lm, ids, new, temperature=0, stop_ids=(), kv_cache=kinds.get(name, "dynamic"))
                written.cpu()  # waits for a GPU
            except ValueError as error:
                raise InputError(f"{name}: {error}") from None
            if turn:  # the first one only warms up
                seconds[name].append(clock() - before)
    return {name: new / median(found) for name, found in seconds.items()}
