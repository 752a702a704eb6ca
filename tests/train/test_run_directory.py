"""The run directory: only a finished run has a result.json."""

from eval.run_files import read_result as read
from tests.train.faults import at_step, bad_loss
from tests.train.helpers import pretrain, write_config


def read_result(run):
    return read(run, lambda problem: None)


def test_a_resumed_run_is_finished_only_at_its_new_end(tmp_path, monkeypatch):
    config, run = write_config(tmp_path, train={"max_steps": 2}, eval={"every": 0}), tmp_path / "runs/tiny"
    pretrain(config)
    assert read_result(run)["step"] == 2
    assert "finished at step 2" in pretrain(config).stdout
    at_step(monkeypatch, [3], bad_loss)
    pretrain(config, "train.max_steps=4", code=3)
    assert read_result(run) is None
    monkeypatch.undo()
    pretrain(config, "train.max_steps=4")
    assert read_result(run)["step"] == 4
