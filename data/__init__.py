"""What does it read? Text in, batches out: this room never sees a network."""

import configs.command  # noqa: F401  # first: from here on Ctrl-C ends a command in one line
from data.config import DataConfig
from data.tokenizer import Tokenizer, load_tokenizer

__all__ = ["DataConfig", "Tokenizer", "load_tokenizer"]
