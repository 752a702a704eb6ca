"""Three ways to look inside one prediction.

    logit_lens                 the model's prediction after each layer
    direct_logit_attribution   the part of each head in the logit of a token
    patch_activations          the activations that carry the difference between two texts

They work for every model of Headlight and do not change it.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from eval.language_modeling import evaluating
from model import LanguageModel
from model.layer import DecoderLayer
from model.norm import LayerNorm, NoNorm, Norm


@torch.no_grad()
def logit_lens(lm: LanguageModel, input_ids: Tensor) -> Tensor:
    """Return the logits as if the model ended after each layer: (layer + 1, B, T, V).

    input_ids: (B, T). The first logits are of the embedding alone.
    nostalgebraist 2020, "interpreting GPT: the logit lens".
    """
    # the input of layer i is what layer i - 1 left, and the norm's input is the last of them
    passes = passing(lm, input_ids, [*lm.model.layers, lm.model.norm])
    streams = [stream for stream, _ in passes]  # (B, T, hidden_size) each
    # Norm and head were trained for the last layer's output: only these logits are the model's own.
    return lm.lm_head(lm.model.norm(torch.stack(streams)))


class Attribution(NamedTuple):
    """The summands of a logit at every position. `total` is the logit, (B, T)."""

    heads: Tensor  # (layer, head, B, T)
    mlps: Tensor  # (layer, B, T)
    embedding: Tensor  # (B, T)
    biases: Tensor  # (B, T), belong to no head or MLP; 0 in most families

    @property
    def total(self) -> Tensor:
        return self.heads.sum((0, 1)) + self.mlps.sum(0) + self.embedding + self.biases


@torch.no_grad()
def direct_logit_attribution(
    lm: LanguageModel,
    input_ids: Tensor,
    token: int | Tensor,
    instead_of: int | Tensor | None = None,
) -> Attribution:
    """Split the logit of a token into the parts of heads, MLPs and embedding.

    input_ids:  (B, T)
    token:      an id, or ids (B, 1) or (B, T)
    instead_of: subtract the logit of this token

    The parts sum to the logit. A head's effect through later layers counts as theirs.
    Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits".
    """
    # A logit is the final stream's product with the token's row of the head.
    direction = lm.lm_head.weight[token]  # (hidden_size,), or (B, 1 or T, hidden_size)
    if instead_of is not None:
        # a difference of two logits: what raises both tokens alike cancels
        direction = direction - lm.lm_head.weight[instead_of]
    layers: list[DecoderLayer] = list(lm.model.layers)  # type: ignore[arg-type]
    norm = lm.model.norm
    norm_after = lm.config.norm_position == "after"
    o_projs = [module.o_proj for module in lm.attention_modules()]
    mlps = [layer.post_feedforward_layernorm if norm_after else layer.mlp for layer in layers]
    passes = passing(lm, input_ids, [layers[0], norm, *o_projs, *mlps])
    (embedding, _), (stream, _), *passes = passes
    attention_passes = passes[: len(layers)]
    mlp_passes = passes[len(layers) :]

    def logit(part: Tensor) -> Tensor:
        # the final norm divides a part as it divided the whole stream
        return (part_of_norm(norm, stream, part) * direction).sum(-1)

    heads = []
    biases = torch.zeros_like(stream)
    for layer, o_proj, (z, out) in zip(layers, o_projs, attention_passes, strict=True):
        bias = o_proj(torch.zeros_like(z))  # its output for the input 0
        # z is the heads' outputs beside each other: keep one head's columns at a time
        masks = columns(lm.config.num_attention_heads, z)[:, None, None]  # (H, 1, 1, H * D)
        parts = o_proj(z * masks) - bias  # (H, B, T, hidden_size)
        if norm_after:
            # as in OLMo 2, whose norms follow attention and MLP
            post = layer.post_attention_layernorm
            parts = part_of_norm(post, out, parts)
            bias = part_of_norm(post, out, bias) + bias_of(post)
        heads.append(logit(parts))
        biases += bias
    # experts return a tuple
    outputs = [out[0] if isinstance(out, tuple) else out for _, out in mlp_passes]
    bias_logit = logit(biases) + (bias_of(norm) * direction).sum(-1)
    return Attribution(
        torch.stack(heads), logit(torch.stack(outputs)), logit(embedding), bias_logit
    )


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
    """Return the share of an answer that comes back with each activation of another text.

    The model reads other_ids (1, T) with one activation from input_ids (1, T). The answer is the
    logit of `token` minus that of `instead_of` at the last position.

    what:  "heads" -> (layer, head, N); "stream" -> (layer + 1, N), before each layer and after
    where: (N, T) bool, positions that are patched together; default: each alone, N = T

    Raises ValueError for texts of different lengths.
    Meng et al. 2022 (arXiv 2202.05262), Wang et al. 2022 (2211.00593).
    """
    if input_ids.shape != other_ids.shape or len(input_ids) != 1:
        shapes = f"{[*input_ids.shape]} and {[*other_ids.shape]}"
        raise ValueError(f"give two texts of one length, not of {shapes} tokens")
    if where is None:
        where = torch.eye(input_ids.shape[1])
    positions = where.to(input_ids.device).bool()[..., None]  # (N, T, 1)

    def answer(ids: Tensor) -> Tensor:
        logits = lm(ids, logits_to_keep=1)[:, -1]  # (N, V)
        return logits[:, token] - logits[:, instead_of]

    def patch(_: nn.Module, inputs: tuple, clean: Tensor, part: Tensor) -> tuple:
        # positions (N, T, 1) and part (columns,): what this patch replaces
        return clean.where(positions & part, inputs[0]), *inputs[1:]

    H = 1  # the stream is patched as a whole
    sites = [*lm.model.layers, lm.model.norm]
    if what == "heads":
        H = lm.config.num_attention_heads
        sites = [module.o_proj for module in lm.attention_modules()]
    answers = []
    with evaluating(lm):
        for site, (clean, _) in zip(sites, passing(lm, input_ids, sites), strict=True):
            for part in columns(H, clean).bool():
                hook = partial(patch, clean=clean, part=part)
                with site.register_forward_pre_hook(hook):
                    # N copies of the other text, each with its own patch
                    answers.append(answer(other_ids.expand(len(positions), -1)))
        # 0: the answer stays that of other_ids; 1: it becomes that of input_ids
        begin = answer(other_ids)
        end = answer(input_ids)
    shares = (torch.stack(answers) - begin) / (end - begin)  # (layer * head, N), or (layer + 1, N)
    return shares.view(-1, H, len(positions)) if what == "heads" else shares


def passing(
    lm: LanguageModel, input_ids: Tensor, modules: Sequence[nn.Module]
) -> list[tuple[Tensor, Any]]:
    """Return (input, output) of each module while the model reads input_ids (B, T)."""
    passes: dict[nn.Module, tuple[Tensor, Any]] = {}

    def keep(module: nn.Module, inputs: tuple, out: Any) -> None:
        passes[module] = inputs[0], out

    with evaluating(lm), ExitStack() as hooks:
        for module in modules:
            hooks.enter_context(module.register_forward_hook(keep))
        # only the hooks' tensors are wanted, so the head computes one position
        lm(input_ids, logits_to_keep=1)
    return [passes[module] for module in modules]


def columns(heads: int, z: Tensor) -> Tensor:
    """Map each column of o_proj's input z (…, heads * D) to its head: (head, heads * D), 0 or 1."""
    size = z.shape[-1] // heads
    return torch.eye(heads, device=z.device, dtype=z.dtype).repeat_interleave(size, dim=1)


def part_of_norm(norm: Norm, whole: Tensor, part: Tensor) -> Tensor:
    """Norm of a part, with the divisor of the whole and without bias, so that parts add up."""
    # Once its divisor is fixed, a norm is linear, so it can be split into parts.
    if isinstance(norm, NoNorm):
        return part
    if isinstance(norm, LayerNorm):
        whole = whole - whole.mean(-1, keepdim=True)
        part = part - part.mean(-1, keepdim=True)
    return part * torch.rsqrt(whole.pow(2).mean(-1, keepdim=True) + norm.eps) * norm.weight


def bias_of(norm: Norm) -> Tensor | float:
    return norm.bias if isinstance(norm, LayerNorm) else 0.0
