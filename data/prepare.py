"""Documents -> token shards on disk with a manifest. `python -m data.prepare configs/x.yaml`

Prepared data lies in <output_dir>/.prepared/<key>/, where the key is a hash of everything that the shards depend
on, the text itself included: a changed file or tokenizer makes a new entry, never a stale read.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from configs.loader import InputError, exit_on_bad_input, load_config, validate
from data import sources
from data.config import DataConfig
from data.packing import TokenStream
from data.tokenizer import Tokenizer, load_tokenizer, train_tokenizer

FORMAT_VERSION = 1
SHARD_TOKENS = 100_000_000
ENCODE_BATCH = 1000  # documents encoded at a time, on all cores
TOKENIZER_BYTES = 8_000_000  # text that a bpe tokenizer is learned from
SPLITS: tuple[sources.Split, ...] = ("train", "validation")


@dataclass(frozen=True)
class PreparedData:
    """A prepared corpus: its tokenizer, its two streams of tokens, and the manifest's counts.

    manifest[split]: documents, tokens (first and last token of each document included), bytes (of the text).
    """

    directory: Path
    manifest: dict[str, Any]
    tokenizer: Tokenizer

    def stream(self, split: sources.Split) -> TokenStream:
        shards = [self.directory / shard["file"] for shard in self.manifest[split]["shards"]]
        return TokenStream(shards, self.manifest["dtype"])


def prepare(config: DataConfig, output_dir: Path, show_progress: bool = True) -> PreparedData:
    """Tokenize the corpus once, or find it prepared. Nothing half-written is ever read back.

    Raises InputError for a source that cannot be read or holds too little.
    """
    depends_on = {
        "format": FORMAT_VERSION,
        "source": sources.identity(config.source),
        "tokenizer": config.tokenizer.model_dump(),
        "validation_fraction": config.validation_fraction,
    }
    key = hashlib.sha256(json.dumps(depends_on, sort_keys=True).encode()).hexdigest()[:16]
    directory = output_dir / ".prepared" / key
    if not _is_file(directory / "manifest.json"):
        temporary = directory.with_name(f"{key}.{os.getpid()}.tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            temporary.mkdir(parents=True)
            _write(config, temporary, depends_on, show_progress)
            if not (directory / "manifest.json").is_file():  # another process may have been quicker
                temporary.replace(directory)
        except OSError as error:
            raise InputError(f"output_dir: {output_dir} cannot be written: {error.strerror}") from None
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return open_prepared(directory)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError as error:
        raise InputError(f"output_dir: {path.parent} cannot be read: {error.strerror}") from None


def open_prepared(directory: Path) -> PreparedData:
    """Read a prepared corpus. Raises InputError for a shard that is not as long as the manifest says."""
    manifest = json.loads((directory / "manifest.json").read_text(encoding="utf-8"))
    for shard in itertools.chain.from_iterable(manifest[split]["shards"] for split in SPLITS):
        file = directory / shard["file"]
        if not file.is_file() or file.stat().st_size != shard["bytes"]:
            raise InputError(f"{file}: is missing or damaged: delete {directory}, it will be prepared afresh")
    return PreparedData(directory, manifest, load_tokenizer(directory))


def _write(config: DataConfig, directory: Path, depends_on: dict[str, Any], show_progress: bool) -> None:
    text: Iterable[str]
    if config.tokenizer.kind == "char":
        text = itertools.chain.from_iterable(sources.documents(config, split) for split in SPLITS)
    else:
        text = _first_bytes(sources.documents(config, "train"), TOKENIZER_BYTES)
    tokenizer = train_tokenizer(config.tokenizer, text)
    tokenizer.save(directory)
    dtype = "uint16" if tokenizer.vocab_size <= 2**16 else "uint32"
    manifest: dict[str, Any] = {"depends_on": depends_on, "dtype": dtype, "vocab_size": tokenizer.vocab_size}
    for split in SPLITS:
        texts = _progress(sources.documents(config, split), f"prepare {split}", show_progress)
        manifest[split] = _write_split(texts, tokenizer, directory, split, dtype)
        if manifest[split]["documents"] == 0:
            raise InputError(
                f"data.source: no document falls into the {split} part: give more documents or change "
                f"data.validation_fraction ({config.validation_fraction})"
            )
    (directory / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def _write_split(texts: Iterable[str], tokenizer: Tokenizer, directory: Path, split: str, dtype: str) -> dict[str, Any]:
    """Encode documents in batches and append them to shards of about SHARD_TOKENS tokens."""
    counts: dict[str, Any] = {"documents": 0, "tokens": 0, "bytes": 0, "shards": []}
    iterator = iter(texts)
    batch = list(itertools.islice(iterator, ENCODE_BATCH))
    while batch:
        path = directory / f"{split}_{len(counts['shards']):05d}.bin"
        digest, size = hashlib.sha256(), 0
        with path.open("wb") as shard:
            while batch and size < SHARD_TOKENS * np.dtype(dtype).itemsize:
                documents = tokenizer.encode_documents(batch)
                raw = np.fromiter(itertools.chain.from_iterable(documents), dtype=dtype).tobytes()
                shard.write(raw)
                digest.update(raw)
                size += len(raw)
                counts["documents"] += len(batch)
                counts["tokens"] += sum(map(len, documents))
                counts["bytes"] += sum(len(text.encode("utf-8")) for text in batch)
                batch = list(itertools.islice(iterator, ENCODE_BATCH))
        counts["shards"].append({"file": path.name, "bytes": size, "sha256": digest.hexdigest()})
    return counts


def _first_bytes(texts: Iterable[str], limit: int) -> Iterator[str]:
    taken = 0
    for text in texts:
        yield text
        taken += len(text)
        if taken >= limit:
            return


def _progress(texts: Iterable[str], label: str, show: bool) -> Iterable[str]:
    from tqdm import tqdm

    return tqdm(texts, desc=label, unit=" documents", mininterval=0.5, disable=None if show else True, leave=False)


def describe(prepared: PreparedData) -> str:
    """Two lines: what was read, how many tokens it made."""
    lines = []
    for split in SPLITS:
        c = prepared.manifest[split]
        lines.append(
            f"{split}: {c['documents']:,} documents, {c['bytes'] / 1e6:.1f} MB, {c['tokens'] / 1e6:.2f} M tokens "
            f"({c['bytes'] / c['tokens']:.2f} bytes per token)"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="Tokenize the corpus of a config, without training.")
    parser.add_argument("config", help="a YAML file, for example configs/demo.yaml")
    parser.add_argument("overrides", nargs="*", help="section.key=value")
    arguments = parser.parse_args()
    loaded = load_config(arguments.config, arguments.overrides)
    output_dir = Path(str(loaded.values.get("output_dir", "runs")))
    prepared = prepare(validate(DataConfig, loaded, "data"), output_dir, show_progress=sys.stderr.isatty())
    print(f"{prepared.directory}\n{describe(prepared)}")
    return 0


if __name__ == "__main__":
    exit_on_bad_input(main)
