"""`eval.long_context`: texts with known answers, losses that a plain computation gives, angles counted one by one."""

import json
import math
import shutil

import pytest
import torch

from configs.command import InputError
from data.config import DataConfig, TokenizerConfig
from data.tokenizer import train_tokenizer
from eval import long_context
from eval.attention.capture import capture
from eval.long_context import PARTS, angles, held_out_rows, mean_by, read, recall_texts, recalled, to_answers, ways
from model import save
from tests.conftest import random_model, tiny_config
from tests.train.helpers import run_module

WORLD = {"source": {"kind": "storyworld", "documents": 5, "validation_documents": 8}, "tokenizer": {"kind": "byte"}}


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TokenizerConfig(kind="byte"), [])


def make_run(folder, tokenizer, **changes):
    """A run directory, as far as this command sees one."""
    torch.manual_seed(0)
    save(random_model(tiny_config(vocab_size=tokenizer.vocab_size, **changes)), folder / "checkpoints/step_00000010")
    tokenizer.save(folder / "checkpoints/step_00000010")
    (folder / "checkpoints/latest").write_text("step_00000010\n", encoding="utf-8")
    (folder / "config.yaml").write_text(json.dumps({"data": WORLD | {"sequence_length": 64}}), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def run(tokenizer, tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "tiny", tokenizer)


# Texts


def test_every_answer_stands_where_it_is_said_to_stand(tokenizer):
    texts = recall_texts(tokenizer, 400, 5)
    ids, row, place, source = texts.ids, texts.row, texts.place, texts.source
    assert ids.shape == (5, 400)
    assert torch.equal(ids[row, place], ids[row, source])
    assert (ids[:, 0] == tokenizer.bos_id).all()
    assert (place >= texts.told[row]).all()
    assert (source < texts.told[row]).all()
    for number, told in enumerate(texts.told.tolist()):
        depths = (source / texts.told[row])[row == number]  # a phrase from every quarter, and none from another
        assert len({min(PARTS - 1, int(depth * PARTS * 0.97)) for depth in depths.tolist()}) == PARTS
        words = tokenizer.decode(ids[number, 1:told].tolist()).split()
        assert len(set(words)) == len(words)
        again = tokenizer.decode(ids[number, told:][ids[number, told:] != tokenizer.pad_id].tolist()).split(" ")[1:]
        asked = tokenizer.decode(ids[number, place[row == number]].tolist()).split(" ")[1:]
        assert asked == [word for at, word in enumerate(again) if at % 4]  # not the first one of a phrase
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


# Measurements


def test_the_losses_are_those_of_a_plain_computation(tokenizer, monkeypatch):
    monkeypatch.setattr(long_context, "LOGITS", 1)  # a row at a time
    lm = random_model(tiny_config(vocab_size=tokenizer.vocab_size))
    ids = torch.randint(0, 192, (3, 24))
    losses, right = read(lm, ids)
    with torch.no_grad():
        p = lm(ids).double().softmax(-1)
    for row in range(3):
        for t in range(1, 24):
            assert losses[row, t] == pytest.approx(-math.log(p[row, t - 1, ids[row, t]]), abs=1e-5)
            assert right[row, t] == (p[row, t - 1].argmax() == ids[row, t])
    assert losses[:, 0].isnan().all()


def test_copy_gain_and_attention_are_those_of_the_answers(tokenizer):
    lm = random_model(tiny_config(vocab_size=tokenizer.vocab_size, max_position_embeddings=320))
    texts = recall_texts(tokenizer, 320, 2)
    losses, right = read(lm, texts.ids)
    gain, shares, distance = [], [], (texts.place - texts.source)
    for row, place, source in zip(texts.row.tolist(), texts.place.tolist(), texts.source.tolist(), strict=True):
        gain.append(float(losses[row, source] - losses[row, place]))
        shares.append(float(capture(lm, texts.ids[row : row + 1]).weights[1, 0, 2, place - 1, source]))
    found = recalled(lm, texts, (1, 2))
    assert found["recall"] == pytest.approx(right[texts.row, texts.place].float().mean().item())
    assert found["copy_gain"] == pytest.approx(sum(gain) / len(gain))
    far = distance >= 280  # the last of eight stretches
    assert far.any()
    assert found["gain_by_distance"][-1] == pytest.approx(torch.tensor(gain)[far].mean().item())
    assert found["induction_by_distance"][-1] == pytest.approx(torch.tensor(shares)[far].mean().item())
    assert torch.cat(to_answers(lm, texts))[:, 1, 2].tolist() == shares
    where, values = torch.tensor([0, 1, 9, 10]), torch.tensor([1.0, 3.0, 5.0, 7.0])
    assert mean_by(where, values, 10, 5) == [2.0, None, None, None, 6.0]


@pytest.mark.parametrize("kind", ["none", "linear", "yarn"])
def test_an_angle_is_new_if_no_row_of_training_had_one_as_large(kind):
    lm = random_model(tiny_config(head_dim=32))
    found = angles(lm.config, ways(lm, 64)[kind](256).config, 64, 256)
    for pair in range(16):
        speed = 10000 ** (-pair / 16)
        assert found.wavelength[pair] == pytest.approx(2 * math.pi / speed, rel=1e-5)
        slowed = float(found.slowed[pair])
        for distance in range(0, 256, 5):
            angle = distance * speed / slowed
            seen = 64 * speed >= 2 * math.pi or angle % (2 * math.pi) <= 64 * speed * (1 + 1e-9)
            assert found.new[pair, distance] == (not seen)
    assert (found.slowed > 1.01).sum() == {"none": 0, "linear": 16, "yarn": 15}[kind]
    if kind == "none":
        slow = found.wavelength > 2 * math.pi * 256  # does not come round within 256 tokens
        assert (found.new[slow].sum(1) == 256 - 65).all()  # 64 itself is the end of what was seen
    else:
        assert not found.new.any()


def test_without_rope_nothing_is_scaled():
    lm = random_model(tiny_config(position_embedding="none", loadable_elsewhere=False))
    assert list(ways(lm, 64)) == ["none", "windows"]


# The command


@pytest.mark.slow
def test_the_command_from_end_to_end(run, tokenizer, tmp_path):
    other = make_run(tmp_path / "tuned", tokenizer, rope_theta=500.0)
    done = run_module("eval.long_context", run, other, "--lengths", "48,64,320", "--texts", "2")
    assert done.returncode == 0, done.stderr
    out = run / "long_context"
    found = json.loads((out / "long_context.json").read_text(encoding="utf-8"))
    assert list(found["loss"]) == ["none", "linear", "yarn", "windows", "tuned"]
    plain, windows = found["loss"]["none"], found["loss"]["windows"]
    assert plain[:2] == windows[:2] == found["loss"]["yarn"][:2]  # within the trained length all are the same
    assert len({each[2] for each in found["loss"].values()}) == 5  # beyond it, none is
    assert found["recall"]["none"][:2] == [None, None]
    page = (out / "report.md").read_text(encoding="utf-8")
    for file in ("curves.png", "frequencies.png"):
        assert f"({file})" in page
        assert (out / file).stat().st_size > 5_000


def test_what_cannot_be_measured_is_refused_and_nothing_is_written(run, tokenizer, tmp_path):
    changes = {"position_embedding": "learned", "qk_norm": False, "loadable_elsewhere": False}
    strange = train_tokenizer(TokenizerConfig(kind="char"), ["the cat sat"])
    cases = {
        "has learned a vector for 64 positions": [make_run(tmp_path / "learned", tokenizer, **changes)],
        "there is no config.yaml beside it": [shutil.copytree(run / "checkpoints/step_00000010", tmp_path / "alone")],
        "has another tokenizer than": [run, make_run(tmp_path / "strange", strange)],
        "--lengths: give two or more": [run, "--lengths", "256,128"],
        "--lengths: the held-out text has": [run, "--lengths", "64,100000"],
    }
    for message, given in cases.items():
        done = run_module("eval.long_context", "--out", tmp_path / "out", "--lengths", "48,320", "--texts", "2", *given)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert message in done.stderr
    assert not (tmp_path / "out").exists()
