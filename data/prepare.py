"""Documents -> token shards on disk, with a manifest. `python -m data.prepare configs/x.yaml`

Prepared data is in <output_dir>/.prepared/<key>/. The key is a hash of everything that the shards depend on, the
text included. So a changed file or tokenizer makes a new entry, and nothing stale is read. A shard is a plain array of
token ids. For conversations, a second array holds flags, one byte a token. The shards of both splits end at the same
document. manifest.json comes last: without it the data is unfinished.

The same command on several machines with one disk shares the work. Each reads all of the text, because where a shard
ends depends on what is before it, and encodes the shards that no other process is at: 00007.lock is held while shard 7
is encoded, and 00007.json is written when it is on disk. A lock ends with its process, so the shard of a killed one is
taken over, and whoever comes last writes the manifest. The bytes are those of one process.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext, suppress
from dataclasses import asdict
from itertools import chain, groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from filelock import FileLock, Timeout

from configs.command import InputError, exit_on_bad_input, still_busy
from configs.files import read_json, write_atomically, writing_to
from configs.loader import load_config, validate
from data.batches import prefetched
from data.chat import TRAINED, encode_conversations, encode_pairs, plain_texts
from data.chat_template import CHAT_TEMPLATE_VERSION
from data.config import CorpusConfig, DataConfig, FilesSource, MixSource, Split, StoryworldSource
from data.packing import PreparedData
from data.reading import files
from data.reading.documents import Document, Ledger, files_of, read
from data.reading.records import Conversation
from data.tokenizer import Tokenizer, cut, load_tokenizer, train_tokenizer
from storyworld import STORYWORLD_VERSION

FORMAT_VERSION = 7
SPLITS: tuple[Split, ...] = ("train", "validation")
SHARD_TOKENS = 20_000_000  # about, which wait in memory, 4 or 5 bytes each
BATCH = 1 << 20  # characters encoded at a time, on all cores
MANIFEST = "manifest.json"
EXCERPT = 1 << 14  # characters of a long document that a tokenizer learns from at a time
PACKED = 4  # how much larger than its file a compressed text may be, about


def prepare(config: DataConfig, output_dir: Path, show_progress: bool = True, together: bool = False) -> PreparedData:
    """Tokenize the corpus, continue where this was interrupted, or find it prepared.

    Every process of a run may call this at the same time: the first one prepares, the others wait for it at a lock.
    show_progress: say that it waits. together: do not wait, but take a part of the work: for other machines, because
    one process encodes on all cores. Raises InputError for a source that cannot be read or holds too little.
    """
    tokenizer = config.tokenizer.model_dump()
    if config.tokenizer.path is not None:
        tokenizer["path"] = train_tokenizer(config.tokenizer, []).sha256()
    depends_on = {
        "format": FORMAT_VERSION,
        "source": source_identity(config.source),
        "tokenizer": tokenizer,
        # texts do not depend on it: their runs can be continued whatever it is
        "chat_template": 1 if config.records == "text" else CHAT_TEMPLATE_VERSION,
        **config.model_dump(include={"records", "validation_fraction", "drop_duplicates", "on_bad_record"}),
        **({"chat_fields": config.chat_fields} if config.chat_fields else {}),  # older runs have none
    }
    key = hashlib.sha256(json.dumps(depends_on, sort_keys=True).encode()).hexdigest()[:16]
    directory = output_dir / ".prepared" / key
    if not (directory / MANIFEST).is_file():
        lock = FileLock(f"{directory}.lock")
        waiting = f"waiting for another process, which prepares {directory}"
        with still_busy(waiting) if show_progress else nullcontext():
            held = lock.acquire()
        with writing_to(directory), held:
            if not directory.is_dir():
                partial = directory.with_name(f"{directory.name}.partial")
                shutil.rmtree(partial, ignore_errors=True)
                with still_busy("reading the text that the tokenizer learns from, and learning"):
                    train_tokenizer(config.tokenizer, tokenizer_texts(config)).save(partial)
                partial.replace(directory)
            if not together:
                _write(config, directory, depends_on)
        if together:
            with writing_to(directory):
                _write(config, directory, depends_on)
    return open_prepared(directory)


def open_prepared(directory: Path) -> PreparedData:
    """Read a prepared corpus. Raises InputError unless every file of it is as it was written."""
    try:
        manifest, tokenizer = read_json(directory / MANIFEST), load_tokenizer(directory)
        written = {directory / name: digest for split in SPLITS for name, digest in manifest[split]["shards"].items()}
        for file, digest in hashes(written).items():
            if digest != written[file]:
                raise InputError(f"{file}: its bytes have changed since it was written")
    except InputError as error:
        raise InputError(f"{error}: the prepared data is damaged: delete {directory}, then it is made again") from None
    return PreparedData(directory, manifest, tokenizer)


# ---------------------------------------------------------------------------------------------------------
# the key: what the shards depend on


def source_identity(source: Any) -> dict[str, Any]:
    """What makes a source itself, contents included: two sources with equal identity give equal text."""
    described = source.model_dump()
    if isinstance(source, MixSource):
        described["parts"] = [{"weight": part.weight, "source": source_identity(part.source)} for part in source.parts]
    elif isinstance(source, FilesSource):
        for key, paths in (("path", files_of(source)), ("validation_path", files_of(source, held_out=True))):
            digests = hashes(paths).items()  # their place does not matter
            described["separator"] = source.separator.replace("\n", "\r?\n")  # as it is searched for
            described[key] = [f"{''.join(path.suffixes[-2:])} {digest}" for path, digest in digests]
    elif isinstance(source, StoryworldSource):
        described["version"] = STORYWORLD_VERSION
    else:
        described["dataset"] = files.dataset_identity(source)
    return described


def hashes(paths: Iterable[Path]) -> dict[Path, str]:
    """SHA-256 of every file, on all cores: about 1.4 GB/s each."""

    def sha256(path: Path) -> tuple[Path, str]:
        with path.open("rb") as raw:
            return path, hashlib.file_digest(raw, "sha256").hexdigest()

    with still_busy("hashing the files of the corpus"), ThreadPoolExecutor() as pool:
        return dict(pool.map(sha256, paths))


# ---------------------------------------------------------------------------------------------------------
# writing


def _write(config: DataConfig, directory: Path, depends_on: dict[str, Any]) -> None:
    """Write the shards that are not there and that no other process is at, until all are there; then the manifest."""
    tokenizer, notes = load_tokenizer(directory), list[Path]()
    dtype = "uint16" if tokenizer.vocab_size <= 2**16 else "uint32"
    # a shard's end is found without encoding: a token of a learned vocabulary is about four characters
    characters = SHARD_TOKENS * (1 if config.tokenizer.kind in ("byte", "char") else 4)
    while not (directory / MANIFEST).is_file():
        documents, place, ledger, notes = 0, "the first", Ledger(), []
        batches = prefetched(_batches(read(config, ledger), characters))
        with closing(batches), still_busy(lambda: f"preparing: {documents:,} documents, up to {place}"):  # noqa: B023
            for number, of_shard in groupby(batches, key=lambda batch: batch[0]):
                notes.append(directory / f"{number:05d}.json")
                with suppress(Timeout), FileLock(notes[-1].with_suffix(".lock"), blocking=False):
                    # in this order: the notes are removed after the manifest was written
                    if notes[-1].is_file() or (directory / MANIFEST).is_file():
                        continue
                    shard = list[Encoded]()
                    for _, batch in of_shard:
                        shard += _encoded(batch, tokenizer)
                        documents, place = documents + len(batch), batch[-1].where
                    counts = _write_shard(shard, directory, dtype, number)
                    write_atomically(notes[-1], json.dumps(counts, indent=1) + "\n")
        with FileLock(directory / "manifest.lock"):
            if not (directory / MANIFEST).is_file() and all(map(_is_written, notes)):
                _write_manifest(directory, notes, depends_on, dtype, tokenizer.vocab_size, ledger)
    for file in (*notes, *(note.with_suffix(".lock") for note in notes), directory / "manifest.lock"):
        with suppress(OSError):  # another process was quicker, or Windows keeps what is open there
            file.unlink()


def _is_written(note: Path) -> bool:
    """Whether a shard is on disk, when no process is at it any more."""
    with FileLock(note.with_suffix(".lock")):
        return note.is_file()


def _write_manifest(
    directory: Path, notes: list[Path], depends_on: dict[str, Any], dtype: str, vocab_size: int, ledger: Ledger
) -> None:
    """Add up what the notes of all shards say. Raises InputError if a split is empty."""
    names = ("documents", "tokens", "trained_tokens", "bytes")
    manifest: dict[str, Any] = {split: dict.fromkeys(names, 0) | {"shards": {}} for split in SPLITS}
    for split, counts in ((split, counts) for note in notes for split, counts in read_json(note).items()):
        manifest[split]["shards"] |= counts["shards"]
        for name in names:
            manifest[split][name] += counts[name]
    for split in SPLITS:
        if not (counts := manifest[split])["documents"]:
            number = sum(manifest[split]["documents"] for split in SPLITS)
            raise InputError(
                f"data.source: none of {number:,} documents falls into the {split} part, which their hashes decide: "
                "give more, try another data.validation_fraction, or name held-out files or a held-out split"
            )
        counts["bytes_per_token"] = round(counts["bytes"] / max(1, counts["trained_tokens"]), 4)
    manifest |= {"depends_on": depends_on, "dtype": dtype, "vocab_size": vocab_size, "read": asdict(ledger)}
    write_atomically(directory / MANIFEST, json.dumps(manifest, indent=1) + "\n")


class Encoded(NamedTuple):
    """A document as tokens. flags: of conversations. bytes: of the text that is trained on."""

    split: Split
    where: str
    ids: np.ndarray
    flags: np.ndarray | None
    bytes: int


def _write_shard(documents: list[Encoded], directory: Path, dtype: str, number: int) -> dict[str, Any]:
    """Write a shard of each split that has documents in it -> what is in it, as the manifest says it."""
    counts: dict[str, Any] = {}
    for split in SPLITS:
        if not (part := [document for document in documents if document.split == split]):
            continue
        ids, shards = np.concatenate([document.ids for document in part]), {}
        flags = [document.flags for document in part if document.flags is not None]
        arrays = {"bin": ids.astype(dtype)} | ({"flags": np.concatenate(flags)} if flags else {})
        for kind, values in arrays.items():
            file, raw = directory / f"{split}_{number:05d}.{kind}", values.tobytes()
            write_atomically(file, raw)
            shards[file.name] = hashlib.sha256(raw).hexdigest()
        counts[split] = {
            "documents": len(part),
            "tokens": len(ids),
            # a text's first token is given, not predicted
            "trained_tokens": int(np.count_nonzero(arrays["flags"] & TRAINED)) if flags else len(ids) - len(part),
            "bytes": sum(document.bytes for document in part),
            "shards": shards,
        }
    return counts


def _batches(documents: Iterable[Document], characters: int) -> Iterator[tuple[int, list[Document]]]:
    """Documents of about BATCH characters together, each batch with the number of its shard, which has about so many
    characters; a long book is a batch of its own."""
    number, batch, size, earlier = 0, list[Document](), 0, 0
    for document in documents:
        batch.append(document)
        size += len(document.content if isinstance(document.content, str) else repr(document.content))
        if size >= BATCH or earlier + size >= characters:
            yield number, batch
            batch, size, earlier = [], 0, earlier + size
            if earlier >= characters:
                number, earlier = number + 1, 0
    if batch:
        yield number, batch


def _encoded(batch: list[Document], tokenizer: Tokenizer) -> list[Encoded]:
    contents: list[Any] = [document.content for document in batch]
    if is_text := isinstance(contents[0], str):
        first, last = [tokenizer.bos_id], [tokenizer.eos_id]
        encoded: Any = [(np.concatenate([first, ids, last]), None) for ids in tokenizer.encode_arrays(contents)]
    else:
        encode = encode_conversations if isinstance(contents[0], Conversation) else encode_pairs
        encoded = encode(tokenizer, contents)
    result = []
    for (content, split, where), (ids, flags) in zip(batch, encoded, strict=True):
        texts = plain_texts(content, 0 if is_text else TRAINED)
        size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
        result.append(Encoded(split, where, np.array(ids, np.uint32), flags, size))
    return result


def tokenizer_texts(config: DataConfig) -> Iterator[str]:
    """What a tokenizer learns from: for char everything; for bpe about train_bytes of the training part. From files
    they are spread evenly over all of the text; from other sources they are the first ones, of the built-in world
    without its drills."""
    kind, wanted, source = config.tokenizer.kind, config.tokenizer.train_bytes, config.source
    if kind in ("byte", "pretrained"):
        return
    if kind == "bpe" and isinstance(source, StoryworldSource):
        # drills are the same few words again and again: cut by what they hold, a story would be in crumbs
        stories = source.model_copy(update={"drills": {}, "course": [], "validation_documents": 0})
        config = config.model_copy(update={"source": stories})
    share = 1.0
    if kind == "bpe" and isinstance(source, FilesSource) and source.max_records is None:
        paths = files_of(source)
        is_packed = any(path.suffix.lower() in {*files.COMPRESSED, ".parquet"} for path in paths)
        share = wanted / max(1, sum(path.stat().st_size for path in paths) * (PACKED if is_packed else 1))
    seen = taken = 0
    for document in read(config):
        if kind == "bpe" and document.split != "train":
            continue
        for piece in chain.from_iterable(cut(text, EXCERPT) for text in plain_texts(document.content)):
            size = len(piece.encode("utf-8", "surrogatepass"))
            if kind == "char" or taken <= share * seen:
                yield piece
                taken += size
            seen += size
        if kind == "bpe" and taken >= wanted:
            return


# ---------------------------------------------------------------------------------------------------------
# the command


def describe(prepared: PreparedData) -> str:
    """Two lines, what was read and how many tokens it made; then what was left out, if any. Of conversations, bytes
    are those of the answers."""
    manifest, ledger, lines = prepared.manifest, prepared.manifest["read"], []
    what = {"text": "document", "conversations": "conversation", "pairs": "pair"}[manifest["depends_on"]["records"]]
    for split in SPLITS:
        c = manifest[split]
        text = f"{c['bytes'] / 1e6:.2f} MB, {c['tokens']:,} tokens"
        if what != "document":
            text = f"{c['tokens']:,} tokens; trained on: {c['trained_tokens']:,}, {c['bytes'] / 1e6:.2f} MB of answers"
        number = f"{c['documents']:,} {what}{'s' * (c['documents'] != 1)}"
        lines.append(f"{split}: {number}, {text} ({c['bytes_per_token']:.2f} bytes per token)")
    duplicates = "left out" if manifest["depends_on"]["drop_duplicates"] else "kept"
    notes = {"duplicates": f"exact duplicates {duplicates}", "empty": "empty texts left out"}
    notes["bad"] = "bad records left out (listed in manifest.json)"
    return "\n".join([*lines, *(f"{ledger[name]:,} {note}" for name, note in notes.items() if ledger[name])])


def main() -> None:
    parser = argparse.ArgumentParser(description="Tokenize the corpus of a config, without training.")
    parser.add_argument("config", help="a YAML file, for example configs/demo.yaml")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="for example data.records=text")
    arguments = parser.parse_args()
    config = validate(CorpusConfig, load_config(arguments.config, arguments.overrides, CorpusConfig))
    prepared = prepare(config.data, Path(config.output_dir), together=True)
    print(f"{prepared.directory}\n{describe(prepared)}")


if __name__ == "__main__":
    exit_on_bad_input(main)
