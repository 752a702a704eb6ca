"""How is a tokenizer read that somebody else wrote? tokenizer.json, and the tokenizer_config.json beside it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tokenizers
from pydantic import BaseModel, Field

from configs.bounds import MOST_VOCABULARY
from configs.checkpoints import check_files, is_file, read_checkpoint
from configs.command import InputError
from configs.read_back import read_json, read_text


class Token(BaseModel):
    """How transformers 4 writes a token."""

    content: str


class Settings(BaseModel):
    """What is read of tokenizer_config.json."""

    pad_token: str | Token | None = None
    bos_token: str | Token | None = None
    eos_token: str | Token | None = None


class Beside(BaseModel):
    """What is read of the config.json of a model beside a tokenizer."""

    vocab_size: int = Field(0, ge=0, le=MOST_VOCABULARY)


def rows_beside(file: Path) -> int:
    """How many ids the model beside a tokenizer.json has rows for; 0 where there is none. Raises InputError."""
    config = file.with_name("config.json")
    return read_json(config, Beside).vocab_size if is_file(config) else 0


def open_tokenizer(path: str | Path) -> tuple[Path, tokenizers.Tokenizer, Settings]:
    """The tokenizer of a run, a directory or a file: where it is, tokenizer.json, its settings. Raises InputError."""

    def read(path: Path) -> tuple[Path, tokenizers.Tokenizer, Settings]:
        file = path if is_file(path) else path / "tokenizer.json"
        if not is_file(file):
            raise InputError(f"{path}: holds no tokenizer.json: give a run, a checkpoint directory or the file itself")
        return file, *_read(file)

    return read_checkpoint(path, read) if is_file(Path(path) / "checkpoints" / "latest") else read(Path(path))


def _read(file: Path) -> tuple[tokenizers.Tokenizer, Settings]:
    """A tokenizer.json, and the tokenizer_config.json beside it, if there is one. Raises InputError."""
    check_files(file.parent, file.name, "tokenizer_config.json")
    text = read_text(file)
    with clear_errors(file):
        backend = tokenizers.Tokenizer.from_str(text)
    path = file.with_name("tokenizer_config.json")
    return backend, read_json(path, Settings) if path.is_file() else Settings()


@contextmanager
def clear_errors(file: Path) -> Iterator[None]:
    """Turn all that the library raises into InputError, the panics of its Rust code too, which print a page first."""
    try:
        with _quiet():
            yield
    except InputError as error:
        raise InputError(f"{file}: {error}") from None
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # of a panic too; the library raises nothing more precise
        reason = str(error).partition("\n")[0][:200]
        raise InputError(f"{file}: is not a tokenizer.json that works: {reason}") from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Nothing reaches the terminal: a Rust panic writes to file descriptor 2, past Python's sys.stderr."""
    try:
        kept = os.dup(2)
    except OSError:  # closed before this process began
        yield
        return
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def text_of(setting: str | Token | None) -> str:
    """The text of a token; "" where there is none."""
    return setting.content if isinstance(setting, Token) else setting or ""
