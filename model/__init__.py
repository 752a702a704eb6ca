"""How does it compute? The network, and nothing else: it never sees a tokenizer or a file of text."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from model.config import ModelConfig

if TYPE_CHECKING:
    from model.checkpoint_format import load, save
    from model.decoding.generation import generate, left_pad, stream
    from model.decoding.sampling import Sampling
    from model.transformer import LanguageModel

__all__ = ["LanguageModel", "ModelConfig", "Sampling", "generate", "left_pad", "load", "save", "stream"]
_MODULES = {
    "LanguageModel": "transformer",
    "Sampling": "decoding.sampling",
    **dict.fromkeys(("generate", "left_pad", "stream"), "decoding.generation"),
    **dict.fromkeys(("load", "save"), "checkpoint_format"),
}


def __getattr__(name: str) -> Any:
    """Imported when it is first used: torch takes seconds, and a config is checked without it."""
    if name not in _MODULES:
        raise AttributeError(f"module 'model' has no attribute {name!r}")
    globals()[name] = getattr(import_module(f"model.{_MODULES[name]}"), name)
    return globals()[name]
