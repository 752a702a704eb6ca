"""Training state that somebody wrote: trainer_state.json field by field, and tensors, with a manifest that is right."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from configs.checkpoints import MANIFEST, manifest_of
from tests.attack.attack import Case
from tests.attack.victims import stopped

RESUME = ("train.pretrain", "tiny.yaml", "eval.hooks=[]", "train.checkpoint_every=0")
NEWEST = "checkpoints/step_00000004"
WRONG = {  # of a type that some field has, and of none
    "text": "x",
    "a list": [],
    "a list of lists": [[[]]],
    "an object": {},
    "an object of text": {"losses": "x", "device": 1},
    "true": True,
    "half": 0.5,
    "minus one": -1,
    "ten to the thirty": 10**30,
    "a number of 4,000 digits": 10**4000,
    "1e308": 1e308,
    "not a number": float("nan"),
    "infinite": float("inf"),
    "a control character": "\x1b]0;a\x07",
    "null": None,
}
FIELDS = {  # and the wrong values that are right here
    "step": (),
    "tokens": (),
    "seconds": ("half",),
    "best_loss": ("half", "minus one", "ten to the thirty", "null"),
    "best_step": ("null",),
    "best_tokens": ("null",),
    "skipped": (),
    "evaluated_at": ("null",),
    "hooks_done": ("a list",),
    "logged": ("an object",),
    "breaks": ("a list",),
    "wandb_id": ("text", "null"),
    "identity": (),
    "resolved": ("an object",),
    "scaler": ("an object", "null"),
    "spikes": ("an object",),
    "world_size": (),
    "torch_version": ("text", "a control character"),
}
INSIDE = {  # of objects in the state
    "resolved": ["device", "precision", "attention", "compile", "micro_batch_size", "world_size", "threads"],
    "logged": ["metrics.jsonl"],
    "spikes": ["losses", "others"],
    "identity": ["seed", "model.hidden_size", "data.contents", "train.max_steps"],
}


def at(*path: str) -> Callable[[dict, Any], None]:
    def change(state: dict, value: Any) -> None:
        for key in path[:-1]:
            state = state[key]
        state[path[-1]] = value

    return change


def cases() -> Iterator[Case]:
    for name, right in FIELDS.items():
        for what, value in WRONG.items():
            yield resumed(f"{name} is {what}", partial(state_with, at(name), value), may_work=what in right)
        if name != "step":
            yield resumed(f"{name} is missing", partial(state_without, name), may_work=True)
    yield resumed("step is missing", partial(state_without, "step"))
    for name, keys in INSIDE.items():
        for key in keys:
            for what in list(WRONG)[::2]:
                yield resumed(f"{name}.{key} is {what}", partial(state_with, at(name, key), WRONG[what]), may_work=True)
    yield resumed("the step is that of another checkpoint", partial(state_with, at("step"), 3))
    yield resumed("the best step is later", partial(state_with, at("best_step"), 5))
    yield resumed("the best step is gone", partial(state_with, at("best_step"), 1), may_work=True)
    yield resumed("a key too many", partial(state_with, at("more"), 1))
    yield resumed("rows that do not divide", partial(state_with, at("resolved", "micro_batch_size"), 3), may_work=True)
    for name, change in TENSORS.items():
        yield resumed(f"tensors: {name}", partial(tensors_with, change))


def resumed(name: str, forge: Callable[[Path], None], may_work: bool = False) -> Case:
    """The checkpoint before it stays intact, so that a state which is found damaged is not the end: it is removed."""

    def prepare(folder: Path) -> None:
        checkpoint = stopped(folder) / NEWEST
        forge(checkpoint)
        files = [file for file in checkpoint.rglob("*") if file.is_file() and file.name not in (MANIFEST, "README.md")]
        text = json.dumps(manifest_of(sorted(files), checkpoint), indent=2) + "\n"
        (checkpoint / "training" / MANIFEST).write_text(text, encoding="utf-8")
        for file in sorted((checkpoint.parent / "step_00000002").rglob("*"), reverse=True):
            file.rmdir() if file.is_dir() else file.unlink()
        (checkpoint.parent / "step_00000002").rmdir()

    return Case(name, RESUME, prepare, may_work=may_work, may_change=("*",) if may_work else ())


def rewritten(checkpoint: Path, change: Callable[[dict], object]) -> None:
    file = checkpoint / "training" / "trainer_state.json"
    state = json.loads(file.read_text(encoding="utf-8"))
    change(state)
    file.write_text(json.dumps(state), encoding="utf-8")


def state_with(change: Callable[[dict, Any], None], value: Any, checkpoint: Path) -> None:
    rewritten(checkpoint, lambda state: change(state, value))


def state_without(key: str, checkpoint: Path) -> None:
    rewritten(checkpoint, lambda state: state.pop(key))


def of_moments(make: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[dict], None]:
    def change(tensors: dict) -> None:
        name = next(name for name in tensors if not name.startswith("rng."))
        tensors[name] = make(tensors[name]).contiguous()

    return change


def of_random(make: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[dict], None]:
    def change(tensors: dict) -> None:
        tensors["rng.cpu.0"] = make(tensors["rng.cpu.0"]).contiguous()

    return change


TENSORS: dict[str, Callable[[dict], object]] = {
    "none": dict.clear,
    "no random state": lambda tensors: tensors.pop("rng.cpu.0"),
    "a short random state": of_random(lambda state: state[:100]),
    "an empty random state": of_random(lambda state: state[:0]),
    "a random state of floats": of_random(lambda state: state.float()),
    "a random state in 16 bits": of_random(lambda state: state.bfloat16()),
    "a random state in rows": of_random(lambda state: state[None]),
    "a random state of ones": of_random(lambda state: torch.full_like(state, 255)),
    "a random state of another process that is short": lambda tensors: tensors.update(
        {"rng.cpu.1": torch.zeros(3, dtype=torch.uint8)}
    ),
    "one too many": lambda tensors: tensors.update(more=torch.ones(2)),
    "moments of whole numbers": of_moments(lambda moment: moment.long()),
    "moments of truth values": of_moments(lambda moment: moment.bool()),
    "complex moments": of_moments(lambda moment: moment.to(torch.complex64)),
    "moments of another shape": of_moments(lambda moment: torch.ones(7)),
    "moments of no numbers": of_moments(lambda moment: moment.flatten()[:0]),
    "moments of too many dimensions": of_moments(lambda moment: moment[(None,) * 9]),
}


def tensors_with(change: Callable[[dict], object], checkpoint: Path) -> None:
    file = checkpoint / "training" / "optimizer.safetensors"
    tensors = dict(load_file(file))
    file.unlink()
    change(tensors)
    save_file(tensors, file)
