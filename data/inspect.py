"""Look at the rows that training will see: `python -m data.inspect configs/x.yaml [section.key=value ...]`

Row p (p = 0, 1, 2, … over all epochs) is the same whatever the batch size, so rows are drawn one at a time, with the
config's seed. After them comes a summary of the corpus.

Nothing of a row is hidden, and nothing in it can control the terminal. The legend explains the marks ⟦ ⟧ ⟨ ⟩ ⏎ ⇥. Where
a text itself holds one of them, or a control character, you see its number: ⟨U+001B⟩.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from itertools import count, groupby, islice, pairwise
from typing import NamedTuple

import numpy as np

from configs.command import InputError, Plain, exit_on_bad_input, whole
from configs.loader import load_config, validate
from configs.text import columns, escape, plain, table
from data.batches import JOINED, Batch, TrainBatches, make_rows, validation_batches
from data.config import DataConfig, Split
from data.packing import IGNORED, SCAN, ConversationRows, HeldOutRows, Rows, conversation_starts, trained_tokens
from data.prepare import SPLITS, PreparedData, output_directory, prepare
from data.tokenizer import Tokenizer

# SGR codes. What is trained on is green, special tokens are in reverse video.
COLORS = {"trained": "32", "context": "2", "document": "1;36", "padding": "33", "title": "1"}
MARKS = {"\n": "⏎\n", "\t": "⇥", "\r": "␍"} | {mark: f"⟨U+{ord(mark):04X}⟩" for mark in "⟦⟧⟨⟩⏎⇥␍"}
MARK = re.compile(r"(⏎\n?|⇥|␍|⟨[^⟩]*⟩)")  # what a painter puts into a text
LONGEST_CHARACTER = 4  # bytes of UTF-8
TAB_STOP = 10  # columns, in the form with ids
LENGTHS = ["tokens a document: fewest", "10 % have at most", "median", "90 % have at most", "most"]
LISTED = 10  # bad records
BARS, BAR_WIDTH = 8, 40  # of the histogram


# ---------------------------------------------------------------------------------------------------------
# one row


class Span(NamedTuple):
    """Neighbouring tokens of a row that look alike. kind: text | special | document | padding."""

    kind: str
    trained: bool
    ids: list[int]


def spans(ids: Sequence[int], labels: Sequence[int], tokenizer: Tokenizer) -> list[Span]:
    """(T,) ids and labels -> the spans that make up the row. A document's first token is a span of its own."""

    def looks(place: int) -> tuple[str, bool, int]:
        token_id, trained = ids[place], labels[place] != IGNORED
        if token_id == tokenizer.bos_id:
            return "document", trained, place
        if token_id == tokenizer.pad_id:
            return "padding", trained, 0
        return "special" if token_id in tokenizer.special_ids else "text", trained, 0

    runs = [(look, list(places)) for look, places in groupby(range(len(ids)), looks)]
    return [Span(kind, trained, [ids[place] for place in places]) for (kind, trained, _), places in runs]


class Painter:
    """Writes rows in ANSI colours, or with plain marks: ⟦ ⟧ around what is trained on, unless everything is."""

    def __init__(self, tokenizer: Tokenizer, color: bool, conversations: bool, width: int = 100):
        self.tokenizer, self.color, self.marks, self.width = tokenizer, color, conversations and not color, width
        special = sorted((str(tokenizer.backend.id_to_token(i)) for i in tokenizer.special_ids), key=len, reverse=True)
        self._specials = re.compile(f"({'|'.join(map(re.escape, special))})")

    def paint(self, text: str, code: str) -> str:
        """Text in colour, with fainter marks. Each line is coloured separately, as pagers need it."""
        if not self.color:
            return text
        parts = [(part, f"\x1b[{code}{';2' * (i % 2)}m") for i, part in enumerate(MARK.split(text))]
        return "".join(re.sub(r"[^\n]+", f"{start}\\g<0>\x1b[0m", part) for part, start in parts)

    def row(self, ids: Sequence[int], labels: Sequence[int]) -> str:
        """A row as text. Without the marks, and the line ends that follow no ⏎, it is the decoded row."""
        out, document, inside = "", 0, False
        if ids[0] != self.tokenizer.bos_id:
            out = self._boundary("document 0: it began in another row")
        for span in spans(ids, labels, self.tokenizer):
            if self.marks and span.trained != inside:
                out, inside = out + ("⟧" if inside else "⟦"), span.trained
            if span.kind in ("document", "padding") and out and not out.endswith("\n"):
                out += "\n"
            if span.kind == "document":
                document += 1
                out += self._boundary(f"{self.tokenizer.bos_token} document {document}")
            elif span.kind == "padding":
                out += self.paint(f"({len(span.ids)} × padding)", COLORS["padding"])
            else:
                out += self.paint(self._text(span), self._code(span))
        return out + "⟧" * inside

    def row_ids(self, ids: Sequence[int], labels: Sequence[int]) -> str:
        """A row as `id:label` for each token, in columns."""
        out, column = "", 0
        for span in spans(ids, labels, self.tokenizer):
            names = [f"{i}:{escape(t)}" for i, t in zip(span.ids, self.tokenizer.token_labels(span.ids), strict=True)]
            if span.kind == "padding":
                names = [f"({len(names)} × {names[0]})"]
            for name in names:
                cell = f"⟦{name}⟧" if self.marks and span.trained else name
                if column and column + columns(cell) > self.width:
                    out, column = out.rstrip(" ") + "\n", 0
                wide = -(-(columns(cell) + 2) // TAB_STOP) * TAB_STOP
                out += self.paint(cell, self._code(span)) + " " * (wide - columns(cell))
                column += wide
        return out.rstrip(" ")

    def legend(self, config: DataConfig) -> str:
        """What the colours and marks of `row` mean."""
        chat = config.records != "text"
        named = [self.paint("⟦trained on⟧" if self.marks else "trained on", COLORS["trained"])]
        named += [self.paint("not trained on", COLORS["context"])] if chat else []
        named += [self.paint("<|special token|>", self._code(Span("special", not chat, [])))]
        named += [self.paint("──── document ────", COLORS["document"]), self.paint("(n × padding)", COLORS["padding"])]
        isolated, can = ("true", "cannot") if config.isolate_documents else ("false", "can")
        lines = [
            "   ".join(named),
            "⏎ line end   ␍ carriage return   ⇥ tab   ⟨E4⟩ byte of a cut character   ⟨U+001B⟩ hidden character",
            "⟨text: <|…|>⟩ looks like a special token, but is ordinary text",
            f"data.isolate_documents: {isolated}, so a document {can} see those before it in its row",
        ]
        if not chat:
            lines.append("All but document starts and padding is trained on; nothing precedes a row's first token.")
        return "\n".join(lines)

    def _boundary(self, name: str) -> str:
        return self.paint(f"──── {name} ".ljust(64, "─"), COLORS["document"]) + "\n"

    def _code(self, span: Span) -> str:
        if span.kind in ("document", "padding"):
            return COLORS[span.kind]
        return COLORS["trained" if span.trained else "context"] + ";7" * (span.kind == "special")

    def _text(self, span: Span) -> str:
        """The tokens of a span, decoded together: a byte-level token may be a part of a character."""
        if span.kind == "special":
            return "".join(str(self.tokenizer.backend.id_to_token(token_id)) for token_id in span.ids)
        start, end = _whole_characters(span.ids, self.tokenizer)
        before, after = ("".join(self.tokenizer.token_labels(ids)) for ids in (span.ids[:start], span.ids[end:]))
        text = self.tokenizer.decode(span.ids[start:end], skip_special_tokens=False)
        parts = ["".join(MARKS.get(c) or plain(c) for c in part) for part in self._specials.split(text)]
        shown = "".join(f"⟨text: {part}⟩" if i % 2 else part for i, part in enumerate(parts))
        return escape(before.replace("␣", " ")) + shown + escape(after.replace("␣", " "))


def _whole_characters(ids: list[int], tokenizer: Tokenizer) -> tuple[int, int]:
    """The part [start, end) of a run of ids without the tokens at its ends that hold parts of a character."""
    cut = "\ufffd"

    def text(start: int, end: int) -> str:
        return tokenizer.decode(ids[start:end], skip_special_tokens=False)

    end, few = len(ids), range(min(LONGEST_CHARACTER, len(ids)) + 1)
    start = next((k for k in few if not text(k, end).startswith(cut)), 0)
    return start, next((end - k for k in few if not text(start, end - k).endswith(cut)), end)


# ---------------------------------------------------------------------------------------------------------
# the corpus


def summary(config: DataConfig, data: PreparedData, rows: dict[Split, Rows]) -> str:
    """A table: what an epoch of each split is made of."""
    table_rows = [_column(config, data, split, rows[split]) for split in SPLITS]
    return table(["", *SPLITS], [[name, *(column[name] for column in table_rows)] for name in table_rows[0]])


def _column(config: DataConfig, data: PreparedData, split: Split, rows: Rows) -> dict[str, str]:
    """The figures of one split, by name. A split is read one block at a time."""
    stream, row, counts = data.stream(split), config.sequence_length, data.manifest[split]
    lengths, trained, what = document_lengths(data, split, rows), counts["trained_tokens"], "text"
    sizes = lengths  # of what is in rows
    if isinstance(rows, ConversationRows):
        sizes, what = rows.sizes, "text trained on"
        starts = conversation_starts(stream, data.tokenizer.bos_id)[:: rows.every]
        trained = int(trained_tokens(stream, starts, sizes).sum())
    places, filled = rows.per_epoch * rows.length, int(sizes.sum())
    if isinstance(rows, HeldOutRows):
        filled += rows.per_epoch - 1  # each row begins with the last token of the one before
    alone = int((-(-sizes // row)).sum()) * row  # if each document began a row of its own
    quantiles = np.quantile(lengths, [0, 0.1, 0.5, 0.9, 1], method="inverted_cdf").astype(int)
    column = {
        "documents": f"{counts['documents']:,}",
        "tokens": f"{counts['tokens']:,}",
        f"bytes of {what}": f"{counts['bytes']:,}",
        f"bytes per token{what.removeprefix('text')}": f"{counts['bytes_per_token']:.3f}",
        **{name: f"{length:,}" for name, length in zip(LENGTHS, quantiles, strict=True)},
        "longer than a row": f"{(lengths > row).mean():.2%}",
        "rows an epoch": f"{rows.per_epoch:,}",
        "padding in them": f"{(places - filled) / places:.2%}",
        "padding if no documents shared a row": f"{1 - sizes.sum() / max(1, alone):.2%}",
        "trained on": f"{trained / places:.2%}",
    }
    if isinstance(rows, ConversationRows):
        column |= {"cut to whole turns that fit": f"{rows.cut:,}", "left out: too long for a row": f"{rows.dropped:,}"}
    if (unknown := data.tokenizer.unk_id) is not None:
        blocks = (stream.read(at, min(SCAN, len(stream) - at)) for at in range(0, len(stream), SCAN))
        column["unknown tokens"] = f"{sum(int((block == unknown).sum()) for block in blocks):,}"
    return column


def document_lengths(data: PreparedData, split: Split, rows: Rows) -> np.ndarray:
    """(N,) tokens of each document as it was read."""
    starts = conversation_starts(data.stream(split), data.tokenizer.bos_id)
    every = rows.every if isinstance(rows, ConversationRows) else 1
    return np.diff(starts, append=len(data.stream(split)))[::every]


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


# ---------------------------------------------------------------------------------------------------------
# the command


def print_rows(batches: Iterator[Batch], painter: Painter, rows: Rows, split: Split, with_ids: bool) -> None:
    """Print every row under a title that counts its tokens; with_ids: a second time, token by token."""
    for batch in batches:
        ids, labels = batch["input_ids"][0].tolist(), batch["labels"][0].tolist()
        number, trained = batch.row_ids[0], sum(label != IGNORED for label in labels)
        begin, padding = ids.count(painter.tokenizer.bos_id), ids.count(painter.tokenizer.pad_id)
        place = f" (epoch {number // rows.per_epoch})" if split == "train" else ""
        title = f"{split} row {number:,}{place}: {len(ids):,} tokens, {trained:,} trained on, "
        title += f"{begin:,} document{'s' * (begin != 1)} begin{'s' * (begin == 1)}, {padding:,} padding"
        forms = [painter.row(ids, labels).rstrip("\n"), *([painter.row_ids(ids, labels)] if with_ids else [])]
        print(painter.paint(title, COLORS["title"]), *forms, sep="\n", end="\n\n")


def print_summary(config: DataConfig, data: PreparedData, rows: dict[Split, Rows], split: Split) -> None:
    """Print what an epoch is made of, how long the documents of one split are, and what was left out."""
    print(f"prepared data    {escape(str(data.directory))}")
    print(f"tokenizer        {config.tokenizer.kind}, {data.tokenizer.vocab_size:,} ids")
    joined = rows["train"].length // config.sequence_length
    note = f" (training joins {joined} rows into one of {rows['train'].length:,})" if joined > 1 else ""
    print(f"row              {config.sequence_length:,} tokens{note}\n")
    print(f"{summary(config, data, rows)}\n")
    print(f"{split} documents by length in tokens\n{histogram(document_lengths(data, split, rows[split]))}\n")
    print("\n".join(notes(data)))


def is_colored(choice: str) -> bool:
    """auto: in a terminal, unless NO_COLOR (no-color.org) or TERM=dumb is set."""
    asked_not_to = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return choice == "always" or (choice == "auto" and sys.stdout.isatty() and not asked_not_to)


def main() -> int:
    parser = argparse.ArgumentParser(description="Show the rows that training will see, and what the corpus is like.")
    parser.add_argument("config", help="a YAML file, for example configs/demo.yaml")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="for example data.sequence_length=64")
    parser.add_argument("--rows", type=whole("--rows", 0), default=3, metavar="N", help="how many rows (default 3)")
    parser.add_argument("--ids", action="store_true", help="also show each token with its id")
    parser.add_argument("--split", choices=SPLITS, default="train", help="which rows (default train)")
    parser.add_argument("--color", choices=["auto", "always", "never"], default="auto", help="default: in a terminal")
    arguments = parser.parse_intermixed_args()
    loaded = load_config(arguments.config, arguments.overrides)
    config, seed, train = validate(DataConfig, loaded, "data"), loaded.values.get("seed", 0), loaded.values.get("train")
    if type(seed) is not int or seed < 0:
        raise InputError(f"{loaded.where(('seed',))}: `seed` is {seed!r}: must be a whole number, 0 or more")
    tokens = train.get("tokens_per_step") if isinstance(train, dict) else None  # limits how many rows may be joined
    rows_per_step = max(1, tokens // config.sequence_length) if isinstance(tokens, int) else max(JOINED)
    data = prepare(config, output_directory(loaded), show_progress=sys.stderr.isatty())
    rows: dict[Split, Rows] = {split: make_rows(config, data, split, rows_per_step) for split in SPLITS}
    packed_as = (config.isolate_documents, config.restart_positions)
    batches: Iterator[Batch]
    if arguments.split == "validation":
        batches = validation_batches(rows["validation"], data.tokenizer, 1, *packed_as)
    else:
        source = TrainBatches(rows["train"], data.tokenizer, 1, seed, *packed_as, config.shuffle)
        batches = (source.batch(k) for k in count())
    width = shutil.get_terminal_size((100, 24)).columns
    painter = Painter(data.tokenizer, is_colored(arguments.color), config.records != "text", width)
    shown = islice(batches, arguments.rows)
    colored = sys.stdout.stream if painter.color and isinstance(sys.stdout, Plain) else sys.stdout
    with redirect_stdout(colored):  # which takes colours; a painter escapes the texts itself
        if arguments.rows:
            print(f"{painter.legend(config)}\n")
        print_rows(shown, painter, rows[arguments.split], arguments.split, arguments.ids)
    print_summary(config, data, rows, arguments.split)
    return 0


if __name__ == "__main__":
    exit_on_bad_input(main)
