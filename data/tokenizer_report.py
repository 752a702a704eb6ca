"""Which vocabulary suits a text? `python -m data.tokenizer_report configs/x.yaml [section.key=value ...]`

Every tokenizer of the table is trained as a run would train it, on the same text (data.prepare.tokenizer_texts). It is
measured on held-out documents, which it has not seen.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from configs.command import InputError, exit_on_bad_input, numbers, still_busy
from configs.loader import load_config, validate
from configs.text import escape, table
from data.chat import plain_texts
from data.config import DataConfig, TokenizerConfig
from data.prepare import tokenizer_texts
from data.reading.documents import documents
from data.tokenizer import DEFAULT_VOCAB_SIZE, Tokenizer, adopt, round_up, train_tokenizer

SIZES = "512,1024,2048,4096,8192"
SMALLEST = 320
MEASURED = 2_000_000  # characters, about, that a tokenizer is measured on
LARGEST_ALPHABET = 10_000  # characters; with more of them `char` is left out, unless the config asks for it
SMALL_GAIN = 0.05  # of twice the vocabulary: tokens longer by this share


class Measured(NamedTuple):
    """A line of the table. Bytes per token count the token that ends a document, as a run's manifest does."""

    name: str  # `*` marks the config's own
    vocab_size: int
    bytes_per_token: float
    characters_in_row: float
    unknown: float  # share of tokens that stand for a character without an id


def compare(config: DataConfig, sizes: Sequence[int], also: Sequence[str] = ()) -> list[Measured]:
    """Compare byte, char (unless there are too many characters), bpe at every size, and tokenizers at the paths `also`.

    Raises InputError for a text or a tokenizer that cannot be read, and where nothing is held out.
    """
    texts, ends, results = *held_out_sample(config), []
    size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
    for name, tokenizer in _candidates(config, sizes, also):
        encoded = tokenizer.encode_many(texts)
        tokens = sum(map(len, encoded)) + ends
        unknown = 0 if tokenizer.unk_id is None else sum(ids.count(tokenizer.unk_id) for ids in encoded)
        characters = config.sequence_length * sum(map(len, texts)) / tokens
        results.append(Measured(name, tokenizer.vocab_size, size / tokens, characters, unknown / tokens))
    return results


def _candidates(config: DataConfig, sizes: Sequence[int], also: Sequence[str]) -> Iterator[tuple[str, Tokenizer]]:
    """Names and tokenizers, each trained when it is asked for."""

    def with_kind(kind: str, size: int | None = None) -> DataConfig:
        fields = {"kind": kind, "vocab_size": size, "train_bytes": config.tokenizer.train_bytes}
        return config.model_copy(update={"tokenizer": TokenizerConfig.model_validate(fields)})

    own, learned_from, characters = config.tokenizer, list(tokenizer_texts(with_kind("bpe"))), set[str]()
    yield f"{'* ' * (own.kind == 'byte')}byte", train_tokenizer(with_kind("byte").tokenizer, [])
    for text in tokenizer_texts(with_kind("char")):
        characters.update(text)
        if len(characters) > LARGEST_ALPHABET and own.kind != "char":
            break
    else:
        yield f"{'* ' * (own.kind == 'char')}char", train_tokenizer(with_kind("char").tokenizer, characters)
    own_size = round_up(own.vocab_size or DEFAULT_VOCAB_SIZE) if own.kind == "bpe" else 0
    for size in sorted({*sizes, own_size} - {0}):
        tokenizer = train_tokenizer(with_kind("bpe", size).tokenizer, learned_from)
        yield f"{'* ' * (size == own_size)}bpe {size:,}", tokenizer
    if own.kind == "pretrained":
        yield f"* {escape(str(own.path))}", adopt(str(own.path), own.vocab_size or 0)
    for path in also:
        yield escape(path), adopt(path)


def held_out_sample(config: DataConfig) -> tuple[list[str], int]:
    """Texts of the first held-out documents, and how many tokens end a document. Raises InputError without any."""
    texts: list[str] = []
    left, count = MEASURED, 0
    for content in documents(config, "validation"):
        for text in plain_texts(content):
            texts.append(text[:left])
            left -= len(texts[-1])
        count += 1
        if left <= 0:
            break
    if not texts:
        raise InputError("data.source: no document is held out: raise data.validation_fraction, or name held-out files")
    return texts, count * (config.records == "text")


def report(results: Sequence[Measured], row: int) -> str:
    """The table of all tokenizers, and from which size on a larger one gives little."""
    header = ["tokenizer", "ids", "bytes per token", f"characters in a row of {row:,}", "unknown"]
    rows = [[m[0], f"{m[1]:,}", f"{m[2]:.2f}", f"{m[3]:,.0f}", f"{m[4]:.2%}"] for m in results]
    lines = [table(header, rows), ""]
    lines += ["Longer tokens: more text in a row, fewer tokens an epoch. The price: a larger embedding, and head."]
    for smaller, larger in pairwise([m for m in results if m.name.removeprefix("* ").startswith("bpe ")]):
        doublings = math.log2(larger.vocab_size / smaller.vocab_size)
        gain = larger.bytes_per_token / smaller.bytes_per_token
        if not doublings or gain ** (1 / doublings) < 1 + SMALL_GAIN:
            lines += [
                f"From {smaller.vocab_size:,} ids on, twice as many make tokens less than {SMALL_GAIN:.0%} longer."
            ]
            break
    return "\n".join([*lines, "Losses per token of two tokenizers cannot be compared; bits per byte can."])


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare vocabularies on the text of a config.")
    parser.add_argument("config", help="a YAML file, for example configs/demo.yaml")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="for example data.source.path=x.txt")
    parser.add_argument("--sizes", default=SIZES, metavar="N,N,…", help=f"vocabularies of bpe (default {SIZES})")
    parser.add_argument(
        "--also", action="append", default=[], metavar="PATH", help="a tokenizer.json or a run; repeatable"
    )
    arguments = parser.parse_intermixed_args()
    sizes = [round_up(size) for size in numbers("--sizes", SMALLEST)(arguments.sizes)]
    config = validate(DataConfig, load_config(arguments.config, arguments.overrides), "data")
    with still_busy("learning and measuring the tokenizers of the table"):
        results = compare(config, sizes, arguments.also)
    print(report(results, config.sequence_length))
    return 0


if __name__ == "__main__":
    exit_on_bad_input(main)
