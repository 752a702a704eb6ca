"""A mixture of experts in real runs: it resumes exactly, on any number of processes, and its experts are looked at."""

import json
import signal

import numpy as np
import pytest

import train.distill
import train.dpo
import train.grpo
import train.pretrain
import train.sft
from eval.experts import log
from tests.train.grpo_helpers import vowels
from tests.train.helpers import kill_at, metrics, pretrain, write_config
from tests.train.worlds import pretrain_rank, run_world, trace

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
        assert np.array(look.share).shape == (2, 4)
        assert np.sum(look.share, axis=1) == pytest.approx(1, abs=1e-4)
        chosen = [w for row in look.weight for w in row if w is not None]
        assert all(0 < weight < 1 for weight in chosen)
    assert set(looks[-1].loss) == {"learned", "random", "all alike"}
    assert not looks[0].loss
    assert [line["step"] for line in metrics(run) if line["split"] == "experts"] == [0, 1, 4, 8, 12]
    assert "experts: the weakest is L" in stdout
    assert "## Experts" in (run / "report.md").read_text()
    assert json.loads((run / "result.json").read_text())["experts"]["weakest"] >= 0


def test_looking_changes_nothing(whole, tmp_path):
    pretrain(with_experts(tmp_path, eval={"hooks": []}))
    assert trace(whole[0]) == trace(tmp_path / "runs/tiny")


@pytest.mark.parametrize("how", ["KILL", "TERM"])
def test_a_stopped_run_goes_on_exactly(whole, tmp_path, how):
    """Weights, losses, and what the hook wrote, without a look that comes twice."""
    config = with_experts(tmp_path)
    assert kill_at(config, 6, how) in (-signal.SIGKILL, 143)
    pretrain(config)
    assert trace(tmp_path / "runs/tiny") == trace(whole[0])
    assert (tmp_path / "runs/tiny/experts.jsonl").read_bytes() == (whole[0] / "experts.jsonl").read_bytes()


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


PAIRS = [{"prompt": f"{i}. Which sound?", "chosen": "Meow" + "!" * (i % 3), "rejected": "Woof"} for i in range(200)]
ROLES = (("user", "prompt"), ("assistant", "chosen"))
CHATS = [{"messages": [{"role": role, "content": pair[key]} for role, key in ROLES]} for pair in PAIRS]
METHODS = {  # the script, the sections of its config, and what it reads, if that is not the text of the base
    "pretrain": (train.pretrain.main, {}, "text", None),
    "sft": (train.sft.main, {}, "conversations", CHATS),
    "dpo": (train.dpo.main, {}, "pairs", PAIRS),
    "grpo": (train.grpo.main, {"grpo": {"reward": f"{vowels.__module__}:vowels"}}, "conversations", CHATS),
    "distill": (train.distill.main, {"distill": {}}, "text", None),
}


@pytest.mark.parametrize("method", METHODS)
def test_every_objective_balances_the_experts_and_its_loss_is_shown_without_that(whole, tmp_path, method):
    """Two first steps that are alike but for how strongly experts are balanced: the loss is equal, the gradient not."""
    (script, sections, kind, records), (base, _) = METHODS[method], whole
    data = {"sequence_length": 96, "records": kind}
    if records is not None:
        (tmp_path / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        data["source"] = {"kind": "files", "path": str(tmp_path / "records.jsonl")}
    teacher = ["distill.teacher=" + str(base)] if method == "distill" else []
    config = with_experts(tmp_path, data=data, init_from=str(base), eval={"hooks": []}, **sections)
    one_step = ["train.max_steps=1", "train.tokens_per_step=768", "train.processes=1", "--trust-hooks", *teacher]
    found = []
    for strength in (5.0, 0.0):
        name = f"balance_{strength:.0f}"
        pretrain(config, f"name={name}", f"model.router_aux_loss_coef={strength}", *one_step, script=script)
        found.append(next(line for line in metrics(tmp_path / "runs" / name) if line["split"] == "train"))
    balanced, not_balanced = found
    assert balanced["loss"] == not_balanced["loss"]
    assert balanced["grad_norm"] != pytest.approx(not_balanced["grad_norm"], rel=1e-3)
    assert balanced["load_balancing"] > 0.9 * 2 * 5.0  # two layers, 5 each where all experts are used alike
    assert "load_balancing" not in not_balanced
