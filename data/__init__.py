"""Text in, batches out: this room never sees a network."""

from data.config import DataConfig
from data.tokenizer import Tokenizer, load_tokenizer

__all__ = ["DataConfig", "Tokenizer", "load_tokenizer"]
