"""The band of recorded runs: which runs it belongs to, and when a run has left it."""

from __future__ import annotations

import json
import shutil

import pytest

from configs.command import InputError
from configs.loader import flatten
from eval import band
from eval.run_files import METRICS
from tests.notebooks.making import ROOT
from train.config import load_run_config

SMALL = ROOT / "pretrained" / "small"


def lines(*values: float, split: str = "attention", key: str = "copy_gain") -> list[dict]:
    return [{"split": split, "step": i, "tokens": 100 * i, "time_s": 0, key: v} for i, v in enumerate(values)]


def run(folder, *values: float, seed: int = 0, rate: float = 0.02):
    """A folder with what a run leaves: its settings, and its curve of the copy gain."""
    folder.mkdir(parents=True)
    text = (SMALL / band.CONFIG).read_text(encoding="utf-8")
    text = text.replace("\nseed: 0\n", f"\nseed: {seed}\n").replace("    lr: 0.02\n", f"    lr: {rate}\n")
    (folder / band.CONFIG).write_text(text, encoding="utf-8")
    text = "".join(f"{json.dumps(line)}\n" for line in lines(*values))
    (folder / METRICS).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def bands(tmp_path, monkeypatch):
    monkeypatch.setattr(band, "BANDS", tmp_path / "bands.json")
    band.band_of.cache_clear()
    yield tmp_path
    band.band_of.cache_clear()


def record(monkeypatch, *arguments) -> None:
    monkeypatch.setattr("sys.argv", ["band", *map(str, arguments)])
    band.main()


def test_a_band_goes_from_the_lowest_to_the_highest_curve_of_its_runs(bands, monkeypatch):
    runs = [run(bands / "a", 0, 1, 5, 5, 5), run(bands / "b", 0, 2, 3, 4, 5, seed=1)]
    record(monkeypatch, "small", *runs)
    found = band.band_of(runs[0])
    assert (found.name, found.seeds) == ("small", 2)
    assert found.low["copy_gain"] == [0, 1, 3, 4, 5]
    assert found.high["copy_gain"] == [0, 2, 5, 5, 5]
    low, high = found.limits("copy_gain", [50, 150, 900])
    assert (low[:2].tolist(), high[:2].tolist()) == ([0.5, 2.0], [1.0, 3.5])
    assert str(low[2]) == "nan"  # nothing is known beyond the last step


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ((0, 1.5, 4, 4.5, 5), "Like 2 recorded runs of small.yaml: no curve has left their band."),
        ((0, 1.5, 2, 2, 2), "From 200 tokens on, the copy gain is lower than in all 2 recorded runs of small.yaml."),
        ((9, 9, 9, 9, 9), "From 0 tokens on, the copy gain is higher than in all 2 recorded runs of small.yaml."),
        ((9, 9, 9, 4.5, 5), "Like 2 recorded runs of small.yaml: no curve has left their band."),  # it came back
        ((0.2, 2.2, 5.2, 5.2, 5.2), "Like 2 recorded runs of small.yaml: no curve has left their band."),  # noise
        ((0, 1.5, 4, 2, 2), "Like 2 recorded runs of small.yaml: no curve has left their band."),  # not yet for long
    ],
)  # fmt: skip
def test_a_run_has_left_its_band_after_three_points_in_a_row(bands, monkeypatch, values, sentence):
    runs = [run(bands / "a", 0, 1, 5, 5, 5), run(bands / "b", 0, 2, 3, 4, 5, seed=1)]
    record(monkeypatch, "small", *runs)
    assert band.health(runs[0], lines(*values)) == sentence
    assert band.departure(runs[0], lines(*values)) == (sentence if sentence.startswith("From") else "")


def test_a_run_with_another_rate_has_no_band_and_one_from_an_older_version_has(bands, monkeypatch):
    recorded = run(bands / "a", 0, 1, 5)
    record(monkeypatch, "small", recorded)
    faster = run(bands / "b", 0, 1, 5, rate=0.03)
    assert band.band_of(faster) is None
    assert band.health(faster, lines(0, 1, 5)) == ""
    older = run(bands / "c", 0, 1, 5)
    text = (older / band.CONFIG).read_text(encoding="utf-8")
    (older / band.CONFIG).write_text(text.replace("  qk_norm: true\n", ""), encoding="utf-8")
    assert band.band_of(older) is not None
    with pytest.raises(InputError, match="differs from .*b in more than the seed"):
        record(monkeypatch, "small", recorded, faster)


def test_the_loss_is_a_mean_of_five_lines_at_their_middle():
    curves = band.curves_of(lines(*range(12), split="train", key="loss"))
    assert curves["loss"] == ([200, 700], [2.0, 7.0])


def test_the_recorded_bands_are_of_todays_configs_and_the_shipped_run_is_in_its_band():
    assert band.BANDS.stat().st_size < 60_000
    for name, recorded in json.loads(band.BANDS.read_text(encoding="utf-8")).items():
        today = flatten(load_run_config(f"configs/{name}.yaml").model_dump(mode="json"))
        stored = recorded["settings"]
        differ = {key for key in stored.keys() & today.keys() if stored[key] != today[key]}
        assert not differ, name
    found = band.band_of(SMALL)
    assert found.name == "small"
    assert found.seeds >= 3


def test_its_curves_and_its_report_show_the_band(tmp_path):
    from eval.attention.snapshots import read_all
    from eval.pictures.scores import curves

    shutil.copytree(SMALL, tmp_path / "small")
    found = band.band_of(tmp_path / "small")
    snapshots = read_all(SMALL)[0]
    with_band = curves(snapshots, tmp_path / "with.png", healthy=found).read_bytes()
    assert with_band != curves(snapshots, tmp_path / "without.png").read_bytes()
