"""The loop's seams: an objective, a source of batches and a hook that are written here and nowhere else.

Each trains through the unchanged loop, and resumes exactly after a stop.
"""

import random
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from data.batches import Batch
from model import generate
from tests.train.exactly import check_that_a_stopped_run_goes_on_exactly
from tests.train.helpers import metrics, pretrain, write_config
from tests.train.worlds import pretrain_rank, run_world, trace
from train.objective import BatchSource
from train.pretrain import parse_command_line, run

TRACED = {"trace": True, "max_steps": 6, "checkpoint_every": 3, "log_every": 1}


class Contrast:
    """Of two texts, the chosen one should be likelier: the sum of -ln sigmoid(ln p(chosen) - ln p(rejected))."""

    def count(self, batch):
        return len(batch["chosen_input_ids"])

    def loss(self, forward, batch):
        chosen, rejected = batch["chosen_input_ids"], batch["rejected_input_ids"]
        logits = forward(torch.cat([chosen, rejected]))[:, :-1].float()
        targets = torch.cat([chosen, rejected])[:, 1:]
        likelihood = -F.cross_entropy(logits.transpose(1, 2), targets, reduction="none").sum(1)
        better, worse = likelihood.chunk(2)
        return -F.logsigmoid(better - worse).sum(), {"accuracy": (better > worse).float().sum()}


class Pairs(BatchSource):
    """Ascending digits are chosen, random ones rejected: batch k from (seed, k)."""

    def __init__(self, config, data, world, device):
        self.rows_per_batch, self.row_length = config.rows_per_step, config.data.sequence_length
        self.seed, self.world = config.seed, world

    def batch(self, k, lm):
        generator = torch.Generator().manual_seed(1000 * self.seed + k)
        first = torch.randint(0, 40, (self.rows_per_batch, 1), generator=generator)
        chosen = 60 + (first + torch.arange(12)) % 40
        rejected = 60 + torch.randint(0, 40, chosen.shape, generator=generator)
        mine = slice(self.world.rank, None, self.world.size)
        rows = list(range(k * self.rows_per_batch, (k + 1) * self.rows_per_batch))[mine]
        return Batch({"chosen_input_ids": chosen[mine], "rejected_input_ids": rejected[mine]}, rows)


class Rollouts(BatchSource):
    """Rows that the model writes itself: batch k from (seed, k, weights)."""

    def __init__(self, config, data, world, device):
        self.rows_per_batch, self.row_length = config.rows_per_step, config.data.sequence_length
        self.seed, self.bos = config.seed, data.tokenizer.bos_id

    def batch(self, k, lm):
        begin = torch.full((self.rows_per_batch, 1), self.bos)
        ids = generate(lm, begin, 15, seed=self.seed + k, stop_ids=())
        return Batch({"input_ids": ids, "labels": ids}, list(range(len(ids))))


def contrast() -> int:
    return run(parse_command_line("Pairs."), "tests", lambda *_: Contrast(), Pairs)


def rollouts() -> int:
    return run(parse_command_line("The model's own text."), "tests", source=Rollouts)


def test_an_objective_on_pairs_learns_through_the_unchanged_loop(tmp_path):
    config = write_config(tmp_path, train=TRACED | {"max_steps": 30, "micro_batch_size": 4}, eval={"hooks": []})
    done = pretrain(config, script=contrast)
    assert float(re.search(r"step 0: loss ([\d.]+)\n", done.stdout)[1]) > 0.5  # about ln 2: neither is likelier yet
    lines = [line for line in metrics(tmp_path / "runs/tiny") if line["split"] == "train"]
    assert lines[-1]["loss"] < 0.1
    assert lines[-1]["accuracy"] == 1.0


def test_pairs_on_two_processes_go_on_exactly(tmp_path):
    """Stopped in the fifth step and gone on with: the same losses and gradients to the last bit."""
    config = write_config(tmp_path, train=TRACED, eval={"hooks": []})
    assert run_world(2, pretrain_rank, config, ["name=whole"], None, contrast) == [0, 0]
    assert run_world(2, pretrain_rank, config, [], 4, contrast) == [143, 143]
    assert run_world(2, pretrain_rank, config, [], None, contrast) == [0, 0]
    assert trace(tmp_path / "runs/tiny") == trace(tmp_path / "runs/whole")
    pretrain(config, "name=alone", script=contrast)
    alone = [float.fromhex(line["loss"]) for line in trace(tmp_path / "runs/alone")]
    assert [float.fromhex(line["loss"]) for line in trace(tmp_path / "runs/whole")] == pytest.approx(alone, rel=1e-3)


def test_text_that_the_model_writes_itself_resumes_exactly(tmp_path):
    config = write_config(tmp_path, train=TRACED, eval={"hooks": []}, model={"hidden_dropout": 0.1})
    whole = check_that_a_stopped_run_goes_on_exactly(config, rollouts)
    assert len({line["batch"] for line in trace(whole)}) == 6  # the weights changed what was written


def drawing(event):
    """A hook that draws from every random state there is."""
    event.log("drawn", {"numbers": [random.random(), float(np.random.rand()), float(torch.rand(()))]})  # noqa: NPY002


def test_a_hook_that_draws_random_numbers_changes_nothing_in_training(tmp_path):
    changes = {"train": TRACED, "model": {"hidden_dropout": 0.2}}
    pretrain(write_config(tmp_path, name="without", eval={"hooks": []}, **changes))
    mine = {"name": f"{__name__}:drawing", "every": 1}
    pretrain(write_config(tmp_path, name="with", eval={"hooks": [mine]}, **changes), "--trust-hooks")
    assert len([line for line in metrics(tmp_path / "runs/with") if line["split"] == "drawn"]) == 7
    assert trace(tmp_path / "runs/with") == trace(tmp_path / "runs/without")
