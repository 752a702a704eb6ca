r"""LoRA: leave every matrix as it is, and train two thin ones beside it. Hu et al. 2021, arXiv 2106.09685.

         ┌───────── W (out × in), frozen ──────────┐
    x ───┤                                         + ─── y        y = W x + (alpha / rank) · B A x
         └── A (rank × in) ── B (out × rank) ── × ─┘
                                            alpha / rank

Fine-tuning changes a matrix in few directions: B A has `rank` of them, and rank · (in + out) numbers instead of
in · out. A starts at random and B at zero, so the model begins exactly as it was. The optimizer keeps its state for A
and B only, and only they are saved: a file of a few per cent, of which many fit beside one base.

Afterwards B A can be added to W: the merged model is as quick as the base. Names and arithmetic are those of the `peft`
library, so that each reads what the other wrote: adapter_config.json and adapter_model.safetensors. They name the base
and do not hold it. Only one base is right for them, so the file has a hash of its weights (in the metadata, where peft
takes no notice).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.utils import parametrize

from configs.files import ADAPTER, DamagedFile, checked, read_json
from model.files.weight_files import check_tensors, read_tensors
from model.transformer import LanguageModel
from model.variants.config import LoraConfig

NOT_CALLED = "kv_b_proj"  # LatentAttention reads this matrix itself while it decodes, past any module around it
TENSORS = "adapter_model.safetensors"
PREFIX = "base_model.model."  # peft's wrapper around the model
HASH = "base_sha256"
# added rows of the embedding or the head (AddedRows): our name, and peft's
ROWS, PEFT_ROWS = "parametrizations.weight.0.lora_rows", "token_adapter.trainable_tokens_delta"
# keys of kinds of LoRA that are not computed here: they must be null, false, empty, or one of these values
PLAIN_LORA: dict[str, tuple[object, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "init_lora_weights": (True, "gaussian", "orthogonal", "eva"),  # others change the base as well
}
OTHER_KINDS = (
    "alora_invocation_tokens alpha_pattern arrow_config fan_in_fan_out kasa_config layer_replication lora_bias "
    "modules_to_save monteclora_config rank_pattern target_parameters use_bdlora use_dora use_qalora use_rslora "
    "velora_config"
).split()


@dataclass
class Adapters:
    """What a model with adapters remembers. base: its directory, and `weights_hash`; on: whether they are in use."""

    config: LoraConfig
    base: str = ""
    base_sha256: str = ""
    on: bool = True


class Thin(nn.Linear):
    """A or B. Its optimizer is AdamW, also in a run with Muon (train/optimizer.py)."""

    optimizer_group = "adapter"


class LoraLinear(nn.Linear):
    """A linear layer with an adapter beside its frozen matrix."""

    def __init__(self, linear: nn.Linear, adapters: Adapters):
        super().__init__(linear.in_features, linear.out_features, linear.bias is not None, device="meta")
        self.weight, self.bias = linear.weight, linear.bias  # the same tensors, not copies
        config, place = adapters.config, {"device": linear.weight.device, "dtype": linear.weight.dtype}
        self.lora_A = Thin(self.in_features, config.rank, bias=False, **place)  # uniform, ± 1 / sqrt(in)
        self.lora_B = Thin(config.rank, self.out_features, bias=False, **place)
        nn.init.zeros_(self.lora_B.weight)
        self.dropout = nn.Dropout(config.dropout)
        self.adapters, self.scaling = adapters, config.alpha / config.rank
        self.train(linear.training)

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y + self.lora_B(self.lora_A(self.dropout(x))) * self.scaling if self.adapters.on else y


class AddedRows(nn.Module):
    """Rows of the embedding or the head for tokens that the base does not know, trained in place of frozen ones.
    A parametrization of `weight`: the frozen rows, then these. Off: all the frozen ones."""

    optimizer_group = "adapter"

    def __init__(self, weight: Tensor, start: int, adapters: Adapters):
        super().__init__()
        self.lora_rows, self.adapters = nn.Parameter(weight[start:].detach().clone()), adapters

    def forward(self, weight: Tensor) -> Tensor:
        return torch.cat([weight[: -len(self.lora_rows)], self.lora_rows]) if self.adapters.on else weight


def add_adapters(
    lm: LanguageModel, config: LoraConfig, base: str = "", base_sha256: str = "", rows: int | None = None
) -> None:
    """Freeze the model and put adapters beside the matrices that the config names.

    rows: tokens of the base, where others were added: their rows are trained too. Raises ValueError for a model that
    has adapters and for a module that is not there; then nothing was changed."""
    if lm.adapters is not None:
        raise ValueError("this model has adapters already: remove or merge them first")
    layers = {f".{name}": linear for name, linear in adaptable(lm).items()}
    targets = [f".{target}" for target in config.target_modules or []] or [""]
    for target in targets:  # as in peft: the last part of a name, or several of its last parts
        if not any(name.endswith(target) for name in layers):
            names = ", ".join(sorted({name.rpartition(".")[2] for name in layers}))
            raise ValueError(f"target_modules: no layer of the blocks is named {target[1:]!r}: use some of {names}")
    lm.requires_grad_(False)
    lm.adapters = adapters = Adapters(config, base, base_sha256)
    for name, linear in layers.items():
        if name.endswith(tuple(targets)):
            lm.set_submodule(name[1:], LoraLinear(linear, adapters))
    if rows is not None and rows < lm.lm_head.out_features:
        embedding, head = lm.model.embed_tokens, lm.lm_head
        of_head = AddedRows(head.weight, rows, adapters)
        of_embedding = of_head if lm.config.tie_word_embeddings else AddedRows(embedding.weight, rows, adapters)
        parametrize.register_parametrization(embedding, "weight", of_embedding)
        parametrize.register_parametrization(head, "weight", of_head)


def adaptable(lm: LanguageModel) -> dict[str, nn.Linear]:
    """The linear layers of the blocks that may have an adapter, by name. Left out: experts and their router.
    In an architecture that may have experts, peft takes gate_proj, up_proj and down_proj for theirs, also where a layer
    has none. So there only attention may have adapters."""
    may_have_experts = lm.config.num_experts is not None or lm.config.attention == "mla"
    only = ".self_attn." if may_have_experts and lm.config.loadable_elsewhere else ""
    linears = {name: x for name, x in lm.model.named_modules(prefix="model") if type(x) is nn.Linear}
    return {name: x for name, x in linears.items() if only in name and not name.endswith(NOT_CALLED)}


def adapted(lm: LanguageModel) -> dict[str, LoraLinear]:
    """The layers with an adapter, by name."""
    return {name: module for name, module in lm.named_modules() if isinstance(module, LoraLinear)}


@contextmanager
def without_adapters(lm: LanguageModel) -> Iterator[None]:
    """While inside, the model computes what its base computes: the reference of a preference, without a second copy."""
    if (adapters := lm.adapters) is None:
        raise ValueError("this model has no adapters: it would be compared with itself")
    before, adapters.on = adapters.on, False
    try:
        yield
    finally:
        adapters.on = before


@torch.no_grad()
def merge(lm: LanguageModel) -> None:
    """Add every adapter to its matrix, W + (alpha / rank) · B A, and take it away: an ordinary model is left."""
    for layer in adapted(lm).values():
        layer.weight += (layer.lora_B.weight @ layer.lora_A.weight) * layer.scaling
    remove_adapters(lm, keep_rows=True)


def remove_adapters(lm: LanguageModel, keep_rows: bool = False) -> None:
    """The base, as it was before `add_adapters`, trainable again. keep_rows: with the rows that were added to it."""
    for name, layer in adapted(lm).items():
        linear = nn.Linear(layer.in_features, layer.out_features, layer.bias is not None, device="meta")
        linear.weight, linear.bias = layer.weight, layer.bias
        lm.set_submodule(name, linear.train(layer.training))
    for module in (lm.model.embed_tokens, lm.lm_head):
        if parametrize.is_parametrized(module, "weight"):
            parametrize.remove_parametrizations(module, "weight", leave_parametrized=keep_rows)
    lm.requires_grad_(True)
    lm.adapters = None


# ---------------------------------------------------------------------------------------------------------
# files: as peft writes and reads them


def weights_hash(lm: LanguageModel) -> str:
    """sha256 of all weights but adapters, by name: the same for every file that holds the same numbers."""
    digest = hashlib.sha256()
    for name, tensor in sorted(lm.state_dict().items()):
        if ".lora_" in name or (name == "lm_head.weight" and lm.config.tie_word_embeddings):
            continue
        digest.update(f"{name} {list(tensor.shape)} {tensor.dtype} ".encode())
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def save_adapters(lm: LanguageModel, directory: Path, weights: dict[str, Tensor]) -> None:
    """Write both files for a model with adapters. weights: the adapters' tensors by the model's names, others too."""
    config, vocab = lm.adapters.config, lm.lm_head.out_features
    tensors = {name: weights[name].contiguous() for name in weights if name in _adapter_shapes(lm)}
    rows = {name.split(".")[-5]: [*range(vocab - len(x), vocab)] for name, x in tensors.items() if ROWS in name}
    values = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": lm.adapters.base,
        "r": config.rank,
        "lora_alpha": int(config.alpha) if config.alpha.is_integer() else config.alpha,
        "lora_dropout": config.dropout,
        "target_modules": config.target_modules or sorted({name.rpartition(".")[2] for name in adapted(lm)}),
        "inference_mode": True,
    } | ({"trainable_token_indices": rows} if rows else {})
    (directory / ADAPTER).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    tensors = {PREFIX + name.replace(ROWS, PEFT_ROWS): x for name, x in tensors.items()}
    # one entry: safetensors writes several in any order, and the files of two equal runs are equal
    save_file(tensors, directory / TENSORS, metadata={HASH: lm.adapters.base_sha256})


def load_adapters(lm: LanguageModel, directory: Path) -> None:
    """Put the adapters of a directory, ours or peft's, beside the matrices of their base. Raises DamagedFile."""
    file, names = directory / ADAPTER, _tensors_in(directory)
    fields = read_json(file)
    for key in [*PLAIN_LORA, *OTHER_KINDS]:
        if fields.get(key) and fields[key] not in PLAIN_LORA.get(key, ()):
            raise DamagedFile(f"{file}: {key} is {fields[key]!r:.60}, and Headlight computes plain LoRA only")
    added = checked(fields.get("trainable_token_indices") or {}, str(file), dict[str, list[int]])
    vocab = lm.lm_head.out_features
    rows = sorted({row for indices in added.values() for row in indices})
    if rows != [*range(vocab - len(rows), vocab)]:
        raise DamagedFile(f"{file}: trainable_token_indices must be the last rows, up to {vocab - 1}")
    check_base(directory, sha256 := weights_hash(lm))
    keys = {"rank": "r", "alpha": "lora_alpha", "dropout": "lora_dropout"}
    values = {ours: fields[theirs] for ours, theirs in keys.items() if theirs in fields}
    values["target_modules"] = sorted({name.partition(".lora_")[0] for name in names if ROWS not in name})
    config = checked(values, str(file), LoraConfig)
    try:
        add_adapters(lm, config, base_sha256=sha256, rows=rows[0] if rows else None)
    except ValueError as error:
        raise DamagedFile(f"{file}: {error}") from None
    lm.load_state_dict(read_adapters(lm, directory), strict=False)


def check_base(directory: Path, sha256: str) -> None:
    """Raises DamagedFile if adapters were trained beside other weights than those of this hash; peft records none."""
    with safe_open(directory / TENSORS, "pt") as file:
        trained_beside = (file.metadata() or {}).get(HASH, sha256)
    if trained_beside != sha256:
        hashes = f"those that they were trained beside have the hash {trained_beside[:12]}, and these {sha256[:12]}"
        raise DamagedFile(f"{directory}: these adapters belong to another base: {hashes}")


def read_adapters(lm: LanguageModel, directory: Path) -> dict[str, Tensor]:
    """The tensors of a directory under the model's own names, checked against its adapters. Raises DamagedFile."""
    check_base(directory, lm.adapters.base_sha256)
    tensors = _tensors_in(directory)
    check_tensors(tensors, _adapter_shapes(lm), directory / TENSORS)
    return tensors


def _adapter_shapes(lm: LanguageModel) -> dict[str, list[int]]:
    """What the file holds of a model; tied, the rows of the head are those of the embedding."""
    tied = "lm_head." + ROWS if lm.config.tie_word_embeddings else ""
    return {name: list(x.shape) for name, x in lm.state_dict().items() if ".lora_" in name and name != tied}


def _tensors_in(directory: Path) -> dict[str, Tensor]:
    return read_tensors(directory / TENSORS, lambda name: name.removeprefix(PREFIX).replace(PEFT_ROWS, ROWS))
