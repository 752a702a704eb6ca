"""Look at the rows that training will see: `python -m data.inspect configs/x.yaml [section.key=value ...]`

Row p (p = 0, 1, 2, … over all epochs) is the same whatever the batch size, so rows are drawn one at a time, with the
config's seed. After them comes a summary of the corpus. Nothing of a row is hidden, and nothing in it can control the
terminal. The legend explains the marks ⟦ ⟧ ⟨ ⟩ ⏎ ⇥. Where a text itself holds one of them, or a control character, you
see its number: ⟨U+001B⟩.

`--tokenizers 512,2048,char,runs/x` asks which vocabulary suits the text. Each tokenizer is trained as a run would train
it, and measured on held-out documents, which it has not seen.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from itertools import groupby

import numpy as np

from configs.command import InputError, exit_on_bad_input, still_busy, whole
from configs.loader import load_config, validate
from configs.text import escape, plain, table
from data.batches import JOINED, TrainBatches, make_rows
from data.chat import plain_texts
from data.config import DataConfig, Split, TokenizerConfig
from data.packing import IGNORED, ConversationRows, DocumentRows, Rows, trained_tokens
from data.prepare import SPLITS, PreparedData, describe, keys_of_run, prepare, tokenizer_texts
from data.reading.documents import documents
from data.tokenizer import Tokenizer, adopt, train_tokenizer

MARKS = {"\n": "⏎\n", "\t": "⇥", "\r": "␍"} | {mark: f"⟨U+{ord(mark):04X}⟩" for mark in "⟦⟧⟨⟩⏎⇥␍"}
MARKS |= {chr(0xDC00 + byte): f"⟨{byte:X}⟩" for byte in range(0x80, 0x100)}  # as Python decodes part of a character
LENGTHS = ["tokens a document: fewest", "10 % have at most", "median", "90 % have at most", "most"]
MEASURED = 2_000_000  # characters, about, that a tokenizer is measured on
SIZES = "byte,512,1024,2048,4096,8192"
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
            out += f"──── {tokenizer.bos_token} document {document} ".ljust(64, "─") + "\n"
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
    starts = stream.find(data.tokenizer.bos_id)
    sizes = lengths = np.diff(starts, append=len(stream))
    trained = data.manifest[split]["trained_tokens"]
    if isinstance(rows, ConversationRows):  # sizes: of what is in rows
        sizes, lengths = rows.sizes, lengths[:: rows.every]
        trained = int(trained_tokens(stream, starts[:: rows.every], sizes).sum())
    places, filled = rows.per_epoch * rows.length, int(sizes.sum())
    if isinstance(rows, DocumentRows):  # held-out rows begin with the last token of the one before
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


def compare_tokenizers(config: DataConfig, others: Sequence[str]) -> list[list[str]]:
    """A line for the config's own tokenizer, marked by *, and for each other one: `byte`, `char`, a size of bpe, or the
    path of one that exists. Bytes per token count the token that ends a document, as a run's manifest does."""

    def named(name: str) -> tuple[str, Tokenizer]:
        if name not in ("*", "byte", "char") and not name.isdigit():
            return escape(name), adopt(name)
        own = config.tokenizer
        if name != "*":
            fields = {"kind": "bpe", "vocab_size": int(name)} if name.isdigit() else {"kind": name}
            own = TokenizerConfig.model_validate(fields | {"train_bytes": own.train_bytes})
        texts = tokenizer_texts(config.model_copy(update={"tokenizer": own}))
        return f"* {own.kind}" if name == "*" else own.kind, train_tokenizer(own, texts)

    texts: list[str] = []
    characters = ends = 0
    for content in documents(config, "validation"):
        texts += plain_texts(content)
        characters, ends = sum(map(len, texts)), ends + (config.records == "text")
        if characters >= MEASURED:
            break
    if not texts:
        raise InputError("data.source: no document is held out: raise data.validation_fraction, or name held-out files")
    size, lines = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts), []
    for label, tokenizer in map(named, ("*", *others)):
        encoded, unknown = tokenizer.encode_many(texts), tokenizer.unk_id
        tokens = sum(map(len, encoded)) + ends
        share = 0 if unknown is None else sum(ids.count(unknown) for ids in encoded) / tokens
        in_a_row = f"{config.sequence_length * characters / tokens:,.0f}"
        lines.append([label, f"{tokenizer.vocab_size:,}", f"{size / tokens:.2f}", in_a_row, f"{share:.2%}"])
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description="Show the rows that training will see, and what the corpus is like.")
    parser.add_argument("config", help="a YAML file, for example configs/demo.yaml")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="for example data.sequence_length=64")
    parser.add_argument("--rows", type=whole("--rows", 0), default=3, metavar="N", help="how many rows (default 3)")
    parser.add_argument("--tokenizers", nargs="?", const=SIZES, metavar="N,PATH,…", help="compare vocabularies instead")
    arguments = parser.parse_intermixed_args()
    loaded = load_config(arguments.config, arguments.overrides)
    config, train = validate(DataConfig, loaded, "data"), loaded.values.get("train")
    if arguments.tokenizers:
        with still_busy("learning and measuring the tokenizers of the table"):
            lines = compare_tokenizers(config, arguments.tokenizers.split(","))
        row = f"characters in a row of {config.sequence_length:,}"
        print(table(["tokenizer", "ids", "bytes per token", row, "unknown"], lines))
        print("\nLonger tokens: more text in a row, fewer tokens an epoch. The price: a larger embedding, and head.")
        print("Losses per token of two tokenizers cannot be compared; bits per byte can.")
        return 0
    output_dir, seed = keys_of_run(loaded)
    tokens = train.get("tokens_per_step") if isinstance(train, dict) else None  # limits how many rows may be joined
    rows_per_step = max(1, tokens // config.sequence_length) if isinstance(tokens, int) else max(JOINED)
    data = prepare(config, output_dir)
    rows: dict[Split, Rows] = {split: make_rows(config, data, split, rows_per_step) for split in SPLITS}

    source = TrainBatches(
        rows["train"], data.tokenizer, 1, seed, config.isolate_documents, config.restart_positions, config.shuffle
    )
    can = "cannot" if config.isolate_documents else "can"
    print(f"{LEGEND}\na document {can} see those before it in its row (data.isolate_documents)\n")
    for number in range(arguments.rows):
        batch = source.batch(number)
        ids, labels = batch["input_ids"][0].tolist(), batch["labels"][0].tolist()
        trained = sum(label != IGNORED for label in labels)
        epoch = number // rows["train"].per_epoch
        print(f"row {number:,} (epoch {epoch}): {len(ids):,} tokens, {trained:,} trained on")
        print(row_as_text(ids, labels, data.tokenizer).rstrip("\n"), end="\n\n")

    print(f"prepared data    {escape(str(data.directory))}")
    print(f"tokenizer        {config.tokenizer.kind}, {data.tokenizer.vocab_size:,} ids")
    joined = rows["train"].length // config.sequence_length
    note = f" (training joins {joined} rows into one of {rows['train'].length:,})" if joined > 1 else ""
    print(f"row              {config.sequence_length:,} tokens{note}\n")
    columns = [summary(config, data, split, rows[split]) for split in SPLITS]
    print(table(["", *SPLITS], [[name, *(column[name] for column in columns)] for name in columns[0]]))
    print(f"\n{describe(data)}")
    return 0


if __name__ == "__main__":
    exit_on_bad_input(main)
