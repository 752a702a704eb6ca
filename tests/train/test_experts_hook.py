"""A mixture of experts in real runs is looked at and balanced.

On several processes: test_equivalence.py.
"""

import json

import numpy as np
import pytest

from eval import experts as log
from tests.train.helpers import METHODS, method_config, metrics, pretrain, trace, write_config

MODEL = {"num_experts": 4, "moe_intermediate_size": 16, "router_aux_loss_coef": 0.1}
MODEL |= {"hidden_size": 32, "num_hidden_layers": 3, "mlp_only_layers": [1]}
LOOKS = [0, 1, 4, 8, 12]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run whose experts are looked at, and `unseen` beside it."""
    folder = tmp_path_factory.mktemp("experts")
    hooks = ["validation", {"name": "experts", "early": [1]}]
    config = write_config(folder, model=MODEL, train={"trace": True}, eval={"hooks": hooks})
    assert "hook is off" not in pretrain(config).stdout
    pretrain(config, "name=unseen", "eval.hooks=[]")
    return folder / "runs/tiny"


def test_every_look_has_a_line_and_changes_nothing(whole):
    looks = log.read(whole, pytest.fail)
    assert [look.step for look in looks] == [line["step"] for line in metrics(whole, "experts")] == LOOKS
    assert looks[-1].layers == [0, 2]
    for look in looks:
        assert np.sum(look.share, axis=1) == pytest.approx(1, abs=1e-4)
    assert set(looks[-1].loss) == {"learned", "random"}
    assert "## Experts" in (whole / "report.md").read_text()
    assert json.loads((whole / "result.json").read_text())["experts"]["weakest"] >= 0
    assert trace(whole) == trace(whole.with_name("unseen"))


@pytest.mark.parametrize("method", METHODS)
def test_every_objective_balances_the_experts_and_its_loss_is_shown_without_that(whole, tmp_path, method):
    """Two first steps that are alike but for how strongly experts are balanced: the loss is equal,
    the gradient not.
    """
    config = method_config(tmp_path, method, whole, model=MODEL)
    found = []
    for strength in (5.0, 0.0):
        name = f"balance_{strength:.0f}"
        own = [f"name={name}", f"model.router_aux_loss_coef={strength}", "--trust-hooks"]
        pretrain(config, "train.processes=1", *own, script=METHODS[method][0])
        found.append(metrics(tmp_path / "runs" / name, "train")[0])
    balanced, not_balanced = found
    assert balanced["loss"] == not_balanced["loss"]
    assert balanced["grad_norm"] != pytest.approx(not_balanced["grad_norm"], rel=1e-3)
    # two layers, 5 each where all experts are used alike
    assert balanced["load_balancing"] > 0.9 * 2 * 5.0
    assert "load_balancing" not in not_balanced
