"""How does it compute? The network, and nothing else: it never sees a tokenizer or a file of text."""

from typing import TYPE_CHECKING

import configs.command  # noqa: F401  # first: from here on Ctrl-C ends a command in one line
from configs.later import imported_later

if TYPE_CHECKING:
    from model.config import ModelConfig
    from model.decoding.generation import generate, left_pad, stream
    from model.decoding.sampling import Sampling
    from model.saving.checkpoint_format import load, save
    from model.transformer import LanguageModel

__all__ = ["LanguageModel", "ModelConfig", "Sampling", "generate", "left_pad", "load", "save", "stream"]

_PLACES = {
    "LanguageModel": "model.transformer",
    "ModelConfig": "model.config",
    "Sampling": "model.decoding.sampling",
    **dict.fromkeys(("generate", "left_pad", "stream"), "model.decoding.generation"),
    **dict.fromkeys(("load", "save"), "model.saving.checkpoint_format"),
}
__getattr__ = imported_later(__name__, _PLACES)  # torch takes seconds, and a config is checked without it
