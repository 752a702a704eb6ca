"""Snapshots of attention that somebody wrote: whole archives whose values are wrong."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tests.attack.attack import Case
from tests.attack.victims import trained

DRAW = ("eval.attention", "runs/tiny", "--device", "cpu")
WRONG: dict[str, Any] = {
    "text": "x",
    "a list": [],
    "a list of lists": [[]],
    "an object": {},
    "minus one": -1,
    "ten to the thirty": 10**30,
    "null": None,
    "not a number": float("nan"),
}
ABOUT = ["step", "tokens", "seconds", "layers", "heads", "num_attention_heads", "num_key_value_heads", "chance", "maps"]
ABOUT += ["scores", "scalars", "ablations", "format"]
RIGHT = {"chance": ["an object"], "scores": ["a list"], "scalars": ["an object"], "ablations": ["a list"]}
ARRAYS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "of no numbers": lambda values: values[:0],
    "of one dimension": lambda values: values.reshape(-1),
    "of one head more": lambda values: np.concatenate([values, values[:, :1]], axis=1),
    "of whole numbers": lambda values: values.astype(np.int64),
    "of text": lambda values: values.astype(str),
    "of complex numbers": lambda values: values.astype(np.complex64),
    "of objects": lambda values: values.astype(object),
    "of dates": lambda values: np.zeros(values.shape, dtype="datetime64[s]"),
    "a number": lambda values: values.reshape(-1)[0],
}


def cases() -> Iterator[Case]:
    for key in ABOUT:
        for what, value in WRONG.items():
            yield drawn(f"{key} is {what}", partial(about_with, key, value), may_work=what in RIGHT.get(key, ()))
        yield drawn(f"{key} is missing", partial(about_without, key), may_work=key == "ablations")
    for kind in ("map.", "score.", "similarity"):
        for what, change in ARRAYS.items():
            yield drawn(f"{kind} {what}", partial(arrays_with, kind, change))
    yield drawn("a map of minus one", partial(arrays_with, "map.", lambda values: values - 1))
    yield drawn("a map that is missing", without_maps)
    yield drawn("an array that claims to be huge", huge)
    yield drawn("an archive that claims to be huge", bomb)
    yield drawn("one array and no archive", lambda file: np.save(file.open("wb"), np.zeros(3)))
    yield drawn("an archive without arrays", lambda file: zipfile.ZipFile(file, "w").close())


def drawn(name: str, forge: Callable[[Path], object], may_work: bool = False) -> Case:
    def prepare(folder: Path) -> None:
        for file in trained(folder).glob("attention/step_*.npz"):
            forge(file)

    return Case(name, DRAW, prepare, may_work=may_work, says="" if may_work else "no snapshot can be read")


def read(file: Path) -> dict[str, np.ndarray]:
    with np.load(file) as arrays:
        return dict(arrays)


def write(file: Path, arrays: dict[str, np.ndarray]) -> None:
    with file.open("wb") as stream:
        np.savez(stream, **arrays)


def changed_about(file: Path, change: Callable[[dict], object]) -> None:
    arrays = read(file)
    about = json.loads(str(arrays["about"]))
    change(about)
    write(file, arrays | {"about": np.array(json.dumps(about))})


def about_with(key: str, value: Any, file: Path) -> None:
    changed_about(file, lambda about: about.update({key: value}))


def about_without(key: str, file: Path) -> None:
    changed_about(file, lambda about: about.pop(key))


def arrays_with(kind: str, change: Callable[[np.ndarray], np.ndarray], file: Path) -> None:
    write(file, {name: change(one) if name.startswith(kind) else one for name, one in read(file).items()})


def without_maps(file: Path) -> None:
    write(file, {name: one for name, one in read(file).items() if not name.startswith("map.")})


def header(shape: tuple[int, ...]) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "<f2", "fortran_order": False, "shape": shape})
    return stream.getvalue()


def huge(file: Path) -> None:
    arrays = read(file)
    write(file, {name: one for name, one in arrays.items() if not name.startswith("map.")})
    with zipfile.ZipFile(file, "a") as archive:
        for name in arrays:
            if name.startswith("map."):
                archive.writestr(f"{name}.npy", header((10**6, 10**6, 10**6)))


def bomb(file: Path) -> None:
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("more.npy", header((10,)))
        archive.getinfo("more.npy").file_size = 10**12
