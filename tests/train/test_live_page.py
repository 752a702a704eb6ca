"""viewer.html in real runs: while training it renews itself and shows what the log says; it is no reason to stop."""

import base64
import json
import re
import zlib

import pytest

from eval.attention import snapshots
from eval.attention.viewer import Live
from tests.train.faults import at_step, bad_loss
from tests.train.helpers import kill_at, metrics, pretrain, write_config
from train.run import typed

LOOKS = [0, 1, 2, 4, 8, 12]


def with_looks(folder, **sections):
    return write_config(folder, eval={"attention": {"every": 4, "early": [0, 1, 2], "max_tokens": 12}}, **sections)


def about(run):
    """What the page of a run is told: the first line of its data."""
    page = (run / "attention/viewer.html").read_text(encoding="utf-8")
    line = re.search(r'id="data">\n(\S+)', page)[1]
    return json.loads(zlib.decompress(base64.b64decode(line), -zlib.MAX_WBITS))


def steps_of(run):
    return [step["step"] for step in about(run)["runs"][0]["steps"]]


def without_clock(run):
    found = about(run)
    for step in found["runs"][0]["steps"]:
        del step["seconds"]
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    done = pretrain(with_looks(folder))
    return folder / "runs/tiny", done.stdout


def test_the_page_of_a_finished_run_says_what_its_files_say(whole):
    run, said = whole
    assert said.count(f"watch it: {(run / 'attention/viewer.html').as_uri()}") == 1
    assert steps_of(run) == LOOKS
    (told,) = about(run)["runs"]
    looks = [line for line in metrics(run) if line["split"] == "attention"]
    for name in ("previous_token", "induction"):
        for values, line in zip(told["scores"][name], looks, strict=True):
            assert max(values) == pytest.approx(line[f"{name}_max"], abs=5e-4)
    assert about(run)["status"] is None  # it renews itself no more


@pytest.mark.slow
def test_a_killed_run_leaves_a_page_that_renews_itself_and_a_resumed_one_continues_its_curve(tmp_path, whole):
    config, run = with_looks(tmp_path), tmp_path / "runs/tiny"
    assert kill_at(config, 6) == -9
    status = about(run)["status"]
    assert (status["state"], status["step"], status["total"]) == ("training", 4, 12)
    assert steps_of(run) == [0, 1, 2, 4]
    loss = next(line for line in metrics(run) if line["split"] == "train" and line["step"] == 4)["loss"]
    assert status["loss"] == pytest.approx(loss, abs=1e-3)
    pretrain(config)
    assert without_clock(run) == without_clock(whole[0])


def crash(run):
    raise ZeroDivisionError("a <fault>\nand more")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("TERM", "Stopped at step 7, which is saved, by SIGTERM."),
        (bad_loss, "Stopped: loss nan, gradient norm nan at step 6"),
        (crash, "Stopped after step 6 by an error: ZeroDivisionError: a <fault>"),
    ],
    ids=["signal", "non-finite loss", "error"],
)
def test_a_run_that_stops_says_so_on_its_page_and_the_resumed_one_leaves_the_same_page(
    tmp_path, monkeypatch, whole, fault, why
):
    config, run = with_looks(tmp_path), tmp_path / "runs/tiny"
    with monkeypatch.context() as patch:
        if fault == "TERM":
            assert kill_at(config, 6, fault) == 143
        else:
            at_step(patch, [6], fault)
            pretrain(config, code=1 if fault is crash else 3)
    status = about(run)["status"]
    assert status["state"] == "stopped"
    assert why in status["stopped"]
    assert status["command"].startswith("python -m train.pretrain")
    assert steps_of(run) == [0, 1, 2, 4]
    if fault == "TERM":
        pretrain(config)
        assert without_clock(run) == without_clock(whole[0])


@pytest.mark.parametrize(
    ("arguments", "environment", "command"),
    [
        (
            ["python -m train.pretrain", "configs/small.yaml", "name=a b"],
            {},
            "python -m train.pretrain configs/small.yaml 'name=a b'",
        ),
        (["/x/pytest", "-q"], {}, "python -m train.pretrain"),
        (
            ["python -m train.pretrain", "a.yaml"],
            {"TORCHELASTIC_RUN_ID": "1", "LOCAL_WORLD_SIZE": "4"},
            "torchrun --nproc_per_node=4 -m train.pretrain a.yaml",
        ),
    ],
)
def test_the_command_that_continues_is_the_one_that_was_typed(monkeypatch, arguments, environment, command):
    monkeypatch.setattr("sys.argv", arguments)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert typed("train.pretrain") == command


def test_a_page_that_cannot_be_written_is_said_once_and_stops_nothing(tmp_path, monkeypatch, no_pictures):
    def full(live, directory, now):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Live, "write", full)
    done = pretrain(with_looks(tmp_path))
    assert done.stdout.count("viewer.html cannot be written (No space left on device); training continues") == 1
    assert "hook is off" not in done.stdout
    assert "watch it" not in done.stdout
    assert [one.step for one in snapshots.read_all(tmp_path / "runs/tiny")[0]] == LOOKS
