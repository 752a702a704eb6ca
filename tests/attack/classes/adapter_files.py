"""Adapters that lie: adapter_config.json and adapter_model.safetensors, damaged, forged, or made for another base."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

from tests.attack.attack import Case
from tests.attack.mutations import WRONG, change_json, mutated
from tests.attack.victims import own_folder, trained

CHAT = ("eval.chat", "adapters", "--max-new-tokens", "2")
COMMANDS = [
    CHAT,
    ("eval.chat", "runs/tiny", "--adapter", "a=adapters", "--max-new-tokens", "2"),
    ("model.export", "adapters", "--to", "merged", "--out", "out"),
    ("train.pretrain", "tiny.yaml", "name=other", "init_from=adapters"),
]
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
BASE = "runs/tiny/checkpoints/step_00000004"
A = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
FIELDS = "peft_type base_model_name_or_path r lora_alpha lora_dropout bias init_lora_weights".split()
OTHER_KINDS: dict[str, Any] = {
    "use_dora": True,
    "use_rslora": True,
    "rank_pattern": {"q_proj": 4},
    "modules_to_save": ["lm_head"],
    "layer_replication": [[0, 1], [0, 1]],
}
BASES = {
    "that is not there": "nowhere",
    "above": "../../../../etc",
    "itself": "adapters",
    "a file": "text.txt",
    "with escape characters": "\x1b[2Jruns",
    "with a NUL character": "runs/\0tiny",
    "of 4,000 characters": "a" * 4000,
}


def cases() -> Iterator[Case]:
    for field in FIELDS:
        for what, value in list(WRONG.items())[::3]:
            yield _config(f"{field} is {what}", {field: value}, may_work=True)
    for field, value in OTHER_KINDS.items():
        yield _config(f"{field} is set", {field: value}, says=f"{field} is set")
    for what, value in BASES.items():
        for command in COMMANDS[::2]:  # with eval.chat --adapter another base is the one that is opened
            yield _config(f"a base {what}", {"base_model_name_or_path": value}, command)
    for seed in range(12):
        yield Case(f"config, mutation {seed}", CHAT, partial(_mutated, seed=seed), b"a\n", may_work=True)
    for command in COMMANDS:
        for rank in (1, 3, 4096, 4097):
            yield _config(f"r is {rank}, the tensors have rank 2", {"r": rank}, command)
        for what, change in TENSORS.items():
            yield _case(f"tensors: {what}", command, partial(_tensors, change=change))
        for what, make in FILES.items():
            yield _case(what, command, make)
    yield _case("a tensor with NaN", CHAT, partial(_tensors, change=_not_finite), may_work=True)


def _case(name: str, command: tuple[str, ...], change: Callable[[Path], object], may_work=False, says="") -> Case:
    """change: what happens to the folder of the adapters."""
    name = f"{name} ({' '.join(command[:3])})"
    return Case(name, command, partial(_changed, change=change), b"a\n", may_work, says=says, check=_nothing_written)


def _config(name: str, fields: dict[str, Any], command: tuple[str, ...] = CHAT, **options: Any) -> Case:
    return _case(name, command, lambda there: change_json(there / CONFIG, lambda values: values | fields), **options)


def _nothing_written(folder: Path) -> str:
    written = [name for name in ("out", "runs/other") if (folder / name).exists()]
    return f"{written[0]} was written" if written else ""


@cache
def _adapters() -> Path:
    """Adapters of rank 2 for a copy of the trained run, beside it."""
    import torch

    from model import load, save
    from model.lora import add_adapters, weights_hash
    from model.lora_config import LoraConfig

    folder = own_folder()
    trained(folder)
    lm = load(folder / BASE)
    torch.manual_seed(0)
    add_adapters(lm, LoraConfig(rank=2), BASE, weights_hash(lm))
    save(lm, folder / "adapters")
    shutil.copy(folder / BASE / "tokenizer.json", folder / "adapters")
    return folder


def _changed(folder: Path, change: Callable[[Path], object]) -> None:
    shutil.copytree(_adapters(), folder, dirs_exist_ok=True)
    change(folder / "adapters")


def _mutated(folder: Path, seed: int) -> None:
    _changed(folder, lambda there: change_json(there / CONFIG, partial(mutated, seed=seed)))


def _bytes(there: Path, file: str, change: Callable[[bytes], bytes]) -> None:
    (there / file).write_bytes(change((there / file).read_bytes()))


def _replaced(there: Path, file: str, make: Callable[[Path], object]) -> None:
    (there / file).unlink()
    make(there / file)


def _tensors(there: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """The metadata stays, so that the base is the right one."""
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    with safe_open(there / WEIGHTS, "pt") as opened:
        metadata = opened.metadata()
    tensors = load_file(there / WEIGHTS)
    change(tensors)
    save_file(tensors, there / WEIGHTS, metadata=metadata)


def _not_finite(tensors: dict[str, Any]) -> None:
    tensors[A][0, 0] = float("nan")


def _of_another_base(there: Path) -> None:
    """The weights of the base are others than those that the adapters were trained beside."""
    earlier = there.parent / "runs/tiny/checkpoints/step_00000002/model.safetensors"
    base = there.parent / BASE / "model.safetensors"
    shutil.copy(earlier, base)
    shutil.rmtree(base.parent / "training")  # or the manifest says so first


TENSORS: dict[str, Callable[[dict[str, Any]], object]] = {
    "none": lambda tensors: tensors.clear(),
    "A is missing": lambda tensors: tensors.pop(A),
    "A is turned": lambda tensors: tensors.update({A: tensors[A].T.contiguous()}),
    "one A has another rank": lambda tensors: tensors.update({A: tensors[A].repeat(2, 1)}),
    "A of a layer that does not exist": lambda tensors: tensors.update({A.replace("s.0", "s.7"): tensors.pop(A)}),
    "a name of escape characters": lambda tensors: tensors.update({"\x1b[2J\n": tensors.pop(A)}),
    "a matrix of the base too": lambda tensors: tensors.update({A.replace(".lora_A", ""): tensors[A].clone()}),
    "integers": lambda tensors: tensors.update({A: tensors[A].long()}),
}
FILES: dict[str, Callable[[Path], object]] = {
    "another base": _of_another_base,
    "no base": lambda there: shutil.rmtree(there.parent / "runs/tiny"),
    "no config": partial(_replaced, file=CONFIG, make=lambda file: None),
    "half a config": partial(_bytes, file=CONFIG, change=lambda raw: raw[: len(raw) // 2]),
    "a config that is a list": partial(_bytes, file=CONFIG, change=lambda raw: b"[" + raw + b"]"),
    "a config that is no UTF-8": partial(_bytes, file=CONFIG, change=lambda raw: b'{"r": "\xff"}'),
    "a config that is a pipe": partial(_replaced, file=CONFIG, make=os.mkfifo),
    "a config that is a folder": partial(_replaced, file=CONFIG, make=lambda file: file.mkdir()),
    "no weights": partial(_replaced, file=WEIGHTS, make=lambda file: None),
    "empty weights": partial(_bytes, file=WEIGHTS, change=lambda raw: b""),
    "weights that are cut off": partial(_bytes, file=WEIGHTS, change=lambda raw: raw[:-100]),
    "a header that is cut off": partial(_bytes, file=WEIGHTS, change=lambda raw: raw[:50]),
    "weights that are a text": partial(_bytes, file=WEIGHTS, change=lambda raw: b"version https://git-lfs " * 9),
    "weights that are a folder": partial(_replaced, file=WEIGHTS, make=lambda file: file.mkdir()),
    "weights that are a link to themselves": partial(_replaced, file=WEIGHTS, make=lambda file: file.symlink_to(file)),
}
