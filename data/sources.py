"""Documents from the built-in world, a local file, or the Hugging Face Hub.

A source gives the documents of one split, as text, in a fixed order. Which split a document belongs to depends
on the document alone (its seed, its hash, or its place in a single text), never on what else is there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from configs.loader import InputError
from data.config import DataConfig, FilesSource, HubSource, StoryworldSource

Split = Literal["train", "validation"]


def documents(config: DataConfig, split: Split) -> Iterator[str]:
    """Every document of a split. Raises InputError that names the file, the line and the remedy."""
    source = config.source
    if isinstance(source, StoryworldSource):
        yield from _storyworld(source, split)
    elif isinstance(source, FilesSource) and Path(source.path).suffix == ".txt":
        text = _read_text(Path(source.path))
        boundary = int(len(text) * (1 - config.validation_fraction))
        yield text[:boundary] if split == "train" else text[boundary:]
    else:
        texts = _jsonl(source) if isinstance(source, FilesSource) else _hub(source)
        for text in texts:
            if split_of(text, config.validation_fraction) == split:
                yield text


def split_of(text: str, validation_fraction: float) -> Split:
    """Train or validation, by the document's own hash: adding documents moves none of the others."""
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    return "validation" if int.from_bytes(digest[:8], "big") < validation_fraction * 2**64 else "train"


def identity(source: StoryworldSource | FilesSource | HubSource) -> dict[str, Any]:
    """What makes a source itself, contents included: two sources with equal identity give equal text."""
    described = source.model_dump()
    if isinstance(source, FilesSource):
        raw = _read_bytes(Path(source.path))
        described |= {"path": Path(source.path).suffix, "sha256": hashlib.sha256(raw).hexdigest()}
    elif isinstance(source, StoryworldSource):
        digest = hashlib.sha256()
        for part in sorted(Path(__file__).with_name("storyworld").iterdir()):
            if part.suffix in {".py", ".yaml"}:
                digest.update(part.read_bytes())
        described["generator_sha256"] = digest.hexdigest()
    else:
        described["fingerprint"] = _load_hub(source)._fingerprint
    return described


def _storyworld(source: StoryworldSource, split: Split) -> Iterator[str]:
    from data.storyworld import tell

    count = source.documents if split == "train" else source.validation_documents
    for index in range(count):
        yield tell(source.seed, index, split).text


def _existing_file(path: Path) -> Path:
    if path.is_file() and path.suffix in {".txt", ".jsonl"}:
        return path
    if path.is_file():
        raise InputError(f"data.source.path: {path} is a {path.suffix or 'nameless kind of'} file: use .txt or .jsonl")
    if path.is_dir():
        raise InputError(f"data.source.path: {path} is a folder: name one .txt or .jsonl file in it")
    hint = ""
    if "shakespeare" in str(path).lower():
        hint = (
            " (tiny Shakespeare is one 1.1 MB text file: input.txt in the folder data/tinyshakespeare of the GitHub "
            "repository karpathy/char-rnn; save it there, or give its place with data.source.path=…)"
        )
    raise InputError(f"data.source.path: no such file: {path}{hint}")


def _read_bytes(path: Path) -> bytes:
    try:
        return _existing_file(path).read_bytes()
    except OSError as error:
        raise InputError(f"data.source.path: {path} cannot be read: {error.strerror}") from None


def _read_text(path: Path) -> str:
    raw = _read_bytes(path)
    if b"\0" in raw:
        raise InputError(f"{path}: holds zero bytes, so it is a binary file, not text: give a UTF-8 text file")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise InputError(
            f"{path}:{line}: byte {error.start} (0x{raw[error.start]:02x}) is not valid UTF-8: save the file as UTF-8"
        ) from None
    if not text.strip():
        raise InputError(f"{path}: is empty: give a file with text in it")
    return text


def _jsonl(source: FilesSource) -> Iterator[str]:
    path = Path(source.path)
    for number, line in enumerate(_read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError as error:
            raise InputError(f"{path}:{number}: is not valid JSON: {error}") from None
        yield _text_of(record, source.text_field, f"{path}:{number}")


def _hub(source: HubSource) -> Iterator[str]:
    for number, record in enumerate(_load_hub(source)):
        yield _text_of(record, source.text_field, f"{source.name}, row {number}")


def _load_hub(source: HubSource) -> Any:
    import datasets

    try:
        return datasets.load_dataset(source.name, split=source.split)
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"data.source: cannot load {source.name} ({source.split}) from the Hub: {reason}") from None


def _text_of(record: Any, field: str, where: str) -> str:
    if not isinstance(record, dict) or field not in record:
        keys = ", ".join(record) if isinstance(record, dict) else type(record).__name__
        raise InputError(f"{where}: has no field `{field}` (it has {keys}): set data.source.text_field")
    text = record[field]
    if not isinstance(text, str) or not text:
        raise InputError(f"{where}: field `{field}` must be a text that is not empty, not {str(text)[:40]!r}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise InputError(f"{where}: field `{field}` holds half a surrogate pair, which is no character") from None
    return text
