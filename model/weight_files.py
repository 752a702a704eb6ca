"""What is in the .safetensors files of a model directory? Looked at without reading a weight, then read."""

from __future__ import annotations

import warnings
from collections.abc import Callable
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


class WeightFiles:
    """A file of tensors, or those that an index in its place lists: `shapes` by the name that a tensor has today.

    Only headers are read until `read`. Raises DamagedFile.
    """

    def __init__(self, file: Path, current: Callable[[str], str | None] = str):
        """current: the name of a tensor in the file -> the one that is used today; None for what is no weight."""
        self.file, self.parts, index = file, [file], file.with_name(f"{file.name}.index.json")
        if not is_file(file) and is_file(index):
            names = {*read_json(index, Index).weight_map.values()}
            self.file, self.parts = index, [file.with_name(name) for name in sorted(names)]
        self.shapes, self.names = dict[str, list[int]](), dict[str, str]()  # names: in the files -> today's
        for part in self.parts:
            if not is_file(part):  # to open a pipe would wait for ever
                raise DamagedFile(f"{part}: cannot be read: there is no such file")
            try:  # the library checks that the tensors fill the file exactly, without overlap
                with safe_open(part, "pt") as tensors:
                    headers = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118
                    shapes = {name: (list(x.get_shape()), x.get_dtype()) for name, x in headers.items()}
            except (OSError, SafetensorError, RuntimeError, OverflowError) as error:
                raise DamagedFile(f"{part}: cannot be read: {str(error).partition(chr(10))[0][:200]}") from None
            for name, (shape, dtype) in shapes.items():
                if (today := current(name)) is None:
                    continue
                if dtype not in DTYPES:
                    raise DamagedFile(f"{part}: {name[:60]} is stored as {dtype}: must be F32, F16 or BF16")
                if today in self.shapes:
                    raise DamagedFile(f"{part}: {today[:60]} is there under two names")
                self.shapes[today], self.names[name] = shape, today

    def check(self, expected: dict[str, list[int]]) -> None:
        """These tensors must be there, in these shapes, and no others."""
        for name in sorted(expected.keys() | self.shapes.keys()):
            here, wanted = self.shapes.get(name), expected.get(name)
            problem = f"has shape {here}, and the model {wanted}"
            problem = "is missing" if here is None else "is not part of this model" if wanted is None else problem
            if here != wanted:
                raise DamagedFile(f"{self.file}: is of another architecture: {name[:100]} {problem}")

    def read(self) -> dict[str, Tensor]:
        """Every tensor, by today's name. Warns (InputWarning) of numbers that are not finite."""
        found = {name: tensor for part in self.parts for name, tensor in load_file(part).items()}
        tensors = {today: found[name] for name, today in self.names.items()}
        if broken := [name for name, tensor in tensors.items() if not _is_finite(tensor)]:
            others = f" and {len(broken) - 1:,} other tensors" if len(broken) > 1 else ""
            warnings.warn(f"{self.file}: {broken[0]}{others}: not every number is finite", InputWarning, stacklevel=3)
        return tensors


def _is_finite(tensor: Tensor) -> bool:
    """The extremes tell, because NaN comes through: ten times as fast as torch.isfinite."""
    return not tensor.numel() or bool(torch.stack(torch.aminmax(tensor)).isfinite().all())
