"""Commands that open a run while it trains and removes its checkpoints: each takes one that is
whole.
"""

import os
import shutil
import signal
import time

import pytest

from configs.files import DamagedFile, checkpoint_directory, read_checkpoint
from eval.load_model import open_checkpoint
from tests.processes import run_module, start
from tests.train.helpers import pretrain, write_config

RUN = "runs/tiny"
OPENING = [
    ("eval.chat", RUN, "--max-new-tokens", "2"),
    ("eval.tasks", RUN, "--text", "text.txt", "--limit", "2"),
    ("eval.samples", RUN, "a"),
    ("model.convert_kv_heads", RUN, "--num-key-value-heads", "4", "--out", "converted"),
]


def test_commands_beside_a_run_open_a_whole_checkpoint(tmp_path, monkeypatch):
    """In the folder of a run that saves at every step and keeps one checkpoint."""
    steps = {"max_steps": 100_000, "checkpoint_every": 1, "keep_last": 1, "keep_best": False, "log_every": 1000}
    config = write_config(tmp_path, train=steps)
    monkeypatch.chdir(tmp_path)
    process = start(pretrain, config, "eval.hooks=[]")
    until = time.monotonic() + 120
    try:
        while not (tmp_path / RUN / "checkpoints/latest").exists():
            assert process.is_alive()
            assert time.monotonic() < until
            time.sleep(0.05)
        for _ in range(40):
            lm, tokenizer, directory = open_checkpoint(RUN, "cpu")
            assert (tokenizer.vocab_size, directory.name[:5]) == (lm.lm_head.out_features, "step_")
        for command in OPENING:
            done = run_module(*command, stdin="a\n")
            assert done.returncode == 0, done.stdout + done.stderr
        assert process.is_alive()
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.join()


def test_a_checkpoint_that_is_removed_while_it_is_read_is_followed_by_the_next_one(tmp_path):
    checkpoints = tmp_path / "checkpoints"

    def save(name):
        (checkpoints / name).mkdir(parents=True)
        (checkpoints / name / "config.json").write_text("{}")
        (checkpoints / "latest").write_text(f"{name}\n")

    def read(directory):
        if directory.name == "step_00000001":
            save("step_00000002")
            shutil.rmtree(directory)
            raise ValueError("it is gone")
        return directory.name

    save("step_00000001")
    assert read_checkpoint(tmp_path, read) == "step_00000002"
    (checkpoints / "latest").write_text("step_00099999\n")
    with pytest.raises(DamagedFile, match="names step_00099999, which does not exist"):
        checkpoint_directory(tmp_path)
