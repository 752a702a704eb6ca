"""Where does a word begin and end? No token crosses the end of a word, so a text may be cut there.

The words of our byte-level tokenizers are what GPT-2's pattern finds: letters with the space before them, punctuation
likewise, white space, and single digits. A word has at most LONGEST characters. This limit is in tokenizer.json, so
transformers has it too. Without it one word of a megabyte takes minutes to learn from: the work grows with the square
of its length. The longest words that we found in ordinary text: 369 characters, the line of a table.
"""

from __future__ import annotations

import re

from tokenizers import Regex, pre_tokenizers

LONGEST = 512  # characters of a word
FAR = 1 << 16  # characters in which an ordinary text has a place to cut it
# No token of a byte-level tokenizer crosses the end of this line end, or the beginning of this space. The look behind
# comes last: `re` is quick where a pattern begins with the characters that it looks for.
BETWEEN_WORDS = re.compile(r"[\n ](?=\S)(?<=\S[\n ])")


def pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    """Text -> words of at most LONGEST characters, as bytes."""
    some = f"{{1,{LONGEST}}}"
    space = rf"\s{some}(?!\S)|\s{some}"
    words = rf"'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}{some}| ?\p{{N}}{some}| ?[^\s\p{{L}}\p{{N}}]{some}|{space}"
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.Split(Regex(words), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def cut(text: str, length: int, anywhere: bool = False) -> list[str]:
    """A text in pieces of about `length` characters, cut between words. Their joined ids are those of the text.

    anywhere: where there is no such place for FAR characters, the text is cut all the same.
    """
    pieces, start = [], 0
    while len(text) > start + length:
        far = start + length + FAR
        match = BETWEEN_WORDS.search(text, start + length, far if anywhere else len(text))
        if match is not None:
            end = match.end() if match[0] == "\n" else match.start()
        elif anywhere and far < len(text):
            end = far
        else:
            break
        pieces.append(text[start:end])
        start = end
    return [*pieces, text[start:]]
