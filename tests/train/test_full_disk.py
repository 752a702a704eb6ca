"""A disk that fills up in the middle of a line, with text beyond ASCII: the run trains on and can be resumed."""

import json

import pytest

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
def test_a_run_whose_log_had_no_room_for_the_rest_of_a_letter_is_resumed(tmp_path, monkeypatch):
    train = CONFIG["train"] | {"max_steps": 5, "log_every": 1, "checkpoint_every": 0}
    config = write_config(tmp_path, train=train, eval={"every": 1, "prompts": ["猫が座った"] * 20})
    monkeypatch.chdir(tmp_path)
    pretrain(config, "name=whole")
    samples, run = (tmp_path / "runs/whole/samples.jsonl").read_bytes(), tmp_path / "runs/tiny"
    room = next(place for place in range(5000, len(samples)) if samples[place] & 0xC0 == 0x80)  # inside a letter
    assert exit_code(pretrain_with_room_for, room, config) == 2  # the checkpoint has no room either
    whole = samples[:room].rpartition(b"\n")[0] + b"\n"
    assert (run / "samples.jsonl").read_bytes().startswith(whole)
    assert [json.loads(line) for line in (run / "samples.jsonl").read_text("utf-8").splitlines()]
    assert "finished at step 5" in pretrain(config).stdout
    assert (run / "samples.jsonl").read_bytes() == samples
