"""Where is the file that a person named? Every room finds a path here, and nothing else expands or joins one.

    path = resolve("~/books", "data.source.path")          `~` is a home; what is relative starts where you are
    path = resolve("base.yaml", "x.yaml:3", beside=folder)  … or, in `extends`, in the folder of the file that says so
    output_dir: PathText                                    a key of a config: expanded when the config is checked

A name that the system cannot even look up is refused in one line: a NUL character, an unknown home, too many letters,
links in a circle. Whether the file is there is for the caller to find out.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from configs.command import InputError

IMPOSSIBLE = {
    errno.ENAMETOOLONG: "is longer than a file's name can be",
    errno.ELOOP: "leads to links that go in a circle",
    errno.EINVAL: "cannot be a name on this system",
    errno.EACCES: "stands in a folder that you may not search",
}


def resolve(text: str | Path, where: str, beside: Path | None = None) -> Path:
    """The path that `text` names. where: the place that names it, for the error. Raises InputError."""
    try:
        path = Path(expand(str(text)))
        path = path if beside is None else beside / path
        check(path)
    except ValueError as error:
        raise InputError(f"{where}: the path {_short(str(text))} {error}") from None
    return path


def expand(text: str) -> str:
    """The text with `~` as a home. Raises ValueError: what is wrong with it, as the end of a sentence."""
    if not text.startswith("~"):
        return text
    try:
        return str(Path(text).expanduser())
    except (RuntimeError, ValueError):
        raise ValueError(f"begins with {_short(Path(text).parts[0])}: nobody of this name has a home here") from None


def check(path: Path) -> None:
    """Whether the system can look this name up. Raises ValueError: what is wrong, as the end of a sentence."""
    if not str(path) or "\0" in str(path):
        raise ValueError("holds a NUL character" if str(path) else "is empty")
    try:
        path.stat()
    except UnicodeEncodeError:
        return  # this locale has no such letter: train/config.py says what to do
    except OSError as error:
        if problem := IMPOSSIBLE.get(error.errno or 0):
            raise ValueError(problem) from None


def _of_a_config(text: str) -> str:
    try:
        expanded = expand(text)
        check(Path(expanded))
    except ValueError as error:
        raise PydanticCustomError("path", "{problem}", {"problem": f"this path {error}"}) from None
    return expanded


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}…")


PathText = Annotated[str, AfterValidator(_of_a_config)]
