r"""LoRA: leave every matrix as it is, and train two thin ones beside it. Hu et al. 2021, arXiv 2106.09685.

         ┌───────── W (out × in), frozen ──────────┐
    x ───┤                                         + ─── y        y = W x + (alpha / rank) · B A x
         └── A (rank × in) ── B (out × rank) ── × ─┘
                                            alpha / rank

Fine-tuning changes a matrix in few directions: B A has `rank` of them, and rank · (in + out) numbers instead of
in · out. A starts at random and B at zero, so the model begins exactly as it was. The optimizer keeps its state for A
and B only, and only they are saved: a file of a few per cent, of which many fit beside one base.

Afterwards B A can be added to W: the merged model is as quick as the base. Names and arithmetic are those of the `peft`
library, so that each reads what the other wrote (model/adapters/files.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from model.adapters.config import Adapters, LoraConfig
from model.families import fitting_family

if TYPE_CHECKING:
    from model.transformer import LanguageModel

# LatentAttention reads this matrix itself while it decodes, past any module around it
NOT_CALLED = {"kv_b_proj"}
OF_EXPERTS = {"deepseek_v3", "qwen3_moe"}


class Thin(nn.Linear):
    """A or B. Its optimizer is AdamW, also in a run with Muon (train/optimizer.py)."""

    optimizer_group = "adapter"


class LoraLinear(nn.Linear):
    """A linear layer with an adapter beside its frozen matrix. `on` switches the adapter."""

    def __init__(self, linear: nn.Linear, config: LoraConfig):
        super().__init__(linear.in_features, linear.out_features, linear.bias is not None, device="meta")
        self.weight, self.bias = linear.weight, linear.bias  # the same tensors, not copies
        place = {"device": linear.weight.device, "dtype": linear.weight.dtype}
        self.lora_A = Thin(self.in_features, config.rank, bias=False, **place)  # uniform, ± 1 / sqrt(in)
        self.lora_B = Thin(config.rank, self.out_features, bias=False, **place)
        nn.init.zeros_(self.lora_B.weight)
        self.dropout = nn.Dropout(config.dropout)
        self.scaling, self.on = config.alpha / config.rank, True
        self.train(linear.training)

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y + self.lora_B(self.lora_A(self.dropout(x))) * self.scaling if self.on else y

    def plain(self) -> nn.Linear:
        """The layer as it was, with the same matrix."""
        linear = nn.Linear(self.in_features, self.out_features, self.bias is not None, device="meta")
        linear.weight, linear.bias = self.weight, self.bias
        return linear.train(self.training)


class AddedRows(nn.Module):
    """Rows of the embedding or the head for tokens that the base does not know, trained in place of frozen ones.

    A parametrization of `weight`: the frozen rows, then these. `on` switches to all the frozen ones.
    """

    optimizer_group = "adapter"

    def __init__(self, weight: Tensor, start: int):
        super().__init__()
        self.lora_rows = nn.Parameter(weight[start:].detach().clone())
        self.on = True

    def forward(self, weight: Tensor) -> Tensor:
        return torch.cat([weight[: -len(self.lora_rows)], self.lora_rows]) if self.on else weight


def add_adapters(
    lm: LanguageModel, config: LoraConfig, base: str = "", base_sha256: str = "", rows: int | None = None
) -> None:
    """Freeze the model and put adapters beside the matrices that the config names.

    base, base_sha256: as in `Adapters`. rows: tokens of the base, where others were added: their rows are trained too.
    Raises ValueError for a model that has adapters, a module that is not there, and a rank larger than
    the smaller side of a matrix; then nothing was changed.
    """
    if lm.adapters is not None:
        raise ValueError("this model has adapters already: remove or merge them first")
    there = adaptable(lm)
    names = sorted({name.rpartition(".")[2] for name in there})
    for target in config.target_modules or []:
        if not any(_is_named(name, target) for name in there):
            raise ValueError(f"target_modules: no linear layer of the blocks is named {target!r}: use {_listed(names)}")
    chosen = {
        name: linear
        for name, linear in there.items()
        if config.target_modules is None or any(_is_named(name, target) for target in config.target_modules)
    }
    for name, linear in chosen.items():
        if config.rank > (side := min(linear.weight.shape)):
            raise ValueError(
                f"rank ({config.rank}) is larger than the smaller side ({side}) of {name}, which has no more "
                f"directions than that: use {side} or less"
            )
    lm.requires_grad_(False)
    for name, linear in chosen.items():
        lm.set_submodule(name, LoraLinear(linear, config))
    if rows is not None and rows < lm.lm_head.out_features:
        of_embedding = AddedRows(
            lm.lm_head.weight if lm.config.tie_word_embeddings else lm.model.embed_tokens.weight, rows
        )
        of_head = of_embedding if lm.config.tie_word_embeddings else AddedRows(lm.lm_head.weight, rows)
        parametrize.register_parametrization(lm.model.embed_tokens, "weight", of_embedding)
        parametrize.register_parametrization(lm.lm_head, "weight", of_head)
    lm.adapters = Adapters(config, base, base_sha256)


@contextmanager
def without_adapters(lm: LanguageModel) -> Iterator[None]:
    """While inside, the model computes what its base computes: the reference of a preference, without a second copy.

    Raises ValueError for a model without adapters, which would be compared with itself.
    """
    layers = [module for module in lm.modules() if isinstance(module, LoraLinear | AddedRows)]
    if not layers:
        raise ValueError("this model has no adapters, so there is no base inside it: use lora, or a second model")
    before = [layer.on for layer in layers]
    for layer in layers:
        layer.on = False
    try:
        yield
    finally:
        for layer, on in zip(layers, before, strict=True):
            layer.on = on


@torch.no_grad()
def merge(lm: LanguageModel) -> None:
    """Add every adapter to its matrix, W + (alpha / rank) · B A, and take it away: an ordinary model is left."""
    for layer in adapted(lm).values():
        layer.weight += (layer.lora_B.weight @ layer.lora_A.weight) * layer.scaling
    remove_adapters(lm, keep_rows=True)


def remove_adapters(lm: LanguageModel, keep_rows: bool = False) -> None:
    """The base, as it was before `add_adapters`, trainable again. keep_rows: with the rows that were added to it."""
    for name, layer in adapted(lm).items():
        lm.set_submodule(name, layer.plain())
    for module in (lm.model.embed_tokens, lm.lm_head):
        if parametrize.is_parametrized(module, "weight"):
            parametrize.remove_parametrizations(module, "weight", leave_parametrized=keep_rows)
    lm.requires_grad_(True)
    lm.adapters = None


def adapted(lm: LanguageModel) -> dict[str, LoraLinear]:
    """The layers with an adapter, by name."""
    return {name: module for name, module in lm.named_modules() if isinstance(module, LoraLinear)}


def adaptable(lm: LanguageModel) -> dict[str, nn.Linear]:
    """The linear layers of the blocks that may have one, by name. Left out: experts and their router.

    In an architecture that may have experts, peft takes gate_proj, up_proj and down_proj for theirs, also where a layer
    has none. So there only attention may have adapters.
    """
    family = fitting_family(lm.config)
    only = ".self_attn." if family is not None and family.model_type in OF_EXPERTS else ""
    return {
        name: module
        for name, module in lm.model.named_modules(prefix="model")
        if type(module) is nn.Linear and only in name and name.rpartition(".")[2] not in NOT_CALLED
    }


def _is_named(name: str, target: str) -> bool:
    """As in peft: the last part of a name, or several of its last parts."""
    return name == target or name.endswith("." + target)


def _listed(names: list[str]) -> str:
    return ", ".join(names[:-1]) + " or " + names[-1] if len(names) > 1 else names[0]
