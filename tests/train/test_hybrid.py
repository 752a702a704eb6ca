"""A run with layers of linear attention: what it looks at, what the page is given, how it goes on."""

import base64

import numpy as np
import pytest

from configs.command import InputError
from eval.attention import snapshots
from eval.attention.__main__ import main as attention
from eval.load_model import open_model
from eval.page.page_model import read_models
from tests.serve.chat_helpers import client
from tests.serve.conftest import serving
from tests.train.helpers import metrics, pretrain, refusal, stopped_at, write_config

HYBRID = {"layer_types": ["linear_attention", "full_attention"], "loadable_elsewhere": False}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("hybrid")


@pytest.fixture(scope="module")
def hybrid(folder):
    evaluation = {"every": 4, "attention": {"every": 4}}
    config = write_config(folder, name="hybrid", model=HYBRID, train={"max_steps": 4}, eval=evaluation)
    pretrain(config)
    return folder / "runs/hybrid"


def test_its_pictures_leave_the_layer_out_and_its_heads_are_ablated(hybrid, capsys, monkeypatch):
    snapshot = snapshots.newest(hybrid)
    assert snapshot.layers == [1]
    assert all(len(scores) == 1 for scores in snapshot.scores.values())
    # random draws may be heads of any layer, the strongest only one with weights
    assert {layer for layer, _ in snapshot.ablations[0].heads} == {1}
    command = ["eval.attention", str(hybrid), "--text", "The mat.", "--out", str(hybrid / "x")]
    monkeypatch.setattr("sys.argv", [*command, "--head", "previous_token"])
    attention()
    assert len([*(hybrid / "x").glob("text_L1H*.png")]) == 1  # the best head, by its number in the model
    with pytest.raises(InputError, match=r"model\.layer_types"):
        read_models(hybrid)


def test_another_pattern_of_layers_does_not_start_from_it(hybrid, folder):
    model = {"layer_types": ["full_attention"], "loadable_elsewhere": False}
    message = refusal(write_config(folder, name="full", model=model, init_from=str(hybrid)))
    assert "model.layer_types" in message
    pretrain(write_config(folder, name="on", init_from=str(hybrid), train={"max_steps": 1}))
    assert open_model(str(folder / "runs/on"), "cpu")[0].config.is_linear == [True, False]


def test_a_softmax_model_does_not_become_linear(hybrid, folder):
    pretrain(write_config(folder, name="softmax", model={"loadable_elsewhere": False}, train={"max_steps": 1}))
    config = write_config(folder, name="late", model=HYBRID, init_from=str(folder / "runs/softmax"))
    assert "layer_types" in refusal(config)


def test_saving_under_another_family_is_refused_in_one_line(folder):
    config = write_config(folder, name="elsewhere", model=HYBRID | {"loadable_elsewhere": True})
    assert "model.loadable_elsewhere=false" in refusal(config)
    linear = {"layer_types": ["linear_attention"], "loadable_elsewhere": False}
    message = refusal(write_config(folder, name="blind", model=linear, eval={"attention": {"every": 4}}))
    assert "linear_attention has no attention weights" in message


def test_it_resumes_exactly(hybrid, folder):
    config = write_config(
        folder, name="stopped", model=HYBRID, train={"max_steps": 4, "checkpoint_every": 2},
        eval={"every": 4, "attention": {"every": 4}},
    )  # fmt: skip
    with stopped_at(2):
        pretrain(config, code=143)
    pretrain(config)
    assert metrics(folder / "runs/stopped", "val") == metrics(hybrid, "val")


def test_the_page_shows_zeros_for_it(hybrid):
    with serving(hybrid.parent) as (address, _):
        about = client.get(f"{address}/live/models/hybrid").json()
        assert (about["layers"], about["linear_layers"]) == (2, [0])
        body = {"ids": list(range(5, 12)), "position": 5, "heads": [[0, 1, 0.0]]}
        row = client.post(f"{address}/live/models/hybrid/attention", json=body).json()
    weights = np.frombuffer(base64.b64decode(row["weights"]), "<f4").reshape(2, -1, row["keys"])
    assert not weights[0].any()
    assert np.allclose(weights[1].sum(-1), 1, atol=1e-5)
