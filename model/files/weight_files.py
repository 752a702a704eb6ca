"""Read tensors from a directory that any program may have written, one file or several."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import torch
from pydantic import BaseModel, Field
from safetensors import SafetensorError
from safetensors.torch import load_file

from configs.files import DamagedFile, read_json
from model.files.family import Tensors

# Loading rounds none of these.
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# A file in the same directory: a path could lead anywhere.
FileName = Annotated[str, Field(pattern=r"^[\w.\-]+\.safetensors$")]


class Index(BaseModel):
    """model.safetensors.index.json: the file of each tensor."""

    weight_map: Annotated[dict[str, FileName], Field(min_length=1)]


def read_tensors(file: Path, current: Callable[[str], str | None] = str) -> Tensors:
    """Return the tensors of a file, or of the files that its index lists, still on the disk.

    current: a tensor's name in the file -> its present name; None if it is not a weight.
    """
    parts = [file]
    index = file.with_name(f"{file.name}.index.json")
    if not file.is_file() and index.is_file():
        names = set(read_json(index, Index).weight_map.values())
        parts = [file.with_name(name) for name in sorted(names)]
    tensors: Tensors = {}
    for part in parts:
        if not part.is_file():  # also a pipe, which would block when it is opened
            # old files are pickles: programs that run when they are opened
            pickles = sorted(file.parent.glob("*_model*.bin")) if part == file else []
            if pickles:
                raise DamagedFile(
                    f"{pickles[0]}: is not read, because such a file can run code: open the folder "
                    "with transformers' from_pretrained, and save it with save_pretrained"
                )
            raise DamagedFile(f"{part}: cannot be read: there is no such file")
        # the library checks that the tensors fill the file exactly; an unknown dtype is a KeyError
        try:
            stored = load_file(part)
        except (OSError, SafetensorError, RuntimeError, OverflowError, KeyError) as error:
            problem = str(error).partition("\n")[0][:200]
            raise DamagedFile(f"{part}: cannot be read: {problem}") from None
        for stored_name, tensor in stored.items():
            name = current(stored_name)
            if name is None:
                continue
            if tensor.dtype not in DTYPES:
                raise DamagedFile(
                    f"{part}: {stored_name[:60]} is of {tensor.dtype}: must be float32, float16 "
                    "or bfloat16"
                )
            tensors[name] = tensor
    return tensors


def check_tensors(tensors: Tensors, shapes: dict[str, list[int]], file: Path) -> None:
    """Raise DamagedFile unless a file has exactly these names and shapes."""
    for name in sorted(tensors.keys() | shapes.keys()):
        if name not in tensors:
            problem = "is missing"
        elif name not in shapes:
            problem = "is not part of this model"
        elif list(tensors[name].shape) != shapes[name]:
            problem = f"has shape {list(tensors[name].shape)}, and the model {shapes[name]}"
        else:
            continue
        raise DamagedFile(f"{file}: is of another architecture: {name[:100]} {problem}")
