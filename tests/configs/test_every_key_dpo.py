"""Every key of `dpo:` changes how a pair of answers is trained on."""

import pytest
import torch

from tests.configs.every_key import shows
from train.config import RunConfig
from train.dpo import preference_loss
from train.methods.dpo_keys import DPOConfig

RATIOS = [1.0, 0.5, 2.0, 0.25]  # of two chosen answers, then of two rejected ones


def slope(settings: DPOConfig) -> list[float]:
    """The gradient of the loss for each answer; what an answer is long, counts for ipo alone."""
    ratios = torch.tensor(RATIOS, requires_grad=True)
    preference_loss(ratios, torch.tensor([2, 3, 5, 1]), settings).sum().backward()
    return ratios.grad.tolist()


@shows("dpo", "dpo.beta", "dpo.loss", "dpo.label_smoothing")
def test_the_keys_of_dpo_change_what_an_answer_is_pulled_by():
    assert RunConfig().dpo is None  # train.dpo then takes the defaults
    default = slope(DPOConfig())
    # -β σ(-margin), by hand for the first pair: margin 0.1 (1 - 2)
    assert default[0] == pytest.approx(-0.1 / (1 + torch.tensor(-0.1).exp().item()))
    assert default[0] == -default[2]
    assert slope(DPOConfig(beta=0.5))[0] < 3 * default[0]
    assert slope(DPOConfig(label_smoothing=0.2)) != pytest.approx(default)
    by_length = slope(DPOConfig(loss="ipo"))
    assert by_length[0] * 2 == pytest.approx(-by_length[2] * 5)
