"""A model that computes in the page: its weights at some steps, its tokenizer, and its sizes.

A matrix is stored as integers of 8 bits and a scale for each row. The page computes with exactly
these weights, so its maps are those of `capture` on `rounded(lm)`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from configs.command import InputError
from configs.files import checkpoints_of
from data.tokenizer import Tokenizer, pre_tokenizer
from eval.attention.snapshots import Snapshot
from eval.load_model import open_checkpoint
from model import LanguageModel
from model.files.checkpoint import read_config
from model.transformer import on_meta

MOST_STEPS = 12
# Every run's viewer.html may hold so many bytes of weights.
MOST_BYTES = 5_000_000
# Levels on each side of 0. Against the demo's checkpoint, the probability of the likeliest token is
# off by at most 2.9 points over 928 positions of held-out stories (0.4 at 95 % of them), and by at
# most 8.7 (2.1) over 723 positions of other texts. With 31 levels the page is a quarter smaller,
# and these are 5.6 (2.0) and 15.8 (7.2).
LEVELS = 127
# network.js computes only one kind of layer.
NEEDED = {
    "gated_mlp": True, "hidden_act": "silu", "mlp_bias": False, "attention_bias": False,
    "qkv_bias": False, "num_experts": None, "attention": "heads", "kv_sharing": "both",
    "scale_attn_weights": True, "smear_keys": False, "norm_position": "before", "norm": "rmsnorm",
    "position_embedding": "rope", "rope_scaling": None, "sliding_window": None,
}  # fmt: skip
SIZES = (
    "hidden_size num_hidden_layers num_attention_heads num_key_value_heads head_dim rope_theta "
    "max_position_embeddings rms_norm_eps"
).split()


def read_models(
    run: Path,
    steps: Sequence[int] = (),
    most_bytes: float = math.inf,
    snapshots: Sequence[Snapshot] = (),
) -> tuple[dict[str, Any], dict[int, bytes]]:
    """Return a run's model as JSON, and step -> weights.

    steps:     default, up to MOST_STEPS checkpoints, and as many as most_bytes hold
    snapshots: of the run, for the same page

    Raises InputError for a missing checkpoint, for a model that the page cannot compute, and for
    snapshots of some heads only.
    """
    checkpoints = checkpoints_of(run)
    if not checkpoints or set(steps) - set(checkpoints):
        there = ", ".join(map(str, sorted(checkpoints))) or "none: train it first"
        raise InputError(
            f"{run}/checkpoints: the page needs a checkpoint of each step; there are {there}"
        )
    config = read_config(checkpoints[max(checkpoints)])
    # the page draws computed and stored maps on one grid
    grid = (config.num_hidden_layers, config.num_attention_heads)
    if any((len(snapshot.layers), len(snapshot.heads)) != grid for snapshot in snapshots):
        raise InputError(
            f"{run}/attention: the page computes all heads, and a snapshot has only some: "
            f"train without eval.attention.layers and eval.attention.heads"
        )
    if not steps:
        # evenly spaced checkpoints, with the first and the last
        # a weight has 8 bits, and the file writes 6 bits a character
        size = on_meta(config).num_parameters() * 4 / 3
        count = int(min(MOST_STEPS, len(checkpoints), most_bytes // size))
        if not count:
            raise InputError(f"{run}: a page with the model would have {size:,.0f} bytes")
        indices = np.linspace(len(checkpoints) - 1, 0, count).round().astype(int)
        steps = [sorted(checkpoints)[i] for i in indices]
    weights = {}
    for step in sorted(steps):
        # one after the other: all of them at once might not fit into memory
        lm, tokenizer, _ = open_checkpoint(checkpoints[step], "cpu")
        model = described(lm, tokenizer)
        weights[step] = b"".join(array.tobytes() for array in packed(lm))
    return model, weights


def described(lm: LanguageModel, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return sizes, names and shapes of the tensors in the order of `packed`, and the tokenizer."""
    config = lm.config
    problems = [f"model.{name}" for name, value in NEEDED.items() if getattr(config, name) != value]
    if any(config.is_linear):
        problems.append("model.layer_types")
    if config.qk_norm == "whole":
        problems.append("model.qk_norm")
    if 0 in (config.no_rope_layers or []):
        problems.append("model.no_rope_layers")
    if problems:
        raise InputError(f"the page cannot compute this model, because of {', '.join(problems)}")
    parts = json.loads(tokenizer.backend.to_str())
    # the page cuts words by this rule only; another tokenizer may cut elsewhere
    ours = json.loads(pre_tokenizer().__getstate__())
    is_bpe = parts["model"]["type"] == "BPE" and parts["pre_tokenizer"] == ours
    if not is_bpe and parts["model"]["type"] != "WordLevel":
        raise InputError(
            "the page cannot compute this model, because of data.tokenizer: it must be bpe or char"
        )
    # ids without a token, which round a vocabulary up, are ""
    names = {token_id: token for token, token_id in tokenizer.backend.get_vocab().items()}
    return {
        "config": {name: getattr(config, name) for name in SIZES},
        "shapes": [[name, list(tensor.shape)] for name, tensor in tensors(lm).items()],
        "tokens": [names.get(i, "") for i in range(tokenizer.vocab_size)],
        "merges": [" ".join(pair) for pair in parts["model"]["merges"]] if is_bpe else None,
        "first": tokenizer.first_ids,
        "unknown": tokenizer.unk_id,
    }


def tensors(lm: LanguageModel) -> dict[str, Tensor]:
    state = lm.state_dict()
    return {name: state[name].detach().float() for name in state if name.endswith(".weight")}


def packed(lm: LanguageModel) -> list[np.ndarray]:
    """Return each matrix as scales, float32, and codes, int8; each vector as float32."""
    arrays = []
    for tensor in tensors(lm).values():
        if tensor.ndim > 1:
            scales = scales_of(tensor)
            # scales (rows, 1), codes (rows, columns)
            arrays += [scales.numpy(), (tensor / scales).round().to(torch.int8).numpy()]
        else:
            arrays.append(tensor.numpy())
    return arrays


def scales_of(matrix: Tensor) -> Tensor:
    return matrix.abs().amax(-1, keepdim=True).clamp(min=1e-30) / LEVELS  # (rows, 1)


@torch.no_grad()
def rounded(lm: LanguageModel) -> LanguageModel:
    """Change the model in place to the weights that the page has."""
    for matrix in lm.parameters():
        if matrix.ndim > 1:
            scales = scales_of(matrix.float())
            matrix.copy_((matrix / scales).round() * scales)
    return lm
