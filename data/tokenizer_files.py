"""How is a tokenizer read that somebody else wrote? tokenizer.json, and the tokenizer_config.json beside it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tokenizers
from pydantic import BaseModel, Field, field_validator

from configs.command import InputError
from configs.files import is_pointer, read_checkpoint, read_json, read_text


class Token(BaseModel):
    """How transformers 4 writes a token."""

    content: str


class NamedTemplate(BaseModel):
    """One of several chat templates."""

    name: str
    template: str


class Settings(BaseModel):
    """What is read of tokenizer_config.json. chat_template: by name; chat_template.jinja goes before it."""

    pad_token: str | Token | None = None
    bos_token: str | Token | None = None
    eos_token: str | Token | None = None
    unk_token: str | Token | None = None
    sep_token: str | Token | None = None
    cls_token: str | Token | None = None
    mask_token: str | Token | None = None
    chat_template: dict[str, str] = {}

    @field_validator("chat_template", mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        if isinstance(value, list):
            return {one.name: one.template for one in map(NamedTemplate.model_validate, value)}
        return {} if not value else {"default": value} if isinstance(value, str) else value

    @property
    def named_tokens(self) -> dict[str, str]:
        """The tokens that a chat template may ask for, by their names."""
        tokens = {name: value for name, value in self if name.endswith("_token")}
        return {name: token.content if isinstance(token, Token) else token for name, token in tokens.items() if token}


class Beside(BaseModel):
    """What is read of the config.json of a model beside a tokenizer."""

    vocab_size: int = Field(0, ge=0)


def rows_beside(file: Path) -> int:
    """How many ids the model beside a tokenizer.json has rows for; 0 where there is none. Raises InputError."""
    config = file.with_name("config.json")
    return read_json(config, Beside).vocab_size if config.is_file() else 0


def open_tokenizer(path: str | Path) -> tuple[Path, tokenizers.Tokenizer, Settings]:
    """The tokenizer of a run, a directory or a file: where it is, tokenizer.json, its settings. Raises InputError."""

    def read(path: Path) -> tuple[Path, tokenizers.Tokenizer, Settings]:
        file = path if path.is_file() else path / "tokenizer.json"
        if not file.is_file():
            raise InputError(f"{path}: holds no tokenizer.json: give a run, a checkpoint directory or the file itself")
        return file, *_read(file)

    path = Path(path)
    named = is_pointer(path) or (path / "checkpoints" / "latest").is_file()
    return read_checkpoint(path, read) if named else read(path)


def _read(file: Path) -> tuple[tokenizers.Tokenizer, Settings]:
    """A tokenizer.json, and the tokenizer_config.json beside it, if there is one. Raises InputError."""
    path, template = file.with_name("tokenizer_config.json"), file.with_name("chat_template.jinja")
    text = read_text(file)
    with clear_errors(file):
        backend = tokenizers.Tokenizer.from_str(text)
    settings = read_json(path, Settings) if path.is_file() else Settings()
    if template.is_file():
        settings.chat_template |= {"default": read_text(template)}
    return backend, settings


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
