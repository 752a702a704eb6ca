"""Tensors of a directory that anybody may have written, one file or several."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import torch
from pydantic import BaseModel, Field
from safetensors import SafetensorError
from safetensors.torch import load_file

from configs.files import DamagedFile, read_json
from model.files.families import Tensors

DTYPES = (torch.float32, torch.float16, torch.bfloat16)  # what is not rounded when it is loaded


class Index(BaseModel):
    """model.safetensors.index.json: the file that each tensor is in. None may lead out of the directory."""

    weight_map: Annotated[dict[str, Annotated[str, Field(pattern=r"^[\w.\-]+\.safetensors$")]], Field(min_length=1)]


def read_tensors(file: Path, current: Callable[[str], str | None] = str) -> Tensors:
    """The tensors of a file, or of those that an index in its place lists. They stay on the disk until they are used.

    current: the name of a tensor in the file -> the one that is used today; None for what is no weight.
    """
    parts, index = [file], file.with_name(f"{file.name}.index.json")
    if not file.is_file() and index.is_file():
        parts = [file.with_name(name) for name in sorted({*read_json(index, Index).weight_map.values()})]
    tensors: Tensors = {}
    for part in parts:
        if not part.is_file():  # to open a pipe would wait for ever
            pickled = sorted(file.parent.glob("*_model*.bin")) if part == file else []
            if pickled:
                remedy = "open the folder with transformers' from_pretrained, and save it with save_pretrained"
                raise DamagedFile(f"{pickled[0]}: is not read, because such a file can run code: {remedy}")
            raise DamagedFile(f"{part}: cannot be read: there is no such file")
        try:  # the library checks that the tensors fill the file exactly, without overlap
            stored = load_file(part)
        except (OSError, SafetensorError, RuntimeError, OverflowError, KeyError) as error:  # KeyError: an unknown dtype
            raise DamagedFile(f"{part}: cannot be read: {str(error).partition(chr(10))[0][:200]}") from None
        for name, tensor in stored.items():
            if (today := current(name)) is None:
                continue
            if tensor.dtype not in DTYPES:
                raise DamagedFile(f"{part}: {name[:60]} is of {tensor.dtype}: must be float32, float16 or bfloat16")
            tensors[today] = tensor
    return tensors


def check_tensors(tensors: Tensors, shapes: dict[str, list[int]], file: Path) -> None:
    """Raises DamagedFile unless the tensors of a file have these names, all and no others, and these shapes."""
    for name in sorted(tensors.keys() | shapes.keys()):
        shape, expected = list(tensors[name].shape) if name in tensors else None, shapes.get(name)
        if shape != expected:
            problem = f"has shape {shape}, and the model {expected}"
            problem = "is missing" if shape is None else "is not part of this model" if expected is None else problem
            raise DamagedFile(f"{file}: is of another architecture: {name[:100]} {problem}")
