r"""Linear attention (the gated delta rule): a head's memory is one matrix, however long the text.

Of a token's q, k, v, and two numbers α and β between 0 and 1, the memory S (D_k, D_v) makes:

    S = α S                      forget some of everything
    S = S + k (β (v - Sᵀ k))ᵀ    the delta rule: correct what S returns for this key
    output = Sᵀ q                read

Without "- Sᵀ k" similar keys pile up (Katharopoulos et al. 2020, arXiv 2006.16236). `recurrent` is
the formula, to generate. `chunked` gives its numbers by matrix products, to train (Yang et al.
2024, 2406.06484). The layer is OLMo Hybrid's, with a simpler α (Yang et al. 2024, 2412.06464).
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.config import ModelConfig
from model.kv_cache import KVCache
from model.masks import MaskSpec
from model.norm import RMSNorm, initialize

# A longer chunk has larger systems of equations, a shorter one more steps after each other.
CHUNK = 64


def recurrent(
    q: Tensor, k: Tensor, v: Tensor, log_alpha: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Read T tokens one by one; return the outputs (B, H, T, D_v) and the last state.

    q, k (B, H, T, D_k), v (B, H, T, D_v), log_alpha and beta (B, H, T), state (B, H, D_k, D_v)
    """
    outputs = []
    for t in range(q.shape[2]):
        key = k[:, :, t, :, None]  # (B, H, D_k, 1)
        state = state * log_alpha[:, :, t, None, None].exp()
        returned = (state * key).sum(2)  # (B, H, D_v)
        correction = beta[:, :, t, None] * (v[:, :, t] - returned)
        state = state + key * correction[:, :, None]
        outputs.append((state * q[:, :, t, :, None]).sum(2))
    return torch.stack(outputs, dim=2), state


def chunked(
    q: Tensor, k: Tensor, v: Tensor, log_alpha: Tensor, beta: Tensor, state: Tensor,
    documents: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Compute `recurrent` by chunks. documents (B, T): 0, 0, 1, …, the first continues `state`.

    A token's correction c needs those before it; a_ij is the product of α from token j to i:
        c_i = β_i (v_i - a_i Sᵀ k_i - Σ_j<i a_ij (k_i · k_j) c_j)
    These are triangular equations. S comes later, so v and a k are solved for apart.
    """
    size = min(CHUNK, q.shape[2])
    padding = -q.shape[2] % size  # in front, where k = 0 and α = 1 leave the state as it is
    q, k, v = (F.pad(x, (0, 0, padding, 0)).unflatten(2, (-1, size)) for x in (q, k, v))
    log_alpha, beta = (F.pad(x, (padding, 0)).unflatten(2, (-1, size)) for x in (log_alpha, beta))
    decay = log_alpha.cumsum(-1)  # (B, H, N, C): N chunks of C tokens
    from_start = decay.exp()
    visible = torch.ones(size, size, dtype=torch.bool, device=q.device).tril()
    if documents is not None:
        documents = F.pad(documents, (padding, 0)).unflatten(1, (-1, size))[:, None]  # (B, 1, N, C)
        visible = visible & (documents[..., :, None] == documents[..., None, :])
        of_state = F.pad(documents[:, :, :-1, -1:], (0, 0, 1, 0))  # (B, 1, N, 1)
        from_start = from_start * (documents == of_state)
    between = decay[..., :, None] - decay[..., None, :]  # (B, H, N, C, C)
    between = between.masked_fill(~visible, -torch.inf).exp()  # of later tokens it would overflow
    system = beta[..., None] * (k @ k.mT) * between  # with 1 in place of its diagonal
    sides = beta[..., None] * torch.cat((v, k * from_start[..., None]), dim=-1)
    solved = torch.linalg.solve_triangular(system, sides, upper=False, unitriangular=True)
    of_values, of_keys = solved.split((v.shape[-1], k.shape[-1]), dim=-1)
    scores = (q @ k.mT) * between
    q = q * from_start[..., None]
    k = k * between[..., -1, :, None]  # decayed to the end of the chunk
    outputs = []
    for n in range(q.shape[2]):
        corrections = of_values[:, :, n] - of_keys[:, :, n] @ state  # (B, H, C, D_v)
        outputs.append(q[:, :, n] @ state + scores[:, :, n] @ corrections)
        state = from_start[:, :, n, -1:, None] * state + k[:, :, n].mT @ corrections
    return torch.cat(outputs, dim=2)[:, :, padding:], state


class LinearAttention(nn.Module):
    """Project, mix with the tokens just before, write and read the memory, gate, project back."""

    def __init__(self, config: ModelConfig, layer_index: int):
        super().__init__()
        self.layer_index = layer_index
        H = config.num_attention_heads
        D_k = config.linear_key_head_dim or config.head_size
        D_v = config.linear_value_head_dim or config.head_size
        kernel = config.linear_conv_kernel_dim
        hidden = config.hidden_size
        channels = H * (2 * D_k + D_v)
        self.state_shapes = (kernel - 1, channels), (H, D_k, D_v)  # last inputs, and memories
        self.q_proj = nn.Linear(hidden, H * D_k, bias=False)
        self.k_proj = nn.Linear(hidden, H * D_k, bias=False)
        self.v_proj = nn.Linear(hidden, H * D_v, bias=False)
        self.a_proj = nn.Linear(hidden, H)  # α
        self.b_proj = nn.Linear(hidden, H, bias=False)  # β
        self.g_proj = nn.Linear(hidden, H * D_v, bias=False)  # the gate of the output
        self.conv1d = nn.Conv1d(channels, channels, kernel, groups=channels, bias=False)
        self.conv1d.optimizer_group = "vector"  # type: ignore[assignment]  # Muon is for matrices
        self.o_norm = RMSNorm(D_v, config.rms_norm_eps)
        self.o_proj = nn.Linear(H * D_v, hidden, bias=False)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, mask: MaskSpec, kv_cache: KVCache | None = None
    ) -> Tensor:
        """x (B, T, hidden_size) -> the same. mask: the predicates themselves; RoPE is not used."""
        B, T, _ = x.shape
        (before, _), (H, D_k, D_v) = self.state_shapes
        dtype = torch.promote_types(x.dtype, torch.float32)  # a rounded memory stays rounded
        if mask.attention_mask is not None:  # padding writes zeros
            x = x * mask.attention_mask[:, mask.query_positions, None]
        documents = None
        if mask.document_ids is not None:  # counted: a row may begin with any id
            documents = F.pad((mask.document_ids.diff(dim=1) != 0).cumsum(1), (1, 0))
        states = None if kv_cache is None else kv_cache.states.get(self.layer_index)
        if states is None:
            states = tuple(x.new_zeros(B, *shape, dtype=dtype) for shape in self.state_shapes)
        new = torch.cat((self.q_proj(x), self.k_proj(x), self.v_proj(x)), dim=-1).to(dtype)
        tokens = torch.cat((states[0], new), dim=1)  # (B, kernel - 1 + T, channels)
        log_alpha = F.logsigmoid(self.a_proj(x).to(dtype))  # (B, T, H)
        beta = self.b_proj(x).to(dtype).sigmoid()
        with torch.autocast(x.device.type, enabled=False):
            mixed = torch.zeros_like(new)
            for tap in range(before + 1):  # faster than PyTorch's convolution with a mask
                earlier = tokens[:, tap : tap + T] * self.conv1d.weight[:, 0, tap]
                if documents is not None:
                    theirs = F.pad(documents, (before - tap, 0))[:, :T]
                    earlier = earlier * (theirs == documents)[..., None]
                mixed = mixed + earlier
            parts = F.silu(mixed).split((H * D_k, H * D_k, H * D_v), dim=-1)
            q, k, v = (part.unflatten(-1, (H, -1)).transpose(1, 2) for part in parts)
            # to length 1: then a correction with β = 1 is complete
            q, k = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6) for x in (q, k))
            inputs = q * D_k**-0.5, k, v, log_alpha.mT, beta.mT, states[1]
            out, memory = recurrent(*inputs) if T == 1 else chunked(*inputs, documents)
        if kv_cache is not None:
            kv_cache.states[self.layer_index] = tokens[:, T:], memory
        out = self.o_norm(out.transpose(1, 2)).flatten(2)  # (B, T, H * D_v)
        return self.o_proj((out * F.silu(self.g_proj(x))).to(x.dtype))

    def reset_parameters(self) -> None:
        initialize(self, output="o_proj")
        nn.init.uniform_(self.a_proj.bias, 2, 7)  # α from 0.88 to 0.999: long memories and short
