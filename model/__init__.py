"""How does it compute? The network, and nothing else: it never sees a tokenizer or a file of text."""

from model.checkpoint_format import load, save
from model.config import ModelConfig
from model.generation import generate
from model.transformer import LanguageModel

__all__ = ["LanguageModel", "ModelConfig", "generate", "load", "save"]
