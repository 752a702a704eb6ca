r"""LoRA: freeze every matrix and train two thin ones beside it. Hu et al. 2021, arXiv 2106.09685.

         ┌───────── W (out × in), frozen ──────────┐
    x ───┤                                         + ─── y     y = W x + (alpha / rank) · B A x
         └── A (rank × in) ── B (out × rank) ── × ─┘
                                            alpha / rank

Fine-tuning changes a matrix in few directions. B A has `rank` of them, and rank · (in + out)
numbers instead of in · out. B starts at zero, so the model begins exactly as it was. Only A and B
have optimizer state, and only they are saved: a few per cent of a model.

Afterwards B A can be added to W, and the merged model is as fast as the base. Names and arithmetic
are those of the `peft` library, so each can read the other's files. The files name the base, with a
hash of its weights.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.utils import parametrize

from configs.files import ADAPTER, DamagedFile, checked, read_json
from model.files.weight_files import check_tensors, read_tensors
from model.transformer import LanguageModel
from model.variants.config import LoraConfig

# LatentAttention uses this matrix directly, so an adapter around its layer would be skipped.
NOT_CALLED = "kv_b_proj"
TENSORS = "adapter_model.safetensors"
# peft wraps the model in two modules.
PREFIX = "base_model.model."
# The key of the base's hash in the metadata of the file. peft ignores it.
HASH = "base_sha256"
# The end of the name of AddedRows' parameter: ours, and peft's.
ROWS = "parametrizations.weight.0.lora_rows"
PEFT_ROWS = "token_adapter.trainable_tokens_delta"
# Headlight computes plain LoRA only. A key of these two lists turns on another kind, unless it is
# null, false or empty, or has one of the values given here.
PLAIN_LORA: dict[str, tuple[object, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "init_lora_weights": (True, "gaussian", "orthogonal", "eva"),  # others change the base as well
}
OTHER_KINDS = (
    "alora_invocation_tokens alpha_pattern arrow_config fan_in_fan_out kasa_config "
    "layer_replication lora_bias modules_to_save monteclora_config rank_pattern target_parameters "
    "use_bdlora use_dora use_qalora use_rslora velora_config"
).split()


@dataclass
class Adapters:
    """The adapters of a model, which share this object."""

    config: LoraConfig
    base: str = ""  # its directory
    base_sha256: str = ""  # its `weights_hash`
    on: bool = True


class LoraFactor(nn.Linear):
    """A or B, the thin matrices. AdamW trains it, also in a run with Muon (train/optimizer.py)."""

    optimizer_group = "adapter"


class LoraLinear(nn.Linear):
    """A frozen linear layer with an adapter."""

    def __init__(self, linear: nn.Linear, adapters: Adapters):
        # "meta": no memory is allocated, because the base has the tensors already
        has_bias = linear.bias is not None
        super().__init__(linear.in_features, linear.out_features, has_bias, device="meta")
        self.weight = linear.weight  # the same tensors, not copies
        self.bias = linear.bias
        rank = adapters.config.rank
        like = {"device": linear.weight.device, "dtype": linear.weight.dtype}
        # PyTorch fills A with uniform numbers between ± 1 / sqrt(in); B is zero
        self.lora_A = LoraFactor(self.in_features, rank, bias=False, **like)
        self.lora_B = LoraFactor(rank, self.out_features, bias=False, **like)
        nn.init.zeros_(self.lora_B.weight)
        self.dropout = nn.Dropout(adapters.config.dropout)
        self.adapters = adapters
        self.scaling = adapters.config.alpha / rank
        self.train(linear.training)

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        if self.adapters.on:
            y = y + self.lora_B(self.lora_A(self.dropout(x))) * self.scaling
        return y


class AddedRows(nn.Module):
    """Trained rows of the embedding or the head, for tokens that the base does not have."""

    optimizer_group = "adapter"

    def __init__(self, weight: Tensor, start: int, adapters: Adapters):
        super().__init__()
        self.lora_rows = nn.Parameter(weight[start:].detach().clone())
        self.adapters = adapters

    def forward(self, weight: Tensor) -> Tensor:
        # PyTorch calls this parametrization when `weight` is read. The frozen last rows of `weight`
        # are replaced by trained ones.
        if not self.adapters.on:
            return weight
        return torch.cat([weight[: -len(self.lora_rows)], self.lora_rows])


def add_adapters(
    lm: LanguageModel,
    config: LoraConfig,
    base: str = "",
    base_sha256: str = "",
    rows: int | None = None,
) -> None:
    """Freeze the model and add adapters to the matrices that the config names.

    rows: the first row of added tokens, if there are any; from it on, all rows are trained, too
    Raises ValueError, before anything is changed.
    """
    if lm.adapters is not None:
        raise ValueError("this model has adapters already: remove or merge them first")
    layers = adaptable(lm)
    # as in peft, a name matches a target if it ends with "." and the target; "" matches every name
    targets = tuple(f".{target}" for target in config.target_modules or []) or ("",)
    for target in targets:
        if not any(f".{name}".endswith(target) for name in layers):
            names = ", ".join(sorted({name.rpartition(".")[2] for name in layers}))
            raise ValueError(
                f"target_modules: no layer of the blocks is named {target[1:]!r}: "
                f"use some of {names}"
            )
    lm.requires_grad_(False)  # before the adapters exist, which are trained
    adapters = Adapters(config, base, base_sha256)
    lm.adapters = adapters
    for name, linear in layers.items():
        if f".{name}".endswith(targets):
            lm.set_submodule(name, LoraLinear(linear, adapters))
    if rows is not None and rows < lm.lm_head.out_features:
        head_rows = AddedRows(lm.lm_head.weight, rows, adapters)
        embedding_rows = head_rows  # a tied matrix has one set of rows
        if not lm.config.tie_word_embeddings:
            embedding_rows = AddedRows(lm.model.embed_tokens.weight, rows, adapters)
        parametrize.register_parametrization(lm.model.embed_tokens, "weight", embedding_rows)
        parametrize.register_parametrization(lm.lm_head, "weight", head_rows)


def adaptable(lm: LanguageModel) -> dict[str, nn.Linear]:
    """Return the linear layers of the blocks, by name, without experts and their router."""
    # If an architecture may have experts, peft believes that every gate_proj, up_proj and down_proj
    # belongs to one, also in a dense layer. So only attention may have adapters there.
    may_have_experts = lm.config.num_experts is not None or lm.config.attention == "mla"
    part = ".self_attn." if may_have_experts and lm.config.loadable_elsewhere else ""
    layers = {}
    for name, module in lm.model.named_modules(prefix="model"):
        if type(module) is nn.Linear and part in name and not name.endswith(NOT_CALLED):
            layers[name] = module
    return layers


def adapted(lm: LanguageModel) -> dict[str, LoraLinear]:
    """Return the layers that have an adapter, by name."""
    return {name: module for name, module in lm.named_modules() if isinstance(module, LoraLinear)}


@contextmanager
def without_adapters(lm: LanguageModel) -> Iterator[None]:
    """Switch the adapters off: the model is its own reference (DPO), without a second copy."""
    if lm.adapters is None:
        raise ValueError("this model has no adapters: it would be compared with itself")
    adapters = lm.adapters
    before = adapters.on
    adapters.on = False
    try:
        yield
    finally:
        adapters.on = before


@torch.no_grad()
def merge(lm: LanguageModel) -> None:
    """Add every adapter to its matrix, W + (alpha / rank) · B A, and remove it."""
    for layer in adapted(lm).values():
        layer.weight += (layer.lora_B.weight @ layer.lora_A.weight) * layer.scaling
    remove_adapters(lm, keep_rows=True)


def remove_adapters(lm: LanguageModel, keep_rows: bool = False) -> None:
    """Undo `add_adapters`: the model is trainable again. keep_rows: keep the rows of new tokens."""
    for name, layer in adapted(lm).items():
        has_bias = layer.bias is not None
        linear = nn.Linear(layer.in_features, layer.out_features, has_bias, device="meta")
        linear.weight = layer.weight
        linear.bias = layer.bias
        lm.set_submodule(name, linear.train(layer.training))
    for module in (lm.model.embed_tokens, lm.lm_head):
        if parametrize.is_parametrized(module, "weight"):
            parametrize.remove_parametrizations(module, "weight", leave_parametrized=keep_rows)
    lm.requires_grad_(True)
    lm.adapters = None


# -----------------------------------------------------------------------------------------------
# files: as peft writes and reads them


def weights_hash(lm: LanguageModel) -> str:
    """Return the sha256 of all weights without adapters: equal numbers have an equal hash."""
    digest = hashlib.sha256()
    for name, tensor in sorted(lm.state_dict().items()):
        is_tied = name == "lm_head.weight" and lm.config.tie_word_embeddings
        if ".lora_" in name or is_tied:  # a tied matrix counts once, as embedding
            continue
        digest.update(f"{name} {list(tensor.shape)} {tensor.dtype} ".encode())
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def save_adapters(lm: LanguageModel, directory: Path, weights: dict[str, Tensor]) -> None:
    """Write both files. weights: tensors by the model's names; those of the base are ignored."""
    config = lm.adapters.config
    vocab_size = lm.lm_head.out_features
    targets = config.target_modules
    values = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": lm.adapters.base,
        "r": config.rank,
        "lora_alpha": int(config.alpha) if config.alpha.is_integer() else config.alpha,
        "lora_dropout": config.dropout,
        "target_modules": targets or sorted({name.rpartition(".")[2] for name in adapted(lm)}),
        "inference_mode": True,
    }
    tensors = {}
    rows = {}
    shapes = _adapter_shapes(lm)
    for name in weights:
        if name not in shapes:
            continue
        tensors[PREFIX + name.replace(ROWS, PEFT_ROWS)] = weights[name].contiguous()
        if ROWS in name:
            # embed_tokens or lm_head, of "….embed_tokens.parametrizations.weight.0.lora_rows"
            module = name.removesuffix(f".{ROWS}").rpartition(".")[2]
            rows[module] = [*range(vocab_size - len(weights[name]), vocab_size)]
    if rows:
        values["trainable_token_indices"] = rows
    (directory / ADAPTER).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    # one entry: safetensors writes several in any order, and equal runs should have equal files
    save_file(tensors, directory / TENSORS, metadata={HASH: lm.adapters.base_sha256})


def load_adapters(lm: LanguageModel, directory: Path) -> None:
    """Add the adapters of a directory, ours or peft's, to their base. Raises DamagedFile."""
    file = directory / ADAPTER
    fields = read_json(file)
    tensors = _read_adapter_tensors(directory)
    for key in [*PLAIN_LORA, *OTHER_KINDS]:
        value = fields.get(key)
        if value and value not in PLAIN_LORA.get(key, ()):
            raise DamagedFile(
                f"{file}: {key} is {value!r:.60}, and Headlight computes plain LoRA only"
            )
    indices = fields.get("trainable_token_indices") or {}
    rows_of = checked(indices, str(file), dict[str, list[int]])  # module -> rows
    rows = sorted(set().union(*rows_of.values()))
    last = lm.lm_head.out_features - 1
    if rows != [*range(last + 1 - len(rows), last + 1)]:
        raise DamagedFile(f"{file}: trainable_token_indices must be the last rows, up to {last}")
    sha256 = weights_hash(lm)  # of the base: lm has no adapters yet
    check_base(directory, sha256)
    # the file may name its targets by a part or a pattern: take the layers that have tensors
    modules = {name.partition(".lora_")[0] for name in tensors if ROWS not in name}
    values: dict[str, Any] = {"target_modules": sorted(modules)}
    for ours, theirs in (("rank", "r"), ("alpha", "lora_alpha"), ("dropout", "lora_dropout")):
        if theirs in fields:
            values[ours] = fields[theirs]
    config = checked(values, str(file), LoraConfig)
    try:
        add_adapters(lm, config, base_sha256=sha256, rows=rows[0] if rows else None)
    except ValueError as error:
        raise DamagedFile(f"{file}: {error}") from None
    check_tensors(tensors, _adapter_shapes(lm), directory / TENSORS)
    # not strict: the file has no tensor of the base
    lm.load_state_dict(tensors, strict=False)


def check_base(directory: Path, sha256: str) -> None:
    """Raise DamagedFile if adapters were trained with another base."""
    # peft records no hash, so its adapters fit any base
    with safe_open(directory / TENSORS, "pt") as file:
        recorded = (file.metadata() or {}).get(HASH, sha256)
    if recorded != sha256:
        raise DamagedFile(
            f"{directory}: these adapters belong to another base: the weights that they were "
            f"trained with have the hash {recorded[:12]}, and these {sha256[:12]}"
        )


def read_adapters(lm: LanguageModel, directory: Path) -> dict[str, Tensor]:
    """Read the tensors for a model that has these adapters already. Raises DamagedFile."""
    check_base(directory, lm.adapters.base_sha256)
    tensors = _read_adapter_tensors(directory)
    check_tensors(tensors, _adapter_shapes(lm), directory / TENSORS)
    return tensors


def _adapter_shapes(lm: LanguageModel) -> dict[str, list[int]]:
    """Return the shapes of the tensors that a file of this model has, by the model's names."""
    # tied rows are stored once, as those of the embedding
    tied = f"lm_head.{ROWS}" if lm.config.tie_word_embeddings else ""
    shapes = {}
    for name, tensor in lm.state_dict().items():
        if ".lora_" in name and name != tied:
            shapes[name] = list(tensor.shape)
    return shapes


def _read_adapter_tensors(directory: Path) -> dict[str, Tensor]:
    return read_tensors(
        directory / TENSORS, lambda name: name.removeprefix(PREFIX).replace(PEFT_ROWS, ROWS)
    )
