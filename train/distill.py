"""Distillation: `python -m train.distill configs/distill_demo.yaml distill.teacher=runs/demo [...]`

A text says which token came next. A teacher says how likely every token was, which is far more
(Hinton et al. 2015, arXiv 1503.02531). The student learns to say the same at each position, from
the teacher's logits:

    loss = (1 - hard_share) T² D(teacher, student) + hard_share (-ln student(token of the text))

T is the temperature of both inside D. Gradients of D shrink with T², so T² keeps the two parts in
proportion. D is the forward KL divergence, the reverse one, or what lies between (`divergence`). A
student that only ever reads the text of others never learns to recover from its own mistakes. With
on_policy it writes the rows itself, and the teacher says what it would have written there (GKD,
Agarwal et al. 2024, arXiv 2306.13649).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from configs import IGNORED
from configs.command import exit_on_bad_input
from configs.files import checkpoint_directory
from data.batches import Batch
from data.packing import PreparedData
from model import LanguageModel
from model.loss import CHUNK, CHUNK_ELSEWHERE
from train.config import RunConfig
from train.machine.cpu_processes import joined
from train.machine.device import Device
from train.methods.config import DistillConfig
from train.methods.reference import open_reference
from train.methods.sources import OwnText, TextBatches
from train.objective import Forward, Loss
from train.pretrain import run
from train.run.command_line import parse_command_line


def main() -> int:
    example = "configs/distill_demo.yaml distill.teacher=runs/demo"
    config = parse_command_line(
        "Train a small model to say what a larger one says.", example, "train.distill"
    )
    assert config.distill is not None  # check_script
    source = OwnText if config.distill.on_policy else TextBatches
    parts = config.rows_per_step // joined(config)
    return run(
        with_tokenizer_of_teacher(config), "train.distill", open_distillation, source, parts=parts
    )


class Distillation:
    """The student's distance from its teacher, on every trained token of a batch."""

    def __init__(self, settings: DistillConfig, student: LanguageModel, teacher: LanguageModel):
        self.settings = settings
        self.student = student
        self.teacher = teacher

    def count(self, batch: Batch) -> int:
        """Trained tokens: the labels that a token before them must predict."""
        return int((batch["labels"][:, 1:] != IGNORED).sum())

    def loss(self, forward: Forward, batch: Batch) -> Loss:
        inputs = {
            name: tensor
            for name, tensor in batch.tensors.items()
            if name not in ("labels", "is_own")
        }
        labels = batch["labels"][:, 1:]  # position t is asked for token t + 1
        trained = labels != IGNORED
        with torch.no_grad():
            theirs = self.teacher.outputs(**inputs, logits_to_keep=None)
        output = forward(**inputs, logits_to_keep=None)
        taught = theirs.hidden[:, :-1][trained]  # (N, the teacher's hidden_size)
        learned = output.hidden[:, :-1][trained]  # (N, hidden_size)
        size = CHUNK.get(learned.device.type, CHUNK_ELSEWHERE)
        # the logits of a chunk are computed again in the backward pass, so that those of all
        # positions never exist
        sums = torch.zeros(3, device=learned.device)
        for chunk in zip(
            learned.split(size), taught.split(size), labels[trained].split(size), strict=True
        ):
            sums = sums + checkpoint(self._of_chunk, *chunk, use_reentrant=False)
        soft, hard, agreed = sums
        share = (
            0.0 if "is_own" in batch.tensors else self.settings.hard_share
        )  # its own text has nothing to teach
        loss = (1 - share) * self.settings.temperature**2 * soft + share * hard
        figures = {
            "divergence": soft.detach(),
            "text_loss": hard.detach(),
            "agreement": agreed.detach(),
        }
        return Loss(loss, figures, output.auxiliary)

    def _of_chunk(self, learned: Tensor, taught: Tensor, labels: Tensor) -> Tensor:
        """Sums over positions (3,): the divergence, -ln p of the text's tokens, and how often both
        prefer one token.
        """
        student = F.linear(learned, self.student.lm_head.weight).float()  # (N, V)
        with torch.no_grad():
            teacher = F.linear(taught, self.teacher.lm_head.weight).float()
        soft = divergence(student, teacher, self.settings.beta, self.settings.temperature).sum()
        agreed = (student.argmax(-1) == teacher.argmax(-1)).sum()
        return torch.stack(
            [soft, F.cross_entropy(student, labels, reduction="sum"), agreed.float()]
        )


def divergence(student: Tensor, teacher: Tensor, beta: float, temperature: float = 1.0) -> Tensor:
    """Return the distance of a student from its teacher in nats (N,), from logits (N, V) of both.

    beta 0: KL(teacher, student), the forward one. beta 1: KL(student, teacher), the reverse one.
    Between: both against their mixture m = beta teacher + (1 - beta) student, beta KL(teacher, m) +
    (1 - beta) KL(student, m).
    """
    ours, theirs = ((logits / temperature).log_softmax(-1) for logits in (student, teacher))
    if beta == 0:
        return kl(theirs, ours)
    if beta == 1:
        return kl(ours, theirs)
    mixture = torch.logaddexp(theirs + math.log(beta), ours + math.log1p(-beta))
    return beta * kl(theirs, mixture) + (1 - beta) * kl(ours, mixture)


def kl(p: Tensor, q: Tensor) -> Tensor:
    """KL(p, q) = sum of p (ln p - ln q), from log-probabilities (N, V) -> (N,)."""
    return (p.exp() * (p - q)).sum(-1)


def open_distillation(
    config: RunConfig, data: PreparedData, lm: LanguageModel, device: Device
) -> Distillation:
    """A `MakeObjective`. Raises InputError for a teacher of another tokenizer."""
    assert config.distill is not None  # check_script
    teacher = open_reference(config, data.tokenizer, device, "distill.teacher")
    if (
        teacher.config.head_size != lm.config.head_size
        or teacher.config.attention != lm.config.attention
    ):
        teacher.set_attn_implementation(
            "sdpa"
        )  # which reads every shape; the student's was chosen for its own
    return Distillation(config.distill, lm, teacher)


def with_tokenizer_of_teacher(config: RunConfig) -> RunConfig:
    """The config with the teacher's tokenizer, unless it has that of `init_from` or names one."""
    assert config.distill is not None  # check_script
    teacher = config.distill.teacher
    checkpoint_directory(teacher)  # or an error would name data.tokenizer.path
    if config.init_from is not None or config.data.tokenizer.kind == "pretrained":
        return config
    tokenizer = config.data.tokenizer.model_copy(
        update={"kind": "pretrained", "path": teacher, "vocab_size": None}
    )
    return config.model_copy(
        update={"data": config.data.model_copy(update={"tokenizer": tokenizer})}
    )


if __name__ == "__main__":
    exit_on_bad_input(main)
