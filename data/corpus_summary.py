"""What is an epoch of a prepared corpus made of? Lengths, padding, what is trained on, what was left out."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from configs.text import escape, table
from data.config import DataConfig
from data.packing import SCAN, ConversationRows, HeldOutRows, Rows, TokenStream, conversation_starts, trained_tokens
from data.prepare import SPLITS, PreparedData
from data.reading.ledger import Split

LENGTHS = ["tokens a document: fewest", "10 % have at most", "median", "90 % have at most", "most"]
LISTED = 10  # bad records
BARS, BAR_WIDTH = 8, 40  # of the histogram


@dataclass(frozen=True)
class Epoch:
    """One epoch of a split. lengths: (N,) tokens of each document as it was read. The rest are counts: of rows, of
    positions in them, and of documents that were cut or left out because they are longer than a row."""

    lengths: np.ndarray
    rows: int
    places: int
    padding: int
    padding_alone: float  # share of the positions, if each document began a row of its own
    trained: int
    unknown: int | None  # tokens that stand for a character without an id; None where every character has one
    cut: int = 0
    dropped: int = 0


def measure(config: DataConfig, data: PreparedData, split: Split, rows: Rows) -> Epoch:
    """Read a split, one block at a time."""
    stream, length, counts = data.stream(split), config.sequence_length, data.manifest[split]
    starts = conversation_starts(stream, data.tokenizer.bos_id)
    sizes = np.diff(starts, append=len(stream))
    kept, trained, cut, dropped = sizes, counts["trained_tokens"], 0, 0
    if isinstance(rows, ConversationRows):
        starts, sizes = starts[:: rows.every], sizes[:: rows.every]
        kept, cut, dropped = rows.sizes, rows.cut, rows.dropped
        trained = int(trained_tokens(stream, starts, kept).sum())
    filled = int(kept.sum())
    if isinstance(rows, HeldOutRows):
        filled += rows.per_epoch - 1  # each row begins with the last token of the one before
    places = rows.per_epoch * rows.length
    alone = 1 - kept.sum() / max(1, (-(-kept // length)).sum() * length)
    unknown = None if data.tokenizer.unk_id is None else _count(stream, data.tokenizer.unk_id)
    return Epoch(sizes, rows.per_epoch, places, places - filled, float(alone), trained, unknown, cut, dropped)


def _count(stream: TokenStream, token_id: int) -> int:
    total = len(stream)
    return sum(int((stream.read(at, min(SCAN, total - at)) == token_id).sum()) for at in range(0, total, SCAN))


def summary(config: DataConfig, data: PreparedData, epochs: dict[Split, Epoch]) -> str:
    """The table of both splits."""
    chat, row = config.records != "text", config.sequence_length
    counted = [data.manifest[split] for split in SPLITS]
    measured = [epochs[split] for split in SPLITS]
    lengths = [np.quantile(e.lengths, [0, 0.1, 0.5, 0.9, 1], method="inverted_cdf").astype(int) for e in measured]
    lines: list[tuple[str, list[str]]] = [
        ("documents", [f"{c['documents']:,}" for c in counted]),
        ("tokens", [f"{c['tokens']:,}" for c in counted]),
        ("bytes of text trained on" if chat else "bytes of text", [f"{c['bytes']:,}" for c in counted]),
        ("bytes per token trained on" if chat else "bytes per token", [f"{c['bytes_per_token']:.3f}" for c in counted]),
        *((name, [f"{length[i]:,}" for length in lengths]) for i, name in enumerate(LENGTHS)),
        ("longer than a row", [_share(int((e.lengths > row).sum()), e.lengths.size) for e in measured]),
        ("rows an epoch", [f"{e.rows:,}" for e in measured]),
        ("padding in them", [_share(e.padding, e.places) for e in measured]),
        ("padding if no documents shared a row", [f"{e.padding_alone:.2%}" for e in measured]),
        ("trained on", [_share(e.trained, e.places) for e in measured]),
    ]
    if chat:
        lines.append(("cut to whole turns that fit", [f"{e.cut:,}" for e in measured]))
        lines.append(("left out: too long for a row", [f"{e.dropped:,}" for e in measured]))
    if measured[0].unknown is not None:
        lines.append(("unknown tokens", [f"{e.unknown:,}" for e in measured]))
    return table(["", *SPLITS], [[name, *cells] for name, cells in lines])


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.2%}"


def histogram(lengths: np.ndarray) -> str:
    """How many documents have which length: bins of equal width, or of doubling width where lengths differ a lot."""
    low, high = int(lengths.min()), int(lengths.max())
    if high < 8 * low:
        step = max(1, -(-(high - low + 1) // BARS))
        edges = np.arange(low, high + step + 1, step)
    else:
        edges = 2 ** np.arange(low.bit_length() - 1, high.bit_length() + 1)
    counts, _ = np.histogram(lengths, edges)
    bars = ["█" * -(-int(count) * BAR_WIDTH // int(counts.max())) for count in counts]
    names = [f"{first:,} … {last - 1:,}" for first, last in pairwise(edges)]
    return "\n".join(f"{n:>19}  {c:>9,}  {b}" for n, c, b in zip(names, counts, bars, strict=True))


def notes(data: PreparedData) -> list[str]:
    """What was left out while reading, and the first bad records with file and line."""
    read = data.manifest["read"]
    dropped = data.manifest["depends_on"]["drop_duplicates"]
    verb = "left out" if dropped else "kept (data.drop_duplicates: true leaves them out)"
    lines = [f"{read['duplicates']:,} exact duplicates {verb}"] if read["duplicates"] else []
    lines += [f"{read['empty']:,} empty texts left out"] if read["empty"] else []
    if read["bad"]:
        shown = read["bad_records"][:LISTED]
        lines += [f"{read['bad']:,} bad records left out:", *(f"    {escape(record)}" for record in shown)]
        lines += [f"    … and {read['bad'] - len(shown):,} more"] if read["bad"] > len(shown) else []
    return lines or [f"{read['records']:,} records read, none of them empty or bad"]
