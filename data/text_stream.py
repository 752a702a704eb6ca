"""How do token ids become text while they come, one at a time? In time that does not grow with what is written."""

from __future__ import annotations

from tokenizers.decoders import DecodeStream

from data.tokenizer import Tokenizer


class TextStream:
    """The text of ids that come one after another: `add` each, then `end`; the pieces joined are `decode(ids)`.

    ids: all that were added, special tokens too. A piece holds whole characters only: a character may take several
    tokens, and the last of them brings it.
    """

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer, self.ids = tokenizer, list[int]()
        self._given = 0  # characters
        self._begin()

    def _begin(self) -> None:
        self._stream = DecodeStream(skip_special_tokens=True)

    def add(self, token: int) -> str:
        """The next token -> the text that is whole by now and was not given yet; "" for a special token."""
        self.ids.append(token)
        if token in self.tokenizer.special_ids:  # the library would keep them until a token with text comes
            return ""
        try:
            piece = self._stream.step(self.tokenizer.backend, token) or ""
        except Exception:  # the library raises nothing more precise; only byte fallback: a byte made older ones invalid
            self._begin()
            self._stream.step(self.tokenizer.backend, token)  # so that the next token is not taken for a text's first
            piece = self.tokenizer.decode(self.ids)[self._given :].rstrip("\ufffd")
        self._given += len(piece)
        return piece

    def end(self) -> str:
        """The rest, when no more tokens come: a character that was begun, as replacement characters."""
        piece = self.tokenizer.decode(self.ids)[self._given :]
        self._given += len(piece)
        return piece
