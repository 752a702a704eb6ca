"""Documents -> token shards on disk, with a manifest. `python -m data.prepare configs/x.yaml`

    read | encode | write       each stage a batch ahead of the next

Prepared data is in <output_dir>/.prepared/<key>/. The key is a hash of everything that the shards depend on, the
text included. So a changed file or tokenizer makes a new entry, and nothing stale is read. Unfinished data is in
<key>.partial/, which is renamed when it is complete. A shard is a plain array of token ids. For conversations, a
second array holds flags, one byte a token. The shards of both splits end at the same document. Then `progress.json`
says how many documents are on disk: the same command continues behind them, and ends with the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
from filelock import FileLock

from configs.command import InputError, exit_on_bad_input, still_busy
from configs.files import DamagedFile, read_json
from configs.loader import LoadedConfig, load_config, validate
from data.chat import TRAINED, encode_conversations, encode_pairs, plain_texts
from data.chat_template import CHAT_TEMPLATE_VERSION
from data.config import DataConfig, Drills, FilesSource, MixSource, Split, StoryworldSource
from data.packing import TokenStream
from data.reading import files
from data.reading.documents import Document, Ledger, files_of, read
from data.reading.records import Conversation
from data.reading.world import Content
from data.storyworld import STORYWORLD_VERSION
from data.tokenizer import Tokenizer, cut, load_tokenizer, train_tokenizer

FORMAT_VERSION = 6
SPLITS: tuple[Split, ...] = ("train", "validation")
SHARD_TOKENS = 100_000_000
BATCH = 1 << 20  # characters encoded at a time, on all cores
MANIFEST, PROGRESS = "manifest.json", "progress.json"
SETTLED = 2_000_000_000  # nanoseconds after which a second change of a file cannot have the same time as the first
EXCERPT = 1 << 14  # characters of a long document that a tokenizer learns from at a time
PACKED = 4  # how much larger than its file a compressed text may be, about
Item = TypeVar("Item")


@dataclass(frozen=True)
class PreparedData:
    """A prepared corpus: its tokenizer, its two streams of tokens, and the manifest.

    manifest[split] holds: documents; tokens; trained_tokens, those that can be targets; bytes, of the text that these
    stand for; bytes_per_token; shards with their sha256.
    """

    directory: Path
    manifest: dict[str, Any]
    tokenizer: Tokenizer
    _streams: dict[Split, TokenStream] = field(default_factory=dict, init=False, repr=False, compare=False)

    def stream(self, split: Split) -> TokenStream:
        """The tokens of a split. Its files are opened once."""
        if split not in self._streams:
            shards = self.manifest[split]["shards"]
            flags = [self.directory / shard["flags_file"] for shard in shards if "flags_file" in shard]
            ids = [self.directory / shard["file"] for shard in shards]
            self._streams[split] = TokenStream(ids, self.manifest["dtype"], flags)
        return self._streams[split]


def prepare(config: DataConfig, output_dir: Path, show_progress: bool = True) -> PreparedData:
    """Tokenize the corpus, continue where this was interrupted, or find it prepared.

    Every process of a run may call this at the same time: the first one prepares, the others wait for it at a lock.
    show_progress: say that it waits. Raises InputError for a source that cannot be read or holds too little.
    """
    depends_on = dependencies(config, output_dir)
    directory = output_dir / ".prepared" / key_of(depends_on)
    if not (directory / MANIFEST).is_file():
        lock = FileLock(f"{directory}.lock")
        waiting = f"waiting for another process, which prepares {directory}"
        with still_busy(waiting) if show_progress else nullcontext():
            lock.acquire()
        try:
            if not (directory / MANIFEST).is_file():
                _write(config, directory, depends_on)
        finally:
            lock.release()
    return open_prepared(directory)


def open_prepared(directory: Path) -> PreparedData:
    """Read a prepared corpus. Raises InputError unless every file of it is as it was written.

    A shard is hashed once (1.4 GB/s); as long as its size and its time of change stay, later starts remember it.
    """
    remedy = f"the prepared data is damaged: delete {directory}, then it is prepared again"
    try:
        manifest, tokenizer = read_manifest(directory), load_tokenizer(directory)
    except InputError as error:
        raise InputError(f"{error}: {remedy}") from None
    shards = [shard for split in SPLITS for shard in manifest[split]["shards"]]
    written = {shard["file"]: shard["sha256"] for shard in shards}
    written |= {shard["flags_file"]: shard["flags_sha256"] for shard in shards if "flags_file" in shard}
    digests = hashes([directory / name for name in written], directory.parent / "hashes.json")
    for name, digest in zip(written, digests, strict=True):
        if digest != written[name]:
            raise InputError(f"{directory / name}: its bytes have changed since it was written: {remedy}")
    if tokenizer.sha256() != manifest["tokenizer_sha256"]:
        raise InputError(f"{directory / 'tokenizer.json'}: is another tokenizer than the manifest says: {remedy}")
    return PreparedData(directory, manifest, tokenizer)


def read_manifest(directory: Path) -> dict[str, Any]:
    """manifest.json of prepared data. Raises InputError."""
    return read_json(directory / MANIFEST)


# ---------------------------------------------------------------------------------------------------------
# the key: what the shards depend on


def dependencies(config: DataConfig, output_dir: Path) -> dict[str, Any]:
    """Everything that the shards depend on. Hashes of text files are remembered under `output_dir`."""
    tokenizer = config.tokenizer.model_dump()
    if config.tokenizer.path is not None:
        tokenizer["path"] = train_tokenizer(config.tokenizer, []).sha256()
    return {
        "format": FORMAT_VERSION,
        "source": source_identity(config.source, output_dir / ".prepared" / "hashes.json"),
        "tokenizer": tokenizer,
        "chat_template": CHAT_TEMPLATE_VERSION,
        **config.model_dump(include={"records", "validation_fraction", "drop_duplicates", "on_bad_record"}),
    }


def source_identity(source: Any, memory: Path) -> dict[str, Any]:
    """What makes a source itself, contents included: two sources with equal identity give equal text.

    memory: the file that remembers the hashes of text files.
    """
    described = source.model_dump()
    if isinstance(source, MixSource):
        described["parts"] = [
            {"weight": part.weight, "source": source_identity(part.source, memory)} for part in source.parts
        ]
    elif isinstance(source, FilesSource):
        for key, paths in (("path", files_of(source)), ("validation_path", files_of(source, held_out=True))):
            digests = hashes(paths, memory)  # their place does not matter
            described[key] = [f"{''.join(p.suffixes[-2:])} {digest}" for p, digest in zip(paths, digests, strict=True)]
    elif isinstance(source, StoryworldSource):
        described["version"] = STORYWORLD_VERSION
    else:
        described["dataset"] = files.dataset_identity(source)
    return described


def key_of(depends_on: dict[str, Any]) -> str:
    """The name of the directory of what depends on this."""
    return hashlib.sha256(json.dumps(depends_on, sort_keys=True).encode()).hexdigest()[:16]


def hashes(paths: list[Path], memory: Path) -> list[str]:
    """SHA-256 of every file, hashed only if it is new or changed: a corpus is hashed once, not at every start.

    memory: a JSON file, path -> [size, time of change, SHA-256]. A lock beside it makes the processes of a run take
    turns: the first one hashes, the others find the result. A file that has just changed is not remembered yet.
    """
    memory.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(memory.with_suffix(".lock")):
        try:
            known = read_json(memory, dict[str, list[int | str]])
        except DamagedFile:  # not there yet, or damaged: hash again
            known = {}
        now, keys = time.time_ns(), [str(path.resolve()) for path in paths]
        stamps = {key: [(status := Path(key).stat()).st_size, status.st_mtime_ns] for key in keys}
        new = [key for key in stamps if known.get(key, [])[:-1] != stamps[key]]
        with still_busy("hashing the files of the corpus"), ThreadPoolExecutor() as pool:
            known |= {key: [*stamps[key], digest] for key, digest in zip(new, pool.map(_sha256, new), strict=True)}
        if new:
            settled = {key: entry for key, entry in known.items() if now - int(entry[1]) > SETTLED}
            _write_json(memory, settled)
    return [known[key][2] for key in keys]


def _sha256(path: str | Path) -> str:
    with Path(path).open("rb") as raw:
        return hashlib.file_digest(raw, "sha256").hexdigest()


def _write_json(path: Path, values: dict[str, Any]) -> None:
    """Write all of it or nothing; it is on disk when this returns."""
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(json.dumps(values, indent=1) + "\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


# ---------------------------------------------------------------------------------------------------------
# writing


def _write(config: DataConfig, directory: Path, depends_on: dict[str, Any]) -> None:
    """Fill <key>.partial/, from the last finished shard on, and rename it."""
    partial = directory.with_name(f"{directory.name}.partial")
    try:
        if not (partial / PROGRESS).is_file():  # no shard was finished
            shutil.rmtree(partial, ignore_errors=True)
            with still_busy("reading the text that the tokenizer learns from, and learning"):
                train_tokenizer(config.tokenizer, tokenizer_texts(config)).save(partial)
        tokenizer = load_tokenizer(partial)
        writers, ledger = write_shards(config, tokenizer, partial)
        for split, writer in writers.items():
            if not writer.counts["documents"]:
                there = sum(writer.counts["documents"] for writer in writers.values())
                raise InputError(
                    f"data.source: none of {there:,} documents falls into the {split} part, which a hash of each "
                    f"decides: give more, try another data.validation_fraction ({config.validation_fraction} now), or "
                    "name held-out files or a held-out split (validation_path, validation_split)"
                )
        if dependencies(config, directory.parents[1]) != depends_on:
            (partial / PROGRESS).unlink(missing_ok=True)
            raise InputError("data.source: the text or the tokenizer changed while it was being read: prepare it again")
        manifest = {
            "source": config.source.model_dump(),  # as the config names it; depends_on has the hashes of its content
            "depends_on": depends_on,
            "dtype": writers["train"].dtype,
            "vocab_size": tokenizer.vocab_size,
            "tokenizer_sha256": tokenizer.sha256(),
            "read": asdict(ledger),
        }
        for split, writer in writers.items():
            bytes_per_token = writer.counts["bytes"] / max(1, writer.counts["trained_tokens"])
            manifest[split] = writer.counts | {"bytes_per_token": round(bytes_per_token, 4)}
        _write_json(partial / MANIFEST, manifest)
        (partial / PROGRESS).unlink(missing_ok=True)
        shutil.rmtree(directory, ignore_errors=True)  # without a manifest it is useless
        partial.replace(directory)
    finally:
        if not (partial / PROGRESS).is_file():
            shutil.rmtree(partial, ignore_errors=True)  # nothing worth keeping


class SplitWriter:
    """The shards of one split, written document by document. counts: what the manifest says about it."""

    def __init__(self, directory: Path, split: Split, dtype: str, has_flags: bool):
        self.directory, self.split, self.dtype, self.has_flags = directory, split, dtype, has_flags
        self.counts: dict[str, Any] = {"documents": 0, "tokens": 0, "trained_tokens": 0, "bytes": 0, "shards": []}
        self.size = 0  # tokens in the open shard
        self._open: list[BinaryIO] = []  # ids, then flags

    def append(self, content: Content, ids: np.ndarray, flags: np.ndarray | None) -> None:
        """Write the tokens of a document, and count them."""
        if not self._open:
            kinds = ("bin", "flags")[: 1 + self.has_flags]
            name = f"{self.split}_{len(self.counts['shards']):05d}"
            self._open = [(self.directory / f"{name}.{kind}").open("wb") for kind in kinds]
        for file, values in zip(self._open, (ids.astype(self.dtype), flags), strict=False):
            file.write(values.tobytes())  # type: ignore[union-attr]
        self.size += len(ids)
        texts = plain_texts(content, 0 if flags is None else TRAINED)
        self.counts["documents"] += 1
        self.counts["tokens"] += len(ids)
        # a text's first token is given, not predicted
        self.counts["trained_tokens"] += len(ids) - 1 if flags is None else int(np.count_nonzero(flags & TRAINED))
        self.counts["bytes"] += sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)

    def end_shard(self) -> None:
        """Finish the open shard, if any: it is on disk when this returns."""
        described: dict[str, Any] = {"tokens": self.size}
        for key, file in zip(("", "flags_"), self._open, strict=False):
            with file:
                file.flush()
                os.fsync(file.fileno())
            path = Path(file.name)
            described |= {f"{key}file": path.name, f"{key}bytes": path.stat().st_size, f"{key}sha256": _sha256(path)}
        if self._open:
            self.counts["shards"].append(described)
        self._open, self.size = [], 0


def write_shards(config: DataConfig, tokenizer: Tokenizer, directory: Path) -> tuple[dict[Split, SplitWriter], Ledger]:
    """Write the tokens of every document that is not on disk yet. Returns what was written, by split, and what was
    read. Raises InputError for text that cannot be read."""
    dtype = "uint16" if tokenizer.vocab_size <= 2**16 else "uint32"
    writers = {split: SplitWriter(directory, split, dtype, config.records != "text") for split in SPLITS}
    done, place = 0, ""  # documents in finished shards
    if (directory / PROGRESS).is_file():
        progress = read_json(directory / PROGRESS)
        done = progress["documents"]
        for split, writer in writers.items():
            writer.counts = progress[split]
    ledger = Ledger()
    encoded = prefetched(
        _encoded(batch, tokenizer) for batch in prefetched(_batches(islice(read(config, ledger), done, None)))
    )

    def how_far() -> str:
        tokens = sum(writer.counts["tokens"] for writer in writers.values())
        return f"preparing: {done:,} documents, {tokens:,} tokens, up to {place}"

    with closing(encoded), still_busy(how_far):
        for batch in encoded:
            for document, ids, flags in batch:
                writers[document.split].append(document.content, ids, flags)
                done, place = done + 1, document.where
                if max(writer.size for writer in writers.values()) >= SHARD_TOKENS:
                    for writer in writers.values():
                        writer.end_shard()
                    counts: dict[str, Any] = {split: writer.counts for split, writer in writers.items()}
                    _write_json(directory / PROGRESS, counts | {"documents": done})
    for writer in writers.values():
        writer.end_shard()
    return writers, ledger


def _batches(documents: Iterator[Document]) -> Iterator[list[Document]]:
    """Batches of about BATCH characters."""
    batch: list[Document] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += len(document.content if isinstance(document.content, str) else repr(document.content))
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _encoded(batch: list[Document], tokenizer: Tokenizer) -> list[tuple[Document, np.ndarray, np.ndarray | None]]:
    """Documents with their ids and flags; a text has no flags."""
    contents: list[Any] = [document.content for document in batch]
    if isinstance(contents[0], str):
        first, last = (np.array([token], dtype=np.uint32) for token in (tokenizer.bos_id, tokenizer.eos_id))
        arrays = tokenizer.encode_arrays(contents)
        return [
            (document, np.concatenate([first, ids, last]), None) for document, ids in zip(batch, arrays, strict=True)
        ]
    encode = encode_conversations if isinstance(contents[0], Conversation) else encode_pairs
    pairs = zip(batch, encode(tokenizer, contents), strict=True)
    return [(document, np.array(ids), flags) for document, (ids, flags) in pairs]


def prefetched(items: Iterable[Item], ahead: int = 2) -> Generator[Item]:
    """The same items in the same order, up to `ahead` of them made in advance by a thread of this process.

    What the iterator raises is raised here, in its turn. When the caller stops early, so does the thread.
    """
    source, end = iter(items), object()
    with ThreadPoolExecutor(1, "prefetch") as thread:
        ready: deque[Any] = deque(thread.submit(next, source, end) for _ in range(ahead))
        try:
            while (item := ready.popleft().result()) is not end:
                ready.append(thread.submit(next, source, end))
                yield item
        finally:
            for waiting in ready:
                waiting.cancel()
            if isinstance(source, Generator):
                thread.submit(source.close).result()


def tokenizer_texts(config: DataConfig) -> Iterator[str]:
    """What a tokenizer learns from: for char everything; for bpe about train_bytes of the training part. From files
    they are spread evenly over all of the text; from other sources they are the first ones, of the built-in world
    without its drills."""
    kind, wanted = config.tokenizer.kind, config.tokenizer.train_bytes
    if kind in ("byte", "pretrained"):
        return
    if kind == "bpe" and isinstance(config.source, StoryworldSource):
        # drills are the same few words again and again: cut by what they hold, a story would be in crumbs
        stories = config.source.model_copy(update={"drills": Drills(), "course": [], "validation_documents": 0})
        config = config.model_copy(update={"source": stories})
    share = 1.0
    if kind == "bpe" and isinstance(config.source, FilesSource) and config.source.max_records is None:
        paths = files_of(config.source)
        is_packed = any(path.suffix.lower() in {*files.COMPRESSED, ".parquet"} for path in paths)
        share = wanted / max(1, sum(path.stat().st_size for path in paths) * (PACKED if is_packed else 1))
    seen = taken = 0
    for document in read(config):
        if kind == "bpe" and document.split != "train":
            continue
        for text in plain_texts(document.content):
            for piece in cut(text, EXCERPT):
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
    """Two lines, what was read and how many tokens it made; then what was left out, a warning and a hint, if any. Of
    conversations, bytes are those of the answers."""
    manifest = prepared.manifest
    what_was_read, depends_on, source = manifest["read"], manifest["depends_on"], manifest["source"]
    what = {"text": "document", "conversations": "conversation", "pairs": "pair"}[depends_on["records"]]
    lines = []
    for split in SPLITS:
        c = manifest[split]
        size = f"{c['bytes'] / 1e6:.1f} MB" if c["bytes"] >= 1e6 else f"{c['bytes'] / 1e3:.1f} kB"
        tokens = f"{c['tokens'] / 1e6:.2f} M" if c["tokens"] >= 1e6 else f"{c['tokens']:,}"
        text = f"{size}, {tokens} tokens"
        if what != "document":
            text = f"{tokens} tokens; trained on: {c['trained_tokens']:,} of them, {size} of answers"
        documents = f"{c['documents']:,} {what}{'s' * (c['documents'] != 1)}"
        lines.append(f"{split}: {documents}, {text} ({c['bytes_per_token']:.2f} bytes per token)")
    characters = sum(part["characters"] for part in what_was_read["parts"])
    for number, part in enumerate(what_was_read["parts"], 1):
        share, held_out = part["characters"] / max(1, characters), part["validation"]
        times = f", read {part['read']} times" if part["read"] > 1 else ""
        nothing = "" if held_out else ": nothing of it is held out, so validation does not see it"
        counts = f"{part['documents']:,} training documents, {held_out:,} held out"
        lines.append(f"part {number}: {share:.0%} of the training text, {counts}{times}{nothing}")
    notes = {
        f"exact duplicates {'left out' if depends_on['drop_duplicates'] else 'kept'}": what_was_read["duplicates"],
        "empty texts left out": what_was_read["empty"],
        "bad records left out (listed in manifest.json)": what_was_read["bad"],
    }
    lines += [", ".join(f"{count:,} {note}" for note, count in notes.items() if count)] * any(notes.values())
    lines += [f"files left out: {names}" for names in what_was_read["left_out"]]
    held_out, wanted = manifest["validation"]["bytes"], depends_on["validation_fraction"]
    share = held_out / max(1, held_out + manifest["train"]["bytes"])
    is_named = source.get("validation_path") or source.get("validation_split")
    if source["kind"] in ("files", "hub") and not is_named and not wanted / 2 <= share <= 2 * wanted:
        lines.append(
            f"warning: {share:.1%} of the text is held out, where data.validation_fraction asks for {wanted:.1%}: the "
            "documents are few or of very different lengths; name held-out text yourself (data.source: "
            "validation_path or validation_split)"
        )
    if what_was_read["unseparated"]:
        lines.append(
            f"hint: {what_was_read['unseparated']:,} of the files have blank lines, and each is one document: if these "
            """separate documents, set 'data.source.separator="\\n\\n"'"""
        )
    return "\n".join(lines)


def keys_of_run(loaded: LoadedConfig) -> tuple[Path, int]:
    """What a config says besides its sections: output_dir and seed. Raises InputError."""
    output_dir, seed = loaded.values.get("output_dir", "runs"), loaded.values.get("seed", 0)
    if not isinstance(output_dir, str) or type(seed) is not int or seed < 0:
        where = loaded.where(("output_dir",) if not isinstance(output_dir, str) else ("seed",))
        raise InputError(f"{where}: output_dir must be the name of a folder, and seed a whole number, 0 or more")
    return Path(output_dir), seed


def main() -> int:
    parser = argparse.ArgumentParser(description="Tokenize the corpus of a config, without training.")
    parser.add_argument("config", help="a YAML file, for example configs/demo.yaml")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="for example data.records=text")
    arguments = parser.parse_args()
    loaded = load_config(arguments.config, arguments.overrides)
    config = validate(DataConfig, loaded, "data")
    prepared = prepare(config, keys_of_run(loaded)[0])
    print(f"{prepared.directory}\n{describe(prepared)}")
    return 0


if __name__ == "__main__":
    exit_on_bad_input(main)
