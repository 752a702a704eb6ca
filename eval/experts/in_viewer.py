"""What does the viewer show of the experts? The looks of a run as numbers for its page (eval/attention/viewer)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from configs.text import escape
from eval.experts.log import DEAD, STARVED, Look

MOST = 20_000  # numbers of shares in a page: with more, looks in the middle are left out


def for_viewer(looks: Sequence[Look]) -> dict[str, Any] | None:
    """Layers, experts and every look, in order, ready for JSON; None for no look."""
    if not looks:
        return None
    last = looks[-1]
    most = max(2, MOST // (len(last.layers) * last.experts))
    places = np.linspace(0, len(looks) - 1, min(most, len(looks))).round().astype(int)
    steps = [
        {
            "step": look.step,
            "tokens": look.tokens,
            "share": look.of_fair.round(3).tolist(),
            "weight": look.weight,
            "words": [[[escape(word) for word in words] for words in layer] for layer in look.words],
            "loss": look.loss,
        }
        for look in (looks[place] for place in places)
    ]
    return {"layers": last.layers, "experts": last.experts, "steps": steps, "dead": DEAD, "starved": STARVED}
