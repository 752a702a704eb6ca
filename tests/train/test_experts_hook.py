"""A mixture of experts in real runs: it resumes exactly, on any number of processes, and its experts are looked at."""

import json

import numpy as np
import pytest

from eval import experts as log
from tests.train.helpers import METHODS, method_config, metrics, pretrain, pretrain_rank, run_world, trace, write_config

MODEL = {"num_experts": 4, "moe_intermediate_size": 16, "router_aux_loss_coef": 0.1}
TRAINED = {"trace": True, "max_steps": 12, "checkpoint_every": 4}
HOOKS = ["validation", {"name": "experts", "early": [1]}]


def with_experts(folder, **sections):
    shape = {"hidden_size": 32, "num_hidden_layers": 3, "mlp_only_layers": [1]} | MODEL
    return write_config(folder, model=shape, train=TRAINED, **{"eval": {"hooks": HOOKS}, **sections})


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("experts")
    done = pretrain(with_experts(folder))
    return folder / "runs/tiny", done.stdout


def test_every_look_has_a_line(whole):
    run, stdout = whole
    assert "hook is off" not in stdout
    looks = log.read(run, pytest.fail)
    assert [look.step for look in looks] == [0, 1, 4, 8, 12]
    assert looks[-1].layers == [0, 2]
    for look in looks:
        assert np.sum(look.share, axis=1) == pytest.approx(1, abs=1e-4)
    assert set(looks[-1].loss) == {"learned", "random"}
    assert [line["step"] for line in metrics(run, "experts")] == [0, 1, 4, 8, 12]
    assert "## Experts" in (run / "report.md").read_text()
    assert json.loads((run / "result.json").read_text())["experts"]["weakest"] >= 0


def test_looking_changes_nothing(whole, tmp_path):
    pretrain(with_experts(tmp_path, eval={"hooks": []}))
    assert trace(whole[0]) == trace(tmp_path / "runs/tiny")


def test_two_processes_and_other_micro_batches_compute_the_same(whole, tmp_path):
    """Beyond rounding: the balancing loss is one of rows, and no row is split."""
    expected = [float.fromhex(line["loss"]) for line in trace(whole[0])]
    config = with_experts(tmp_path)
    pretrain(config, "name=small", "train.micro_batch_size=2")
    assert run_world(2, pretrain_rank, config, ["name=two"]) == [0, 0]
    for name in ("small", "two"):
        found = [float.fromhex(line["loss"]) for line in trace(tmp_path / "runs" / name)]
        assert found == pytest.approx(expected, rel=1e-3), name
    looks = [log.read(tmp_path / "runs" / name, pytest.fail) for name in ("small", "two")]
    assert [[look.step for look in found] for found in looks] == [[0, 1, 4, 8, 12]] * 2


@pytest.mark.parametrize("method", METHODS)
def test_every_objective_balances_the_experts_and_its_loss_is_shown_without_that(whole, tmp_path, method):
    """Two first steps that are alike but for how strongly experts are balanced: the loss is equal, the gradient not."""
    shape = {"hidden_size": 32, "num_hidden_layers": 3, "mlp_only_layers": [1]} | MODEL
    config = method_config(tmp_path, method, whole[0], model=shape)
    found = []
    for strength in (5.0, 0.0):
        name = f"balance_{strength:.0f}"
        pretrain(
            config,
            f"name={name}",
            f"model.router_aux_loss_coef={strength}",
            "train.processes=1",
            "--trust-hooks",
            script=METHODS[method][0],
        )
        found.append(metrics(tmp_path / "runs" / name, "train")[0])
    balanced, not_balanced = found
    assert balanced["loss"] == not_balanced["loss"]
    assert balanced["grad_norm"] != pytest.approx(not_balanced["grad_norm"], rel=1e-3)
    assert balanced["load_balancing"] > 0.9 * 2 * 5.0  # two layers, 5 each where all experts are used alike
    assert "load_balancing" not in not_balanced
