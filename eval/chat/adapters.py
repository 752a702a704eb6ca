"""Several adapters beside one base, switched within a chat: `--adapter a=runs/x --adapter b=runs/y`, then `/adapter b`.

The base is in memory once. A switch reads a small file and begins a new conversation, because the keys and values in
the cache are of the other weights.
"""

from __future__ import annotations

from pathlib import Path

from configs.command import InputError
from configs.files import is_adapter, read_checkpoint
from data.tokenizer import load_tokenizer
from eval.chat.session import Conversation
from model.checkpoint import read_config
from model.lora import load_adapters, remove_adapters

BASE = "base"  # the name of the model without adapters


class Adapters:
    """The adapters of a chat by name. `used` is the name of those in use, or BASE."""

    def __init__(self, conversation: Conversation, given: list[str]):
        """given: NAME=RUN, as on the command line; the first is used at once, and every one was opened by then.

        Raises InputError for another form, a name that comes twice, and adapters of another base or tokenizer.
        """
        self.conversation, self.used = conversation, BASE
        self._ends = conversation.lm.config.eos_token_id
        self._sha256 = conversation.tokenizer.sha256()
        self.runs: dict[str, str] = {}
        for text in given:
            name, equals, run = text.partition("=")
            if not (name and equals and run) or name in (BASE, *self.runs):
                raise InputError(f"--adapter {text}: give NAME=RUN, each with a name of its own other than {BASE!r}")
            self.runs[name] = run
        for name in reversed(self.runs):  # the first one last, so that it stays
            try:
                self.use(name)
            except (OSError, ValueError) as error:
                raise InputError(f"--adapter {name}: {error}") from None

    def use(self, name: str) -> None:
        """Switch, and begin a new conversation. Raises ValueError for an unknown name, and files that do not fit."""
        if name not in (BASE, *self.runs):
            raise ValueError(f"there are no adapters named {name!r}: use {', '.join((BASE, *self.runs))}")
        lm = self.conversation.lm
        if lm.adapters is not None:
            remove_adapters(lm)
        self.used = BASE
        self._end_texts_with(self._ends)
        if name != BASE:
            self._end_texts_with(read_checkpoint(self.runs[name], self._read))
            self.used = name

    def _end_texts_with(self, ids: int | list[int] | None) -> None:
        """Fine-tuned on chats, a model ends its turns; its base does not."""
        lm = self.conversation.lm
        lm.config = lm.config.model_copy(update={"eos_token_id": ids})
        if not self.conversation.is_chat:
            self.conversation.set_system("")
        self.conversation.reset()

    def _read(self, directory: Path) -> int | list[int] | None:
        if not is_adapter(directory):
            raise ValueError(f"{directory}: holds a whole model, not adapters: chat with it by itself")
        if (directory / "tokenizer.json").is_file() and load_tokenizer(directory).sha256() != self._sha256:
            raise ValueError(f"{directory}: has another tokenizer than the base, so the same ids stand for other text")
        load_adapters(self.conversation.lm, directory)
        return read_config(directory).eos_token_id
