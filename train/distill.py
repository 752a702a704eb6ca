"""Distillation: `python -m train.distill configs/distill_demo.yaml distill.teacher=runs/demo [...]`

A text shows one next token. A teacher gives the probability of every token, which is far more to
learn from (Hinton et al. 2015, arXiv 1503.02531). The student matches them at each position:

    loss = (1 - hard_share) T² D(teacher, student) + hard_share (-ln student(token of the text))

T is the temperature, and D a KL divergence (`divergence`). A student that reads only the text of
others never learns to recover from its own mistakes. With on_policy the student writes the rows and
the teacher judges them (GKD, Agarwal et al. 2024, arXiv 2306.13649).
"""

import math
from dataclasses import dataclass

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
    description = "Train a small model to predict what a larger one predicts."
    example = "configs/distill_demo.yaml distill.teacher=runs/demo"
    config = parse_command_line(description, example, "train.distill")
    assert config.distill is not None  # check_script
    source = OwnText if config.distill.on_policy else TextBatches
    parts = config.rows_per_step // joined(config)
    config = with_tokenizer_of_teacher(config)
    return run(config, "train.distill", open_distillation, source, parts=parts)


@dataclass(frozen=True)
class Distillation:
    """The loss of a student: its distance from the teacher, on every trained token."""

    settings: DistillConfig
    student: LanguageModel
    teacher: LanguageModel

    def count(self, batch: Batch) -> int:
        return int((batch["labels"][:, 1:] != IGNORED).sum())

    def loss(self, forward: Forward, batch: Batch) -> Loss:
        is_own = "is_own" in batch.tensors
        # without labels, or the model would compute a loss of its own as well
        inputs = {k: x for k, x in batch.tensors.items() if k not in ("labels", "is_own")}
        labels = batch["labels"][:, 1:]  # (B, T - 1): position t predicts token t + 1
        trained = labels != IGNORED
        with torch.no_grad():
            theirs = self.teacher.outputs(**inputs, logits_to_keep=None)
        output = forward(**inputs, logits_to_keep=None)
        # Of B * T positions keep the N trained ones. The widths of the two models may differ.
        taught = theirs.hidden[:, :-1][trained]  # (N, C of the teacher)
        learned = output.hidden[:, :-1][trained]  # (N, C)
        targets = labels[trained]  # (N,)

        # Two sets of logits (N, V) would be by far the largest tensors of a step. So the head runs
        # on one chunk at a time, and `checkpoint` computes its logits again in the backward pass.
        size = CHUNK.get(learned.device.type, CHUNK_ELSEWHERE)
        chunks = zip(learned.split(size), taught.split(size), targets.split(size), strict=True)
        sums = torch.zeros(3, device=learned.device)
        for chunk in chunks:
            sums = sums + checkpoint(self._sums_of_chunk, *chunk, use_reentrant=False)
        soft, hard, agreed = sums

        # The student's own text has no right next token: only the teacher teaches there. Gradients
        # of D shrink with T², so T² keeps the two parts in proportion.
        share = 0.0 if is_own else self.settings.hard_share
        loss = (1 - share) * self.settings.temperature**2 * soft + share * hard
        figures = {
            "divergence": soft.detach(),
            "text_loss": hard.detach(),
            "agreement": agreed.detach(),
        }
        return Loss(loss, figures, output.auxiliary)

    def _sums_of_chunk(self, learned: Tensor, taught: Tensor, labels: Tensor) -> Tensor:
        """Return (3,): sums of the divergence, of -ln p, and of positions where both agree."""
        student = F.linear(learned, self.student.lm_head.weight).float()  # (N, V)
        with torch.no_grad():
            teacher = F.linear(taught, self.teacher.lm_head.weight).float()
        soft = divergence(student, teacher, self.settings.beta, self.settings.temperature).sum()
        hard = F.cross_entropy(student, labels, reduction="sum")
        agreed = (student.argmax(-1) == teacher.argmax(-1)).sum()  # both prefer one token
        return torch.stack([soft, hard, agreed.float()])


def divergence(student: Tensor, teacher: Tensor, beta: float, temperature: float = 1.0) -> Tensor:
    """Return the distance of a student from its teacher in nats (N,), from logits (N, V)."""
    ours = (student / temperature).log_softmax(-1)
    theirs = (teacher / temperature).log_softmax(-1)
    if beta == 0:  # forward KL: high where the student misses what the teacher finds likely
        return kl(theirs, ours)
    if beta == 1:  # reverse KL: high where the student writes what the teacher never would
        return kl(ours, theirs)
    # Between them (generalised Jensen-Shannon): both against their mixture
    # m = beta teacher + (1 - beta) student.
    mixture = torch.logaddexp(theirs + math.log(beta), ours + math.log1p(-beta))
    return beta * kl(theirs, mixture) + (1 - beta) * kl(ours, mixture)


def kl(p: Tensor, q: Tensor) -> Tensor:
    """Return KL(p, q) = sum of p (ln p - ln q): log-probabilities (N, V) -> (N,)."""
    return (p.exp() * (p - q)).sum(-1)


def open_distillation(
    config: RunConfig, data: PreparedData, lm: LanguageModel, device: Device
) -> Distillation:
    """Make the objective of a run. Raises InputError for a teacher of another tokenizer."""
    assert config.distill is not None  # check_script
    teacher = open_reference(config, data.tokenizer, device, "distill.teacher")
    ours = (lm.config.head_size, lm.config.attention)
    if (teacher.config.head_size, teacher.config.attention) != ours:
        # The backend was chosen for the student's shape; sdpa takes every shape.
        teacher.set_attn_implementation("sdpa")
    return Distillation(config.distill, lm, teacher)


def with_tokenizer_of_teacher(config: RunConfig) -> RunConfig:
    """Return the config with the teacher's tokenizer, unless it has another one already."""
    assert config.distill is not None  # check_script
    teacher = config.distill.teacher
    checkpoint_directory(teacher)  # raises, or a later error would name data.tokenizer.path
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
