"""In which ways can a model read a long text? A name, and a function that makes the model for a length.

    none       positions as they are, also where they are larger than in training
    linear     every angle of RoPE divided by length / trained length (Chen et al. 2023, arXiv 2306.15595)
    yarn       slow pairs divided by it, fast ones kept (Peng et al. 2023, arXiv 2309.00071)
    windows    every layer sees no more tokens than a row of training had

A further run is read as it was trained, under its own name.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from configs.command import InputError
from model import LanguageModel

Make = Callable[[int], LanguageModel]  # length in tokens -> the model for it


def methods(lm: LanguageModel, trained: int) -> dict[str, Make]:
    """What can be done to this model, which read rows of `trained` tokens in training."""
    plain = lm.with_rope_scaling("none", 1, trained) if any(lm.config.rotates) else lm
    found: dict[str, Make] = {"none": partial(longer, plain)}
    if any(lm.config.rotates):
        found |= {kind: partial(_scaled, plain, kind, trained) for kind in ("linear", "yarn")}
    window = {"sliding_window": trained, "layer_types": ["sliding_attention"]}
    return found | {"windows": lambda length: longer(plain, length).with_config(**window)}


def longer(lm: LanguageModel, length: int) -> LanguageModel:
    """The model, allowed to read so many tokens. Raises InputError where a learned vector is missing for some."""
    longest = lm.config.max_position_embeddings
    if length <= longest:
        return lm
    if lm.config.position_embedding == "learned":
        raise InputError(
            f"--lengths: {length:,} is too long: this model has learned a vector for {longest:,} positions"
        )
    return lm.with_config(max_position_embeddings=length)


def _scaled(lm: LanguageModel, kind: str, trained: int, length: int) -> LanguageModel:
    return longer(lm.with_rope_scaling(kind, max(1.0, length / trained), trained), length)
