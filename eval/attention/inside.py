"""Where in the network does an answer come from? Three ways to look inside one prediction.

    logit_lens                 what would the model say after each layer?
    direct_logit_attribution   what does each head add to the logit of a token?
    patch_activations          which activations carry what two texts differ in?

They serve every model that Headlight has (MHA, GQA, MQA, MLA, experts, norms before or after), and leave it as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from eval.language_modeling import evaluating
from model import LanguageModel
from model.layer import DecoderLayer
from model.norm import LayerNorm, RMSNorm


@torch.no_grad()
def logit_lens(lm: LanguageModel, input_ids: Tensor) -> Tensor:
    """The logits if the model ended here: (layer + 1, B, T, V); the first are of the embedding alone, before layer 0.

    input_ids (B, T). The residual stream goes through the last norm and the head. Both were trained for what the last
    layer gives them; there the logits are the model's. nostalgebraist 2020, "interpreting GPT: the logit lens".
    """
    streams = [given for given, _ in passing(lm, input_ids, [*lm.model.layers, lm.model.norm])]
    return lm.lm_head(lm.model.norm(torch.stack(streams)))


class Attribution(NamedTuple):
    """What each part adds to a logit, at every position: heads (layer, head, B, T), mlps (layer, B, T), embedding and
    biases (B, T). Biases are nobody's, and 0 in most families. total (B, T) is the logit."""

    heads: Tensor
    mlps: Tensor
    embedding: Tensor
    biases: Tensor

    @property
    def total(self) -> Tensor:
        return self.heads.sum((0, 1)) + self.mlps.sum(0) + self.embedding + self.biases


@torch.no_grad()
def direct_logit_attribution(
    lm: LanguageModel, input_ids: Tensor, token: int | Tensor, instead_of: int | Tensor | None = None
) -> Attribution:
    """What each head, each MLP and the embedding add to the logit of a token, or to how far it is above another's.

    input_ids (B, T); token, instead_of: an id, or ids (B, 1) or (B, T). A norm divides a part by what it divided the
    whole by, so the parts sum to the logit. What a head does by way of later layers is counted as theirs. Elhage et al.
    2021, "A Mathematical Framework for Transformer Circuits".
    """
    direction = lm.lm_head.weight[token]  # (hidden_size,), or (B, 1 or T, hidden_size)
    if instead_of is not None:
        direction = direction - lm.lm_head.weight[instead_of]
    layers: list[DecoderLayer] = list(lm.model.layers)  # type: ignore[arg-type]
    norm, norm_after = lm.model.norm, lm.config.norm_position == "after"
    o_projs = [module.o_proj for module in lm.attention_modules()]
    mlps = [layer.post_feedforward_layernorm if norm_after else layer.mlp for layer in layers]
    (embedding, _), (stream, _), *passed = passing(lm, input_ids, [layers[0], norm, *o_projs, *mlps])
    of_attention, of_mlps = passed[: len(layers)], passed[len(layers) :]

    def logit(part: Tensor) -> Tensor:
        return (part_of_norm(norm, stream, part) * direction).sum(-1)

    heads, biases = [], torch.zeros_like(stream)
    for layer, o_proj, (z, whole) in zip(layers, o_projs, of_attention, strict=True):
        bias = o_proj(torch.zeros_like(z))
        wrote = o_proj(z * columns(lm.config.num_attention_heads, z)[:, None, None]) - bias  # (H, B, T, hidden_size)
        if norm_after:
            post = layer.post_attention_layernorm
            wrote, bias = (part_of_norm(post, whole, part) for part in (wrote, bias))
            bias = bias + bias_of(post)
        heads.append(logit(wrote))
        biases += bias
    added = [out[0] if isinstance(out, tuple) else out for _, out in of_mlps]  # experts return a tuple
    of_biases = logit(biases) + (bias_of(norm) * direction).sum(-1)
    return Attribution(torch.stack(heads), logit(torch.stack(added)), logit(embedding), of_biases)


@torch.no_grad()
def patch_activations(
    lm: LanguageModel,
    input_ids: Tensor,
    other_ids: Tensor,
    token: int,
    instead_of: int,
    what: Literal["heads", "stream"] = "stream",
    where: Tensor | None = None,
) -> Tensor:
    """Which activations carry what two texts (1, T) differ in? The share of the answer that comes back with each.

    The answer is how far the logit of `token` is above that of `instead_of` at the last position. The model reads
    other_ids, but one activation is what it was in input_ids. 0: the answer stays as it is in other_ids, 1: it becomes
    that of input_ids. heads -> (layer, head, N); stream -> (layer + 1, N), before each layer and after the last one.
    where (N, T) bool: positions that are patched together; default: each alone, N = T. Raises ValueError for texts of
    different lengths. Meng et al. 2022 (arXiv 2202.05262), Wang et al. 2022 (2211.00593).
    """
    if input_ids.shape != other_ids.shape or len(input_ids) != 1:
        raise ValueError(f"give two texts of one length, not of {[*input_ids.shape]} and {[*other_ids.shape]} tokens")
    places = (torch.eye(input_ids.shape[1]) if where is None else where).to(input_ids.device).bool()[..., None]

    def answer(ids: Tensor) -> Tensor:
        logits = lm(ids, logits_to_keep=1)[:, -1]
        return logits[:, token] - logits[:, instead_of]

    H, sites = 1, [*lm.model.layers, lm.model.norm]
    if what == "heads":
        H, sites = lm.config.num_attention_heads, [module.o_proj for module in lm.attention_modules()]
    answers = []
    with evaluating(lm):
        for site, (clean, _) in zip(sites, passing(lm, input_ids, sites), strict=True):
            for part in columns(H, clean).bool():

                def put(_: nn.Module, given: tuple, clean: Tensor = clean, part: Tensor = part) -> tuple:
                    return clean.where(places & part, given[0]), *given[1:]

                with site.register_forward_pre_hook(put):
                    answers.append(answer(other_ids.expand(len(places), -1)))
        begin, end = answer(other_ids), answer(input_ids)
    shares = (torch.stack(answers) - begin) / (end - begin)  # (layer * head, N), or (layer + 1, N)
    return shares.view(-1, H, len(places)) if what == "heads" else shares


def passing(lm: LanguageModel, input_ids: Tensor, modules: Sequence[nn.Module]) -> list[tuple[Tensor, Any]]:
    """What goes into each of these modules and what comes out, while the model reads input_ids (B, T)."""
    passed: dict[nn.Module, tuple[Tensor, Any]] = {}

    def keep(module: nn.Module, given: tuple, out: Any) -> None:
        passed[module] = given[0], out

    with evaluating(lm), ExitStack() as hooks:
        for module in modules:
            hooks.enter_context(module.register_forward_hook(keep))
        lm(input_ids, logits_to_keep=1)
    return [passed[module] for module in modules]


def columns(heads: int, z: Tensor) -> Tensor:
    """Whose are the numbers that go into o_proj, z (…, heads * D)? (head, heads * D) of 0 and 1."""
    return torch.eye(heads, device=z.device, dtype=z.dtype).repeat_interleave(z.shape[-1] // heads, dim=1)


def part_of_norm(norm: RMSNorm | LayerNorm, whole: Tensor, part: Tensor) -> Tensor:
    """What a norm makes of a part of its input, divided by what it divides the whole by: linear, and without bias."""
    if isinstance(norm, LayerNorm):
        whole, part = (x - x.mean(-1, keepdim=True) for x in (whole, part))
    return part * torch.rsqrt(whole.pow(2).mean(-1, keepdim=True) + norm.eps) * norm.weight


def bias_of(norm: RMSNorm | LayerNorm) -> Tensor | float:
    return norm.bias if isinstance(norm, LayerNorm) else 0.0
