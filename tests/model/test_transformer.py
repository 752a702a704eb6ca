"""LanguageModel: where the loss starts, what labels mean, what modules say of themselves."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from model import LanguageModel, ModelConfig
from model.attention import MIMETIC_STRENGTH
from model.loss import CHUNK, cross_entropy_sum, log_probs
from tests.conftest import random_model, tiny_config


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("hidden", [32, 128, 1024])
@pytest.mark.parametrize("vocab", [64, 2048])
def test_the_loss_starts_at_ln_vocabulary(vocab, hidden, tied):
    lm = LanguageModel(
        ModelConfig(
            vocab_size=vocab,
            hidden_size=hidden,
            num_hidden_layers=2,
            num_attention_heads=4,
            tie_word_embeddings=tied,
        )
    )
    ids = torch.randint(0, vocab, (16, 64))
    loss_sum, count = lm(ids, labels=ids)
    assert (loss_sum / count).item() == pytest.approx(math.log(vocab), rel=0.02)


def test_output_projections_start_at_zero_and_everything_else_does_not():
    for name, parameter in LanguageModel(tiny_config()).named_parameters():
        is_output = name.endswith(("o_proj.weight", "down_proj.weight"))
        assert (parameter == 0).all().item() == is_output, name


def test_labels_are_aligned_and_shifted_inside():
    lm = random_model(tiny_config())
    ids = torch.randint(0, 192, (2, 12))
    labels = ids.clone()
    labels[0, :5] = -100
    with torch.no_grad():
        loss_sum, count = lm(ids, labels=labels)
        logits = lm(ids)
    expected = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")
    assert count == 7 + 11  # of 11 predictions a row, the first row trains on those of positions 5 … 11
    assert loss_sum.item() == pytest.approx(expected.item(), rel=1e-6)


def test_a_batch_without_labels_to_train_on_is_zero_not_nan():
    loss_sum, count = random_model(tiny_config())(torch.zeros(1, 4).long(), labels=torch.full((1, 4), -100))
    assert (loss_sum.item(), count.item()) == (0.0, 0)


def test_tied_weights_are_one_matrix_and_count_once():
    tied, untied = LanguageModel(tiny_config()), LanguageModel(tiny_config(tie_word_embeddings=False))
    assert tied.lm_head.weight is tied.model.embed_tokens.weight
    assert untied.num_parameters() - tied.num_parameters() == 192 * 32


def test_a_sequence_beyond_the_context_is_refused():
    with pytest.raises(ValueError, match="65 tokens, more than max_position_embeddings \\(64\\)"):
        LanguageModel(tiny_config())(torch.zeros(1, 65).long())


@pytest.mark.parametrize("every", [3, 10])
@pytest.mark.parametrize("autocast", [False, True], ids=["fp32", "bf16"])
def test_the_chunked_loss_equals_pytorchs_forward_and_backward(every, autocast, monkeypatch):
    monkeypatch.setitem(CHUNK, "cpu", 7)
    hidden, weight = torch.randn(40, 16), torch.randn(50, 16)
    labels = torch.randint(0, 50, (40,))
    labels[::every] = -100  # 3: so many that the others are picked first
    found, expected = [], []
    for into, loss in ((found, cross_entropy_sum), (expected, plain_cross_entropy)):
        leaves = [x.clone().requires_grad_() for x in (hidden, weight)]
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            value = loss(*leaves, labels)
        (value / 17).backward()
        into += [value.detach(), *[leaf.grad for leaf in leaves]]
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype == torch.float32
        assert (a - b).abs().max() <= (2e-2 if autocast else 1e-5) * b.abs().max()


@pytest.mark.parametrize("evaluates", [True, False], ids=["an evaluation", "a frozen head"])
def test_no_gradient_of_the_head_is_made_for_nobody(evaluates):
    hidden, weight = torch.randn(40, 16, requires_grad=True), torch.randn(50, 16, requires_grad=evaluates)
    with Made() as made:
        with torch.set_grad_enabled(not evaluates):
            loss = cross_entropy_sum(hidden, weight, torch.randint(0, 50, (40,)))
        if not evaluates:
            loss.backward()
            assert hidden.grad.abs().sum() > 0
    assert weight.shape not in made.shapes


class Made(TorchDispatchMode):
    """The shapes of all tensors that are made inside."""

    def __init__(self):
        super().__init__()
        self.shapes = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.shapes |= {tensor.shape for tensor in tree_leaves(out) if isinstance(tensor, torch.Tensor)}
        return out


def plain_cross_entropy(hidden, weight, labels):
    return F.cross_entropy((hidden @ weight.T).float(), labels, reduction="sum")


@pytest.mark.parametrize("autocast", [False, True], ids=["fp32", "bf16"])
def test_chunked_log_probabilities_equal_pytorchs_forward_and_backward(autocast, monkeypatch):
    """Every position is weighed differently, as preferences and rewards do; tolerance: rounding of sums, 8 bits."""
    monkeypatch.setitem(CHUNK, "cpu", 7)
    hidden, weight, weights = torch.randn(3, 13, 16), torch.randn(50, 16), torch.randn(3, 13)
    labels = torch.randint(0, 50, (3, 13))
    labels[:, ::3] = -100
    found, expected = [], []
    for into, of_labels in ((found, log_probs), (expected, plain_log_probs)):
        leaves = [x.clone().requires_grad_() for x in (hidden, weight)]
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            values = of_labels(*leaves, labels)
        (values * weights).sum().backward()
        into += [values.detach(), *[leaf.grad for leaf in leaves]]
    assert (found[0][:, 0] == 0).all()
    assert (found[0][labels == -100] == 0).all()
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype == torch.float32
        assert (a - b).abs().max() <= (2e-2 if autocast else 1e-5) * b.abs().max()


def plain_log_probs(hidden, weight, labels):
    likelihoods = (hidden[:, :-1] @ weight.T).float().log_softmax(-1)
    of_labels = likelihoods.gather(2, labels[:, 1:].clamp(min=0)[..., None])[..., 0]
    return F.pad(of_labels * (labels[:, 1:] != -100), (1, 0))


def test_hidden_states_are_what_the_head_is_given():
    lm, ids = LanguageModel(tiny_config()).eval(), torch.randint(0, 192, (2, 9))
    assert torch.equal(lm.lm_head(lm(ids, hidden_states=True)), lm(ids))


def initialised_by_name(config):
    """The start before modules initialised themselves: by parameter names, in one loop. It must stay, bit by bit."""
    lm = LanguageModel.__new__(LanguageModel)
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(LanguageModel, "reset_parameters", lambda self: None)
        lm = LanguageModel(config)
        hidden, tied = config.hidden_size, config.tie_word_embeddings
        for name, parameter in lm.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter.zero_()
            elif name.endswith("proj.weight"):
                parameter.normal_(0.0, 1 / math.sqrt(hidden))
            elif name.endswith("norm.weight"):
                parameter.fill_(1.5 if name.endswith(("q_norm.weight", "k_norm.weight")) else 1.0)
        std = min(0.02, 1 / hidden) if tied else 1.0
        lm.model.embed_tokens.weight.normal_(0.0, std)
        lm.model.embed_tokens.weight += torch.empty(hidden).normal_(0.0, std)
        if not tied:
            lm.lm_head.weight.normal_(0.0, 0.1 / math.sqrt(hidden))
    return lm


@pytest.mark.parametrize(
    "changes", [{}, {"tie_word_embeddings": False}, {"qk_norm": False}, {"head_dim": 16, "num_key_value_heads": "mqa"}]
)
def test_modules_that_initialise_themselves_draw_the_same_numbers_in_the_same_order(changes):
    config, starts = tiny_config(**changes), []
    for make in (initialised_by_name, LanguageModel):
        torch.manual_seed(5)
        starts.append([*make(config).parameters(), torch.get_rng_state()])
    assert all(torch.equal(a, b) for a, b in zip(*starts, strict=True))


def test_reset_parameters_starts_anew():
    lm = random_model(tiny_config(tie_word_embeddings=False))
    lm.reset_parameters()
    for layer in lm.model.layers:
        assert (layer.self_attn.o_proj.weight == 0).all()
        assert (layer.self_attn.q_norm.weight == 1.5).all()
    assert lm.lm_head.weight.std().item() == pytest.approx(0.1 / math.sqrt(32), rel=0.1)


class TwoExperts(nn.Module):
    """What a mixture of experts will be: a stack of matrices, a router, an auxiliary loss. Written here alone."""

    part = "feed_forward"
    optimizer_group = "expert"

    def __init__(self, size):
        super().__init__()
        self.experts = nn.Parameter(torch.randn(2, size, size) * 0.1)
        self.router = Router(size, 2, bias=True)

    def forward(self, x):
        share = self.router(x).softmax(-1)
        out = torch.einsum("bti,eij,bte->btj", x, self.experts, share)
        return out, {"balance": share.mean((0, 1)).square().sum(), "size": 0.5 * share.sum() / share.sum()}


class Router(nn.Linear):
    optimizer_group = "matrix"


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_layer_of_ones_own_says_its_groups_and_adds_its_losses(checkpointing):
    plain = random_model(tiny_config())
    ids = torch.randint(0, 192, (2, 12))
    assert plain.train()(ids, labels=ids)[0] == plain.eval()(ids, labels=ids)[0]
    lm = copy.deepcopy(plain)
    lm.set_activation_checkpointing(checkpointing)
    for layer in lm.model.layers:
        layer.mlp = TwoExperts(32)
    groups = lm.parameter_groups()
    mlp = lm.model.layers[0].mlp
    assert any(p is mlp.experts for p in groups["expert"])
    assert any(p is mlp.router.weight for p in groups["matrix"])
    assert any(p is mlp.router.bias for p in groups["vector"])
    expected = lm.eval()(ids, labels=ids)
    found, auxiliary = lm.train()(ids, labels=ids, with_auxiliary=True)
    assert found == expected  # what is minimised besides stands apart
    assert auxiliary["size"] == ids.numel()  # 0.5 in each of two layers, times the tokens
    (hidden, same), logits = lm(ids, hidden_states=True, with_auxiliary=True), lm(ids)
    assert same == auxiliary
    assert torch.equal(lm.lm_head(hidden), logits)
    auxiliary["balance"].backward()
    assert mlp.router.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("kv_heads", ["mha", "gqa", "mqa"])
def test_with_mimetic_weights_keys_are_queries_and_what_is_read_is_written(kv_heads):
    torch.manual_seed(0)
    lm = LanguageModel(tiny_config(num_attention_heads=4, num_key_value_heads=kv_heads, initialization="mimetic"))
    for layer in lm.model.layers:
        attention = layer.self_attn
        D, x = attention.head_dim, torch.randn(3, lm.config.hidden_size)
        groups = lm.config.num_key_value_groups
        queries, keys = attention.q_proj(x).unflatten(-1, (-1, D)), attention.k_proj(x).unflatten(-1, (-1, D))
        assert torch.equal(queries[:, ::groups], keys)
        read = attention.v_proj(x).unflatten(-1, (-1, D)).repeat_interleave(groups, dim=1).flatten(1)
        along = (attention.o_proj(read) * x).sum(-1)  # of what is written, the part that is the token itself
        torch.testing.assert_close(along, MIMETIC_STRENGTH * read.square().sum(-1))
    plain = LanguageModel(tiny_config(num_attention_heads=4, num_key_value_heads=kv_heads))
    assert not plain.model.layers[0].self_attn.o_proj.weight.any()
