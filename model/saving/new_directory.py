"""A model directory that commands write: it is there whole, or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError

from configs.command import InputError
from configs.files import check_files

if TYPE_CHECKING:  # torch takes seconds to import, and --help should not
    from model.transformer import LanguageModel

TOKENIZER_FILES = "tokenizer.json tokenizer_config.json special_tokens_map.json chat_template.jinja".split()


def refuse_occupied(out: Path) -> None:
    """Raises InputError unless nothing is there, or an empty directory."""
    if os.path.lexists(out) and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"--out: {out} exists and is not empty: choose another directory")


def read_tokenizer_files(directory: Path) -> dict[str, bytes]:
    """What makes the tokenizer of a model directory, as it was saved: what is there, by name. Raises DamagedFile."""
    check_files(directory, *TOKENIZER_FILES)
    return {name: (directory / name).read_bytes() for name in TOKENIZER_FILES if (directory / name).is_file()}


@contextmanager
def new_directory(out: Path) -> Iterator[Path]:
    """A directory with a temporary name beside `out`, which becomes `out` at the end, or disappears after an error.

    Raises InputError if it cannot be written.
    """
    target = out.resolve()
    temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    try:
        temporary.mkdir(parents=True)
        yield temporary
        if target.exists():
            target.rmdir()  # empty; Windows renames onto nothing that exists
        temporary.rename(target)
    except (OSError, SafetensorError) as error:
        raise InputError(f"--out: {out} cannot be written: {error}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_whole(lm: LanguageModel, copied: dict[str, bytes], out: Path) -> None:
    """Save a model with these files. Raises InputError."""
    from model.saving.checkpoint_format import save

    with new_directory(out) as directory:
        save(lm, directory)
        for name, raw in copied.items():
            (directory / name).write_bytes(raw)
