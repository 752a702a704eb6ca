"""Learning rate as a pure function of progress: nothing to save, nothing to restore."""

from __future__ import annotations

import math


def lr_factor(
    progress: float, step: int, schedule: str, warmup_steps: int, cooldown: float, final_lr_fraction: float
) -> float:
    """What the peak learning rate is multiplied by, in [0, 1].

    progress: share of the run that is over, in [0, 1]: of its steps, or of its minutes.

    constant: the peak to the end.
    cosine:   half a cosine down to final_lr_fraction (Loshchilov & Hutter 2017, arXiv 1608.03983).
    wsd:      constant, then linear to final_lr_fraction over the last `cooldown` share of the run
              (warm-up-stable-decay, Hu et al. 2024, arXiv 2404.06395).
    Each of them times the warm-up, which is linear over the first warmup_steps.

           cosine ╭──╮             wsd ╭────────╮
                 ╱    ╲               ╱          ╲
                ╱      ╰───          ╱            ╲_
    """
    if schedule == "constant":
        shape = 1.0
    elif schedule == "cosine":
        shape = 0.5 * (1 + math.cos(math.pi * progress))
    elif schedule == "wsd":
        shape = min(1.0, (1 - progress) / cooldown) if cooldown else 1.0
    else:
        raise ValueError(f"schedule ({schedule!r}) is unknown: use wsd, cosine or constant")
    warmup = min(1.0, (step + 1) / warmup_steps) if warmup_steps else 1.0
    return warmup * (final_lr_fraction + (1 - final_lr_fraction) * shape)
