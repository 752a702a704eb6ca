"""Documents -> token shards on disk with a manifest. `python -m data.prepare configs/x.yaml`

Prepared data is in <output_dir>/.prepared/<key>/. The key is a hash of everything that the shards depend on, the
text included. So a changed file or tokenizer makes a new entry, and nothing stale is read. Unfinished data is in
<key>.partial/, which is renamed when it is complete. The same command continues a stopped one.
"""

from __future__ import annotations

import argparse
import errno
import hashlib
import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from configs.command import InputError, exit_on_bad_input, still_busy
from configs.loader import LoadedConfig, load_config, validate
from configs.text import escape
from data.chat import plain_texts
from data.chat_template import CHAT_TEMPLATE_VERSION
from data.config import DataConfig, Drills, FilesSource, MixSource, Split, StoryworldSource
from data.packing import TokenStream
from data.reading import hub
from data.reading.documents import files_of, read
from data.reading.files import COMPRESSED, hashes
from data.shards import PROGRESS, SPLITS, read_signed, write_shards, write_signed
from data.storyworld.version import STORYWORLD_VERSION
from data.tokenizer import Tokenizer, load_tokenizer, train_tokenizer
from data.words import cut

FORMAT_VERSION = 6
EXCERPT = 1 << 14  # characters of a long document that a tokenizer learns from at a time
PACKED = 4  # how much larger than its file a compressed text may be, about


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
            files = [self.directory / shard["file"] for shard in shards]
            self._streams[split] = TokenStream(files, self.manifest["dtype"], flags)
        return self._streams[split]


def prepare(config: DataConfig, output_dir: Path, show_progress: bool = True) -> PreparedData:
    """Tokenize the corpus, continue where this was interrupted, or find it prepared.

    Every process of a run may call this at the same time: the first one hashes the files (once, later starts
    remember it) and prepares, the others wait for it at a lock. show_progress: draw a bar, and say that it waits.
    Raises InputError for a source that cannot be read or holds too little, and for a disk that is full.
    """
    try:
        depends_on = dependencies(config, output_dir)
        directory = output_dir / ".prepared" / key_of(depends_on)
        if not (directory / "manifest.json").is_file():
            lock = FileLock(directory.with_name(f"{directory.name}.lock"))
            try:
                lock.acquire(timeout=0.5)
            except Timeout:
                if show_progress:
                    print(f"waiting for another process, which prepares {directory}", file=sys.stderr)
                lock.acquire()
            try:
                if not (directory / "manifest.json").is_file():
                    _prepare_alone(config, directory, depends_on, show_progress)
            finally:
                lock.release()
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise InputError(
                f"output_dir: the disk of {output_dir} is full: free some space; the same command continues"
            ) from None
        raise InputError(f"output_dir: {output_dir} cannot be written: {error.strerror}") from None
    return open_prepared(directory)


def dependencies(config: DataConfig, output_dir: Path) -> dict[str, Any]:
    """Everything that the shards depend on. Hashes of text files are remembered under `output_dir`."""
    tokenizer = config.tokenizer.model_dump()
    if config.tokenizer.path is not None:
        tokenizer["path"] = train_tokenizer(config.tokenizer, []).sha256()
    keys = {"records", "validation_fraction", "drop_duplicates", "on_bad_record"}
    return {
        "format": FORMAT_VERSION,
        "source": source_identity(config.source, output_dir / ".prepared" / "hashes.json"),
        "tokenizer": tokenizer,
        "chat_template": CHAT_TEMPLATE_VERSION,
        **config.model_dump(include=keys),
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
        for key, files in (("path", files_of(source)), ("validation_path", files_of(source, held_out=True))):
            digests = hashes(files, memory)  # their place does not matter
            described[key] = [f"{''.join(f.suffixes[-2:])} {digest}" for f, digest in zip(files, digests, strict=True)]
    elif isinstance(source, StoryworldSource):
        described["version"] = STORYWORLD_VERSION
    else:
        described["dataset"] = hub.identity(source)
    return described


def key_of(depends_on: dict[str, Any]) -> str:
    """The name of the directory of what depends on this."""
    return hashlib.sha256(json.dumps(depends_on, sort_keys=True).encode()).hexdigest()[:16]


def _prepare_alone(config: DataConfig, directory: Path, depends_on: dict[str, Any], show_progress: bool) -> None:
    partial = directory.with_name(f"{directory.name}.partial")
    try:
        manifest = None
        if (partial / PROGRESS).is_file():
            try:
                manifest = _write(config, partial, depends_on, load_tokenizer(partial), show_progress)
            except (InputError, KeyError, ValueError) as error:
                print(f"{escape(str(error))}: preparing from the beginning", file=sys.stderr)
        if manifest is None:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            if show_progress and sys.stderr.isatty() and config.tokenizer.kind == "bpe":
                megabytes = config.tokenizer.train_bytes / 1e6
                print(f"training a tokenizer on up to {megabytes:.0f} MB of the text …", file=sys.stderr)
            with still_busy("reading the text that the tokenizer learns from, and learning"):
                tokenizer = train_tokenizer(config.tokenizer, tokenizer_texts(config))
            tokenizer.save(partial)
            manifest = _write(config, partial, depends_on, tokenizer, show_progress)
        if dependencies(config, directory.parents[1]) != depends_on:
            (partial / PROGRESS).unlink(missing_ok=True)
            raise InputError("data.source: the text or the tokenizer changed while it was being read: prepare it again")
        (partial / PROGRESS).unlink(missing_ok=True)
        write_signed(partial / "manifest.json", manifest)
        shutil.rmtree(directory, ignore_errors=True)  # without a manifest it is useless
        partial.replace(directory)
    finally:
        if partial.exists() and not (partial / PROGRESS).is_file():
            shutil.rmtree(partial, ignore_errors=True)  # nothing worth keeping


def _write(
    config: DataConfig, directory: Path, depends_on: dict[str, Any], tokenizer: Tokenizer, show_progress: bool
) -> dict[str, Any]:
    """Write the shards. Returns the manifest."""
    writers, ledger = write_shards(config, tokenizer, directory, show_progress)
    for split, writer in writers.items():
        if not writer.documents:
            there = sum(writer.documents for writer in writers.values())
            raise InputError(
                f"data.source: none of {there:,} documents falls into the {split} part, which a hash of each decides: "
                f"give more, try another data.validation_fraction ({config.validation_fraction} now), or name held-out "
                "files or a held-out split (validation_path, validation_split)"
            )
    return {
        "source": config.source.model_dump(),  # as the config names it; depends_on has the hashes of its content
        "depends_on": depends_on,
        "dtype": writers["train"].dtype,
        "vocab_size": tokenizer.vocab_size,
        "tokenizer_sha256": tokenizer.sha256(),
        "read": {key: value for key, value in asdict(ledger).items() if key not in ("unit", "done", "total")},
        **{
            split: writer.counts() | {"bytes_per_token": round(writer.bytes / max(1, writer.trained_tokens), 4)}
            for split, writer in writers.items()
        },
    }


def read_manifest(directory: Path) -> dict[str, Any]:
    """manifest.json of prepared data. Raises InputError if it is not what was written here."""
    manifest = read_signed(directory / "manifest.json")
    if key_of(manifest["depends_on"]) != directory.name:
        raise InputError(f"{directory / 'manifest.json'}: describes other data")
    return manifest


def open_prepared(directory: Path) -> PreparedData:
    """Read a prepared corpus. Raises InputError unless every file of it is as it was written.

    A shard is hashed once (1.4 GB/s); as long as its size and its time of change stay, later starts remember it.
    """
    try:
        manifest, tokenizer = read_manifest(directory), load_tokenizer(directory)
        if tokenizer.sha256() != manifest["tokenizer_sha256"]:
            raise InputError(f"{directory / 'tokenizer.json'}: is another tokenizer than the manifest says")
        shards = [shard for split in SPLITS for shard in manifest[split]["shards"]]
        wanted = {shard["file"]: shard["sha256"] for shard in shards}
        wanted |= {shard["flags_file"]: shard["flags_sha256"] for shard in shards if "flags_file" in shard}
        found = hashes([directory / name for name in wanted], directory.parent / "hashes.json")
        for name, digest in zip(wanted, found, strict=True):
            if digest != wanted[name]:
                raise InputError(f"{directory / name}: its bytes have changed since it was written")
        return PreparedData(directory, manifest, tokenizer)
    except InputError as error:
        remedy = f"the prepared data is damaged: delete {directory}, then it is prepared again"
        raise InputError(f"{error}: {remedy}") from None


# ---------------------------------------------------------------------------------------------------------
# what a tokenizer learns from


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
        files = files_of(config.source)
        is_packed = any(file.suffix.lower() in {*COMPRESSED, ".parquet"} for file in files)
        share = wanted / max(1, sum(file.stat().st_size for file in files) * (PACKED if is_packed else 1))
    seen = taken = 0
    for document in read(config):
        if kind == "bpe" and document.split != "train":
            continue
        for text in plain_texts(document.content):
            for piece in cut(text, EXCERPT, anywhere=True):
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
    read, depends_on, source = manifest["read"], manifest["depends_on"], manifest["source"]
    what = {"text": "document", "conversations": "conversation", "pairs": "pair"}[depends_on["records"]]
    lines = []
    for split in SPLITS:
        c = manifest[split]
        size = f"{c['bytes'] / 1e6:.1f} MB" if c["bytes"] >= 1e6 else f"{c['bytes'] / 1e3:.1f} kB"
        tokens = f"{c['tokens'] / 1e6:.2f} M" if c["tokens"] >= 1e6 else f"{c['tokens']:,}"
        documents = f"{c['documents']:,} {what}{'s' * (c['documents'] != 1)}"
        text = f"{size}, {tokens} tokens"
        if what != "document":
            text = f"{tokens} tokens; trained on: {c['trained_tokens']:,} of them, {size} of answers"
        lines.append(f"{split}: {documents}, {text} ({c['bytes_per_token']:.2f} bytes per token)")
    characters = sum(part["characters"] for part in read["parts"])
    for number, part in enumerate(read["parts"], 1):
        share, held_out = part["characters"] / max(1, characters), part["validation"]
        times = f", read {part['read']} times" if part["read"] > 1 else ""
        nothing = "" if held_out else ": nothing of it is held out, so validation does not see it"
        counts = f"{part['documents']:,} training documents, {held_out:,} held out"
        lines.append(f"part {number}: {share:.0%} of the training text, {counts}{times}{nothing}")
    verb = "left out" if depends_on["drop_duplicates"] else "kept"
    notes = [f"{read['duplicates']:,} exact duplicates {verb}"] if read["duplicates"] else []
    notes += [f"{read['empty']:,} empty texts left out"] if read["empty"] else []
    notes += [f"{read['bad']:,} bad records left out (listed in manifest.json)"] if read["bad"] else []
    lines += [", ".join(notes)] if notes else []
    lines += [f"files left out: {files}" for files in read["left_out"]]
    held_out, asked = manifest["validation"]["bytes"], depends_on["validation_fraction"]
    share = held_out / max(1, held_out + manifest["train"]["bytes"])
    is_named = source.get("validation_path") or source.get("validation_split")
    if source["kind"] in ("files", "hub") and not is_named and not asked / 2 <= share <= 2 * asked:
        lines.append(
            f"warning: {share:.1%} of the text is held out, where data.validation_fraction asks for {asked:.1%}: the "
            "documents are few or of very different lengths; name held-out text yourself (data.source: "
            "validation_path or validation_split)"
        )
    if read["unseparated"]:
        what = "a file is" if read["unseparated"] == 1 else f"{read['unseparated']:,} files are each"
        lines.append(
            f"hint: {what} one document, with blank lines: if these separate documents, set "
            """'data.source.separator="\\n\\n"'"""
        )
    return "\n".join(lines)


def output_directory(loaded: LoadedConfig) -> Path:
    """The config's output_dir, which holds prepared data. Raises InputError unless it is a name."""
    value = loaded.values.get("output_dir", "runs")
    if not isinstance(value, str) or not value:
        raise InputError(f"{loaded.where(('output_dir',))}: `output_dir` is {value!r}: must be the name of a folder")
    return Path(value)


def main() -> int:
    parser = argparse.ArgumentParser(description="Tokenize the corpus of a config, without training.")
    parser.add_argument("config", help="a YAML file, for example configs/demo.yaml")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="for example data.records=text")
    arguments = parser.parse_args()
    loaded = load_config(arguments.config, arguments.overrides)
    config, output_dir = validate(DataConfig, loaded, "data"), output_directory(loaded)
    prepared = prepare(config, output_dir, show_progress=sys.stderr.isatty())
    print(f"{prepared.directory}\n{describe(prepared)}")
    return 0


if __name__ == "__main__":
    exit_on_bad_input(main)
