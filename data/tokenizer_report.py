"""Which vocabulary suits a text? `python -m data.tokenizer_report configs/x.yaml [section.key=value ...]`

Every tokenizer of the table is trained as a run would train it, on the same text (data.prepare.tokenizer_texts). It is
measured on a part of that text and on held-out documents, which bpe has not seen.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from configs.command import InputError, exit_on_bad_input, numbers, still_busy
from configs.loader import load_config, validate
from configs.text import escape, table
from data.chat import plain_texts
from data.config import DataConfig, TokenizerConfig
from data.prepare import tokenizer_texts
from data.reading.documents import read
from data.tokenizer import DEFAULT_VOCAB_SIZE, Tokenizer, adopt, round_up, train_tokenizer

SIZES = "512,1024,2048,4096,8192"
SMALLEST = 320
MEASURED = 2_000_000  # characters, about, that each column is measured on
LARGEST_ALPHABET = 10_000  # characters; with more of them `char` is left out, unless the config asks for it
HIDDEN_SIZE = 256  # of the column with embedding parameters
SMALL_GAIN = 0.05  # of twice the vocabulary: tokens longer by this share


class Sample(NamedTuple):
    """Texts to measure on. ended: how many documents end in them; each end is a token."""

    texts: list[str]
    ended: int


@dataclass(frozen=True)
class Measured:
    """A line of the table. Bytes per token count the token that ends a document, as a run's manifest does."""

    kind: str  # as in TokenizerConfig
    name: str
    vocab_size: int
    bytes_on_sample: float
    bytes_on_held_out: float
    characters_in_row: float  # of held-out text
    unknown: float  # share of held-out tokens that stand for a character without an id
    seconds: float | None  # to train it; None if it was not trained
    own: bool  # the config asks for this one


def compare(config: DataConfig, sizes: Sequence[int], also: Sequence[str] = ()) -> list[Measured]:
    """Compare byte, char (unless there are too many characters), bpe at every size, and tokenizers at the paths `also`.

    Raises InputError for a text or a tokenizer that cannot be read, and where nothing is held out.
    """
    learned_from = list(tokenizer_texts(_with(config, "bpe")))
    texts = learned_from[:: max(1, sum(map(len, learned_from)) // MEASURED)]
    sample = Sample(texts, len(texts) * (config.records == "text"))
    held_out = held_out_sample(config)
    bytes_of = [sum(len(text.encode("utf-8", "surrogatepass")) for text in each.texts) for each in (sample, held_out)]
    results = []
    for kind, name, tokenizer, seconds, own in _candidates(config, sizes, also, learned_from):
        (on_sample, _), (tokens, unknown) = (count_tokens(tokenizer, each) for each in (sample, held_out))
        characters = config.sequence_length * sum(map(len, held_out.texts)) / tokens
        per_token = (bytes_of[0] / on_sample, bytes_of[1] / tokens)
        results.append(
            Measured(kind, name, tokenizer.vocab_size, *per_token, characters, unknown / tokens, seconds, own)
        )
    return results


def _candidates(
    config: DataConfig, sizes: Sequence[int], also: Sequence[str], learned_from: list[str]
) -> Iterator[tuple[str, str, Tokenizer, float | None, bool]]:
    """Kind (as in TokenizerConfig), name, tokenizer, seconds to train it (None if it was not trained), and whether the
    config asks for this one."""
    wanted = config.tokenizer
    existing = [(path, adopt(path), False) for path in also]
    if wanted.kind == "pretrained":
        existing.insert(0, (str(wanted.path), adopt(str(wanted.path), wanted.vocab_size or 0), True))

    def trained(kind: str, name: str, texts: Iterable[str], own: bool, size: int | None = None) -> Any:
        begun = time.perf_counter()
        tokenizer = train_tokenizer(_with(config, kind, size).tokenizer, texts)
        return kind, name, tokenizer, time.perf_counter() - begun, own

    yield trained("byte", "byte", [], wanted.kind == "byte")
    begun, characters = time.perf_counter(), set[str]()
    for text in tokenizer_texts(_with(config, "char")):
        characters.update(text)
        if len(characters) > LARGEST_ALPHABET and wanted.kind != "char":
            break
    else:
        *made, _, own = trained("char", "char", characters, wanted.kind == "char")
        yield *made, time.perf_counter() - begun, own
    own_size = round_up(wanted.vocab_size or DEFAULT_VOCAB_SIZE)
    for size in sorted({*sizes, own_size} if wanted.kind == "bpe" else set(sizes)):
        yield trained("bpe", f"bpe {size:,}", learned_from, wanted.kind == "bpe" and size == own_size, size)
    for path, tokenizer, own in existing:
        yield "pretrained", escape(path), tokenizer, None, own


def _with(config: DataConfig, kind: str, size: int | None = None) -> DataConfig:
    """The config with another tokenizer, trained on as much text."""
    fields = {"kind": kind, "vocab_size": size, "train_bytes": config.tokenizer.train_bytes}
    return config.model_copy(update={"tokenizer": TokenizerConfig.model_validate(fields)})


def held_out_sample(config: DataConfig) -> Sample:
    """The first held-out documents (of conversations: their plain text). Raises InputError if there are none."""
    texts: list[str] = []
    left, ended = MEASURED, 0
    for document in read(config):
        if document.split == "validation":
            for text in plain_texts(document.content):
                texts.append(text[:left])
                left -= len(texts[-1])
            ended += config.records == "text"
            if left <= 0:
                break
    if not texts:
        raise InputError("data.source: no document is held out: raise data.validation_fraction, or name held-out files")
    return Sample(texts, ended)


def count_tokens(tokenizer: Tokenizer, sample: Sample) -> tuple[int, int]:
    """(tokens, unknown ones among them)."""
    encoded = tokenizer.encode_many(sample.texts)
    unknown = 0 if tokenizer.unk_id is None else sum(ids.count(tokenizer.unk_id) for ids in encoded)
    return sample.ended + sum(map(len, encoded)), unknown


def report(results: Sequence[Measured], row: int) -> str:
    """The table of all tokenizers; `*` marks the config's own."""
    header = ["tokenizer", "ids", "bytes/token on sample", "held out", f"characters in a row of {row:,}", "unknown"]
    rows = [
        [
            f"{'* ' * m.own}{m.name}",
            f"{m.vocab_size:,}",
            f"{m.bytes_on_sample:.2f}",
            f"{m.bytes_on_held_out:.2f}",
            f"{m.characters_in_row:,.0f}",
            f"{m.unknown:.2%}",
            f"{m.vocab_size * HIDDEN_SIZE:,}",
            "-" if m.seconds is None else f"{m.seconds:.1f}",
        ]
        for m in results
    ]
    return table([*header, f"embedding at {HIDDEN_SIZE}", "seconds to train"], rows)


def advice(results: Sequence[Measured]) -> str:
    """What the table shows, in sentences."""
    bpe = [m for m in results if m.kind == "bpe"]
    lines = [
        "Longer tokens: more text in a row, fewer tokens an epoch. The price: the embedding, and as much for the head."
    ]
    for smaller, larger in pairwise(bpe):
        if larger.vocab_size == smaller.vocab_size:
            lines.append(f"Nothing is left to merge: {larger.name} ends with {larger.vocab_size:,} ids.")
            break
        doublings = math.log2(larger.vocab_size / smaller.vocab_size)
        if (larger.bytes_on_held_out / smaller.bytes_on_held_out) ** (1 / doublings) < 1 + SMALL_GAIN:
            lines.append(
                f"From {smaller.vocab_size:,} ids on, twice as many make held-out tokens less than {SMALL_GAIN:.0%} "
                f"longer, for {smaller.vocab_size * HIDDEN_SIZE:,} more embedding parameters."
            )
            break
    if bpe and bpe[-1].bytes_on_sample > (1 + 2 * SMALL_GAIN) * bpe[-1].bytes_on_held_out:
        lines.append("Held-out tokens are much shorter than those of the sample: too little text for the larger sizes.")
    lines.append("Losses per token of two tokenizers cannot be compared; bits per byte can.")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m data.tokenizer_report", description="Compare vocabularies on the text of a config."
    )
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
    print(f"{report(results, config.sequence_length)}\n\n{advice(results)}")
    return 0


if __name__ == "__main__":
    exit_on_bad_input(main)
