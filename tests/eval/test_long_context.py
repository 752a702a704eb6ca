"""`eval.long_context`: texts with known answers, losses that a plain computation gives."""

import json
import shutil

import pytest
import torch

from configs.command import InputError
from data.config import DataConfig, TokenizerConfig
from data.tokenizer import train_tokenizer
from eval.language_modeling import predictions
from eval.long_context import held_out_rows, recall_texts, study, ways
from tests.conftest import random_model, tiny_config
from tests.eval.scoring import save_run
from tests.processes import run_module

WORLD = {"source": {"kind": "storyworld", "documents": 5, "validation_documents": 8}, "tokenizer": {"kind": "byte"}}


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TokenizerConfig(kind="byte"), [])


def make_run(folder, tokenizer, **changes):
    return save_run(folder, tokenizer, json.dumps({"data": WORLD | {"sequence_length": 64}}), **changes)


@pytest.fixture(scope="module")
def run(tokenizer, tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "tiny", tokenizer)


def test_every_answer_stands_where_it_is_said_to_stand(tokenizer):
    ids, row, place, source = recall_texts(tokenizer, 400, 5)
    assert ids.shape == (5, 400)
    assert torch.equal(ids[row, place], ids[row, source])
    assert (ids[:, 0] == tokenizer.bos_id).all()
    for number in range(5):
        words = tokenizer.decode(ids[number][ids[number] != tokenizer.pad_id].tolist()).split()
        # then phrases come again
        told = next(at for at, word in enumerate(words) if word in words[:at])
        asked = tokenizer.decode(ids[number, place[row == number]].tolist()).split(" ")[1:]
        # not the first one of a phrase
        assert asked == [word for at, word in enumerate(words[told:]) if at % 4]
        quarters = {min(3, words.index(word) // (told // 4)) for word in asked[::3]}
        assert quarters == {0, 1, 2, 3}  # a phrase from each
    assert recall_texts(tokenizer, 100, 2) is None  # too short for the phrases


def test_pieces_of_held_out_text_are_the_text(tokenizer):
    config = DataConfig.model_validate(WORLD)
    rows = held_out_rows(tokenizer, config, 100, 4)
    longer = held_out_rows(tokenizer, config, 199, 2)
    assert rows.shape == (4, 100)
    assert (rows[:, 0] == tokenizer.bos_id).all()
    assert torch.equal(rows[:, 1:].flatten(), longer[:, 1:].flatten())
    with pytest.raises(InputError, match="the held-out text has"):
        held_out_rows(tokenizer, config, 100_000, 1)


def test_recall_and_copy_gain_are_of_the_answers(tokenizer):
    lm = random_model(tiny_config(vocab_size=tokenizer.vocab_size))
    config = DataConfig.model_validate(WORLD | {"sequence_length": 64})
    without_rope = random_model(tiny_config(position_embedding="none", loadable_elsewhere=False))
    assert list(ways(without_rope, 64)) == ["none", "windows"]  # nothing to scale
    measured = study({"it": (lm, tokenizer)}, config, [48, 320], 2)
    ids, row, place, source = recall_texts(tokenizer, 320, 2)
    losses, right = predictions(ways(lm, 64)["none"](320), ids)
    gain = [float(losses[i, first] - losses[i, again]) for i, again, first in zip(row, place, source, strict=True)]
    assert measured["copy_gain"]["none"] == [None, pytest.approx(sum(gain) / len(gain))]
    assert measured["recall"]["none"] == [None, pytest.approx(right[row, place].float().mean().item())]


@pytest.mark.slow
def test_the_command_from_end_to_end(run, tokenizer, tmp_path):
    other = make_run(tmp_path / "tuned", tokenizer, rope_theta=500.0)
    done = run_module("eval.long_context", run, other, "--lengths", "48,64,320", "--texts", "2")
    assert done.returncode == 0, done.stderr
    out = run / "long_context"
    loss = json.loads((out / "long_context.json").read_text(encoding="utf-8"))["loss"]
    assert list(loss) == ["none", "linear", "yarn", "windows", "tuned"]
    # within the trained length all are the same
    assert loss["none"][:2] == loss["windows"][:2] == loss["yarn"][:2]
    assert len({each[2] for each in loss.values()}) == 5  # beyond it, none is
    page = (out / "report.md").read_text(encoding="utf-8")
    assert "(curves.png)" in page
    assert (out / "curves.png").stat().st_size > 5_000


def test_what_cannot_be_measured_is_refused_and_nothing_is_written(run, tokenizer, tmp_path):
    changes = {"position_embedding": "learned", "qk_norm": False, "loadable_elsewhere": False}
    strange = train_tokenizer(TokenizerConfig(kind="char"), ["the cat sat"])
    cases = {
        "has learned a vector for 64 positions": [make_run(tmp_path / "learned", tokenizer, **changes)],
        "there is no config.yaml": [shutil.copytree(run / "checkpoints/step_00000010", tmp_path / "alone")],
        "has another tokenizer than": [run, make_run(tmp_path / "strange", strange)],
        "--lengths: give two or more": [run, "--lengths", "256,128"],
        "--lengths: the held-out text has": [run, "--lengths", "64,100000"],
    }
    for message, given in cases.items():
        done = run_module("eval.long_context", "--lengths", "48,320", "--texts", "2", *given)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert message in done.stderr
    assert not list(tmp_path.rglob("long_context"))
