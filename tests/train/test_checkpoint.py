"""What a checkpoint holds: resuming from it equals never having stopped, and what does not fit is named."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from configs.command import InputError
from tests.train.checkpoints import OPTIMIZERS, training
from train.checkpoint import TrainerState, load_checkpoint, read_state
from train.processes import World

OPTIMIZER = "training/optimizer.safetensors"


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_going_on_from_a_checkpoint_equals_not_having_stopped(optimizer, tied, tmp_path):
    whole = training(optimizer, tie_word_embeddings=tied)
    whole.steps(3)
    directory = whole.save(tmp_path)
    assert {file.suffix for file in directory.rglob("*.*")} == {".json", ".md", ".safetensors"}  # no pickle
    assert [file.name for file in directory.glob("*.safetensors")] == ["model.safetensors"]  # vLLM reads them all
    whole.steps(3)
    torch.manual_seed(99)
    resumed = training(optimizer, seed=1, tie_word_embeddings=tied).load(directory)
    assert resumed.state.step == 3
    resumed.steps(3)
    for (name, ours), theirs in zip(resumed.lm.state_dict().items(), whole.lm.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs), name
    for ours, theirs in zip(resumed.optimizers, whole.optimizers, strict=True):
        assert_same_state(ours, theirs)


def assert_same_state(ours: torch.optim.Optimizer, theirs: torch.optim.Optimizer) -> None:
    """Values, and also where and as what they are kept."""
    mine, other = ours.state_dict()["state"], theirs.state_dict()["state"]
    assert mine.keys() == other.keys()
    assert mine
    for number, expected in other.items():
        assert mine[number].keys() == expected.keys()
        for key, value in expected.items():
            found = mine[number][key]
            assert (found.dtype, found.device, found.stride()) == (value.dtype, value.device, value.stride())
            assert torch.equal(found, value), key


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


def test_a_checkpoint_from_before_the_first_step_is_a_start(tmp_path):
    run = training()
    directory = run.save(tmp_path)
    other = training(seed=1).load(directory)
    run.steps(1)
    expected = {name: tensor.clone() for name, tensor in run.lm.state_dict().items()}
    other.load(directory)
    other.steps(1)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in other.lm.state_dict().items())


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
    with pytest.raises(InputError) as caught:
        training().load(directory)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_state_is_read_as_it_was_written(tmp_path):
    run = training()
    state = run.state = TrainerState(step=3, tokens=2**40, seconds=0.1, best_loss=1 / 3, recent_losses=[3.2, 1 / 3])
    state.identity, state.scaler = {"seed": 0, "data.mix": [1, None]}, torch.amp.GradScaler("cpu").state_dict()
    run.steps(1)
    assert read_state(run.save(tmp_path)) == state


def test_what_another_version_wrote_is_read_or_named(tmp_path):
    file = tmp_path / "training/trainer_state.json"
    file.parent.mkdir()
    file.write_text('{"step": 3, "tokens": 5, "of_another_version": 1}')
    assert read_state(tmp_path) == TrainerState(step=3, tokens=5)
    file.write_text('{"step": "three"}')
    with pytest.raises(InputError, match="trainer_state.json"):
        read_state(tmp_path)
