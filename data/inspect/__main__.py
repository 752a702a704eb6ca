"""Print the rows that training will see: `python -m data.inspect configs/x.yaml [key=value ...]`

Nothing of a row is hidden, and nothing in it can control the terminal: of a control character, and
of the marks ⟦ ⟧ ⟨ ⟩ ⏎ ⇥ in a text, the number is printed (⟨U+001B⟩).
"""

import re
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import numpy as np

from configs import IGNORED
from configs.command import add_config, add_number, command_parser, exit_on_bad_input
from configs.loader import load_config, validate
from configs.text import escape, plain, table
from data.batches import JOINED, TrainBatches, make_rows
from data.config import CorpusConfig, DataConfig, Split
from data.packing import ConversationRows, Rows
from data.prepare import SPLITS, PreparedData, describe, prepare
from data.tokenizer import Tokenizer

MARKS = {"\n": "⏎\n", "\t": "⇥", "\r": "␍"}
MARKS |= {mark: f"⟨U+{ord(mark):04X}⟩" for mark in "⟦⟧⟨⟩⏎⇥␍"}
# Python decodes a byte of a cut character to one of these.
MARKS |= {chr(0xDC00 + byte): f"⟨{byte:X}⟩" for byte in range(0x80, 0x100)}
QUANTILES = {
    "tokens a document: fewest": 0,
    "10 % have at most": 0.1,
    "median": 0.5,
    "90 % have at most": 0.9,
    "most": 1,
}
LEGEND = """\
⟦trained on⟧   not trained on   <|special token|>   ──── document ────   (n × padding)
⏎ line end   ␍ carriage return   ⇥ tab   ⟨E4⟩ byte of a cut character   ⟨U+001B⟩ hidden character
⟨text: <|…|>⟩ looks like a special token, but is ordinary text"""


def row_as_text(ids: Sequence[int], labels: Sequence[int], tokenizer: Tokenizer) -> str:
    """Print ids and labels, each (T,), as a text with ⟦ ⟧ around the trained tokens.

    Without the marks, and the line ends that follow no ⏎, it is the decoded row.
    """
    names = [str(tokenizer.backend.id_to_token(i)) for i in tokenizer.special_ids]
    # a regular expression takes the first alternative that fits: <a> would hide <a>b
    longest_first = sorted(names, key=len, reverse=True)
    looks_special = re.compile(f"({'|'.join(map(re.escape, longest_first))})")
    kinds = dict.fromkeys(tokenizer.special_ids, "special")
    kinds[tokenizer.bos_id] = "bos"
    kinds[tokenizer.pad_id] = "padding"
    out = ""
    document = 0
    inside = False
    if ids[0] != tokenizer.bos_id:
        out = "──── document 0: it began in another row ".ljust(64, "─") + "\n"
    # decoded in runs, because a character may take several ids
    tokens = zip(ids, labels, strict=True)
    runs = groupby(tokens, lambda token: (kinds.get(token[0], "text"), token[1] != IGNORED))
    for (kind, is_trained), items in runs:
        run = [token_id for token_id, _ in items]
        if is_trained != inside:
            out += "⟧" if inside else "⟦"
            inside = is_trained
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
            text = tokenizer.decode_bytes(run).decode("utf-8", "surrogateescape")
            # every second part looks like a special token
            for i, part in enumerate(looks_special.split(text)):
                marked = "".join(MARKS.get(letter) or plain(letter) for letter in part)
                out += f"⟨text: {marked}⟩" if i % 2 else marked
    return out + "⟧" * inside


def summary(config: DataConfig, data: PreparedData, split: Split, rows: Rows) -> dict[str, str]:
    """Describe an epoch of a split: figures by name."""
    stream = data.stream(split)
    _, lengths = stream.documents(data.tokenizer.bos_id)  # (N,)
    positions = rows.per_epoch * rows.length
    if isinstance(rows, ConversationRows):
        # of held-out pairs, only the better answers are in rows
        lengths = lengths[:: rows.every]
        filled = int(rows.sizes.sum())
        trained = rows.trained
    else:
        # held-out rows begin with the last token of the row before
        filled = len(stream) + (rows.per_epoch - 1) * (rows.length - rows.stride)
        trained = data.manifest[split]["trained_tokens"]
    quantiles = np.quantile(lengths, list(QUANTILES.values()), method="inverted_cdf").astype(int)
    column = {
        **dict(zip(QUANTILES, map("{:,}".format, quantiles), strict=True)),
        "longer than a row": f"{(lengths > config.sequence_length).mean():.2%}",
        "rows an epoch": f"{rows.per_epoch:,}",
        "padding in them": f"{(positions - filled) / positions:.2%}",
        "trained on": f"{trained / positions:.2%}",
    }
    if isinstance(rows, ConversationRows):
        column["cut to whole turns that fit"] = f"{rows.cut:,}"
        column["left out: too long for a row"] = f"{rows.dropped:,}"
    return column


def main() -> None:
    parser = command_parser(__doc__)
    add_config(parser)
    add_number(parser, "--rows", 3, "how many", least=0)
    args = parser.parse_intermixed_args()
    loaded = load_config(args.config, args.overrides, CorpusConfig)
    corpus = validate(CorpusConfig, loaded)
    config = corpus.data
    # train.tokens_per_step, if it is set, limits how many rows may be joined
    rows_per_step = max(JOINED)
    train = loaded.values.get("train")
    if isinstance(train, dict) and isinstance(train.get("tokens_per_step"), int):
        rows_per_step = max(1, train["tokens_per_step"] // config.sequence_length)
    # The same folder as a run's, so the text is prepared once, here or there.
    data = prepare(config, Path(corpus.output_dir))
    rows = {split: make_rows(config, data, split, rows_per_step) for split in SPLITS}

    # a row does not depend on the batch size
    batches = TrainBatches(
        rows["train"],
        data.tokenizer,
        rows_per_batch=1,
        seed=corpus.seed,
        isolate_documents=config.isolate_documents,
        restart_positions=config.restart_positions,
        shuffle=config.shuffle,
    )
    can = "cannot" if config.isolate_documents else "can"
    print(LEGEND)
    print(f"a document {can} see those before it in its row (data.isolate_documents)\n")
    for number in range(args.rows):
        batch = batches.batch(number)
        ids = batch["input_ids"][0].tolist()
        labels = batch["labels"][0].tolist()
        trained = sum(label != IGNORED for label in labels)
        print(f"row {number:,}: {len(ids):,} tokens, {trained:,} trained on")
        print(row_as_text(ids, labels, data.tokenizer).rstrip("\n"), end="\n\n")

    print(f"prepared data    {escape(str(data.directory))}")
    print(f"tokenizer        {config.tokenizer.kind}, {data.tokenizer.vocab_size:,} ids")
    print(
        f"row              {config.sequence_length:,} tokens, "
        f"{rows['train'].length:,} in training\n"
    )
    columns = [summary(config, data, split, rows[split]) for split in SPLITS]
    cells = [[name, *(column[name] for column in columns)] for name in columns[0]]
    print(table(["", *SPLITS], cells))
    print()
    print(describe(data))


if __name__ == "__main__":
    exit_on_bad_input(main)
