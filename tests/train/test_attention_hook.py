"""The attention hook and its page in real runs: they change nothing and show what the files say,
also after a stop.
"""

import base64
import json
import math
import re
import signal
import zlib

import numpy as np
import pytest

from data import load_tokenizer
from data.prepare import prepare
from eval.attention import capture, snapshots
from eval.attention.metrics import SCORES, chance, score
from eval.attention.probes import build_probes
from model import load
from tests.train.helpers import at_step, bad_loss, kill_at, metrics, pretrain, trace, write_config
from train.config import load_run_config

LOOKS = [0, 1, 2, 4, 8, 9, 12]
PLAIN = {"train": {"trace": True}, "model": {"hidden_dropout": 0.2}}


def with_heads(folder):
    return write_config(folder, eval={"attention": {"every": 4, "early": [0, 1, 2, 9], "max_tokens": 12}}, **PLAIN)


def about(run):
    """The data of a run's page, without the times."""
    page = (run / "attention/viewer.html").read_text(encoding="utf-8")
    line = re.search(r'id="data">\n(\S+)', page)[1]
    data = json.loads(zlib.decompress(base64.b64decode(line), -zlib.MAX_WBITS))
    for step in data["runs"][0]["steps"]:
        del step["seconds"]
    return data


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    done = pretrain(with_heads(folder))
    assert "hook is off" not in done.stdout
    assert done.stdout.count(f"watch it: {(folder / 'runs/tiny/attention/viewer.html').as_uri()}") == 1
    return folder / "runs/tiny"


def test_with_everything_logged_the_losses_are_those_without(tmp_path, whole):
    pretrain(write_config(tmp_path, eval={"hooks": []}, **PLAIN))
    assert trace(whole) == trace(tmp_path / "runs/tiny")


def test_a_snapshot_at_every_moment_that_the_yaml_names_and_a_page_of_them(whole):
    saved, problems = snapshots.read_all(whole)
    assert not problems
    lines = [json.loads(line) for line in (whole / "attention/index.jsonl").read_text().splitlines()]
    logged = metrics(whole, "attention")
    for steps in (saved, lines, logged):
        assert [each["step"] if isinstance(each, dict) else each.step for each in steps] == LOOKS
    for line, snapshot in zip(logged, saved, strict=True):
        for name, value in snapshot.scalars.items():
            assert value is None or math.isfinite(value)
            assert line[name] == value
    last = saved[-1]
    assert (last.num_attention_heads, last.num_key_value_heads, last.layers, last.heads) == (4, 2, [0, 1], [0, 1, 2, 3])
    assert len(last.maps["text"].labels) == 12
    assert len(last.maps["repeated_2"].labels) == 31  # whole, or the second copy would not be there
    for each in last.maps.values():
        assert each.weights.shape == (2, 4, len(each.labels), len(each.labels))
        assert np.allclose(each.weights.sum(-1), 1, atol=2e-3)  # 16 bits each
    assert last.maps["packed"].documents is not None

    page = about(whole)
    assert page["status"] is None  # it renews itself no more
    for name in ("previous_token", "induction"):
        for values, line in zip(page["runs"][0]["scores"][name], logged, strict=True):
            assert max(values) == pytest.approx(line[f"{name}_max"], abs=5e-4)


def test_scores_are_those_of_the_checkpoint(whole):
    """Not a mistake on the way to the disk: the last snapshot says what the last checkpoint does."""
    last = snapshots.read(whole / "attention/step_00000012.npz")
    config = load_run_config(whole / "config.yaml")
    held_out = prepare(config.data, whole.parent).stream("validation")
    probe = build_probes(load_tokenizer(whole), config.data, 512, held_out=held_out)[1]
    maps = capture(load(whole), probe.input_ids)
    scores = score(maps, probe)
    assert set(scores) <= set(last.scores) <= set(SCORES)
    for name, values in scores.items():
        assert np.allclose(last.scores[name], values.numpy(), atol=1e-5)
        assert last.chance[name] == pytest.approx(chance(name, probe))
    assert np.allclose(last.maps["repeated_2"].weights, maps.weights[:, 0].numpy(), atol=1e-3)


def crash(run):
    raise ZeroDivisionError("a <fault>\nand more")


@pytest.mark.parametrize(
    ("fault", "code", "why"),
    [
        ("KILL", -signal.SIGKILL, None),
        pytest.param("TERM", 143, "by SIGTERM", marks=pytest.mark.slow),
        pytest.param(bad_loss, 3, "loss nan", marks=pytest.mark.slow),
        pytest.param(crash, 1, "ZeroDivisionError: a <fault>", marks=pytest.mark.slow),
    ],
)
def test_a_run_that_stops_says_so_on_its_page_and_the_resumed_one_leaves_the_same(tmp_path, whole, fault, code, why):
    config = with_heads(tmp_path)
    run = tmp_path / "runs/tiny"
    if isinstance(fault, str):
        assert kill_at(config, 10, fault) == code
    else:
        with pytest.MonkeyPatch.context() as patch:
            at_step(patch, [10], fault)
            pretrain(config, code=code)
    status = about(run)["status"]
    assert status["state"] == ("stopped" if why else "training")
    assert (why or "") in (status["stopped"] or "")
    assert [step["step"] for step in about(run)["runs"][0]["steps"]] == [0, 1, 2, 4, 8, 9]
    folder = run / "attention"  # what a killed run may leave, and what is not the run's
    for name in ("step_00000031.npz", "step_00000031.png", "my_notes.txt"):
        (folder / name).write_bytes(b"")
    with (folder / "index.jsonl").open("a") as index:
        index.write('{"step": 31, "file": "step_00000031.npz"}\n{"step": 32, "fi')
    pretrain(config)
    assert [json.loads(line)["step"] for line in (folder / "index.jsonl").read_text().splitlines()] == LOOKS
    assert not list(folder.glob("step_00000031*"))
    assert (folder / "my_notes.txt").exists()
    if isinstance(fault, str):
        assert about(run) == about(whole)
