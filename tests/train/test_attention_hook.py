"""The attention hook in real runs: it changes nothing, leaves snapshots that say what it saw, and reports its cost."""

import json
import math

import numpy as np
import pytest

from eval.attention import snapshots
from eval.attention.metrics import SCORES
from tests.train.helpers import metrics, pretrain, refusal, write_config
from tests.train.worlds import trace

ON = {"every": 4, "early": [0, 1, 2], "max_tokens": 12}


def with_heads(tmp_path, **sections):
    evaluation = {"every": 4, "attention": ON} | sections.pop("eval", {})
    return write_config(tmp_path, eval=evaluation, **sections)


@pytest.fixture(scope="module")
def looked_at(tmp_path_factory):
    folder = tmp_path_factory.mktemp("looked_at")
    done = pretrain(with_heads(folder, train={"trace": True}))
    return folder / "runs/tiny", done.stdout


@pytest.mark.slow
def test_with_everything_logged_the_losses_are_those_without(tmp_path, looked_at):
    pretrain(write_config(tmp_path, train={"trace": True}, eval={"hooks": []}))
    assert trace(looked_at[0]) == trace(tmp_path / "runs/tiny")


def test_a_snapshot_at_every_moment_that_the_yaml_names(looked_at):
    run, stdout = looked_at
    assert "hook is off" not in stdout
    found, problems = snapshots.read_all(run)
    assert [one.step for one in found] == [0, 1, 2, 4, 8, 12]
    assert not problems
    lines = [json.loads(line) for line in (run / "attention/index.jsonl").read_text().splitlines()]
    assert [(line["step"], line["tokens"]) for line in lines] == [(one.step, one.tokens) for one in found]
    logged = [line for line in metrics(run) if line["split"] == "attention"]
    assert [line["step"] for line in logged] == [0, 1, 2, 4, 8, 12]
    for line, one in zip(logged, found, strict=True):
        assert line["attention_seconds"] > 0
        for name, value in one.scalars.items():
            assert value is None or math.isfinite(value)
            assert line[name] == value
    last = found[-1]
    assert (last.num_attention_heads, last.num_key_value_heads, last.layers, last.heads) == (4, 2, [0, 1], [0, 1, 2, 3])
    assert set(last.maps) == {"text", "repeated_2", "packed"}
    assert len(last.maps["text"].labels) == 12
    assert len(last.maps["repeated_2"].labels) == 31  # whole, or the second copy would not be there
    for one in last.maps.values():
        assert one.weights.shape == (2, 4, len(one.labels), len(one.labels))
        assert np.allclose(one.weights.sum(-1), 1, atol=2e-3)  # 16 bits each
    assert last.maps["packed"].documents is not None


def test_scores_are_those_of_the_checkpoint(looked_at):
    """Not a mistake on the way to the disk: the last snapshot says what the last checkpoint does."""
    from data import load_tokenizer
    from data.prepare import prepare
    from eval.attention import capture, metrics
    from eval.attention.probes import build_probes
    from model import load
    from train.config import load_run_config

    run, _ = looked_at
    last = snapshots.read(run / "attention/step_00000012.npz")
    config = load_run_config(run / "config.yaml")
    held_out = prepare(config.data, run.parent).stream("validation")
    probe = build_probes(load_tokenizer(run), config.data, 512, held_out=held_out)[1]
    maps = capture(load(run), probe.input_ids)
    scores = metrics.score(maps, probe)
    assert set(scores) <= set(last.scores) <= set(SCORES)
    for name, values in scores.items():
        assert np.allclose(last.scores[name], values.numpy(), atol=1e-5)
        assert last.chance[name] == pytest.approx(metrics.chance(name, probe))
    assert np.allclose(last.maps["repeated_2"].weights, maps.weights[:, 0].numpy(), atol=1e-3)


def test_a_resumed_run_forgets_what_it_saw_after_its_checkpoint(tmp_path, no_pictures):
    config = with_heads(tmp_path, train={"checkpoint_every": 4})
    pretrain(config, "train.max_steps=8")
    folder = tmp_path / "runs/tiny/attention"
    late = folder / "step_00000011.npz"
    late.write_bytes(b"of a run that was killed")
    (folder / "step_00000011.png").write_bytes(b"")
    (folder / "my_notes.txt").write_text("kept")
    with (folder / "index.jsonl").open("a") as index:
        index.write('{"step": 11, "file": "step_00000011.npz"}\n{"step": 12, "fi')
    pretrain(config)
    assert not late.exists()
    assert not late.with_suffix(".png").exists()
    assert (folder / "my_notes.txt").exists()
    steps = [json.loads(line)["step"] for line in (folder / "index.jsonl").read_text().splitlines()]
    assert steps == [0, 1, 2, 4, 8, 12]


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["eval.attention.layers=[2]"], "eval.attention.layers ([2]): this model has layers 0 to 1"),
        (["eval.attention.heads=[0,4]"], "eval.attention.heads ([0, 4]): this model has heads 0 to 3"),
        (["eval.attention.metrics=[sinks]"], "sinks"),
    ],
)
def test_what_does_not_exist_is_reported_before_training(tmp_path, overrides, problem):
    said = refusal(with_heads(tmp_path), *overrides)
    assert problem in said
