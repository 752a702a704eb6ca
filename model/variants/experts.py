r"""Mixture of experts: many feed-forward networks in a layer, a few of them for each token.

                     ┌─ expert 0                       E experts, k for a token: the layer has
    x ─ router ─ k ──┼─ expert 1 ── × weight ── + ──   E times the parameters of one expert, and
                     └─ …                              computes with k of them.

Shazeer et al. 2017 (arXiv 1701.06538); Switch, Fedus et al. 2021 (2101.03961). As in Qwen3
(2505.09388), a token is never dropped, however many choose the same expert.

Tokens are sorted by expert, and `grouped_mm` multiplies every group by its own matrix, as in
transformers: logits are equal to the last bit.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.config import ModelConfig
from model.feed_forward import ACTIVATIONS
from model.loss import compute_dtype
from model.norm import initialize

# In 16 bits, PyTorch on a CPU (oneDNN) compiles a program for every number of rows, which takes
# longer than running it. Groups with multiples of this are faster (FINDINGS.md#experts).
HALF_ROWS = 32


class Router(nn.Linear):
    def __init__(self, config: ModelConfig):
        super().__init__(config.hidden_size, config.num_experts or 0, bias=False)
        self.top_k = config.num_experts_per_tok
        self.norm_topk_prob = config.norm_topk_prob

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        """Choose experts for x (N, hidden_size).

        Return probabilities (N, E) float32, and weights and indices of the chosen experts (N, k).
        """
        # never in 16 bits: rounding must not swap experts that are nearly equal (Switch, 2.4)
        with torch.autocast(x.device.type, enabled=False):
            logits = F.linear(x.to(self.weight.dtype), self.weight)  # (N, E)
        probabilities = logits.softmax(dim=-1, dtype=torch.float32)
        weights, experts = probabilities.topk(self.top_k, dim=-1)  # (N, k)
        if self.norm_topk_prob:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        return probabilities, weights.to(logits.dtype), experts


class Experts(nn.Module):
    """All experts: gate_up_proj (E, 2, I, hidden_size) and down_proj (E, hidden_size, I)."""

    # Muon orthogonalises the step of each matrix in these stacks
    optimizer_group = "expert"

    def __init__(self, config: ModelConfig):
        super().__init__()
        count = config.num_experts or 0
        inner = config.moe_intermediate_size or 0
        hidden = config.hidden_size
        self.gate_up_proj = nn.Parameter(torch.empty(count, 2, inner, hidden))
        self.down_proj = nn.Parameter(torch.empty(count, hidden, inner))
        self.act = ACTIVATIONS[config.hidden_act]

    @torch.compiler.disable  # it refuses float32, and in 16 bits on a CPU sizes always change
    def forward(self, x: Tensor, weights: Tensor, experts: Tensor) -> Tensor:
        """Return Σ weight * expert(x), (N, hidden_size). weights, experts: (N, k)."""
        N, k = experts.shape
        dtype = compute_dtype(x)
        multiple = HALF_ROWS if x.device.type == "cpu" and dtype.itemsize == 2 else 1
        choices, rows, ends = sort_by_expert(experts, len(self.down_proj), multiple)
        # a copy for every choice, so that autograd adds up a token's k gradients in their own order
        tokens = x.to(dtype)[:, None].expand(N, k, -1).reshape(N * k, -1)  # (N * k, hidden_size)
        chosen = tokens.index_select(0, choices)  # (R, hidden_size), R ≥ N * k
        gate_up = F.grouped_mm(chosen, self.gate_up_proj.flatten(1, 2).mT.to(dtype), offs=ends)
        gate, up = gate_up.chunk(2, dim=-1)  # (R, I) each
        out = F.grouped_mm(self.act(gate) * up, self.down_proj.mT.to(dtype), offs=ends)
        out = out.index_select(0, rows).view(N, k, -1)  # no row is read twice
        return (out * weights[..., None]).sum(1).to(x.dtype)


class MixtureOfExperts(nn.Module):
    """Router and experts, in place of a dense feed-forward layer: (B, T, hidden_size) both ways.

    In training it also returns {"load_balancing": (B,)}. real (B, T): tokens that are not padding.
    """

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.gate = Router(config)
        self.experts = Experts(config)
        self.router_aux_loss_coef = config.router_aux_loss_coef

    def forward(
        self, x: Tensor, real: Tensor | None = None
    ) -> Tensor | tuple[Tensor, dict[str, Tensor]]:
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


def load_balancing_loss(
    probabilities: Tensor, experts: Tensor, real: Tensor | None = None
) -> Tensor:
    """Return E * Σ_e f_e P_e of every row, (B,): 1 if all experts are used equally.

    f_e is the share of the row's choices (B, T, k) that are expert e, P_e the mean of its
    probabilities (B, T, E). real (B, T): the tokens that count; None: all.

    Switch (equations 4 to 6), row by row as in DeepSeek-V3 (arXiv 2412.19437, equations 17 to 20).
    """
    # row by row, because rows are never split: any micro-batches have the same loss
    k = experts.shape[-1]
    counts = torch.ones_like(probabilities[..., 0])  # (B, T)
    if real is not None:  # padding always chooses the same experts
        counts = real.to(probabilities.dtype)
    tokens = counts.sum(1, keepdim=True).clamp(min=1)  # (B, 1)
    chosen = torch.zeros_like(probabilities[:, 0])  # (B, E)
    chosen = chosen.scatter_add_(1, experts.flatten(1), counts.repeat_interleave(k, dim=1))
    share = chosen / (k * tokens)  # f_e, (B, E)
    mean = (probabilities * counts[..., None]).sum(1) / tokens  # P_e, (B, E)
    # a count has no gradient, P has: experts that are chosen often become less likely
    return probabilities.shape[-1] * (share * mean).sum(-1)


def sort_by_expert(experts: Tensor, count: int, multiple: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sort the choices (N, k) of N tokens by expert.

    choices  (R,): the choice, of N * k, in each row; R ≥ N * k
    rows     (N * k,): the row of each choice
    ends     (count,) int32: the end of each expert's rows, a multiple of `multiple`
    """
    N, k = experts.shape
    device = experts.device
    sorted_experts, order = experts.flatten().sort()  # (N * k,)
    # histc, unlike bincount, lets a GPU run ahead; it needs floats on a CPU and integers elsewhere
    dtype = torch.float32 if device.type == "cpu" else torch.int32
    used = torch.histc(sorted_experts.to(dtype), count, 0, count - 1).int()
    full = (used + multiple - 1) // multiple * multiple  # rounded up to the multiple
    ends = full.cumsum(0, dtype=torch.int32)
    spare = (ends - full) - (used.cumsum(0, dtype=torch.int32) - used)  # rows of earlier experts
    row = torch.arange(N * k, device=device) + spare[sorted_experts]
    rows = torch.empty_like(order).scatter_(0, order, row)
    size = N * k if multiple == 1 else int(ends[-1])
    # choice 0 fills the spare rows, whose results are never read
    choices = order.new_zeros(size).scatter_(0, row, order)
    return choices, rows, ends
