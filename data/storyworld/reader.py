"""The pen that recovers the choices from a finished story."""

from collections.abc import Callable, Iterable, Sequence

from .lexicon import Lexicon
from .pen import Pen


class Reader(Pen):
    """Follows the text with a finger, `at`. Raises ValueError where no option stands, or more than one."""

    def __init__(self, lexicon: Lexicon, text: str, held_out: bool = False):
        super().__init__(lexicon, held_out)
        self.text = text

    def choose(self, n: int, heads: Callable[[int], Iterable[str]], cumulative: Sequence[float] = ()) -> int:
        fitting = [i for i in range(n) if any(self._stands_here(text) for text in heads(i))]
        if len(fitting) == 1:
            return fitting[0]
        expected = " or ".join(repr(text) for i in (fitting or range(n)) for text in heads(i))
        raise self._error(f"only one of {expected}" if fitting else expected)

    def choose_invented(self, words: Sequence[str], known: frozenset[str], taken: Iterable[str]) -> str:
        end = self.at
        while self.text[end : end + 1].isalpha():
            end += 1
        word = self.text[self.at : end]
        if word not in known or word in taken:
            raise self._error("a new name or a word of a song")
        return word

    def finish(self) -> None:
        """Nothing may follow the story."""
        if self.at != len(self.text):
            raise self._error("the end of the story")

    def write(self, text: str) -> None:
        if not self.text.startswith(text, self.at):
            raise self._error(repr(text))
        self.at += len(text)

    def _stands_here(self, text: str) -> bool:
        """Whether this text stands at the finger in whole words: "ball" does not stand in "balloon"."""
        end = self.at + len(text)
        if not self.text.startswith(text, self.at):
            return False
        return not (text[-1:].isalpha() and self.text[end : end + 1].isalpha())

    def _error(self, expected: str) -> ValueError:
        found = self.text[self.at : self.at + 30] or "the end of the text"
        return ValueError(f"character {self.at}: expected {expected}, found {found!r}")
