"""Commands that open a run while it trains and removes its checkpoints: each takes one that is whole."""

import os
import signal
import sys
import time

import pytest

from configs.files import DamagedFile, checkpoint_directory, read_checkpoint
from eval.load_model import open_checkpoint
from tests.attack.victims import CONFIG, write_config
from tests.processes import print_to, run_module, start

RUN = "runs/tiny"
OPENING = [
    ("eval.chat", RUN, "--max-new-tokens", "2"),
    ("eval.tasks", RUN, "--text", "text.txt", "--limit", "2"),
    ("eval.samples", RUN, "a"),
    ("model.convert_kv_heads", RUN, "--num-key-value-heads", "2", "--out", "converted"),
]


def training(folder):
    import torch

    from configs.command import exit_on_bad_input
    from train.pretrain import main

    torch.set_num_threads(1)
    os.chdir(folder)
    print_to(folder / "training.txt")
    sys.argv = ["train.pretrain", "tiny.yaml", "eval.hooks=[]"]
    exit_on_bad_input(main)


@pytest.fixture
def beside(tmp_path, monkeypatch):
    """In the folder of a run that saves at every step and keeps one checkpoint."""
    steps = {"max_steps": 100_000, "checkpoint_every": 1, "keep_last": 1, "keep_best": False, "log_every": 1000}
    write_config(tmp_path, train=CONFIG["train"] | steps)
    monkeypatch.chdir(tmp_path)
    process = start(training, tmp_path)
    until = time.monotonic() + 120
    while not (tmp_path / RUN / "checkpoints/latest").exists():
        assert process.is_alive(), (tmp_path / "training.txt").read_text()
        assert time.monotonic() < until
        time.sleep(0.05)
    yield process
    os.kill(process.pid, signal.SIGKILL)
    process.join()


def test_a_checkpoint_that_vanishes_is_followed_by_the_next_one(beside):
    for _ in range(40):
        lm, tokenizer, directory = open_checkpoint(RUN, "cpu")
        assert tokenizer.vocab_size == lm.lm_head.out_features
        assert directory.name.startswith("step_")
    assert beside.is_alive()


@pytest.mark.parametrize("command", OPENING, ids=lambda command: command[0])
def test_a_command_beside_a_run_opens_a_whole_checkpoint(beside, command):
    done = run_module(*command, stdin="a\n")
    assert done.returncode == 0, done.stdout + done.stderr
    assert beside.is_alive()


def test_one_that_is_gone_before_it_is_looked_at_is_followed_by_the_next_one(tmp_path, monkeypatch):
    """As it went once on a busy machine: `latest` had named it, and the run removed it."""
    there = tmp_path / "checkpoints/step_00000002"
    there.mkdir(parents=True)
    (there / "config.json").write_text("{}")
    named = iter([tmp_path / "checkpoints/step_00000001", there])
    monkeypatch.setattr("configs.files.checkpoint_directory", lambda path: next(named))
    assert read_checkpoint(tmp_path, lambda directory: (directory / "config.json").read_text()) == "{}"


def test_a_run_that_is_always_faster_ends_in_a_line(tmp_path):
    latest, steps = tmp_path / "checkpoints/latest", iter(range(1, 1000))

    def save():
        name = f"step_{next(steps):08d}"
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
        (tmp_path / "checkpoints" / name / "config.json").write_text("{}")
        latest.write_text(name + "\n")

    def read(directory):
        save()
        (directory / "config.json").unlink()
        directory.rmdir()
        raise ValueError("it is gone")

    save()
    with pytest.raises(DamagedFile, match="removes every checkpoint before it can be read"):
        read_checkpoint(tmp_path, read)
    latest.write_text("step_00099999\n")
    with pytest.raises(DamagedFile, match="names step_00099999, which does not exist"):
        checkpoint_directory(tmp_path)
