"""A checkpoint's contents; differences are named. Exact resumption: test_exactness.py."""

import re
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from configs.command import InputError
from data.config import DataConfig
from model import LanguageModel
from model.files.card import model_card
from tests.conftest import tiny_config
from tests.train.checkpoints import Training, training
from tests.train.helpers import in_a_group, run_world
from train.config import RunConfig
from train.machine.distributed import World
from train.run.checkpoint import TrainerState, load_checkpoint, read_state


def test_a_process_that_is_new_draws_its_own_numbers_and_always_the_same(tmp_path):
    run = training()
    run.steps(1)
    directory = run.save(tmp_path)
    drawn = []
    for rank in (0, 1, 2, 1):
        torch.manual_seed(5)
        load_checkpoint(directory, run.lm, run.optimizers, World(rank))
        drawn.append(torch.rand(1).item())
    assert len(set(drawn[:3])) == 3
    assert drawn[3] == drawn[1]


EMBEDDING = "model.embed_tokens.weight"
BUFFER = "muon.model.layers.0.self_attn.q_proj.weight"
UNFIT = [
    ("model", lambda t: t.pop(EMBEDDING), f"{EMBEDDING} is missing"),
    ("model", lambda t: t.update(extra=torch.ones(1)), "extra is not part of this model"),
    ("model", lambda t: t.update({EMBEDDING: torch.ones(2, 2)}), f"{EMBEDDING} has shape [2, 2]"),
    ("training/optimizer", lambda t: t.pop(f"{BUFFER}.momentum_buffer"), f"{BUFFER} has no state"),
    ("training/optimizer", lambda t: t.update(extra=torch.ones(1)), "extra is not part of this run"),
]


@pytest.mark.parametrize(
    ("file", "change", "message"), UNFIT, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_tensor_that_does_not_fit_is_named(file, change, message, tmp_path):
    run = training()
    run.steps(1)
    directory = run.save(tmp_path)
    path = directory / f"{file}.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)
    with pytest.raises(InputError, match=re.escape(message)):
        training().load(directory)


def test_what_another_version_wrote_is_read(tmp_path):
    file = tmp_path / "training/trainer_state.json"
    file.parent.mkdir()
    file.write_text('{"step": 3, "tokens": 5, "of_another_version": 1}')
    assert read_state(tmp_path) == TrainerState(step=3, tokens=5)


def fail_to_save(folder: Path) -> None:
    run = Training(training().lm, [], TrainerState(step=1))
    with pytest.raises(InputError, match="could not be written"):
        run.save(folder / "file")


def test_if_the_first_process_cannot_save_every_process_hears_of_it(tmp_path):
    (tmp_path / "file").write_text("")
    assert run_world(2, in_a_group, fail_to_save, tmp_path) == [0, 0]


# ---------------------------------------------------------------------------------------------------------
# README.md: metadata that the Hub reads, and what the model was trained on


WIDGET = [{"text": "Once there was"}]
DATASETS = {"datasets": ["roneneldan/TinyStories"]}
PARTS = [
    {"source": {"kind": "hub", "name": "roneneldan/TinyStories"}},
    {"weight": 3.0, "source": {"kind": "files", "path": "/home/me/secret"}},
]
MIX = DataConfig(source={"kind": "mix", "parts": PARTS}, records="conversations")


@pytest.mark.parametrize(
    ("config", "changes", "tags", "more"),
    [
        (RunConfig(), {}, ["qwen3"], {"language": ["en"], "library_name": "transformers", "widget": WIDGET}),
        (RunConfig(data=MIX), {"loadable_elsewhere": False, "norm_position": "after"}, ["conversational"], DATASETS),
    ],
)
def test_the_hub_reads_what_the_model_is_and_no_path_of_the_user(config, changes, tags, more):
    progress = {"step": 1200, "tokens": 19_660_800, "best_loss": 2.5, "best_step": 1100, "identity": config.identity()}
    _, metadata, body = model_card("demo", LanguageModel(tiny_config(**changes)), progress).split("---\n", 2)
    shared = {"license": "unknown", "pipeline_tag": "text-generation", "tags": ["headlight", *tags]}
    assert yaml.safe_load(metadata) == shared | more
    assert "secret" not in body
