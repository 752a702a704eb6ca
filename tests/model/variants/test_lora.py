"""LoRA: the base at first, less than all of it trained, switched off, merged, and what cannot have
adapters.
"""

import pytest
import torch

from model import LanguageModel
from model.accounting import flops_per_token
from model.variants.config import LoraConfig
from model.variants.lora import adapted, add_adapters, merge, remove_adapters, without_adapters
from tests.conftest import GPT2, LATENT, random_model, tiny_config
from train.optimizer import parameter_groups

IDS = torch.arange(24).view(2, 12)
DENSE = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def with_adapters(lm: LanguageModel, **config) -> LanguageModel:
    """The model with adapters that do something: B is random instead of zero."""
    add_adapters(lm, LoraConfig(**{"rank": 4, **config}))
    for layer in adapted(lm).values():
        torch.nn.init.normal_(layer.lora_B.weight, std=0.5)
    return lm


def test_at_first_the_model_is_its_base_and_only_a_and_b_are_trained():
    lm = random_model(tiny_config())
    expected = lm(IDS)
    flops = flops_per_token(lm, 12)
    add_adapters(lm, LoraConfig(rank=4))
    assert flops_per_token(lm, 12) == 2 / 3 * flops  # W has no gradient of its own
    assert torch.equal(lm(IDS), expected)
    assert {name.rpartition(".")[2] for name in adapted(lm)} == set(DENSE)
    loss, _ = lm.train()(IDS, labels=IDS)
    loss.backward()
    trained = {name for name, p in lm.named_parameters() if p.grad is not None}
    assert trained == {f"{name}.lora_{x}.weight" for name in adapted(lm) for x in "AB"}
    groups = parameter_groups(lm)
    assert len(groups["adapter"]) == len(trained)
    assert not any(groups[name] for name in groups if name != "adapter")


def test_switched_off_it_is_the_base_also_after_an_error():
    lm = random_model(tiny_config())
    base = lm(IDS)
    before = {name: tensor.clone() for name, tensor in lm.state_dict().items()}
    changed = with_adapters(lm)(IDS)
    # under the same names
    assert all(torch.equal(lm.state_dict()[name], tensor) for name, tensor in before.items())
    assert not torch.allclose(changed, base, atol=0.1)
    with without_adapters(lm):
        assert torch.equal(lm(IDS), base)
        with without_adapters(lm):
            pass
        assert torch.equal(lm(IDS), base)  # the inner one leaves it as it was
    with pytest.raises(RuntimeError), without_adapters(lm):
        raise RuntimeError
    assert torch.equal(lm(IDS), changed)
    remove_adapters(lm)
    assert torch.equal(lm(IDS), base)
    with pytest.raises(ValueError, match="no adapters"), without_adapters(lm):
        pass


@pytest.mark.parametrize("changes", [{}, LATENT, {"num_experts": 4}, {"qkv_bias": True}, GPT2], ids=str)
def test_merged_it_computes_the_same(changes):
    """Within rounding: W x + s B A x against (W + s B A) x.

    A sum of 32 numbers is exact to about 1e-6 of its size.
    """
    lm = random_model(tiny_config(**changes))
    layers = {name.rpartition(".")[2] for name in adapted(with_adapters(lm))}
    assert "kv_b_proj" not in layers
    # peft takes it for an expert's
    assert ("gate_proj" in layers) == (changes.keys() <= {"qkv_bias"})
    unmerged = lm(IDS)
    merge(lm)
    assert not adapted(lm)
    assert lm.adapters is None
    assert all(p.requires_grad for p in lm.parameters())
    torch.testing.assert_close(lm(IDS), unmerged, rtol=0, atol=1e-5 * float(unmerged.detach().abs().max()))


def test_dropout_drops_in_training_only():
    lm = with_adapters(random_model(tiny_config()), dropout=0.5)
    assert torch.equal(lm(IDS), lm(IDS))
    lm.train()
    assert not torch.allclose(lm(IDS), lm(IDS))


def test_targets_are_last_parts_of_names_and_others_are_refused():
    lm = random_model(tiny_config())
    for name in ("query", "lm_head"):
        with pytest.raises(
            ValueError, match=f"no layer .* is named '{name}': use some of down_proj, gate_proj, k_proj"
        ):
            add_adapters(lm, LoraConfig(target_modules=[name]))
    assert not adapted(lm)
    assert all(p.requires_grad for p in lm.parameters())
    add_adapters(lm, LoraConfig(rank=2, target_modules=["self_attn.q_proj", "down_proj"]))
    assert {name.rpartition(".")[2] for name in adapted(lm)} == {"q_proj", "down_proj"}
    assert len(adapted(lm)) == 4
    with pytest.raises(ValueError, match="has adapters already"):
        add_adapters(lm, LoraConfig())
