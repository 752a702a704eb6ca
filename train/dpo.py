"""Direct preference optimisation: `python -m train.dpo configs/dpo_demo.yaml init_from=runs/sft_demo [...]`

DPO (Rafailov et al. 2023, arXiv 2305.18290) learns from pairs: a chosen and a rejected answer to the same prompt. It
needs neither a reward model nor sampling. An answer's reward is how much likelier it is than under the reference:

    reward(answer) = β (ln π(answer) - ln π_ref(answer))
    loss           = -ln σ(reward(chosen) - reward(rejected))

The reference is the model that training starts from, frozen. At the first step both are equal, all rewards are 0, and
the loss is ln 2. The gradient raises the chosen answer and lowers the rejected one; a pair that is already far apart
counts less. Only the difference is asked for: often both answers become less likely. Watch reward_chosen.

Relatives: robust DPO (Chowdhury et al. 2024, arXiv 2403.00409) knows that a share of the labels is wrong, and IPO
(Azar et al. 2023, arXiv 2310.12036) stops at a wanted distance. RPO (Pang et al. 2024, arXiv 2404.19733) adds the
chosen answer's own loss, so that it stays likely: `sft_weight`. Pairs are in data/preferences.py and
train/methods/pairs.py.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from configs.command import exit_on_bad_input
from train.config import RunConfig
from train.methods.dpo_keys import DPOConfig
from train.pretrain import parse_command_line
from train.sft import as_fine_tuning

if TYPE_CHECKING:
    from torch import Tensor

    from data.batches import Batch
    from data.prepare import PreparedData
    from model import LanguageModel
    from train.machine.device import Device
    from train.objective import Figures, Forward


def main() -> int:
    example = "configs/dpo_demo.yaml init_from=runs/sft_demo"
    config = parse_command_line("Train a fine-tuned model on pairs of answers.", example, "train.dpo")
    from train.methods.pairs import PairSource
    from train.pretrain import run

    return run(config, "train.dpo", open_preference, PairSource, partial(as_fine_tuning, records="pairs"))


class Preference:
    """The loss of pairs. lm: the model that is trained. reference: None = lm without its adapters."""

    def __init__(self, settings: DPOConfig, lm: LanguageModel, reference: LanguageModel | None):
        self.settings, self.lm, self.reference = settings, lm, reference

    def count(self, batch: Batch) -> int:
        """Pairs."""
        return len(batch.row_ids)

    def loss(self, forward: Forward, batch: Batch) -> tuple[Tensor, Figures]:
        import torch

        from train.methods.reference import asked

        ids, labels = (
            torch.cat([batch[f"chosen_{name}"], batch[f"rejected_{name}"]]) for name in ("input_ids", "labels")
        )  # (2B, T): all chosen answers, then all rejected ones
        with asked(self.reference, self.lm) as reference:
            before, _ = answer_log_probs(reference, reference, ids, labels)
        now, lengths = answer_log_probs(forward, self.lm, ids, labels)
        loss = preference_loss(now - before, lengths, self.settings)
        if self.settings.sft_weight:
            loss = loss - self.settings.sft_weight * (now / lengths).chunk(2)[0]
        chosen, rejected = (self.settings.beta * (now - before).detach()).chunk(2)
        return loss.sum(), {
            "reward_chosen": chosen.sum(),
            "reward_rejected": rejected.sum(),
            "reward_margin": (chosen - rejected).sum(),
            "reward_accuracy": (chosen > rejected).float().sum(),
        }


def preference_loss(ratios: Tensor, lengths: Tensor, settings: DPOConfig) -> Tensor:
    """The loss of each pair (B,). ratios: ln π(answer) - ln π_ref(answer) of the chosen answers, then of the rejected
    ones (2B,). lengths: their tokens (2B,)."""
    from torch.nn.functional import logsigmoid

    beta, flipped = settings.beta, settings.label_smoothing
    if settings.loss == "ipo":
        chosen, rejected = (ratios / lengths).chunk(2)
        return (chosen - rejected - 1 / (2 * beta)) ** 2
    chosen, rejected = ratios.chunk(2)
    margin = beta * (chosen - rejected)
    return (-(1 - flipped) * logsigmoid(margin) + flipped * logsigmoid(-margin)) / (1 - 2 * flipped)


def answer_log_probs(forward: Forward, lm: LanguageModel, ids: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """ln π of each answer, and its number of tokens: ids and labels (B, T) -> (B,) twice.

    Padding stands behind the answer, where the causal mask hides it.
    """
    from data.batches import IGNORED
    from model.loss import log_probs

    hidden = forward(ids, hidden_states=True)
    return log_probs(hidden, lm.lm_head.weight, labels).sum(1), (labels[:, 1:] != IGNORED).sum(1)


def open_preference(config: RunConfig, data: PreparedData, lm: LanguageModel, device: Device) -> Preference:
    """A `MakeObjective`. Where adapters are trained (model/lora.py), the reference needs no memory of its own."""
    from train.methods.reference import open_reference

    assert config.init_from is not None  # as_fine_tuning
    settings = config.dpo or DPOConfig()
    if lm.adapters is not None:
        return Preference(settings, lm, reference=None)
    return Preference(settings, lm, open_reference(config, data.tokenizer, device, config.init_from))


if __name__ == "__main__":
    exit_on_bad_input(main)
