"""live.html in real runs: while training it renews itself and shows what the log says; it is no reason to stop."""

import re

import pytest

from eval.attention import snapshots
from eval.attention.history import of_best_head
from tests.train.faults import at_step, bad_loss
from tests.train.helpers import kill_at, metrics, pretrain, write_config
from train.run import typed

LOOKS = [0, 1, 2, 4, 8, 12]
CIRCLE = re.compile(r"<title>(previous token|induction), (L\d H\d), step (\d+): ([\d.]+)</title>")


def with_looks(folder, **sections):
    return write_config(folder, eval={"attention": {"every": 4, "early": [0, 1, 2], "max_tokens": 12}}, **sections)


def points(page: str, title: str) -> list[tuple[str, int, float]]:
    """Head, step and value of every point of a curve."""
    return [(head, int(step), float(value)) for name, head, step, value in CIRCLE.findall(page) if name == title]


def curve_of(run, score: str) -> list[tuple[str, int, float]]:
    """The same, from the snapshots on the disk."""
    found, _ = snapshots.read_all(run)
    curve = of_best_head(found, score)
    return [(curve.title, one.step, round(value, 4)) for one, value in zip(found, curve.values, strict=True)]


def without_clock_and_maps(page: str) -> str:
    """On the disk weights have 16 bits, so the first map of a resumed run may have another shade here and there."""
    return re.sub(r"\d+ seconds|<section><h2>Layer.*?</section>", "", page, flags=re.DOTALL)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    done = pretrain(with_looks(folder))
    return folder / "runs/tiny", done.stdout


def test_the_page_of_a_finished_run_says_what_its_files_say(whole):
    run, _ = whole
    page = (run / "live.html").read_text(encoding="utf-8")
    for name, title in (("previous_token", "previous token"), ("induction", "induction")):
        assert points(page, title) == curve_of(run, name)
        assert [step for _, step, _ in points(page, title)] == LOOKS
        last = [line for line in metrics(run) if line["split"] == "attention"][-1]
        assert points(page, title)[-1][2] == pytest.approx(last[f"{name}_max"], abs=5e-5)
    assert re.search(r"step 12 of 12 · \d+ seconds", page)
    assert 'http-equiv="refresh"' not in page
    assert '<a class="next" href="attention/viewer.html">' in page
    assert (run / "attention/viewer.html").is_file()


@pytest.mark.slow
def test_a_killed_run_leaves_a_page_that_renews_itself_and_a_resumed_one_continues_its_curve(tmp_path, whole):
    config, run = with_looks(tmp_path), tmp_path / "runs/tiny"
    assert kill_at(config, 6) == -9
    page = (run / "live.html").read_text(encoding="utf-8")
    assert page.count('<meta http-equiv="refresh" content="3">') == 1
    assert "attention/viewer.html" not in page
    assert [step for _, step, _ in points(page, "induction")] == [0, 1, 2, 4]
    assert points(page, "induction") == curve_of(run, "induction")
    loss = next(line for line in metrics(run) if line["split"] == "train" and line["step"] == 4)["loss"]
    assert f"step 4 of 12 · training loss {loss:.3f} nats a token" in page
    assert '<progress value="4" max="12"' in page
    pretrain(config)
    resumed, never_stopped = ((one / "live.html").read_text(encoding="utf-8") for one in (run, whole[0]))
    assert without_clock_and_maps(resumed) == without_clock_and_maps(never_stopped)


def crash(run):
    raise ZeroDivisionError("a <fault>\nand more")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("TERM", "Stopped at step 7, which is saved, by SIGTERM."),
        (bad_loss, "Stopped: loss nan, gradient norm nan at step 6"),
        (crash, "Stopped after step 6 by an error: ZeroDivisionError: a &lt;fault&gt;<br>"),
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
    page = (run / "live.html").read_text(encoding="utf-8")
    assert "has stopped</h1>" in page
    assert why in page
    assert "<code>python -m train.pretrain" in page
    assert "refresh" not in page
    assert "<script" not in page
    assert [step for _, step, _ in points(page, "induction")] == [0, 1, 2, 4]
    if fault == "TERM":
        pretrain(config)
        resumed, never_stopped = ((one / "live.html").read_text(encoding="utf-8") for one in (run, whole[0]))
        assert without_clock_and_maps(resumed) == without_clock_and_maps(never_stopped)


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


def test_a_page_that_cannot_be_written_is_said_once_and_stops_nothing(tmp_path, no_pictures):
    config, run = with_looks(tmp_path), tmp_path / "runs/tiny"
    pretrain(config, "train.max_steps=2")
    (run / "live.html").unlink()
    (run / "live.html").mkdir()
    done = pretrain(config)
    assert done.stdout.count("live.html cannot be written (Is a directory); training continues") == 1
    assert "hook is off" not in done.stdout
    assert "watch it" not in done.stdout
    assert [one.step for one in snapshots.read_all(run)[0]] == LOOKS
    assert not (run / "live.tmp").exists()
    assert (run / "result.json").is_file()
