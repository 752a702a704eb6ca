"""Tokenize documents into shards on disk, with a manifest: `python -m data.prepare configs/x.yaml`

Prepared data is in <output_dir>/.prepared/<key>/. The key is a hash of everything that the shards
depend on, the text included. A shard is a plain array of token ids; for conversations, a second
array holds flags, one byte a token. manifest.json comes last: without it the data is unfinished.

The same command on several machines with one disk shares the work, and writes the same bytes.
"""

import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext, suppress
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from filelock import FileLock, Timeout

from configs.command import InputError, add_config, command_parser, exit_on_bad_input, still_busy
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

# A part of the key. Raise it when a shard gets other bytes from the same text.
FORMAT_VERSION = 7
SPLITS: tuple[Split, ...] = ("train", "validation")
# A shard has about this many tokens. They are kept in memory, at 4 or 5 bytes each.
SHARD_TOKENS = 20_000_000
# All cores together encode this many characters at a time.
BATCH = 1 << 20
MANIFEST = "manifest.json"
# A tokenizer learns from excerpts of this many characters of a long document.
EXCERPT = 1 << 14
# A compressed text is about this many times larger than its file.
PACKED = 4


def prepare(
    config: DataConfig, output_dir: Path, show_progress: bool = True, together: bool = False
) -> PreparedData:
    """Tokenize the corpus, continue where this was interrupted, or open it if it is prepared.

    together: share the work. Raises InputError for a source that cannot be read or is too small.
    """
    tokenizer = config.tokenizer.model_dump()
    if config.tokenizer.path is not None:
        tokenizer["path"] = train_tokenizer(config.tokenizer, []).sha256()
    depends_on = {
        "format": FORMAT_VERSION,
        "source": source_identity(config.source),
        "tokenizer": tokenizer,
        # texts do not depend on it: their runs can be continued with any version
        "chat_template": 1 if config.records == "text" else CHAT_TEMPLATE_VERSION,
        "records": config.records,
        "validation_fraction": config.validation_fraction,
        "drop_duplicates": config.drop_duplicates,
        "on_bad_record": config.on_bad_record,
    }
    # only if set: older prepared data has no such key
    if config.chat_fields:
        depends_on["chat_fields"] = config.chat_fields
    text = json.dumps(depends_on, sort_keys=True)
    key = hashlib.sha256(text.encode()).hexdigest()[:16]
    # a new key is a new folder, so runs of old settings keep the text that they were trained on
    directory = output_dir / ".prepared" / key
    if not (directory / MANIFEST).is_file():
        lock = FileLock(f"{directory}.lock")
        waiting = f"waiting for another process, which prepares {directory}"
        # the first process of a run prepares, the others wait here
        with still_busy(waiting) if show_progress else nullcontext():
            held = lock.acquire()
        with writing_to(directory), held:
            if not directory.is_dir():
                # a tokenizer that is saved halfway must not look finished
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
    """Open a prepared corpus. Raises InputError if a file has changed."""
    try:
        manifest = read_json(directory / MANIFEST)
        tokenizer = load_tokenizer(directory)
        shards = manifest["train"]["shards"] | manifest["validation"]["shards"]
        for file, digest in hashes(directory / name for name in shards).items():
            if digest != shards[file.name]:
                raise InputError(f"{file}: its bytes have changed since it was written")
    except InputError as error:
        raise InputError(
            f"{error}: the prepared data is damaged: delete {directory} to make it again"
        ) from None
    return PreparedData(directory, manifest, tokenizer)


# the key


def source_identity(source: Any) -> dict[str, Any]:
    """Describe a source and its contents. Equal identities give equal text."""
    described = source.model_dump()
    if isinstance(source, MixSource):
        described["parts"] = [
            {"weight": part.weight, "source": source_identity(part.source)} for part in source.parts
        ]
    elif isinstance(source, FilesSource):
        # as it is searched for, also with Windows' line ends
        described["separator"] = source.separator.replace("\n", "\r?\n")
        described["path"] = _digests(files_of(source))
        described["validation_path"] = _digests(files_of(source, held_out=True))
    elif isinstance(source, StoryworldSource):
        described["version"] = STORYWORLD_VERSION
    else:
        described["dataset"] = files.dataset_identity(source)
    return described


def _digests(paths: list[Path]) -> list[str]:
    # the directory does not matter, only the kind of file
    return [f"{''.join(path.suffixes[-2:])} {digest}" for path, digest in hashes(paths).items()]


def hashes(paths: Iterable[Path]) -> dict[Path, str]:
    """Return the SHA-256 of every file."""

    # hashlib releases Python's lock: about 1.4 GB/s a core
    def sha256(path: Path) -> tuple[Path, str]:
        with path.open("rb") as raw:
            return path, hashlib.file_digest(raw, "sha256").hexdigest()

    with still_busy("hashing the files of the corpus"), ThreadPoolExecutor() as pool:
        return dict(pool.map(sha256, paths))


# writing


def _write(config: DataConfig, directory: Path, depends_on: dict[str, Any]) -> None:
    # Write the missing shards that no other process works on, and after the last one the manifest.
    # Each process reads all of the text, because a shard ends where the text before it decides.
    tokenizer = load_tokenizer(directory)
    dtype = "uint16" if tokenizer.vocab_size <= 2**16 else "uint32"
    # A shard's end is found without encoding: a learned token has about four characters.
    characters = SHARD_TOKENS * (1 if config.tokenizer.kind in ("byte", "char") else 4)
    notes: list[Path] = []
    # Each round reads the text again, as long as another process may have left a shard unfinished.
    while not (directory / MANIFEST).is_file():
        documents = 0
        newest = "the first"
        ledger = Ledger()
        notes = []
        batches = prefetched(_batches(read(config, ledger), characters))

        def progress() -> str:
            return f"preparing: {documents:,} documents, up to {newest}"  # noqa: B023

        with closing(batches), still_busy(progress):
            for number, shard_batches in groupby(batches, key=lambda batch: batch[0]):
                note = directory / f"{number:05d}.json"
                notes.append(note)
                # a lock ends with its process, so another one takes over
                with suppress(Timeout), FileLock(note.with_suffix(".lock"), blocking=False):
                    # in this order: the notes are removed after the manifest was written
                    if note.is_file() or (directory / MANIFEST).is_file():
                        continue
                    shard: list[Encoded] = []
                    for _, batch in shard_batches:
                        shard += _encoded(batch, tokenizer)
                        documents += len(batch)
                        newest = batch[-1].where
                    counts = _write_shard(shard, directory, dtype, number)
                    # the note comes after its shard: a shard without one is made again
                    write_atomically(note, json.dumps(counts, indent=1) + "\n")
        with FileLock(directory / "manifest.lock"):
            if not (directory / MANIFEST).is_file() and all(map(_is_written, notes)):
                _write_manifest(directory, notes, depends_on, dtype, tokenizer.vocab_size, ledger)
    locks = [note.with_suffix(".lock") for note in notes]
    for file in (*notes, *locks, directory / "manifest.lock"):
        # another process was quicker, or Windows keeps an open file
        with suppress(OSError):
            file.unlink()


def _is_written(note: Path) -> bool:
    # the lock waits for a process that still encodes this shard
    with FileLock(note.with_suffix(".lock")):
        return note.is_file()


def _write_manifest(
    directory: Path,
    notes: list[Path],
    depends_on: dict[str, Any],
    dtype: str,
    vocab_size: int,
    ledger: Ledger,
) -> None:
    # adds up the counts of all shards
    names = ("documents", "tokens", "trained_tokens", "bytes")
    manifest: dict[str, Any] = {}
    for split in SPLITS:
        manifest[split] = dict.fromkeys(names, 0) | {"shards": {}}
    for note in notes:
        for split, counts in read_json(note).items():
            manifest[split]["shards"] |= counts["shards"]
            for name in names:
                manifest[split][name] += counts[name]
    for split in SPLITS:
        counts = manifest[split]
        if not counts["documents"]:
            number = sum(manifest[split]["documents"] for split in SPLITS)
            raise InputError(
                f"data.source: none of {number:,} documents is in the {split} part: give more, "
                "change data.validation_fraction, or name held-out files or a held-out split"
            )
        # for bits per byte, the same for all tokenizers
        counts["bytes_per_token"] = round(counts["bytes"] / max(1, counts["trained_tokens"]), 4)
    manifest |= {"depends_on": depends_on, "dtype": dtype, "vocab_size": vocab_size}
    manifest["read"] = asdict(ledger)
    write_atomically(directory / MANIFEST, json.dumps(manifest, indent=1) + "\n")


class Encoded(NamedTuple):
    """A document as tokens, with flags if it is a conversation. bytes: of the trained text."""

    split: Split
    where: str
    ids: np.ndarray
    flags: np.ndarray | None
    bytes: int


def _write_shard(
    documents: list[Encoded], directory: Path, dtype: str, number: int
) -> dict[str, Any]:
    # one file (with flags: two) of each split that has documents; returns the counts
    result: dict[str, Any] = {}
    for split in SPLITS:
        part = [document for document in documents if document.split == split]
        if not part:
            continue
        ids = np.concatenate([document.ids for document in part])  # (tokens,)
        flags = [document.flags for document in part if document.flags is not None]
        arrays = {"bin": ids.astype(dtype)}
        # the first token of a text is not predicted
        trained = len(ids) - len(part)
        if flags:
            arrays["flags"] = np.concatenate(flags)
            trained = int(np.count_nonzero(arrays["flags"] & TRAINED))
        shards = {}
        for kind, values in arrays.items():
            file = directory / f"{split}_{number:05d}.{kind}"
            raw = values.tobytes()
            write_atomically(file, raw)
            # from the bytes in memory: read again from the disk, damage would be hashed as it is
            shards[file.name] = hashlib.sha256(raw).hexdigest()
        result[split] = {
            "documents": len(part),
            "tokens": len(ids),
            "trained_tokens": trained,
            "bytes": sum(document.bytes for document in part),
            "shards": shards,
        }
    return result


def _batches(
    documents: Iterable[Document], characters: int
) -> Iterator[tuple[int, list[Document]]]:
    # (number of the shard, about BATCH characters of documents)
    shard = 0
    shard_size = 0
    batch: list[Document] = []
    size = 0
    for document in documents:
        content = document.content
        batch.append(document)
        # characters, not tokens: all processes must cut at the same place, and only one encodes
        size += len(content if isinstance(content, str) else repr(content))
        if size >= BATCH or shard_size + size >= characters:
            yield shard, batch
            shard_size += size
            batch = []
            size = 0
            if shard_size >= characters:
                shard += 1
                shard_size = 0
    if batch:
        yield shard, batch


def _encoded(batch: list[Document], tokenizer: Tokenizer) -> list[Encoded]:
    contents: list[Any] = [document.content for document in batch]
    # of chats, only the trained text counts as bytes; of texts all
    weight = TRAINED
    encoded: list[Any]
    if isinstance(contents[0], str):
        weight = 0
        begin = [tokenizer.bos_id]
        end = [tokenizer.eos_id]
        arrays = tokenizer.encode_arrays(contents)
        encoded = [(np.concatenate([begin, ids, end]), None) for ids in arrays]
    elif isinstance(contents[0], Conversation):
        encoded = encode_conversations(tokenizer, contents)
    else:
        encoded = encode_pairs(tokenizer, contents)
    result = []
    for (content, split, where), (ids, flags) in zip(batch, encoded, strict=True):
        texts = plain_texts(content, weight)
        size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
        # uint32 here; a shard takes uint16 if the vocabulary allows it
        result.append(Encoded(split, where, np.array(ids, np.uint32), flags, size))
    return result


def tokenizer_texts(config: DataConfig) -> Iterator[str]:
    """Yield the texts that a tokenizer learns from: for char all, for bpe about train_bytes."""
    kind = config.tokenizer.kind
    source = config.source
    if kind in ("byte", "pretrained"):
        return
    if kind == "bpe" and isinstance(source, StoryworldSource):
        # Drills repeat the same few words. A tokenizer of these would cut stories into crumbs.
        without = {"drills": {}, "course": [], "validation_documents": 0}
        stories = source.model_copy(update=without)
        config = config.model_copy(update={"source": stories})
    # of files, which may be sorted, bpe learns from evenly spread pieces; else from the first
    share = 1.0
    if kind == "bpe" and isinstance(source, FilesSource) and source.max_records is None:
        paths = files_of(source)
        size = sum(path.stat().st_size for path in paths)
        if any(path.suffix.lower() in {*files.COMPRESSED, ".parquet"} for path in paths):
            size *= PACKED
        share = config.tokenizer.train_bytes / max(1, size)
    seen = 0
    taken = 0
    for document in read(config):
        if kind == "bpe" and document.split != "train":
            continue
        for text in plain_texts(document.content):
            # excerpts: one long book must not use up the bytes of all others
            for piece in cut(text, EXCERPT):
                # takes pieces until their share is reached
                size = len(piece.encode("utf-8", "surrogatepass"))
                if kind == "char" or taken <= share * seen:
                    yield piece
                    taken += size
                seen += size
        if kind == "bpe" and taken >= config.tokenizer.train_bytes:
            return


# the command


def describe(prepared: PreparedData) -> str:
    """Return a line about each split, then lines about omitted records."""
    manifest = prepared.manifest
    ledger = manifest["read"]
    nouns = {"text": "document", "conversations": "conversation", "pairs": "pair"}
    noun = nouns[manifest["depends_on"]["records"]]
    lines = []
    for split in SPLITS:
        counts = manifest[split]
        size = f"{counts['bytes'] / 1e6:.2f}"
        documents = f"{counts['documents']:,} {noun}{'s' * (counts['documents'] != 1)}"
        tokens = f"{counts['tokens']:,} tokens"
        summary = f"{size} MB, {tokens}"
        if noun != "document":
            summary = f"{tokens}; trained on: {counts['trained_tokens']:,}, {size} MB of answers"
        ratio = f"{counts['bytes_per_token']:.2f} bytes per token"
        lines.append(f"{split}: {documents}, {summary} ({ratio})")
    if ledger["duplicates"]:
        action = "left out" if manifest["depends_on"]["drop_duplicates"] else "kept"
        lines.append(f"{ledger['duplicates']:,} exact duplicates {action}")
    if ledger["empty"]:
        lines.append(f"{ledger['empty']:,} empty texts left out")
    if ledger["bad"]:
        lines.append(f"{ledger['bad']:,} bad records left out (listed in manifest.json)")
    return "\n".join(lines)


def main() -> None:
    parser = command_parser(__doc__)
    add_config(parser)
    args = parser.parse_args()
    config = validate(CorpusConfig, load_config(args.config, args.overrides, CorpusConfig))
    prepared = prepare(config.data, Path(config.output_dir), together=True)
    print(prepared.directory)
    print(describe(prepared))


if __name__ == "__main__":
    exit_on_bad_input(main)
