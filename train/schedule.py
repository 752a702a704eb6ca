"""Learning rate as a pure function of progress: nothing to save, nothing to restore."""

from __future__ import annotations

import math


def lr_factor(
    step: int, max_steps: int, schedule: str, warmup_steps: int, cooldown: float, final_lr_fraction: float
) -> float:
    """What the peak learning rate is multiplied by at `step` (0 … max_steps - 1), in [0, 1].

    cosine: warm-up, then half a cosine down to final_lr_fraction (Loshchilov & Hutter 2017, arXiv 1608.03983).
    wsd:    warm-up, constant, then linear to final_lr_fraction over the last `cooldown` share of all steps
            (warm-up-stable-decay, Hu et al. 2024, arXiv 2404.06395).

           cosine ╭──╮             wsd ╭────────╮
                 ╱    ╲               ╱          ╲
                ╱      ╰───          ╱            ╲_
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if schedule == "cosine":
        progress = (step - warmup_steps) / max(1, max_steps - warmup_steps)
        shape = 0.5 * (1 + math.cos(math.pi * progress))
    elif schedule == "wsd":
        cooldown_steps = cooldown * max_steps
        shape = min(1.0, (max_steps - step) / cooldown_steps) if cooldown_steps else 1.0
    else:
        raise ValueError(f"schedule ({schedule!r}) is unknown: use cosine or wsd")
    return final_lr_fraction + (1 - final_lr_fraction) * shape
