"""Windows, macOS and terminals without UTF-8, as far as can be told from Linux: the branches for
them, taken. What was never run on a Mac or on Windows is not proven by this, only made likely.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

from configs import command
from tests.train.helpers import REPOSITORY, write_config
from train.config import load_run_config
from train.machine import device as device_module
from train.machine.budget import micro_batch_rows
from train.machine.device import resolve_device

pytestmark = pytest.mark.slow


def in_ascii(*arguments: str) -> subprocess.CompletedProcess:
    """A command where text is ASCII unless one says otherwise: no locale, no UTF-8 mode."""
    plain = {"PYTHONUTF8": "0", "LC_ALL": "C", "LANG": "C", "PYTHONCOERCECLOCALE": "0"}
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONIOENCODING"} | plain
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, encoding="ascii", timeout=300)


def test_a_terminal_that_knows_only_ascii(tmp_path):
    """Chinese text and a Chinese prompt: files are UTF-8, and the screen shows what it can."""
    assert in_ascii("-c", "import locale; print(locale.getpreferredencoding())").stdout == "ANSI_X3.4-1968\n"
    assert "usage: " in in_ascii("-m", "train.pretrain", "--help").stdout
    text = tmp_path / "text.txt"
    text.write_text("".join(f"从前有一只狐狸，它住在第{i}座山上。\n" for i in range(300)), encoding="utf-8")
    evaluation = {"every": 0, "prompts": ["从前"], "attention": {"every": 2, "early": [], "max_tokens": 12}}
    config = write_config(tmp_path, train={"max_steps": 2}, eval=evaluation | {"sample_tokens": 4})
    done = in_ascii("-m", "train.pretrain", str(config))
    assert done.returncode == 0, done.stderr
    assert "\\u4ece\\u524d" in done.stdout  # the sample begins with the prompt
    run = tmp_path / "runs/tiny"
    assert "从前" in (run / "report.md").read_text(encoding="utf-8")
    sample = json.loads((run / "samples.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    assert sample["prompt"] == "从前"
    assert "从前" in (run / "config.yaml").read_text(encoding="utf-8")


# Windows, as far as Python can play it: processes are spawned, there are no links, and text is cp1252.
LIKE_WINDOWS = """
import multiprocessing.context, os
for name in ("fork", "sched_getaffinity", "symlink", "link", "mkfifo"):
    delattr(os, name)
import train.machine.cpu_processes
train.machine.cpu_processes.CAN_COPY = False
"""


def test_a_run_of_spawned_processes_without_links_in_a_folder_with_spaces(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(LIKE_WINDOWS)
    folder = tmp_path / "My Documents (é)"
    folder.mkdir()
    config = write_config(folder, train={"max_steps": 2, "processes": 2})
    environment = os.environ | {
        "PYTHONPATH": f"{tmp_path}{os.pathsep}{REPOSITORY}", "PYTHONIOENCODING": "cp1252", "PYTHONUTF8": "0"
    }  # fmt: skip

    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", *arguments]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, encoding="cp1252", timeout=500)
        assert done.returncode == 0, done.stderr
        return done.stdout

    output = run("train.pretrain", str(config))
    assert "2 processes of 1 thread each" in output
    assert "finished at step 2" in output
    assert "finished at step 2" in run("train.pretrain", str(config))
    assert run("eval.samples", str(folder / "runs/tiny"), "Où est 狐?").strip()


def test_what_only_some_systems_tell_is_asked_with_a_fallback(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    assert device_module.keep_freed_memory() is False
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert command.usable_cores() == os.cpu_count()


def test_auto_takes_an_apple_gpu_which_trains_in_float32_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    config = load_run_config(write_config(tmp_path, train={"precision": "auto"}))
    device = resolve_device(config)
    assert (device.device.type, device.precision, device.attention) == ("mps", "fp32", "sdpa")
    assert device_module.compiler_problem("mps") == "not tried on mps"
    assert micro_batch_rows(config, device) == 8
    for precision in ("bf16", "tf32"):
        with pytest.raises(command.InputError, match="on mps"):
            resolve_device(load_run_config(write_config(tmp_path, train={"precision": precision})))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 0))
    assert resolve_device(config).device.type == "cuda"
