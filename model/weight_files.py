"""The .safetensors files of a model directory: one, or several that an index lists. Files of others are distrusted."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import torch
from pydantic import BaseModel, Field
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from configs.command import InputWarning
from configs.files import DamagedFile, read_json

DTYPES = (torch.float32, torch.float16, torch.bfloat16)  # what is not rounded when it is loaded
# a file beside the index: a foreign one must not lead out of its directory
Part = Annotated[str, Field(pattern=r"^[\w.\-]+\.safetensors$")]


class Index(BaseModel):
    """model.safetensors.index.json: the file that each tensor is in."""

    weight_map: Annotated[dict[str, Part], Field(min_length=1)]


def read_tensors(file: Path, current: Callable[[str], str | None] = str) -> dict[str, Tensor]:
    """The tensors of a file, or of those that an index in its place lists. They stay on the disk until they are used.

    current: the name of a tensor in the file -> the one that is used today; None for what is no weight.
    Raises DamagedFile.
    """
    parts, index = [file], file.with_name(f"{file.name}.index.json")
    if not file.is_file() and index.is_file():
        parts = [file.with_name(name) for name in sorted({*read_json(index, Index).weight_map.values()})]
    tensors: dict[str, Tensor] = {}
    for part in parts:
        if not part.is_file():  # to open a pipe would wait for ever
            raise DamagedFile(f"{part}: cannot be read: there is no such file")
        try:  # the library checks that the tensors fill the file exactly, without overlap
            found = load_file(part)
        except (OSError, SafetensorError, RuntimeError, OverflowError, KeyError) as error:  # KeyError: an unknown dtype
            raise DamagedFile(f"{part}: cannot be read: {str(error).partition(chr(10))[0][:200]}") from None
        for name, tensor in found.items():
            if (today := current(name)) is None:
                continue
            if tensor.dtype not in DTYPES:
                raise DamagedFile(f"{part}: {name[:60]} is of {tensor.dtype}: must be float32, float16 or bfloat16")
            if today in tensors:
                raise DamagedFile(f"{part}: {today[:60]} is there under two names")
            tensors[today] = tensor
    return tensors


def check_tensors(tensors: dict[str, Tensor], shapes: dict[str, list[int]], file: Path) -> None:
    """Raises DamagedFile unless the tensors of a file have these names, all and no others, and these shapes."""
    for name in sorted(tensors.keys() | shapes.keys()):
        here, wanted = list(tensors[name].shape) if name in tensors else None, shapes.get(name)
        problem = f"has shape {here}, and the model {wanted}"
        problem = "is missing" if here is None else "is not part of this model" if wanted is None else problem
        if here != wanted:
            raise DamagedFile(f"{file}: is of another architecture: {name[:100]} {problem}")


def warn_of_non_finite(tensors: dict[str, Tensor], file: Path) -> None:
    """InputWarning. The extremes tell, because NaN comes through: ten times as fast as torch.isfinite."""
    extremes = {name: torch.stack(torch.aminmax(tensor)) for name, tensor in tensors.items() if tensor.numel()}
    if broken := [name for name, pair in extremes.items() if not pair.isfinite().all()]:
        others = f" and {len(broken) - 1:,} other tensors" if len(broken) > 1 else ""
        warnings.warn(f"{file}: {broken[0]}{others}: not every number is finite", InputWarning, stacklevel=3)
