"""LanguageModel: where it starts, what labels mean, losses in chunks, what modules say and what is
counted.
"""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from model import LanguageModel, ModelConfig
from model.accounting import flops_per_token
from model.attention import MIMETIC_STRENGTH
from model.loss import CHUNK, cross_entropy_sum, log_probs
from model.norm import RMSNorm
from model.transformer import on_meta
from tests.conftest import GPT2, LATENT, random_model, tiny_config
from train.machine.budget import parameter_counts
from train.optimizer import parameter_groups

OLMO2 = {"qk_norm": "whole", "norm_position": "after", "attention_bias": True}
UNTIED = {"tie_word_embeddings": False, "qk_norm": False}


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize(
    ("vocab", "hidden", "more"), [(64, 128, {}), (2048, 32, {}), (2048, 1024, {}), (512, 64, LATENT)]
)
def test_the_loss_starts_at_ln_vocabulary(vocab, hidden, more, tied):
    shape = {"vocab_size": vocab, "hidden_size": hidden, "num_hidden_layers": 2, "num_attention_heads": 4}
    lm = LanguageModel(ModelConfig(**shape | more, tie_word_embeddings=tied))
    ids = torch.randint(0, vocab, (4, 64))
    loss_sum, count = lm(ids, labels=ids)
    assert (loss_sum / count).item() == pytest.approx(math.log(vocab), rel=0.02)


@pytest.mark.parametrize("changes", [{}, UNTIED, OLMO2, GPT2, LATENT | {"q_lora_rank": 9, "attention_bias": True}])
def test_what_a_layer_adds_starts_at_zero_and_so_do_biases_and_nothing_else(changes):
    """Also after `reset_parameters` of a model that was trained."""
    lm = random_model(tiny_config(**changes))
    lm.reset_parameters()
    for name, parameter in lm.named_parameters():
        is_zero = name.endswith(("o_proj.weight", "down_proj.weight", ".bias"))
        assert (parameter == 0).all().item() == is_zero, name


def test_labels_are_aligned_and_shifted_inside():
    lm = random_model(tiny_config())
    ids = torch.randint(0, 192, (2, 12))
    labels = ids.clone()
    labels[0, :5] = -100
    with torch.no_grad():
        loss_sum, count = lm(ids, labels=labels)
        logits = lm(ids)
        assert torch.equal(lm.lm_head(lm.outputs(ids).hidden), logits)
    expected = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")
    # of 11 predictions a row, the first row trains on those of positions 5 … 11
    assert count == 7 + 11
    assert loss_sum.item() == pytest.approx(expected.item(), rel=1e-6)
    loss_sum, count = lm(ids, labels=torch.full_like(ids, -100))
    assert (loss_sum.item(), count.item()) == (0.0, 0)  # not NaN


# --------------------------------------------------------------------------------------------------
# losses in chunks, against PyTorch's


def plain_cross_entropy(hidden, weight, labels):
    return F.cross_entropy((hidden @ weight.T).float().flatten(0, 1), labels.flatten(), reduction="sum")


def chunked_cross_entropy(hidden, weight, labels):
    return cross_entropy_sum(hidden.flatten(0, 1), weight, labels.flatten())


def plain_log_probs(hidden, weight, labels):
    likelihoods = (hidden[:, :-1] @ weight.T).float().log_softmax(-1)
    of_labels = likelihoods.gather(2, labels[:, 1:].clamp(min=0)[..., None])[..., 0]
    return F.pad(of_labels * (labels[:, 1:] != -100), (1, 0))


@pytest.mark.parametrize("frozen", [False, True], ids=["head", "frozen head"])
@pytest.mark.parametrize("every", [3, 10])
@pytest.mark.parametrize("autocast", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize(
    ("ours", "plain"), [(chunked_cross_entropy, plain_cross_entropy), (log_probs, plain_log_probs)], ids=["sum", "each"]
)
def test_a_loss_in_chunks_equals_pytorchs_forward_and_backward(ours, plain, autocast, every, frozen, monkeypatch):
    """Every position is weighed differently, as preferences and rewards do; tolerance: rounding of
    sums, 8 bits.
    """
    monkeypatch.setitem(CHUNK, "cpu", 7)
    hidden = torch.randn(3, 13, 16)
    weight = torch.randn(50, 16)
    weights = torch.randn(3, 13)
    labels = torch.randint(0, 50, (3, 13))
    labels.view(-1)[::every] = -100  # 3: so many that the others are picked first
    found = []
    expected = []
    for into, loss in ((found, ours), (expected, plain)):
        leaves = [hidden.clone().requires_grad_(), weight.clone().requires_grad_(not frozen)]
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            values = loss(*leaves, labels)
        (values * (weights if values.ndim else 1 / 17)).sum().backward()
        into += [values.detach(), *[leaf.grad for leaf in leaves if leaf.requires_grad]]
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            assert torch.equal(loss(hidden, weight, labels), values)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype == torch.float32
        assert (a - b).abs().max() <= (2e-2 if autocast else 1e-5) * b.abs().max()


@pytest.mark.parametrize(("dtype", "relative"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("shape", [(3, 5, 16), (2, 7, 4, 8)])
def test_rms_norms_own_backward_pass_is_autograds(shape, dtype, relative):
    norm = RMSNorm(shape[-1], 1e-6)
    torch.nn.init.normal_(norm.weight, 1.0, 0.3)
    x = torch.randn(shape).to(dtype).requires_grad_()
    x32 = x.float()
    expected = norm.weight * (x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + 1e-6)).to(dtype)
    found = norm(x)
    assert torch.equal(found, expected)
    with torch.no_grad():
        assert torch.equal(norm(x), expected)
    gradient = torch.randn(found.shape).to(found.dtype)
    ours, theirs = (torch.autograd.grad(out, (x, norm.weight), gradient) for out in (found, expected))
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == b.dtype
        assert (a - b).norm() < relative * b.norm()


# --------------------------------------------------------------------------------------------------
# what modules say of themselves


class Router(nn.Linear):
    optimizer_group = "matrix"


class TwoExperts(nn.Module):
    """A feed-forward part of one's own: a stack of matrices, a router, auxiliary losses."""

    optimizer_group = "expert"

    def __init__(self, size):
        super().__init__()
        self.experts = nn.Parameter(torch.randn(2, size, size) * 0.1)
        self.router = Router(size, 2, bias=True)

    def forward(self, x):
        share = self.router(x).softmax(-1)
        out = torch.einsum("bti,eij,bte->btj", x, self.experts, share)
        return out, {"balance": share.mean((0, 1)).square().sum(), "size": 0.5 * share.sum() / share.sum()}


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_layer_of_ones_own_says_its_groups_and_adds_its_losses(checkpointing):
    plain = random_model(tiny_config())
    ids = torch.randint(0, 192, (2, 12))
    assert plain.train()(ids, labels=ids)[0] == plain.eval()(ids, labels=ids)[0]
    lm = copy.deepcopy(plain)
    lm.model.activation_checkpointing = checkpointing
    for layer in lm.model.layers:
        layer.mlp = TwoExperts(32)
    groups = parameter_groups(lm)
    mlp = lm.model.layers[0].mlp
    for parameter, group in ((mlp.experts, "expert"), (mlp.router.weight, "matrix"), (mlp.router.bias, "vector")):
        assert any(p is parameter for p in groups[group])
    expected = lm.eval()(ids, labels=ids)
    output = lm.train().outputs(ids, labels=ids)
    found = (output.loss_sum, output.token_count)
    auxiliary = output.auxiliary
    assert found == expected  # what is minimised besides stands apart
    assert auxiliary["size"] == ids.numel()  # 0.5 in each of two layers, times the tokens
    assert lm.outputs(ids, logits_to_keep=None).auxiliary == auxiliary
    auxiliary["balance"].backward()
    assert mlp.router.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("kv_heads", ["mha", "gqa", "mqa"])
def test_with_mimetic_weights_keys_are_queries_and_what_is_read_is_written(kv_heads):
    lm = LanguageModel(tiny_config(num_attention_heads=4, num_key_value_heads=kv_heads, initialization="mimetic"))
    for attention in lm.attention_modules():
        D = attention.head_dim
        x = torch.randn(3, 32)
        groups = 4 // lm.config.kv_heads
        queries = attention.q_proj(x).unflatten(-1, (-1, D))
        keys = attention.k_proj(x).unflatten(-1, (-1, D))
        assert torch.equal(queries[:, ::groups], keys)
        read = attention.v_proj(x).unflatten(-1, (-1, D)).repeat_interleave(groups, dim=1).flatten(1)
        # of what is written, the part that is the token itself
        along = (attention.o_proj(read) * x).sum(-1)
        torch.testing.assert_close(along, MIMETIC_STRENGTH * read.square().sum(-1))


WINDOWS = {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]}
SHAPES = [{}, UNTIED, OLMO2, GPT2, LATENT | {"q_lora_rank": 9}, WINDOWS, {"head_dim": 12, "num_key_value_heads": "mqa"}]


@pytest.mark.parametrize("changes", SHAPES)
def test_parameters_and_flops_are_counted_without_building_the_model(changes):
    """FLOPs: two for each number of a matrix, and for each key that a token sees those of q · k and
    weights @ v.
    """
    config = tiny_config(**changes)
    length = 9
    state = torch.get_rng_state()
    counted = on_meta(config)
    assert torch.equal(torch.get_rng_state(), state)
    lm = LanguageModel(config)
    counts = parameter_counts(counted)
    assert counts["total"] == lm.num_parameters() == sum(v for k, v in counts.items() if k != "total")
    names = dict(lm.named_parameters())
    linears = [m for m in lm.modules() if isinstance(m, nn.Linear)]
    for part, name in {"norm": "norm", "feed_forward": ".mlp.", "embedding": ".embed_", "head": "lm_head"}.items():
        assert counts[part] == sum(p.numel() for key, p in names.items() if name in key), part
    # of each token
    keys = [min(i + 1, window or length) for window in config.windows for i in range(length)]
    a_key = 2 * config.num_attention_heads * (config.head_size + config.value_size)
    forward = 2 * sum(m.weight.numel() for m in linears) + a_key * sum(keys) / length
    assert flops_per_token(counted, length, training=False) == pytest.approx(forward)
    assert flops_per_token(counted, length) == pytest.approx(3 * forward)
