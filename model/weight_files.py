"""What is in the .safetensors files of a model directory? Looked at without reading a weight, then read."""

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
from configs.files import DamagedFile, is_file, read_json

DTYPES = ("F32", "F16", "BF16")  # what a model may be stored in without being rounded when it is loaded
# a file beside the index: a foreign one must not lead out of its directory
Part = Annotated[str, Field(pattern=r"^[\w.\-]+\.safetensors$")]


class Index(BaseModel):
    """model.safetensors.index.json: the file that each tensor is in."""

    weight_map: Annotated[dict[str, Part], Field(min_length=1)]


@dataclass(frozen=True)
class Stored:
    """What the headers say. file: the one to name in a message; parts: all of them.

    shapes: by the name that a tensor has today. names: the name in the files -> that one.
    """

    file: Path
    parts: list[Path]
    shapes: dict[str, list[int]]
    names: dict[str, str]

    def check(self, expected: dict[str, list[int]], of: str) -> None:
        """Raises DamagedFile unless these tensors are there, all and no others. of: what they are a part of."""
        for name in sorted(expected.keys() | self.shapes.keys()):
            there, wanted = self.shapes.get(name, "nothing"), expected.get(name, "nothing")
            if there != wanted:
                raise DamagedFile(
                    f"{self.file}: does not belong to {of}: for {name[:100]} it has {there}, not {wanted}"
                )


def describe(file: Path, current: Callable[[str], str | None] = str) -> Stored:
    """One file of tensors, or those that an index in its place lists. Raises DamagedFile.

    current: the name of a tensor in a file -> the one that is used today; None for what is no weight.
    """
    parts, index = [file], file.with_name(f"{file.name}.index.json")
    if not is_file(file) and is_file(index):
        parts = [file.with_name(name) for name in sorted({*read_json(index, Index).weight_map.values()})]
        file = index
    stored = Stored(file, parts, {}, {})
    for part in parts:
        if not is_file(part):  # to open a pipe would wait for ever
            raise DamagedFile(f"{part}: cannot be read: there is no such file")
        try:  # the library checks that the tensors fill the file exactly, without overlap
            with safe_open(part, "pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118
                    if (today := current(name)) is None:
                        continue
                    header = tensors.get_slice(name)
                    if header.get_dtype() not in DTYPES:
                        raise DamagedFile(
                            f"{part}: {name[:60]} is stored as {header.get_dtype()}: must be F32, F16 or BF16"
                        )
                    if today in stored.shapes:
                        raise DamagedFile(f"{part}: {today[:60]} is there under two names")
                    stored.shapes[today], stored.names[name] = list(header.get_shape()), today
        except (OSError, SafetensorError, RuntimeError, OverflowError) as error:
            raise DamagedFile(f"{part}: cannot be read: {str(error).partition(chr(10))[0][:200]}") from None
    return stored


def read(stored: Stored) -> dict[str, Tensor]:
    """Every tensor, by today's name. Warns (InputWarning) of numbers that are not finite."""
    tensors: dict[str, Tensor] = {}
    for part in stored.parts:
        tensors |= {stored.names[name]: x for name, x in load_file(part).items() if name in stored.names}
    if broken := [name for name, tensor in tensors.items() if not _is_finite(tensor)]:
        others = f" and {len(broken) - 1:,} other tensors" if len(broken) > 1 else ""
        warnings.warn(f"{stored.file}: {broken[0]}{others}: not every number is finite", InputWarning, stacklevel=3)
    return tensors


def _is_finite(tensor: Tensor) -> bool:
    """The extremes tell, because NaN comes through: ten times as fast as torch.isfinite."""
    return not tensor.numel() or bool(torch.stack(torch.aminmax(tensor)).isfinite().all())
