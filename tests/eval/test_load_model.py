"""Opening a model: one function for every command; which device `auto` is, and what cannot be
opened.
"""

import shutil

import pytest
import torch

from configs.command import InputError
from data import load_tokenizer
from eval.load_model import open_model
from model import load
from model.backends.choice import choose_device
from tests.eval.scoring import save_model


@pytest.mark.parametrize(
    ("gpus", "mps", "devices"),
    [
        (0, False, {"auto": "cpu", "cuda": None, "mps": None, "meta": None, "gpu": None}),
        (2, False, {"auto": "cuda", "cuda:1": "cuda:1", "cuda:2": None, "cpu": "cpu"}),
        (0, True, {"auto": "mps"}),
    ],
)
def test_auto_takes_a_gpu_if_there_is_one_and_what_is_not_there_is_refused(monkeypatch, gpus, mps, devices):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    for wanted, expected in devices.items():
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
    for path in (tmp_path / "checkpoints/latest", tmp_path / "checkpoints/best", tmp_path):
        if path != tmp_path:
            path.write_text("step_00000001\n")
        assert load_tokenizer(path).sha256() == load_tokenizer(tiny_directory).sha256()
        assert torch.equal(open_model(path, "cpu")[0].lm_head.weight, load(tiny_directory).lm_head.weight)


def test_what_is_not_a_model_or_not_of_its_tokenizer_is_bad_input(tiny_directory, tmp_path):
    with pytest.raises(InputError, match=str(tmp_path.name)):
        open_model(tmp_path)
    save_model(tmp_path, load_tokenizer(tiny_directory), vocab_size=64)
    with pytest.raises(InputError, match="they do not belong together"):
        open_model(tmp_path)
