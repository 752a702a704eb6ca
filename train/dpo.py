"""Direct preference optimisation: `python -m train.dpo configs/dpo_demo.yaml
init_from=runs/sft_demo [...]`

DPO (Rafailov et al. 2023, arXiv 2305.18290) learns from pairs: a chosen and a rejected answer to
the same prompt. It needs neither a reward model nor sampling. An answer's reward is how much
likelier it is than under the reference:

    reward(answer) = β (ln π(answer) - ln π_ref(answer))
    loss           = -ln σ(reward(chosen) - reward(rejected))

The reference is the model that training starts from, frozen. At the first step both are equal, all
rewards are 0, and the loss is ln 2. The gradient raises the chosen answer and lowers the rejected
one; a pair that is already far apart counts less. Only the difference is asked for: often both
answers become less likely. Watch reward_chosen.

Relatives: robust DPO (Chowdhury et al. 2024, arXiv 2403.00409) knows that a share of the labels is
wrong, and IPO (Azar et al. 2023, arXiv 2310.12036) stops at a wanted distance. RPO (Pang et al.
2024, arXiv 2404.19733) adds the chosen answer's own loss, so that it stays likely: `sft_weight`.
How pairs become tokens: data/chat.py.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from configs import IGNORED
from configs.command import exit_on_bad_input
from data.batches import Batch
from data.packing import PreparedData
from model import LanguageModel
from model.loss import log_probs
from model.transformer import Output
from train.config import RunConfig
from train.machine.device import Device
from train.methods.config import DPOConfig
from train.methods.reference import as_reference, open_reference
from train.methods.sources import PairSource
from train.objective import Forward, Loss
from train.pretrain import run
from train.run.command_line import parse_command_line


def main() -> int:
    example = "configs/dpo_demo.yaml init_from=runs/sft_demo"
    config = parse_command_line(
        "Train a fine-tuned model on pairs of answers.", example, "train.dpo"
    )
    return run(config, "train.dpo", open_preference, PairSource)


class Preference:
    """The loss of pairs.

    lm: the model that is trained. reference: None = lm without its adapters.
    """

    def __init__(self, settings: DPOConfig, lm: LanguageModel, reference: LanguageModel | None):
        self.settings = settings
        self.lm = lm
        self.reference = reference

    def count(self, batch: Batch) -> int:
        """Pairs."""
        return len(batch.row_ids)

    def loss(self, forward: Forward, batch: Batch) -> Loss:
        ids, labels = (
            torch.cat([batch[f"chosen_{name}"], batch[f"rejected_{name}"]])
            for name in ("input_ids", "labels")
        )  # (2B, T): all chosen answers, then all rejected ones
        with as_reference(self.reference, self.lm) as reference:
            before = answer_log_probs(
                reference.outputs(ids, logits_to_keep=None), reference, labels
            )
        output = forward(ids, logits_to_keep=None)
        now = answer_log_probs(output, self.lm, labels)
        lengths = (labels[:, 1:] != IGNORED).sum(1)  # tokens of each answer
        loss = preference_loss(now - before, lengths, self.settings)
        if self.settings.sft_weight:
            loss = loss - self.settings.sft_weight * (now / lengths).chunk(2)[0]
        chosen, rejected = (self.settings.beta * (now - before).detach()).chunk(2)
        figures = {
            "reward_chosen": chosen.sum(),
            "reward_rejected": rejected.sum(),
            "reward_margin": (chosen - rejected).sum(),
            "reward_accuracy": (chosen > rejected).float().sum(),
        }
        return Loss(loss.sum(), figures, output.auxiliary)


def preference_loss(ratios: Tensor, lengths: Tensor, settings: DPOConfig) -> Tensor:
    """The loss of each pair (B,). ratios: ln π(answer) - ln π_ref(answer) of the chosen answers,
    then of the rejected ones (2B,). lengths: their tokens (2B,).
    """
    beta = settings.beta
    flipped = settings.label_smoothing
    if settings.loss == "ipo":
        chosen, rejected = (ratios / lengths).chunk(2)
        return (chosen - rejected - 1 / (2 * beta)) ** 2
    chosen, rejected = ratios.chunk(2)
    margin = beta * (chosen - rejected)
    return (-(1 - flipped) * logsigmoid(margin) + flipped * logsigmoid(-margin)) / (1 - 2 * flipped)


def answer_log_probs(output: Output, lm: LanguageModel, labels: Tensor) -> Tensor:
    """Return ln π of each answer (B,), from the hidden states of lm and labels (B, T).

    Padding follows the answer, where the causal mask hides it.
    """
    return log_probs(output.hidden, lm.lm_head.weight, labels).sum(1)


def open_preference(
    config: RunConfig, data: PreparedData, lm: LanguageModel, device: Device
) -> Preference:
    """A `MakeObjective`.

    Where adapters are trained (`lora:`), the reference needs no memory of its own.
    """
    reference = open_reference(config, data.tokenizer, device) if lm.adapters is None else None
    return Preference(config.dpo or DPOConfig(), lm, reference)


if __name__ == "__main__":
    exit_on_bad_input(main)
