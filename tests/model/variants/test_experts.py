"""Mixture of experts: the formula, nothing dropped, a balance that does not depend on how a step is split."""

import pytest
import torch
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

from model import ModelConfig
from model.accounting import flops_per_token, num_active_parameters
from model.transformer import on_meta
from model.variants.experts import load_balancing_loss
from model.variants.surgery import with_config
from tests.conftest import random_model, tiny_config
from tests.model import reference
from train.machine.budget import parameter_counts
from train.machine.compilation import compile_layers

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
SHAPES = [
    EXPERTS,
    EXPERTS | {"norm_topk_prob": False, "mlp_only_layers": [0]},
    EXPERTS | {"num_experts_per_tok": 1, "norm_topk_prob": False},
    EXPERTS | {"num_experts_per_tok": 4, "decoder_sparse_step": 2},
    EXPERTS | {"num_experts": 1, "num_experts_per_tok": 1},
]


@pytest.mark.parametrize("changes", SHAPES, ids=str)
def test_the_model_is_its_formula(changes):
    lm = random_model(tiny_config(**changes))
    ids = torch.randint(0, 192, (2, 9))
    expected = reference.logits(lm, ids)
    with torch.no_grad():
        torch.testing.assert_close(lm(ids).double(), expected, rtol=0, atol=2e-4 * float(expected.std()))


def test_the_gradients_are_those_of_the_formula():
    """Gradients of every matrix, of the router and of the input."""
    lm = random_model(tiny_config(**EXPERTS, num_hidden_layers=1))
    mixture = lm.model.layers[0].mlp
    x, wanted = torch.randn(2, 7, 32, requires_grad=True), torch.randn(2, 7, 32)
    inputs = [x, *mixture.parameters()]
    found = torch.autograd.grad((mixture(x) * wanted).sum(), inputs)
    w = {f"mlp.{name}": parameter for name, parameter in mixture.named_parameters()}
    expected = torch.autograd.grad((reference.experts(x, w, lm.config) * wanted).sum(), inputs)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5 * float(theirs.abs().max()))
        assert theirs.abs().sum() > 0


def test_under_autocast_the_router_stays_exact():
    """In 16 bits, two experts that are nearly equal would change places."""
    mixture = random_model(tiny_config(**EXPERTS, num_hidden_layers=1)).model.layers[0].mlp
    x = torch.randn(2, 30, 32)
    with torch.no_grad():
        plain, exact = mixture(x), mixture.gate(x.flatten(0, 1))
        with torch.autocast("cpu", torch.bfloat16):
            rounded, same = mixture(x), mixture.gate(x.flatten(0, 1))
    assert all(torch.equal(a, b) for a, b in zip(exact, same, strict=True))
    assert rounded.dtype == plain.dtype
    assert not torch.equal(rounded, plain)  # the experts did compute in 16 bits
    torch.testing.assert_close(rounded, plain, rtol=0.1, atol=0.1 * float(plain.std()))


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("padded", [False, True], ids=["alone", "padded"])
def test_of_one_row_and_one_layer_the_balancing_loss_and_its_gradient_are_those_of_transformers(k, padded):
    """Theirs is k where all are equal; of several layers it multiplies what it has added up before."""
    logits = torch.randn(30, 6, requires_grad=True)
    real = torch.arange(30)[None] % 7 < 4 if padded else None
    probabilities = logits.softmax(-1)
    (ours,) = load_balancing_loss(probabilities[None], probabilities.topk(k).indices[None], real)
    theirs = load_balancing_loss_func((logits,), 6, k, None if real is None else real.long()) / k
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(*(torch.autograd.grad(loss, logits)[0] for loss in (ours, theirs)))
    assert torch.equal(load_balancing_loss(torch.full((1, 6, 6), 1 / 6), torch.arange(6).view(1, 6, 1)), torch.ones(1))


def test_how_a_step_is_split_changes_nothing():
    """Rows with few trained tokens and rows with many, all at once and one by one."""
    lm = random_model(tiny_config(**EXPERTS, router_aux_loss_coef=3.0, pad_token_id=0)).train()
    ids = torch.randint(1, 192, (4, 12))
    labels = ids.clone()
    labels[0, :7], labels[2, :10] = -100, -100
    ids[1, 5:] = 0
    whole, balance = minimised(lm, ids, labels)
    parts = [minimised(lm, ids[i : i + 1], labels[i : i + 1])[0] for i in range(4)]
    torch.testing.assert_close(whole, sum(parts))
    assert balance.item() > 3.0 * (ids != 0).sum()  # each of two layers adds at least about its coefficient
    gradients = torch.autograd.grad(whole, lm.parameters())
    of_parts = torch.autograd.grad(sum(parts), lm.parameters())
    for one, other in zip(gradients, of_parts, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5 * float(other.abs().max()))


@pytest.mark.parametrize("masked", [True, False], ids=["mask", "ids"])
def test_padding_is_not_balanced(masked):
    """The loss, and the gradient of the router, are those of the row without its padding, however long that is."""
    lm = random_model(tiny_config(**EXPERTS, router_aux_loss_coef=9.0, pad_token_id=None if masked else 0)).train()
    ids, found = torch.randint(1, 192, (2, 12)), []
    for pads in (0, 12, 36):
        padded = torch.nn.functional.pad(ids, (0, pads))
        mask = {"attention_mask": (padded != 0).long()} if masked else {}
        _, balance = minimised(lm, padded, torch.nn.functional.pad(ids, (0, pads), value=-100), **mask)
        found.append([balance, *torch.autograd.grad(balance, [layer.mlp.gate.weight for layer in lm.model.layers])])
    for some in found[1:]:
        torch.testing.assert_close(some, found[0], rtol=1e-4, atol=1e-5)


def minimised(lm, ids, labels, **mask):
    """(what one step minimises, the balancing loss in it), both sums."""
    output = lm.outputs(ids, labels=labels, **mask)
    balance = output.auxiliary["load_balancing"]
    return output.loss_sum + balance, balance


def test_active_parameters_and_flops_are_those_of_the_chosen_experts():
    dense, sparse = (on_meta(tiny_config(intermediate_size=48, **changes)) for changes in ({}, EXPERTS))
    router = 2 * 4 * 32  # two layers
    assert num_active_parameters(dense) == dense.num_parameters()
    assert num_active_parameters(sparse) == num_active_parameters(dense) + router  # two of 24 are one layer of 48
    parts = [parameter_counts(lm)["feed_forward"] for lm in (dense, sparse)]
    assert parts[1] == 2 * parts[0] + router
    forward = [flops_per_token(lm, 9, training=False) for lm in (dense, sparse)]
    assert forward[1] == pytest.approx(forward[0] + 2 * router)


def test_the_width_of_an_expert_follows_from_that_of_the_dense_layer():
    assert ModelConfig(hidden_size=128, num_experts=8).moe_intermediate_size == 176
    assert ModelConfig(hidden_size=128).moe_intermediate_size is None
    assert tiny_config(num_experts=8, intermediate_size=50, num_experts_per_tok=3).moe_intermediate_size == 24


def test_groups_of_few_sizes_compute_the_same():
    """In bfloat16 on a CPU every expert's rows are filled up to a multiple: forward and gradients stay as they are."""
    lm = random_model(tiny_config(**EXPERTS, num_hidden_layers=1)).bfloat16()
    mixture, found = lm.model.layers[0].mlp, []
    x = torch.randn(2, 50, 32, dtype=torch.bfloat16, requires_grad=True)
    for multiple in (1, 32):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("model.variants.experts.HALF_ROWS", multiple)
            out = mixture(x)
            found.append([out, *torch.autograd.grad(out.float().square().sum(), [x, *mixture.parameters()])])
    for plain, filled in zip(*found, strict=True):
        torch.testing.assert_close(filled, plain, rtol=0.02, atol=0.01 * float(plain.detach().abs().max()))


@pytest.mark.slow
def test_the_rest_of_a_compiled_model_computes_the_same():
    lm, ids = random_model(tiny_config(**EXPERTS)).train(), torch.randint(0, 192, (2, 16))
    compiled = with_config(lm).train()
    compile_layers(compiled)
    found = []
    for forward in (lm, compiled):
        lm.zero_grad()
        loss, _ = minimised(forward, ids, ids)
        loss.backward()
        found.append([loss.detach(), *(parameter.grad.clone() for parameter in lm.parameters())])
    for plain, compiled in zip(*found, strict=True):
        torch.testing.assert_close(compiled, plain, rtol=1e-3, atol=1e-4 * float(plain.abs().max()))
