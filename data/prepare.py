"""Documents -> token shards on disk with a manifest. `python -m data.prepare configs/x.yaml`

Prepared data is in <output_dir>/.prepared/<key>/. The key is a hash of everything that the shards depend on, the
text included. So a changed file or tokenizer makes a new entry, and nothing stale is read. Unfinished data is in
<key>.partial/; the same command continues with it.
"""

from __future__ import annotations

import argparse
import errno
import shutil
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from configs.command import InputError, exit_on_bad_input, still_busy
from configs.loader import LoadedConfig, load_config, validate
from configs.text import escape
from data import shards
from data.chat_template import CHAT_TEMPLATE_VERSION
from data.config import DataConfig, FilesSource, MixSource, StoryworldSource
from data.encode_corpus import Writers, encode_corpus
from data.learning_text import tokenizer_texts
from data.manifest import check_shards, key_of, read_manifest
from data.packing import TokenStream
from data.reading import hub, sources
from data.reading.documents import files_of
from data.reading.hashes import hashes
from data.reading.ledger import Ledger, Split
from data.storyworld.version import STORYWORLD_VERSION
from data.tokenizer import Tokenizer, load_tokenizer, train_tokenizer

FORMAT_VERSION = 5
SPLITS: tuple[Split, ...] = ("train", "validation")


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
            flags = [self.directory / shard["flags_file"] for shard in shards if shard.get("flags_file")]
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
            _prepare_alone(config, directory, depends_on, show_progress)
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

    memory: the file that remembers the hashes of text files (data.reading.hashes).
    """
    described = source.model_dump()
    if isinstance(source, MixSource):
        described["parts"] = [
            {"weight": part.weight, "source": source_identity(part.source, memory)} for part in source.parts
        ]
    elif isinstance(source, FilesSource):
        parts = {"path": files_of(source), "validation_path": files_of(source, held_out=True)}
        digests = iter(hashes([file for found in parts.values() for file in found], memory))
        for key, found in parts.items():  # their place does not matter
            described[key] = [f"{''.join(file.suffixes[-2:])} {next(digests)}" for file in found]
    elif isinstance(source, StoryworldSource):
        described["version"] = STORYWORLD_VERSION
    else:
        described["dataset"] = hub.identity(source)
    return described


def _prepare_alone(config: DataConfig, directory: Path, depends_on: dict[str, Any], show_progress: bool) -> None:
    """Prepare, or wait for the process that prepares the same."""
    partial = directory.with_name(f"{directory.name}.partial")
    partial.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(directory.with_name(f"{directory.name}.lock"))
    try:
        lock.acquire(timeout=0.5)
    except Timeout:
        if show_progress:
            print(f"waiting for another process, which prepares {directory}", file=sys.stderr)
        lock.acquire()
    try:
        if (directory / "manifest.json").is_file():
            return
        partial.mkdir(exist_ok=True)
        manifest = _write(config, partial, depends_on, show_progress)
        if dependencies(config, directory.parents[1]) != depends_on:
            (partial / shards.PROGRESS).unlink(missing_ok=True)
            raise InputError("data.source: the text or the tokenizer changed while it was being read: prepare it again")
        shards.write_json(partial / "manifest.json", manifest)
        if directory.exists():
            shutil.rmtree(directory)  # without a manifest it is useless
        partial.replace(directory)
        (directory / shards.PROGRESS).unlink(missing_ok=True)
    finally:
        if not (partial / shards.PROGRESS).is_file():
            shutil.rmtree(partial, ignore_errors=True)  # nothing worth keeping
        lock.release()


def open_prepared(directory: Path) -> PreparedData:
    """Read a prepared corpus. Raises InputError unless every file of it is as it was written."""
    try:
        manifest, tokenizer = read_manifest(directory), load_tokenizer(directory)
        if tokenizer.sha256() != manifest["tokenizer_sha256"]:
            raise InputError(f"{directory / 'tokenizer.json'}: is another tokenizer than the manifest says")
        check_shards(directory, manifest)
        return PreparedData(directory, manifest, tokenizer)
    except OSError as error:
        problem: object = f"{error.filename}: cannot be read: {error.strerror}"
    except InputError as error:
        problem = error
    raise InputError(f"{problem}: the prepared data is damaged: delete {directory}, then it is prepared again")


def _write(config: DataConfig, directory: Path, depends_on: dict[str, Any], show_progress: bool) -> dict[str, Any]:
    """Write everything but the manifest, which is returned."""
    has_flags = config.records != "text"
    found = _interrupted(directory, has_flags, sources.stamps(config.source))
    if found is None:
        shutil.rmtree(directory)
        directory.mkdir()
        tokenizer = _new_tokenizer(config, directory, show_progress)
        writers, already = _writers(directory, tokenizer, has_flags), 0
    else:
        tokenizer, writers, already = found
    ledger = Ledger()
    try:
        encode_corpus(config, tokenizer, writers, ledger, already, show_progress)
        for writer in writers.values():
            writer.close()
    finally:
        for writer in writers.values():
            writer.abandon()
    for split in SPLITS:
        if not writers[split].documents:
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
        **{split: _described(writers[split]) for split in SPLITS},
    }


def _described(writer: shards.SplitWriter) -> dict[str, Any]:
    counts = writer.counts()
    return counts | {"bytes_per_token": round(writer.bytes / max(1, writer.trained_tokens), 4)}


def _writers(directory: Path, tokenizer: Tokenizer, has_flags: bool) -> Writers:
    dtype = "uint16" if tokenizer.vocab_size <= 2**16 else "uint32"
    return {split: shards.SplitWriter(directory, split, dtype, has_flags) for split in SPLITS}


def _interrupted(directory: Path, has_flags: bool, stamps: list) -> tuple[Tokenizer, Writers, int] | None:
    """What an interrupted run left; None if there is nothing, or if it does not match its note, with a line."""
    if not any(directory.iterdir()):
        return None
    try:
        tokenizer, done = load_tokenizer(directory), shards.load_progress(directory)
        writers = _writers(directory, tokenizer, has_flags)
        if done is None:
            return tokenizer, writers, 0
        if done["stamps"] != stamps:
            raise InputError(f"{directory}: a file of the text changed")
        for split, writer in writers.items():
            writer.resume(done[split])
        return tokenizer, writers, done["read"]
    except (OSError, ValueError, InputError) as error:
        print(f"{escape(str(error))}: preparing from the beginning", file=sys.stderr)
        return None


def _new_tokenizer(config: DataConfig, directory: Path, show_progress: bool) -> Tokenizer:
    if show_progress and sys.stderr.isatty() and config.tokenizer.kind == "bpe":
        megabytes = config.tokenizer.train_bytes / 1e6
        print(f"training a tokenizer on up to {megabytes:.0f} MB of the text …", file=sys.stderr)
    with still_busy("reading the text that the tokenizer learns from, and learning"):
        tokenizer = train_tokenizer(config.tokenizer, tokenizer_texts(config))
    scratch = directory / "tokenizer.tmp"
    tokenizer.save(scratch)
    for name in ("tokenizer_config.json", "tokenizer.json"):  # if the second one is there, both are
        shards.sync_file(scratch / name)
        (scratch / name).replace(directory / name)
    scratch.rmdir()
    return tokenizer


def describe(prepared: PreparedData) -> str:
    """Two lines, what was read and how many tokens it made; then what was left out, a warning and a hint, if any. Of
    conversations, bytes are those of the answers."""
    lines = []
    what = {"text": "document", "conversations": "conversation", "pairs": "pair"}[
        prepared.manifest["depends_on"]["records"]
    ]
    for split in SPLITS:
        c = prepared.manifest[split]
        size = f"{c['bytes'] / 1e6:.1f} MB" if c["bytes"] >= 1e6 else f"{c['bytes'] / 1e3:.1f} kB"
        tokens = f"{c['tokens'] / 1e6:.2f} M" if c["tokens"] >= 1e6 else f"{c['tokens']:,}"
        documents = f"{c['documents']:,} {what}{'s' * (c['documents'] != 1)}"
        text = f"{size}, {tokens} tokens"
        if what != "document":
            text = f"{tokens} tokens; trained on: {c['trained_tokens']:,} of them, {size} of answers"
        lines.append(f"{split}: {documents}, {text} ({c['bytes_per_token']:.2f} bytes per token)")
    read = prepared.manifest["read"]
    verb = "left out" if prepared.manifest["depends_on"]["drop_duplicates"] else "kept"
    notes = [f"{read['duplicates']:,} exact duplicates {verb}"] if read["duplicates"] else []
    notes += [f"{read['empty']:,} empty texts left out"] if read["empty"] else []
    notes += [f"{read['bad']:,} bad records left out (listed in manifest.json)"] if read["bad"] else []
    if read["parts"]:
        lines += _parts(read["parts"])
    if notes:
        lines.append(", ".join(notes))
    lines += [f"files left out: {files}" for files in read.get("left_out", ())]
    if prepared.manifest["source"]["kind"] in ("files", "hub"):  # where a hash may decide what is held out
        lines += _share(prepared.manifest)
    if read.get("unseparated"):
        what = "a file is" if read["unseparated"] == 1 else f"{read['unseparated']:,} files are each"
        lines.append(
            f"hint: {what} one document, with blank lines: if these separate documents, set "
            """'data.source.separator="\\n\\n"'"""
        )
    return "\n".join(lines)


def _share(manifest: dict[str, Any]) -> list[str]:
    """A warning where a hash decided what is held out, and that is less than half or more than twice what was asked."""
    source, asked = manifest["source"], manifest["depends_on"]["validation_fraction"]
    if source.get("validation_path") or source.get("validation_split"):
        return []
    held_out = manifest["validation"]["bytes"]
    share = held_out / max(1, held_out + manifest["train"]["bytes"])
    if asked / 2 <= share <= 2 * asked:
        return []
    return [
        f"warning: {share:.1%} of the text is held out, where data.validation_fraction asks for {asked:.1%}: the "
        "documents are few or of very different lengths; name held-out text yourself (data.source: validation_path "
        "or validation_split)"
    ]


def _parts(parts: list[dict[str, Any]]) -> list[str]:
    """A line a part of a mix."""
    whole = sum(part["characters"] for part in parts)
    lines = []
    for number, part in enumerate(parts, 1):
        share, held_out = part["characters"] / max(1, whole), part["validation"]
        times = f", read {part['read']} times" if part["read"] > 1 else ""
        nothing = "" if held_out else ": nothing of it is held out, so validation does not see it"
        counts = f"{part['documents']:,} training documents, {held_out:,} held out"
        lines.append(f"part {number}: {share:.0%} of the training text, {counts}{times}{nothing}")
    return lines


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
