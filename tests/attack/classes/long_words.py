"""Texts without a place to cut them: all tokenizers learn from them and encode them in time linear in their length."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.long_words import TEXTS
from tests.attack.attack import Case
from tests.attack.victims import write_config

COMMANDS = ("data.prepare", "data.inspect", "data.tokenizer_report")
TOKENIZERS = {
    "bpe": {"kind": "bpe", "vocab_size": 512},
    "char": {"kind": "char"},
    "byte": {"kind": "byte"},
    "pretrained": {"kind": "pretrained", "path": "other"},
}
SMALL, LARGE = 3_000, 400_000


def cases() -> Iterator[Case]:
    for text in TEXTS:
        for kind in TOKENIZERS:
            for command in COMMANDS if kind == "bpe" else COMMANDS[:1]:
                write = partial(put, text=text, kind=kind, length=SMALL)
                yield Case(f"{command} {kind} {text}", (command, "tiny.yaml"), write, may_work=True)
        write = partial(put, text=text, kind="bpe", length=LARGE)
        yield Case(f"data.prepare bpe {text}, long", ("data.prepare", "tiny.yaml"), write, may_work=True)


def put(folder: Path, text: str, kind: str, length: int) -> None:
    """tiny.yaml, text.txt without a line end, and a tokenizer that others trained, without a longest word."""
    source = {"kind": "files", "path": "text.txt"}
    write_config(folder, data={"source": source, "tokenizer": TOKENIZERS[kind], "sequence_length": 32})
    (folder / "text.txt").write_text(TEXTS[text](length), encoding="utf-8")
    if kind == "pretrained":
        save_other(folder / "other")


def save_other(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(["Once upon a time there was a fox, a cat and a dog."], trainer)
    folder.mkdir()
    backend.save(str(folder / "tokenizer.json"))
