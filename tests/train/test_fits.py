"""A model or a corpus that cannot fit this machine is refused before anything is built, and nothing else is."""

import re

import pytest

from configs.command import InputError
from tests.train.helpers import refusal, write_config
from train import fits
from train.config import load_run_config
from train.fits import check_memory, largest_divisor, step_memory
from train.machine.device import resolve_device


def needed(config) -> int:
    model = config.model.model_copy(update={"vocab_size": config.model.vocab_size or fits.SMALL_VOCABULARY})
    return step_memory(config.model_copy(update={"model": model}), 8, half=False, device="cpu").total


@pytest.mark.parametrize("over", [True, False])
def test_the_limit_is_what_a_step_needs(tmp_path, monkeypatch, over):
    config = load_run_config(write_config(tmp_path), ["train.device=cpu", "train.micro_batch_size=8"])
    bytes_there = needed(config) - 1 if over else needed(config)
    monkeypatch.setattr(fits, "all_memory", lambda kind: (float(bytes_there), "all RAM"))
    check = lambda: check_memory(config, resolve_device(config), 1)  # noqa: E731
    if not over:
        check()
        return
    with pytest.raises(InputError, match=r"a training step of 8 rows x 32 tokens"):
        check()


def test_processes_on_a_cpu_share_its_memory(tmp_path, monkeypatch):
    config = load_run_config(write_config(tmp_path), ["train.device=cpu", "train.micro_batch_size=8"])
    monkeypatch.setattr(fits, "all_memory", lambda kind: (1.01 * needed(config), "all RAM"))
    check_memory(config, resolve_device(config), 1)
    with pytest.raises(InputError, match="the memory is"):
        check_memory(config, resolve_device(config), 2)


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["model.hidden_size=131072", "model.num_attention_heads=1024"], "a training step of .* needs .* GB"),
        (["data.source={kind: storyworld, documents: 1000000000}"], "disk of .* has .* free: lower it"),
    ],
)
def test_it_is_refused_before_anything_is_written(tmp_path, monkeypatch, overrides, problem):
    monkeypatch.setattr(fits.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 10**9}))
    monkeypatch.setattr(fits, "all_memory", lambda kind: (64e9, "all RAM"))
    said = refusal(write_config(tmp_path), *overrides)
    assert re.search(problem, said), said
    assert not (tmp_path / "runs").exists()


def test_the_largest_divisor_is_found_at_once():
    assert [largest_divisor(12, most) for most in (0, 1, 5, 11, 12, 99)] == [0, 1, 4, 6, 12, 12]
    assert largest_divisor(2**29, 10**6) == 2**19
