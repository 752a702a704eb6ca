"""What a checkpoint holds: resuming from it equals never having stopped, and what does not fit is named."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from configs.command import InputError
from tests.train.checkpoints import OPTIMIZERS, Training, training
from train.machine.distributed import World
from train.saving.checkpoint import TrainerState, load_checkpoint, read_state

OPTIMIZER = "training/optimizer.safetensors"


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_going_on_from_a_checkpoint_equals_not_having_stopped(optimizer, tied, tmp_path):
    whole = training(optimizer, tie_word_embeddings=tied)
    whole.steps(3)
    directory = whole.save(tmp_path)
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


def test_the_random_state_continues(tmp_path):
    run = training()
    run.steps(1)
    directory = run.save(tmp_path)
    expected = torch.rand(3)
    run.load(directory)
    assert torch.equal(torch.rand(3), expected)


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


def freeze(run: Training, optimizer: str) -> dict[str, torch.Tensor]:
    """Freeze the embeddings and the first layer; returns their weights."""
    for part in (run.lm.model.embed_tokens, run.lm.model.layers[0]):
        part.requires_grad_(False)
    run.optimizers = OPTIMIZERS[optimizer](run.lm)
    return {name: p.clone() for name, p in run.lm.named_parameters() if not p.requires_grad}


@pytest.mark.parametrize("optimizer", ["muon", "adamw"], ids=["left out of the optimizers", "held by the optimizer"])
def test_with_frozen_parameters_it_resumes_exactly_and_they_stay_as_they_are(optimizer, tmp_path):
    whole, resumed = training(), training(seed=1)
    before = freeze(whole, optimizer)
    freeze(resumed, optimizer)
    assert {name.split(".")[1] for name in before} == {"embed_tokens", "layers"}
    whole.steps(3)
    directory = whole.save(tmp_path)
    whole.steps(3)
    resumed.load(directory).steps(3)
    for (name, ours), theirs in zip(resumed.lm.named_parameters(), whole.lm.parameters(), strict=True):
        assert torch.equal(ours, theirs), name
        assert torch.equal(ours, before[name]) if name in before else ours.requires_grad, name
    for ours, theirs in zip(resumed.optimizers, whole.optimizers, strict=True):
        assert_same_state(ours, theirs)
    held = {name.split(".", 1)[1].rsplit(".", 1)[0] for name in load_file(directory / OPTIMIZER) if name[:4] != "rng."}
    assert held == {name for name, p in whole.lm.named_parameters() if p.requires_grad}
    assert before.keys() <= load_file(directory / "model.safetensors").keys()


def test_what_is_trained_may_not_change_in_the_middle_of_a_run(tmp_path):
    run, other = training(), training()
    freeze(run, "muon")
    for each in (run, other):
        each.steps(1)
    with pytest.raises(InputError, match=r"muon.model.layers.0.self_attn.q_proj.weight has no state"):
        training().load(run.save(tmp_path / "frozen"))
    with pytest.raises(InputError, match=r"adamw.model.embed_tokens.weight.exp_avg is not part of this run"):
        run.load(other.save(tmp_path / "all"))


def test_tools_that_load_every_safetensors_file_find_the_weights_alone(tmp_path):
    """vLLM and SGLang glob the directory of a model."""
    run = training()
    run.steps(1)
    directory = run.save(tmp_path)
    assert [file.name for file in directory.glob("*.safetensors")] == ["model.safetensors"]


def test_nothing_in_a_checkpoint_is_a_pickle(tmp_path):
    run = training()
    run.steps(1)
    assert {file.suffix for file in run.save(tmp_path).rglob("*.*")} == {".json", ".md", ".safetensors"}


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


def test_another_optimizer_or_architecture_is_refused_and_named(tmp_path):
    run = training("muon")
    run.steps(1)
    directory = run.save(tmp_path)
    with pytest.raises(InputError, match="adamw.model.layers.0.self_attn.q_proj.weight has no state"):
        training("adamw").load(directory)
    with pytest.raises(InputError, match="another architecture: model.layers.2"):
        training(num_hidden_layers=3).load(directory)


def test_the_state_is_read_as_it_was_written(tmp_path):
    run = training()
    state = run.state = TrainerState(
        step=3,
        tokens=2**40,
        seconds=0.1,
        best_loss=1 / 3,
        best_step=2,
        wandb_id="abc",
        identity={"seed": 0, "data.mix": [1, None]},
        resolved={"compile": False, "micro_batch_size": 8},
        scaler=torch.amp.GradScaler("cpu").state_dict(),
        spikes={"losses": [3.2, 1 / 3]},
    )
    run.steps(1)
    assert read_state(run.save(tmp_path)) == state
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    state.scaler = scaler.state_dict()
    assert read_state(run.save(tmp_path)).scaler == scaler.state_dict()


def test_what_an_older_version_did_not_write_has_its_default_and_what_a_newer_one_writes_is_an_error(tmp_path):
    file = tmp_path / "training/trainer_state.json"
    file.parent.mkdir()
    file.write_text('{"step": 3, "tokens": 5}')
    assert read_state(tmp_path) == TrainerState(step=3, tokens=5)
    for text in ('{"step": 3, "stp": 4}', '{"step": "three"}', "[]", "{"):
        file.write_text(text)
        with pytest.raises(InputError, match="cannot resume: .*trainer_state.json"):
            read_state(tmp_path)
