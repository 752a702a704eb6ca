"""The sceptic's baseline: only count characters. `python -m benchmarks.ngram [FILE]`

An interpolated n-gram over characters (Witten and Bell 1991). It counts 90 % of the file and
predicts the rest. A network should beat it: this table sees n-1 characters and cannot generalise.
"""

import math
from collections import Counter
from pathlib import Path

from configs.command import InputError, add_number, command_parser, exit_on_bad_input
from configs.text import table


def held_out_bits(text: str, n: int) -> float:
    """Return the bits per byte of the last tenth of a text, by an n-gram of the rest."""
    # the split of nanoGPT's data/shakespeare_char, so that losses can be compared
    boundary = int(0.9 * len(text))
    return bits_per_byte(text[:boundary], text[boundary:], n)


def bits_per_byte(train: str, held_out: str, n: int) -> float:
    """Return the bits that an n-gram of train needs for a UTF-8 byte of held_out."""
    # Each list is by the length of the context.
    followed_by = [Counter[str]() for _ in range(n)]  # context + character -> how often
    for length, counts in enumerate(followed_by):
        counts.update(train[i - length : i + 1] for i in range(length, len(train)))

    seen = [Counter[str]() for _ in range(n)]  # context -> how often any character followed it
    kinds = [Counter[str]() for _ in range(n)]  # context -> how many different ones did
    for length, counts in enumerate(followed_by):
        for key, count in counts.items():
            seen[length][key[:-1]] += count
            kinds[length][key[:-1]] += 1

    alphabet = len(set(train) | set(held_out))
    bits = 0.0
    for i in range(len(held_out)):
        probability = 1 / alphabet
        # From no context to the longest one. The probability is a weighted mean: the share of this
        # character after the context, and its probability after the shorter context, which counts
        # more if many different characters followed.
        # the first characters have short contexts
        for length in range(min(n, i + 1)):
            key = held_out[i - length : i + 1]
            context = key[:-1]
            # no longer context was seen either
            if context not in seen[length]:
                break
            weight = kinds[length][context]  # of the shorter context
            count = followed_by[length][key]
            probability = (count + weight * probability) / (seen[length][context] + weight)
        bits -= math.log2(probability)
    return bits / len(held_out.encode())


def main() -> None:
    parser = command_parser(__doc__)
    default = Path("data/tinyshakespeare/input.txt")
    parser.add_argument("file", nargs="?", type=Path, default=default, help=f"text ({default})")
    add_number(parser, "--most", 6, "largest n", least=2, most=12)
    args = parser.parse_args()
    try:
        text = args.file.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise InputError(f"{args.file} cannot be read as text: {error}") from error
    if len(text) < 2:
        raise InputError(f"{args.file} has {len(text)} characters: too few to hold some out")

    rows = [[n, f"{held_out_bits(text, n):.3f}"] for n in range(2, args.most + 1)]
    print(table(["n", "bits per byte of held-out text"], rows))


if __name__ == "__main__":
    exit_on_bad_input(main)
