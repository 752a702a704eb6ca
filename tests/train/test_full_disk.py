"""A disk that fills up in the middle of a line, with text beyond ASCII: the run trains on and can be resumed."""

import json

import pytest

from data.prepare import main as prepare
from tests.attack.victims import CONFIG, write_config
from tests.processes import exit_code, print_to
from tests.train.helpers import pretrain


def pretrain_with_room_for(size: int, config) -> None:
    """No file may grow beyond `size` bytes: the kernel takes a part of a line and refuses the rest."""
    import os
    import resource
    import sys

    from configs.command import exit_on_bad_input
    from train.pretrain import main

    os.chdir(config.parent)
    print_to(config.with_name("child.txt"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    sys.argv = ["train.pretrain", config.name]
    exit_on_bad_input(main)


@pytest.mark.slow
@pytest.mark.parametrize("room", [6000, 6001, 6002, 7000])
def test_a_run_whose_logs_had_no_room_is_resumed(tmp_path, monkeypatch, room):
    train = CONFIG["train"] | {"max_steps": 12, "log_every": 1, "checkpoint_every": 0}
    config = write_config(tmp_path, train=train, eval={"every": 1, "prompts": ["猫が座った" * 40] * 2})
    monkeypatch.chdir(tmp_path)
    pretrain(config, script=prepare)
    assert exit_code(pretrain_with_room_for, room, config) == 2  # the checkpoint has no room either
    run = tmp_path / "runs/tiny"
    for name in ("metrics.jsonl", "samples.jsonl"):
        for line in (run / name).read_bytes().splitlines() if (run / name).exists() else []:
            json.loads(line.decode("utf-8"))
    assert "finished at step 12" in pretrain(config).stdout
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert set(range(1, 13)) <= set(steps)
