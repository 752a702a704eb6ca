"""Assemble the reader's parts into notebooks/mine/my_model.py, and compare it with one_file.py.

`python -m notebooks.check assemble` calls this. The comparison names the first place that differs:
the embedding, layer 0's queries, the loss, a gradient, a batch, or a step.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from configs import IGNORED
from configs.command import InputError
from configs.files import write_atomically
from notebooks import one_file
from notebooks.checks.compare import same

STEPS = 20
ROUNDED = "right, but rounded differently"
HEADER = '''"""A language model, assembled from my own parts.

    python -m notebooks.mine.my_model train my.txt
    python -m notebooks.mine.my_model write pretrained/small/checkpoints/step_00001200 "One day"

To change a part, edit its file in notebooks/build/ and run `python -m notebooks.check assemble`.
"""
'''


# 1. One file of many parts.


def needed_parts(ending: Path) -> list[str]:
    """Return the parts that the ending needs, directly or through others."""
    names: list[str] = []

    def visit(file: Path) -> None:
        for name in imported_parts(ast.parse(file.read_text(encoding="utf-8"))):
            if name not in names:
                names.append(name)
                visit(file.with_name(f"{name}.py"))

    visit(ending)
    return names


def imported_parts(tree: ast.Module) -> list[str]:
    """Return the parts that a file imports: `mlp` of `from notebooks.build.mlp import MLP`."""
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    return [part_in(node) for node in imports if part_in(node)]


def part_in(node: ast.ImportFrom) -> str:
    """Return the part that is imported, or "" if it is none."""
    folder, _, part = str(node.module).rpartition(".")
    return part if folder in ("notebooks.build", "notebooks.solutions") else ""


def assembled(parts: dict[str, Path]) -> str:
    """Return one Python file of these files: one list of imports, then each part's code.

    Raises InputError if two parts define the same name differently.
    """
    plain: set[str] = set()
    from_modules: dict[str, set[str]] = {}
    bodies: list[str] = []
    owners: dict[str, tuple[str, str]] = {}  # name -> its part and its code
    for part, file in parts.items():
        source = file.read_text(encoding="utf-8")
        lines = source.splitlines()
        for node in ast.parse(source).body:
            if isinstance(node, ast.Import):
                plain.add(ast.unparse(node))
            elif isinstance(node, ast.ImportFrom):
                if not part_in(node) and node.module != "__future__":
                    from_modules.setdefault(str(node.module), set()).update(
                        ast.unparse(name) for name in node.names
                    )
            elif not is_docstring(node) and (part == "ending" or not is_main(node)):
                code = ast.unparse(node)
                for name in defined_names(node):
                    other, other_code = owners.setdefault(name, (part, code))
                    if other_code != code:
                        raise InputError(
                            f"{file.as_posix()} and {parts[other].as_posix()} both define "
                            f"`{name}`: rename one of them"
                        )
                continue
            for number in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                lines[number - 1] = ""
        code = "\n".join(lines).strip("\n")
        bodies.append(f"# {part}\n\n\n{code}\n")
    imports = sorted(plain)
    for module, names in sorted(from_modules.items()):
        imports.append(f"from {module} import {', '.join(sorted(names))}")
    listed = "\n".join(imports)
    head = f"{HEADER}\nfrom __future__ import annotations\n\n{listed}\n"
    return "\n\n".join([head, *bodies])


def is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def is_main(node: ast.stmt) -> bool:
    """Return True for `if __name__ == "__main__":`, with which a reader tries a part alone.

    The ending has one, too, which stays.
    """
    return isinstance(node, ast.If) and ast.unparse(node.test).startswith("__name__ ==")


def defined_names(node: ast.stmt) -> list[str]:
    """Return the names that a statement of a module defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign):
        targets = [node.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def write_model(parts: dict[str, Path], path: Path) -> int:
    """Write the assembled file, and return its number of lines. An edited one is kept beside it."""
    code = assembled(parts)
    path.parent.mkdir(exist_ok=True)
    if path.exists() and path.read_text(encoding="utf-8") != code:
        set_aside(path)
    write_atomically(path, code)
    return len(code.splitlines())


def set_aside(path: Path) -> Path:
    """Rename a file to one with a number that is free: my_model.1.py."""
    number = 1
    while path.with_suffix(f".{number}.py").exists():
        number += 1
    return path.rename(path.with_suffix(f".{number}.py"))


# 2. The same numbers as one_file.py, in the order in which they are computed.


class Stage(NamedTuple):
    """One thing that both models compute."""

    name: str
    part: str  # the exercise to look at
    mine: Any
    theirs: Any


def compare(mine: ModuleType) -> list[str]:
    """Return a line for each group of stages. Raises AssertionError at the first wrong number."""
    # Sums on several cores are added in an order that may change, so the last bits may, too.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        groups = {
            "the text's ids": text_stages(mine),
            "the first weights": weight_stages(mine),
            "a forward pass": forward_stages(mine),
            "its loss and gradients": gradient_stages(mine),
            f"the losses of {STEPS} steps": loss_stages(mine),
        }
        lines: list[str] = []
        for title, stages in groups.items():
            is_first = not any(ROUNDED in line for line in lines)
            lines.append(line_of(title, stages, is_first=is_first))
        return lines
    finally:
        torch.set_num_threads(threads)


def line_of(title: str, stages: Iterator[Stage], *, is_first: bool) -> str:
    """Compare the stages in order, and say in one line whether all bits are equal.

    - is_first: no earlier line has other bits. Else their cause may be in that line, not here.
    """
    count = 0
    other_bits = None
    for stage in stages:
        count += 1
        lesson = f"Everything before it is right. Look at your {stage.part}."
        same(stage.name, stage.mine, stage.theirs, 1e-4, lesson)
        is_equal = stage.mine == stage.theirs
        if isinstance(stage.theirs, Tensor):
            is_equal = torch.equal(stage.mine, stage.theirs)
        if not is_equal and other_bits is None:
            other_bits = stage
    if other_bits is None:
        return f"{title:<24} {count:>3} of {count} equal to the last bit"
    if not is_first:
        return f"{title:<24} {ROUNDED}. Begin with the line above that names a part"
    return (
        f"{title:<24} {ROUNDED} from {other_bits.name} on: your {other_bits.part} "
        "adds or divides in another order. If its text names an order, take that one"
    )


def made_up_text() -> str:
    """Return lines of two made-up words, repeated: one_file.py's own text, but shorter."""
    syllables = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
    words = np.random.default_rng(0).choice(syllables, (1000, 2, 2))
    return "\n".join(" ".join(["".join(word) for word in line] * 6) for line in words)


def settings(**changes: Any) -> one_file.Config:
    sizes = {"sequence_length": 64, "tokens_per_step": 1024, "max_steps": STEPS}
    return one_file.Config(attention="eager", num_key_value_heads=2, **sizes, **changes)


def both_models(mine: ModuleType) -> tuple[nn.Module, nn.Module]:
    """Return both models with the same random weights."""
    config = settings()
    torch.manual_seed(0)
    theirs = one_file.LanguageModel(config, 64)
    with torch.no_grad():
        for weight in theirs.parameters():
            weight.add_(0.1 * torch.randn_like(weight))  # at first the layers add nothing
    model = mine.MyModel(mine.Config(64, num_key_value_heads=2))
    model.load_state_dict(theirs.state_dict())
    return model, theirs


def text_stages(mine: ModuleType) -> Iterator[Stage]:
    text = made_up_text()
    vocabulary = mine.vocabulary_of(text)
    right = [""] * 12 + sorted(set(text))
    yield Stage("the vocabulary", "tokenizer", vocabulary[: len(right)], right)
    ids = [right.index(character) for character in text[:500]]
    yield Stage("the ids of a text", "tokenizer", mine.encode(text[:500], vocabulary), ids)
    stream = np.arange(5, 1000)
    batches = mine.batches(stream, 64, 16, 0)
    theirs = one_file.batches(stream, settings())
    for i in range(3):
        yield Stage(f"batch {i}", "batches", next(batches), next(theirs))


def weight_stages(mine: ModuleType) -> Iterator[Stage]:
    torch.manual_seed(0)
    theirs = one_file.LanguageModel(settings(), 64)
    torch.manual_seed(0)
    model = mine.MyModel(mine.Config(64, num_key_value_heads=2))
    model.initialise()
    weights = dict(model.named_parameters())
    for name, weight in theirs.named_parameters():
        yield Stage(f"the first {name}", "model", weights[name].detach(), weight.detach())


def forward_stages(mine: ModuleType) -> Iterator[Stage]:
    """Yield the angles, and each module's input and output, in the order of the computation."""
    frequencies = 1.0 / 10000.0 ** (torch.arange(0, 32, 2) / 32)
    angles = torch.arange(24)[:, None] * frequencies  # (T, D/2)
    yield Stage("the angles", "rope", mine.angles(24, 32, 10000.0), angles)
    ids = torch.randint(12, 60, (2, 24), generator=torch.Generator().manual_seed(0))
    traces = []
    for model in both_models(mine):
        trace = traced(model)
        model(ids)
        traces.append(trace)
    for name, theirs in traces[1].items():
        # a reader may use a matrix without calling its module
        if name in traces[0]:
            yield Stage(name, part_of(name), traces[0][name].detach(), theirs.detach())


def traced(model: nn.Module) -> dict[str, Tensor]:
    """Return a dictionary that the next forward pass fills: a module's input and output."""
    trace: dict[str, Tensor] = {}

    def keep(module: nn.Module, inputs: tuple[Any, ...], output: Tensor, name: str) -> None:
        if name.endswith(("norm", "o_proj", "down_proj")):
            trace[f"the input of {name}"] = inputs[0]
        trace[name] = output

    for name, module in model.named_modules():
        if name and name != "model":
            module.register_forward_hook(partial(keep, name=name))
    return trace


def part_of(name: str) -> str:
    """Return the exercise that computes a stage of the forward pass."""
    if name.startswith("the input of") and name.endswith("o_proj"):
        return "block, rope, causal_mask, repeat_kv or attention"
    if "mlp" in name:
        return "mlp"
    if "norm" in name and not name.startswith("the input of"):
        return "rmsnorm"
    if "embed" in name:
        return "embedding"
    return "model" if name == "lm_head" else "block"


def gradient_stages(mine: ModuleType) -> Iterator[Stage]:
    """Yield the targets, the loss, and the gradients in the order in which they flow."""
    models = both_models(mine)
    batch = next(one_file.batches(np.arange(800) % 48 + 12, settings()))
    targets = mine.targets_of(batch)
    right = nn.functional.pad(batch[:, 1:], (0, 1), value=IGNORED)
    yield Stage("the targets", "batches", targets, right.masked_fill(right <= 1, IGNORED))
    traces = [traced(model) for model in models]
    losses = [model(batch, targets) for model in models]
    yield Stage("the loss", "loss", losses[0].detach(), losses[1].detach())
    for loss, trace in zip(losses, traces, strict=True):
        for tensor in trace.values():
            tensor.retain_grad()
        loss.backward()
    later = "loss"  # the part whose backward pass computes the next gradient
    for name, theirs in reversed(traces[1].items()):
        if name in traces[0]:
            yield Stage(f"the gradient of {name}", later, traces[0][name].grad, theirs.grad)
        later = part_of(name)
    weights = dict(models[0].named_parameters())
    for name, weight in models[1].named_parameters():
        part = "loss" if name == "lm_head.weight" else part_of(name.removesuffix(".weight"))
        yield Stage(f"the gradient of {name}", part, weights[name].grad, weight.grad)


def loss_stages(mine: ModuleType) -> Iterator[Stage]:
    """Yield the loss of each step, from the same seed, text and numbers."""
    text = made_up_text()
    with redirect_stdout(StringIO()):
        _, _, right = one_file.train(text, settings())
    vocabulary = mine.vocabulary_of(text)
    cut = int(len(text) * 0.9)
    stream = np.array([mine.BOS, *mine.encode(text[:cut], vocabulary), mine.EOS])
    torch.manual_seed(0)
    model = mine.MyModel(mine.Config(len(vocabulary), num_key_value_heads=2))
    model.initialise()
    training = mine.Training(max_steps=STEPS)
    losses = mine.train(model, mine.batches(stream, 64, 16, 0), training)
    for step, (got, loss) in enumerate(zip(losses, right, strict=True)):
        yield Stage(f"the loss of step {step}", "loop", got, loss)
