"""train.sft: architecture and tokenizer come from init_from, and what cannot be fine-tuned is said in a line."""

import json

import pytest
import yaml

from model import load
from tests.train.helpers import metrics, pretrain, refusal, write_config
from train.sft import main


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A pretrained run of another shape than any chat config here says."""
    folder = tmp_path_factory.mktemp("base")
    pretrain(write_config(folder, name="base", model={"hidden_size": 48, "num_hidden_layers": 3}))
    return folder / "runs/base"


def chat_config(folder, base, turns=None, **sections):
    turns = turns or [("user", "Which sound does it make?"), ("assistant", "Meow.")]
    said = lambda i, role, text: {"role": role, "content": f"{i}. {text}" if role == "user" else text}  # noqa: E731
    records = [{"messages": [said(i, *turn) for turn in turns]} for i in range(200)]
    (folder / "chat.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    data = {"source": {"kind": "files", "path": str(folder / "chat.jsonl")}, "records": "conversations"}
    data |= {"sequence_length": 96, "rows_joined": 1} | sections.pop("data", {})
    model = {"hidden_dropout": 0.1} | sections.pop("model", {})
    train = {"tokens_per_step": 768, "max_steps": 30}
    return write_config(folder, name="chat", init_from=str(base), data=data, model=model, train=train, **sections)


def test_it_takes_over_architecture_and_tokenizer_and_learns_the_answer(tmp_path, base):
    done = pretrain(chat_config(tmp_path, base, eval={"prompts": ["Which sound does it make?"]}), script=main)
    run = tmp_path / "runs/chat"
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert (config["model"]["hidden_size"], config["model"]["num_hidden_layers"]) == (48, 3)
    assert config["model"]["hidden_dropout"] == 0.1
    assert config["data"]["tokenizer"]["kind"] == "pretrained"
    losses = [m["loss"] for m in metrics(run) if m["split"] == "val"]
    assert losses[-1] < 0.5 * losses[0]
    assert "`python -m train.sft`" in (run / "report.md").read_text()
    assert pretrain(chat_config(tmp_path, base), script=main).stdout.strip() in done.stdout  # finished
    gone = chat_config(tmp_path, base)
    moved = base.rename(base.with_name("moved"))
    try:  # it has weights and a tokenizer of its own by now
        assert pretrain(gone, script=main).stdout.strip() in done.stdout
        assert "finished at step 32" in pretrain(gone, "train.max_steps=32", script=main).stdout
    finally:
        moved.rename(base)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": {"records": "text"}}, "data.records is text, but fine-tuning needs conversations"),
        ({"init_from": None}, "init_from: fine-tuning starts from a trained model: name a run"),
        ({"init_from": "nowhere"}, "init_from: "),
        ({"turns": [("user", "Hello?"), ("user", "Anybody?")]}, "assistant"),
    ],
)
def test_what_cannot_be_fine_tuned_is_said_in_one_line(tmp_path, base, changes, message):
    changes = dict(changes)
    config = chat_config(tmp_path, base, changes.pop("turns", None), **({"data": changes.pop("data", {})}))
    said = refusal(config, *(f"{key}={json.dumps(value)}" for key, value in changes.items()), script=main)
    assert message in said
    assert not (tmp_path / "runs/chat").exists()


def test_another_tokenizer_than_that_of_the_weights_is_refused(tmp_path, base):
    other = tmp_path / "other"
    other.mkdir()
    pretrain(write_config(other, name="bpe", data={"tokenizer": {"kind": "bpe", "vocab_size": 320}}))
    tokenizer = {"kind": "pretrained", "path": str(other / "runs/bpe")}
    done = pretrain(chat_config(tmp_path, base, data={"tokenizer": tokenizer}), code=2, script=main)
    assert "is not the tokenizer of this run's data" in done.stderr


def test_a_model_that_only_headlight_loads_is_fine_tuned_as_such(tmp_path):
    only_here = {"no_rope_layers": [1, 0], "loadable_elsewhere": False}
    pretrain(write_config(tmp_path, name="base", model=only_here, train={"max_steps": 1}))
    pretrain(chat_config(tmp_path, tmp_path / "runs/base"), "train.max_steps=1", script=main)
    assert load(tmp_path / "runs/chat/checkpoints/step_00000001").config.loadable_elsewhere is False
