"""Every key of `dpo:` changes how a pair of answers is trained on."""

import pytest
import torch

from data.batches import Batch
from model import LanguageModel
from tests.configs.every_key import shows
from tests.conftest import tiny_config
from train.config import RunConfig
from train.dpo import Preference, answer_log_probs, preference_loss
from train.methods.dpo_keys import DPOConfig

RATIOS = [1.0, 0.5, 2.0, 0.25]  # of two chosen answers, then of two rejected ones


def slope(settings: DPOConfig) -> list[float]:
    """The gradient of the loss for each answer; what an answer is long, counts for ipo alone."""
    ratios = torch.tensor(RATIOS, requires_grad=True)
    preference_loss(ratios, torch.tensor([2, 3, 5, 1]), settings).sum().backward()
    return ratios.grad.tolist()


@shows("dpo.sft_weight")
def test_the_chosen_answers_own_loss_pulls_it_up():
    torch.manual_seed(0)
    lm, reference = (LanguageModel(tiny_config(vocab_size=64)).eval() for _ in range(2))
    labels = torch.tensor([[-100, 5, 6, -100]])
    batch = Batch(
        {
            "chosen_input_ids": torch.tensor([[1, 5, 6, 0]]),
            "chosen_labels": labels,
            "rejected_input_ids": torch.tensor([[1, 7, 8, 0]]),
            "rejected_labels": torch.where(labels < 0, labels, labels + 2),
        },
        [0],
    )
    losses = [Preference(DPOConfig(sft_weight=w), lm, reference).loss(lm, batch)[0].item() for w in (0.0, 1.0, 3.0)]
    own = -answer_log_probs(lm, lm, batch["chosen_input_ids"], labels)[0].item() / 2  # a mean over two tokens
    assert losses[1] - losses[0] == pytest.approx(own, rel=1e-5)
    assert losses[2] - losses[0] == pytest.approx(3 * own, rel=1e-5)


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
