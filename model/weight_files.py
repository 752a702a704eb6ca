"""The .safetensors files of a model directory: one, or several that an index lists. Files of others are distrusted.

Two families have other tensors in their files than LanguageModel has: Qwen3-MoE's experts, and GPT-2 (below).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import torch
from pydantic import BaseModel, Field
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from configs.files import DamagedFile, read_json

DTYPES = (torch.float32, torch.float16, torch.bfloat16)  # what is not rounded when it is loaded
Tensors = dict[str, Tensor]


class Index(BaseModel):
    """model.safetensors.index.json: the file that each tensor is in. None may lead out of the directory."""

    weight_map: Annotated[dict[str, Annotated[str, Field(pattern=r"^[\w.\-]+\.safetensors$")]], Field(min_length=1)]


def read_tensors(file: Path, current: Callable[[str], str | None] = str) -> Tensors:
    """The tensors of a file, or of those that an index in its place lists. They stay on the disk until they are used.

    current: the name of a tensor in the file -> the one that is used today; None for what is no weight.
    Raises DamagedFile.
    """
    parts, index = [file], file.with_name(f"{file.name}.index.json")
    if not file.is_file() and index.is_file():
        parts = [file.with_name(name) for name in sorted({*read_json(index, Index).weight_map.values()})]
    tensors: Tensors = {}
    for part in parts:
        if not part.is_file():  # to open a pipe would wait for ever
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


# ---------------------------------------------------------------------------------------------------------
# Qwen3-MoE: a matrix for each expert

ONE_EXPERT = re.compile(r"(.*\.mlp\.experts)\.(\d+)\.(gate|up|down)_proj\.weight")
GATE_UP = ((0, "gate"), (1, "up"))


def experts_to_files(tensors: Tensors) -> Tensors:
    """The stacks of model/experts.py, gate_up_proj (E, 2, I, D) and down_proj (E, D, I), one expert at a time."""
    files: Tensors = {}
    for name, tensor in tensors.items():
        layer, _, part = name.rpartition(".")
        if part == "gate_up_proj":
            files |= {f"{layer}.{i}.{kind}_proj.weight": x[k] for i, x in enumerate(tensor) for k, kind in GATE_UP}
        elif part == "down_proj":
            files |= {f"{layer}.{i}.down_proj.weight": x for i, x in enumerate(tensor)}
        else:
            files[name] = tensor
    return files


def experts_from_files(files: Tensors) -> Tensors:
    tensors: Tensors = {}
    layers: dict[str, dict[tuple[str, int], Tensor]] = {}
    for name, tensor in files.items():
        if match := ONE_EXPERT.fullmatch(name):
            layers.setdefault(match[1], {})[match[3], int(match[2])] = tensor
        else:
            tensors[name] = tensor
    for layer, parts in layers.items():
        experts = range(len(parts) // 3)
        pairs = [torch.stack([parts[kind, i] for _, kind in GATE_UP]) for i in experts]
        tensors[f"{layer}.gate_up_proj"] = torch.stack(pairs)
        tensors[f"{layer}.down_proj"] = torch.stack([parts["down", i] for i in experts])
    return tensors


# ---------------------------------------------------------------------------------------------------------
# GPT-2: names and layout of its own

GPT2_NAMES = {  # of tensors in transformers -> in Headlight; what is not here has the same name
    "transformer.wte.": "model.embed_tokens.", "transformer.wpe.": "model.embed_positions.",
    "transformer.ln_f.": "model.norm.", "transformer.h.": "model.layers.",
    ".ln_1.": ".input_layernorm.", ".ln_2.": ".post_attention_layernorm.",
    ".attn.c_attn.": ".self_attn.qkv_proj.", ".attn.c_proj.": ".self_attn.o_proj.",
    ".mlp.c_fc.": ".mlp.up_proj.", ".mlp.c_proj.": ".mlp.down_proj.",
}  # fmt: skip
QKV = ("q_proj", "k_proj", "v_proj")
GPT2_MATRIX = re.compile(r"(qkv|o|up|down)_proj\.weight$")


def gpt2_to_files(tensors: Tensors) -> Tensors:
    """transformers' Conv1D: matrices lie the other way round, (inputs, outputs), and those of queries, keys and values
    side by side. One product in place of three adds up in another order, so logits are equal within 1e-5, not `==`."""
    joined = dict(tensors)
    for name in tensors:
        if "self_attn.q_proj." in name:
            parts = [joined.pop(name.replace("q_proj", part)) for part in QKV]
            joined[name.replace("q_proj", "qkv_proj")] = torch.cat(parts)
    files: Tensors = {}
    for name, tensor in joined.items():
        theirs = name
        for their_part, our_part in GPT2_NAMES.items():
            theirs = theirs.replace(our_part, their_part)
        files[theirs] = tensor.T if GPT2_MATRIX.search(name) else tensor
    return files


def gpt2_from_files(files: Tensors) -> Tensors:
    tensors: Tensors = {}
    for name, tensor in files.items():
        for their_part, our_part in GPT2_NAMES.items():
            name = name.replace(their_part, our_part)
        tensor = tensor.T if GPT2_MATRIX.search(name) else tensor
        names = [name.replace("qkv_proj", part) for part in QKV] if ".qkv_proj." in name else [name]
        tensors |= dict(zip(names, tensor.chunk(len(names)), strict=True))
    return tensors


def gpt2_current(name: str) -> str | None:
    """OpenAI's own files have no `transformer.` in front, and the causal mask of every layer among the weights."""
    if name.endswith((".attn.bias", ".attn.masked_bias")):
        return None
    return name if name.startswith(("transformer.", "lm_head.")) else f"transformer.{name}"
