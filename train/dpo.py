"""Direct preference optimisation: `python -m train.dpo configs/dpo_demo.yaml
init_from=runs/sft_demo [...]`

DPO (Rafailov et al. 2023, arXiv 2305.18290) learns from pairs: a chosen and a rejected answer to
the same prompt. It needs no reward model and samples nothing. An answer's reward is how much
likelier it is than under the reference, the frozen model that training starts from:

    reward(answer) = β (ln π(answer) - ln π_ref(answer))
    loss           = -ln σ(reward(chosen) - reward(rejected))

At the first step all rewards are 0, and the loss is ln 2. The gradient raises the chosen answer and
lowers the rejected one; a pair that is already far apart counts less. A trap: only the difference
matters, so often both answers become less likely. Watch reward_chosen.

How pairs become tokens: data/chat.py.
"""

from dataclasses import dataclass

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
    description = "Train a fine-tuned model on pairs of answers."
    example = "configs/dpo_demo.yaml init_from=runs/sft_demo"
    config = parse_command_line(description, example, "train.dpo")
    return run(config, "train.dpo", open_preference, PairSource)


@dataclass(frozen=True)
class Preference:
    """The loss of pairs."""

    settings: DPOConfig
    lm: LanguageModel
    reference: LanguageModel | None  # None: lm without its adapters

    def count(self, batch: Batch) -> int:
        return len(batch.row_ids)  # pairs

    def loss(self, forward: Forward, batch: Batch) -> Loss:
        settings = self.settings
        # (2B, T): all chosen answers, then all rejected ones; one forward pass serves both
        ids = torch.cat([batch["chosen_input_ids"], batch["rejected_input_ids"]])
        labels = torch.cat([batch["chosen_labels"], batch["rejected_labels"]])
        with as_reference(self.reference, self.lm) as reference:
            output = reference.outputs(ids, logits_to_keep=None)
            before = answer_log_probs(output, reference, labels)  # (2B,)
        output = forward(ids, logits_to_keep=None)
        now = answer_log_probs(output, self.lm, labels)  # (2B,)
        lengths = (labels[:, 1:] != IGNORED).sum(1)  # (2B,): tokens of each answer
        loss = preference_loss(now - before, lengths, settings)  # (B,)
        if settings.sft_weight:
            # RPO (Pang et al. 2024, arXiv 2404.19733): the chosen answer's own loss keeps it likely
            loss = loss - settings.sft_weight * (now / lengths).chunk(2)[0]
        chosen, rejected = (settings.beta * (now - before).detach()).chunk(2)
        # An accuracy of 0.5 is chance: the model does not yet prefer the chosen answers.
        figures = {
            "reward_chosen": chosen.sum(),
            "reward_rejected": rejected.sum(),
            "reward_margin": (chosen - rejected).sum(),
            "reward_accuracy": (chosen > rejected).float().sum(),
        }
        return Loss(loss.sum(), figures, output.auxiliary)


def preference_loss(ratios: Tensor, lengths: Tensor, settings: DPOConfig) -> Tensor:
    """Return the loss of each pair (B,).

    ratios (2B,): ln π(answer) - ln π_ref(answer), of chosen answers, then of rejected ones.
    lengths (2B,): their tokens.
    """
    beta = settings.beta
    flipped = settings.label_smoothing
    if settings.loss == "ipo":
        # IPO (Azar et al. 2023, arXiv 2310.12036) stops at a distance of 1 / 2β. DPO's pull never
        # ends, so it can overfit pairs on which everybody agrees.
        chosen, rejected = (ratios / lengths).chunk(2)
        return (chosen - rejected - 1 / (2 * beta)) ** 2
    chosen, rejected = ratios.chunk(2)
    margin = beta * (chosen - rejected)
    # Robust DPO (Chowdhury et al. 2024, arXiv 2403.00409): with a share `flipped` of wrong labels,
    # this has the mean that plain DPO has on right ones. With flipped = 0 it is plain DPO.
    return (-(1 - flipped) * logsigmoid(margin) + flipped * logsigmoid(-margin)) / (1 - 2 * flipped)


def answer_log_probs(output: Output, lm: LanguageModel, labels: Tensor) -> Tensor:
    """Return ln π of each answer (B,): the sum over its tokens. labels (B, T)."""
    # No attention mask: padding follows the answer, so the causal mask hides it.
    return log_probs(output.hidden, lm.lm_head.weight, labels).sum(1)


def open_preference(
    config: RunConfig, data: PreparedData, lm: LanguageModel, device: Device
) -> Preference:
    """Make the objective of a run (`MakeObjective`)."""
    # With adapters (`lora:`) the frozen matrices are the reference: no second copy is needed.
    reference = open_reference(config, data.tokenizer, device) if lm.adapters is None else None
    return Preference(config.dpo or DPOConfig(), lm, reference)


if __name__ == "__main__":
    exit_on_bad_input(main)
