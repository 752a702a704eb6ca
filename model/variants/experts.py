r"""Mixture of experts: many feed-forward networks in a layer, and a router that sends every token to a few of them.

                     ┌─ expert 0                       E experts, k of them for a token: the layer holds E times the
    x ─ router ─ k ──┼─ expert 1 ── × weight ── + ──   parameters of one expert and computes with k of them.
                     └─ …
Shazeer et al. 2017 (arXiv 1701.06538); Switch, Fedus et al. 2021 (2101.03961). As in Qwen3 (2505.09388), a token is
never dropped, however many choose the same expert.

One product for all experts: the tokens are sorted by expert, and `torch.nn.functional.grouped_mm` multiplies every
group by its own matrix, as transformers does by default: logits are equal to the last bit.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.config import ModelConfig
from model.feed_forward import ACTIVATIONS
from model.loss import compute_dtype
from model.norm import initialize


class Router(nn.Linear):
    def __init__(self, config: ModelConfig):
        super().__init__(config.hidden_size, config.num_experts or 0, bias=False)
        self.top_k, self.norm_topk_prob = config.num_experts_per_tok, config.norm_topk_prob

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        """x (N, hidden_size) -> probabilities (N, E) float32, and weights and numbers (N, k) of the chosen experts."""
        # never in 16 bits: two experts that are nearly equal must not change places by rounding (Switch, section 2.4)
        with torch.autocast(x.device.type, enabled=False):
            logits = F.linear(x.to(self.weight.dtype), self.weight)
        probabilities = logits.softmax(dim=-1, dtype=torch.float32)
        weights, experts = probabilities.topk(self.top_k, dim=-1)
        if self.norm_topk_prob:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        return probabilities, weights.to(logits.dtype), experts


class Experts(nn.Module):
    """The matrices of all experts: gate_up_proj (E, 2, I, hidden_size), down_proj (E, hidden_size, I), where I is
    moe_intermediate_size. Stacks of matrices, so that Muon makes the step of each orthogonal by itself."""

    optimizer_group = "expert"

    def __init__(self, config: ModelConfig):
        super().__init__()
        count, inner, hidden = config.num_experts or 0, config.moe_intermediate_size or 0, config.hidden_size
        self.gate_up_proj = nn.Parameter(torch.empty(count, 2, inner, hidden))
        self.down_proj = nn.Parameter(torch.empty(count, hidden, inner))
        self.act = ACTIVATIONS[config.hidden_act]

    @torch.compiler.disable  # float32 products are refused; in 16 bits on a CPU each step has other sizes
    def forward(self, x: Tensor, weights: Tensor, experts: Tensor) -> Tensor:
        """x (N, hidden_size), weights and experts (N, k) -> Σ weight * expert(x), (N, hidden_size)."""
        (N, k), device, dtype = experts.shape, x.device.type, compute_dtype(x)
        choices, place, ends = places(experts, len(self.down_proj), multiple_of_rows(device, dtype))
        # a copy for every choice, so that autograd adds up the k gradients of a token in their own order
        tokens = x.to(dtype)[:, None].expand(N, k, -1).reshape(N * k, -1)
        chosen = tokens.index_select(0, choices)  # (R, hidden_size), R ≥ N * k
        gate_up = F.grouped_mm(chosen, self.gate_up_proj.flatten(1, 2).mT.to(dtype), offs=ends)
        gate, up = gate_up.chunk(2, dim=-1)
        out = F.grouped_mm(self.act(gate) * up, self.down_proj.mT.to(dtype), offs=ends)
        out = out.index_select(0, place).view(N, k, -1)  # no row is read twice
        return (out * weights[..., None]).sum(1).to(x.dtype)


class MixtureOfExperts(nn.Module):
    """Router and experts, in place of a dense feed-forward layer: (B, T, hidden_size) both ways. In training it also
    returns {"load_balancing": (B,)}. real (B, T): which tokens are not padding; None: all.
    """

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.gate = Router(config)
        self.experts = Experts(config)
        self.router_aux_loss_coef = config.router_aux_loss_coef

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor | tuple[Tensor, dict[str, Tensor]]:
        probabilities, weights, experts = self.gate(x.flatten(0, 1))
        out = self.experts(x.flatten(0, 1), weights, experts).view(x.shape)
        if not (self.training and self.router_aux_loss_coef):
            return out
        B, T, _ = x.shape
        loss = load_balancing_loss(probabilities.view(B, T, -1), experts.view(B, T, -1), real)
        return out, {"load_balancing": self.router_aux_loss_coef * loss}

    def reset_parameters(self) -> None:
        nn.init.normal_(self.gate.weight, std=0.02)  # nearly the same probability for every expert
        initialize(self.experts, output="down_proj")


def load_balancing_loss(probabilities: Tensor, experts: Tensor, real: Tensor | None = None) -> Tensor:
    """E * Σ_e f_e P_e of every row: (B, T, E), (B, T, k) -> (B,). It is 1 where every expert gets as much as any other.

    f_e: share of the row's choices that are expert e; P_e: mean probability of e in the row. The gradient goes through
    P: experts that are chosen often become less likely. real (B, T): the tokens that count; padding is alike
    everywhere, and its experts must not pass for overworked. Switch (equations 4 to 6), row by row as in DeepSeek-V3
    (Liu et al. 2024, arXiv 2412.19437, equations 17 to 20): a row is never split, so any micro-batches give the same.
    """
    count, k = probabilities.shape[-1], experts.shape[-1]
    counts = torch.ones_like(probabilities[..., 0]) if real is None else real.to(probabilities.dtype)  # (B, T)
    tokens = counts.sum(1, keepdim=True).clamp(min=1)
    chosen = torch.zeros_like(probabilities[:, 0])  # (B, E)
    chosen = chosen.scatter_add_(1, experts.flatten(1), counts.repeat_interleave(k, dim=1)) / (k * tokens)
    mean = (probabilities * counts[..., None]).sum(1) / tokens
    return count * (chosen * mean).sum(-1)


def places(experts: Tensor, count: int, multiple: int) -> tuple[Tensor, Tensor, Tensor]:
    """Where does every choice stand when all are sorted by expert? For the experts of N tokens, (N, k).

    -> choices (R,) the choice, of N * k, that stands in each row; place (N * k,) the row of each choice; ends (count,)
    int32, where each expert's rows end. Each expert has a multiple of `multiple` rows; choice 0 fills up, unread.
    """
    (N, k), device = experts.shape, experts.device
    of_expert, order = experts.flatten().sort()
    # histc, unlike bincount, lets a GPU run ahead; it wants floats on a CPU and integers elsewhere
    real = torch.histc(of_expert.to(torch.float32 if device.type == "cpu" else torch.int32), count, 0, count - 1).int()
    full = (real + multiple - 1) // multiple * multiple
    ends = full.cumsum(0, dtype=torch.int32)
    free = (ends - full) - (real.cumsum(0, dtype=torch.int32) - real)  # rows that experts before this one leave empty
    row = torch.arange(N * k, device=device) + free[of_expert]
    place = torch.empty_like(order).scatter_(0, order, row)
    choices = order.new_zeros(N * k if multiple == 1 else int(ends[-1])).scatter_(0, row, order)
    return choices, place, ends


def multiple_of_rows(device: str, dtype: torch.dtype) -> int:
    """In 16 bits, PyTorch on a CPU (oneDNN) writes a program for every number of rows, which takes longer than to run
    it. So groups of few sizes are quicker (FINDINGS.md#experts)."""
    return 32 if device == "cpu" and dtype.itemsize == 2 else 1
