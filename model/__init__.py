"""The network, without tokenizer and text."""

from model.config import ModelConfig
from model.files.checkpoint import load, save
from model.generation import Sampling, generate, left_pad, stream
from model.transformer import LanguageModel

__all__ = [
    "LanguageModel",
    "ModelConfig",
    "Sampling",
    "generate",
    "left_pad",
    "load",
    "save",
    "stream",
]
