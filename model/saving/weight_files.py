"""What is in the .safetensors files of a model directory? Looked at without reading a weight, then read.

A family may know other names for its tensors, and tensors that are not weights. `current`, below, turns a name in a
file into the one that is used today, or into None for what is left out.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from pydantic import BaseModel, Field
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from configs.command import InputWarning
from configs.files import NAME, DamagedFile, read_json

DTYPES = {"F32", "F16", "BF16"}  # what a model may be stored in without being rounded when it is loaded


@dataclass(frozen=True)
class Stored:
    """What the headers say. file: the one to name in a message; files: all of them; bytes: their size.

    shapes: by name. names: of each tensor that is read, in its file -> as in `shapes`.
    """

    file: Path
    files: list[Path]
    shapes: dict[str, list[int]]
    bytes: int
    names: dict[str, str]


class Index(BaseModel):
    """model.safetensors.index.json: the file that each tensor is in."""

    weight_map: Annotated[dict[str, str], Field(min_length=1)]


def describe(directory: Path, current: Callable[[str], str | None] = str) -> Stored:
    """model.safetensors, or the files that model.safetensors.index.json lists. Raises DamagedFile."""
    file, index = directory / "model.safetensors", directory / "model.safetensors.index.json"
    if file.is_file() or not index.is_file():
        return describe_file(file, current)
    names: set[str] = set(read_json(index, Index).weight_map.values())
    for name in names:
        if not NAME.fullmatch(name) or not name.endswith(".safetensors"):
            raise DamagedFile(f"{index}: names {name[:60]!r}, which is no .safetensors file of this directory")
    files, shapes = [directory / name for name in sorted(names)], dict[str, list[int]]()
    for part in files:
        found = _header(part)
        if twice := found.keys() & shapes.keys():
            raise DamagedFile(f"{part}: {min(twice)[:60]} is in another file too")
        shapes |= found
    return _stored(index, files, shapes, current)


def describe_file(file: Path, current: Callable[[str], str | None] = str) -> Stored:
    """One file of tensors, whatever its name. Raises DamagedFile."""
    return _stored(file, [file], _header(file), current)


def _stored(
    file: Path, files: list[Path], shapes: dict[str, list[int]], current: Callable[[str], str | None]
) -> Stored:
    names = {name: now for name in shapes if (now := current(name)) is not None}
    renamed: dict[str, list[int]] = {}
    for name, now in names.items():
        if now in renamed:
            raise DamagedFile(f"{file}: {now[:60]} is there under two names")
        renamed[now] = shapes[name]
    return Stored(file, files, renamed, sum(map(_size, files)), names)


def read(stored: Stored) -> dict[str, Tensor]:
    """Every tensor. Raises DamagedFile."""
    tensors: dict[str, Tensor] = {}
    for file in stored.files:
        try:
            found = load_file(file)
        except (OSError, SafetensorError, RuntimeError) as error:
            raise _unreadable(file, error) from None
        tensors |= {stored.names[name]: tensor for name, tensor in found.items() if name in stored.names}
    return tensors


def warn_of_non_finite(tensors: dict[str, Tensor], file: Path) -> None:
    """An InputWarning that names the first tensor with a number that is not finite."""
    if broken := [name for name, tensor in tensors.items() if not is_finite(tensor)]:
        others = f" and {len(broken) - 1:,} other tensors" if len(broken) > 1 else ""
        warnings.warn(f"{file}: {broken[0]}{others}: not every number is finite", InputWarning, stacklevel=3)


def is_finite(tensor: Tensor) -> bool:
    """Whether every number is finite. The extremes tell, for NaN comes through: ten times as fast as torch.isfinite."""
    return not tensor.numel() or bool(torch.stack(torch.aminmax(tensor)).isfinite().all())


def _header(file: Path) -> dict[str, list[int]]:
    """The shape of each tensor. The library checks that the tensors fill the file exactly, without overlap."""
    if not file.is_file():
        raise DamagedFile(f"{file}: cannot be read: there is no such file")
    shapes = {}
    try:
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118
                one = tensors.get_slice(name)
                if one.get_dtype() not in DTYPES:
                    raise DamagedFile(f"{file}: {name[:60]} is stored as {one.get_dtype()}: must be F32, F16 or BF16")
                shapes[name] = list(one.get_shape())
    except (OSError, SafetensorError, RuntimeError, OverflowError) as error:
        raise _unreadable(file, error) from None
    return shapes


def _unreadable(file: Path, error: Exception) -> DamagedFile:
    return DamagedFile(f"{file}: cannot be read: {str(error).partition(chr(10))[0][:200]}")


def _size(file: Path) -> int:
    return file.stat().st_size
