"""Look at the rows that training will see: `python -m data.inspect configs/x.yaml [section.key=value ...]`

Row p (p = 0, 1, 2, … over all epochs) is the same whatever the batch size, so rows are drawn one at a time, with the
config's seed. After them comes a summary of the corpus. Nothing of a row is hidden, and nothing in it can control the
terminal. The legend explains the marks ⟦ ⟧ ⟨ ⟩ ⏎ ⇥. Where a text itself holds one of them, or a control character, you
see its number: ⟨U+001B⟩.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import numpy as np

from configs import IGNORED
from configs.command import exit_on_bad_input, integer
from configs.loader import load_config, validate
from configs.text import escape, plain, table
from data.batches import JOINED, TrainBatches, make_rows
from data.config import CorpusConfig, DataConfig, Split
from data.packing import ConversationRows, Rows
from data.prepare import SPLITS, PreparedData, describe, prepare
from data.tokenizer import Tokenizer

MARKS = {"\n": "⏎\n", "\t": "⇥", "\r": "␍"} | {mark: f"⟨U+{ord(mark):04X}⟩" for mark in "⟦⟧⟨⟩⏎⇥␍"}
MARKS |= {chr(0xDC00 + byte): f"⟨{byte:X}⟩" for byte in range(0x80, 0x100)}  # as Python decodes part of a character
LENGTHS = ["tokens a document: fewest", "10 % have at most", "median", "90 % have at most", "most"]
LEGEND = """\
⟦trained on⟧   not trained on   <|special token|>   ──── document ────   (n × padding)
⏎ line end   ␍ carriage return   ⇥ tab   ⟨E4⟩ byte of a cut character   ⟨U+001B⟩ hidden character
⟨text: <|…|>⟩ looks like a special token, but is ordinary text"""


def row_as_text(ids: Sequence[int], labels: Sequence[int], tokenizer: Tokenizer) -> str:
    """(T,) ids and labels -> a row in which ⟦ ⟧ stand around what is trained on. Without the marks, and the line ends
    that follow no ⏎, it is the decoded row."""
    special = sorted((str(tokenizer.backend.id_to_token(i)) for i in tokenizer.special_ids), key=len, reverse=True)
    looks_special = re.compile(f"({'|'.join(map(re.escape, special))})")
    names = dict.fromkeys(tokenizer.special_ids, "special") | {tokenizer.bos_id: "bos", tokenizer.pad_id: "padding"}
    out, document, inside = "", 0, False
    if ids[0] != tokenizer.bos_id:
        out = "──── document 0: it began in another row ".ljust(64, "─") + "\n"
    kinds = [(names.get(token_id, "text"), label != IGNORED) for token_id, label in zip(ids, labels, strict=True)]
    for (kind, is_trained), places in groupby(range(len(ids)), kinds.__getitem__):
        run = [ids[place] for place in places]
        if is_trained != inside:
            out, inside = out + ("⟧" if inside else "⟦"), is_trained
        if kind in ("bos", "padding") and out and not out.endswith("\n"):
            out += "\n"
        if kind == "bos":
            document += 1
            out += f"──── {tokenizer.roles['bos_token']} document {document} ".ljust(64, "─") + "\n"
        elif kind == "padding":
            out += f"({len(run)} × padding)"
        elif kind == "special":
            out += tokenizer.decode(run, skip_special_tokens=False)
        else:
            parts = looks_special.split(tokenizer.decode_bytes(run).decode("utf-8", "surrogateescape"))
            parts = ["".join(MARKS.get(character) or plain(character) for character in part) for part in parts]
            out += "".join(f"⟨text: {part}⟩" if i % 2 else part for i, part in enumerate(parts))
    return out + "⟧" * inside


def summary(config: DataConfig, data: PreparedData, split: Split, rows: Rows) -> dict[str, str]:
    """What an epoch of a split is made of: figures by name."""
    stream = data.stream(split)
    _, lengths = stream.documents(data.tokenizer.bos_id)
    places = rows.per_epoch * rows.length
    if isinstance(rows, ConversationRows):
        lengths, filled, trained = lengths[:: rows.every], int(rows.sizes.sum()), rows.trained
    else:  # held-out rows begin with the last token of the one before
        filled, trained = len(stream), data.manifest[split]["trained_tokens"]
        filled += (rows.per_epoch - 1) * (rows.length - rows.stride)
    quantiles = np.quantile(lengths, [0, 0.1, 0.5, 0.9, 1], method="inverted_cdf").astype(int)
    column = {
        **{name: f"{length:,}" for name, length in zip(LENGTHS, quantiles, strict=True)},
        "longer than a row": f"{(lengths > config.sequence_length).mean():.2%}",
        "rows an epoch": f"{rows.per_epoch:,}",
        "padding in them": f"{(places - filled) / places:.2%}",
        "trained on": f"{trained / places:.2%}",
    }
    if isinstance(rows, ConversationRows):
        column |= {"cut to whole turns that fit": f"{rows.cut:,}", "left out: too long for a row": f"{rows.dropped:,}"}
    return column


def main() -> None:
    parser = argparse.ArgumentParser(description="Show the rows that training will see, and what the corpus is like.")
    parser.add_argument("config", help="a YAML file, for example configs/demo.yaml")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="for example data.sequence_length=64")
    parser.add_argument("--rows", type=integer("--rows", 0), default=3, metavar="N", help="how many rows (default 3)")
    arguments = parser.parse_intermixed_args()
    loaded = load_config(arguments.config, arguments.overrides, CorpusConfig)
    corpus, train = validate(CorpusConfig, loaded), loaded.values.get("train")
    config = corpus.data
    tokens = train.get("tokens_per_step") if isinstance(train, dict) else None  # limits how many rows may be joined
    rows_per_step = max(1, tokens // config.sequence_length) if isinstance(tokens, int) else max(JOINED)
    data = prepare(config, Path(corpus.output_dir))
    rows: dict[Split, Rows] = {split: make_rows(config, data, split, rows_per_step) for split in SPLITS}

    isolated, restarts = config.isolate_documents, config.restart_positions
    source = TrainBatches(rows["train"], data.tokenizer, 1, corpus.seed, isolated, restarts, config.shuffle)
    can = "cannot" if isolated else "can"
    print(f"{LEGEND}\na document {can} see those before it in its row (data.isolate_documents)\n")
    for number in range(arguments.rows):
        batch = source.batch(number)
        ids, labels = batch["input_ids"][0].tolist(), batch["labels"][0].tolist()
        trained = sum(label != IGNORED for label in labels)
        print(f"row {number:,}: {len(ids):,} tokens, {trained:,} trained on")
        print(row_as_text(ids, labels, data.tokenizer).rstrip("\n"), end="\n\n")

    print(f"prepared data    {escape(str(data.directory))}")
    print(f"tokenizer        {config.tokenizer.kind}, {data.tokenizer.vocab_size:,} ids")
    print(f"row              {config.sequence_length:,} tokens, {rows['train'].length:,} in training\n")
    columns = [summary(config, data, split, rows[split]) for split in SPLITS]
    print(table(["", *SPLITS], [[name, *(column[name] for column in columns)] for name in columns[0]]))
    print(f"\n{describe(data)}")


if __name__ == "__main__":
    exit_on_bad_input(main)
