"""Opening a model: one function for every command; which device `auto` is, and what cannot be opened."""

import shutil

import pytest
import torch

from configs.command import InputError
from data import load_tokenizer
from eval.load_model import open_model
from model import load, save
from model.backends.choice import choose_device
from tests.conftest import random_model, tiny_config


@pytest.mark.parametrize(
    ("gpus", "mps", "wanted", "expected"),
    [
        (0, False, "auto", "cpu"), (2, False, "auto", "cuda"), (2, False, "cuda:1", "cuda:1"), (1, False, "cpu", "cpu"),
        (0, True, "auto", "mps"), (0, False, "cuda", None), (0, False, "mps", None), (0, False, "meta", None),
        (0, False, "gpu", None), (2, False, "cuda:2", None),
    ],
)  # fmt: skip
def test_auto_takes_a_gpu_if_there_is_one_and_what_is_not_there_is_refused(monkeypatch, gpus, mps, wanted, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    if expected:
        assert choose_device(wanted) == torch.device(expected)
    else:
        with pytest.raises(InputError, match=f"--device {wanted}: not available here"):
            open_model("nowhere", wanted)


def test_the_model_is_the_saved_one_in_evaluation_mode_and_in_the_dtype_asked_for(tiny_directory):
    lm, tokenizer = open_model(tiny_directory, "cpu")
    ids = torch.tensor([tokenizer.encode("a fox")])
    assert torch.equal(lm(ids), load(tiny_directory)(ids))
    assert not lm.training
    assert tokenizer.sha256() == load_tokenizer(tiny_directory).sha256()
    lm, _ = open_model(tiny_directory, "cpu", torch.bfloat16)
    assert {weight.dtype for weight in lm.parameters()} == {torch.bfloat16}
    assert lm(ids).isfinite().all()


def test_the_files_that_name_a_checkpoint_are_followed(tiny_directory, tmp_path):
    """`checkpoints/latest` looks like a directory's name, and people give it."""
    shutil.copytree(tiny_directory, tmp_path / "checkpoints/step_00000001")
    for name in ("latest", "best"):
        (tmp_path / "checkpoints" / name).write_text("step_00000001\n")
    for path in (tmp_path / "checkpoints/latest", tmp_path / "checkpoints/best", tmp_path):
        assert load_tokenizer(path).sha256() == load_tokenizer(tiny_directory).sha256()
        assert torch.equal(open_model(path, "cpu")[0].lm_head.weight, load(tiny_directory).lm_head.weight)


def test_what_is_not_a_model_or_not_of_its_tokenizer_is_bad_input(tiny_directory, tmp_path):
    with pytest.raises(InputError, match=str(tmp_path.name)):
        open_model(tmp_path)
    save(random_model(tiny_config(vocab_size=64)), tmp_path)
    load_tokenizer(tiny_directory).save(tmp_path)
    with pytest.raises(InputError, match="they do not belong together"):
        open_model(tmp_path)
