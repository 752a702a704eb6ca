"""Runs side by side: the scores of their heads over seeds, and the figures that are drawn of all."""

import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from eval.attention import snapshots
from eval.attention.snapshots import ProbeMap, Snapshot
from eval.compare import formation
from eval.compare.runs import Variant
from tests.eval.comparing import cells, command, edit, every, keep_figures, last_val, table_of


def snapshot(step: int, induction: float, gain: float | None, **scores) -> Snapshot:
    """One of a model of 2 layers x 4 heads, whose best induction head is layer 1, head 2."""
    values = np.zeros((2, 4), dtype=np.float32)
    values[1, 2] = induction
    return Snapshot(
        step=step, tokens=step * 256, seconds=0.1 * step, layers=[0, 1], heads=[0, 1, 2, 3],
        num_attention_heads=4, num_key_value_heads=4, maps={}, scores={"induction": values, **scores},
        chance={"induction": 0.0125}, scalars={"copy_gain": gain},
    )  # fmt: skip


def write_snapshots(own: Path) -> None:
    entropy = np.arange(8, dtype=np.float32).reshape(2, 4)
    entropy[0, 0] = math.nan
    undefined = np.full((2, 4), math.nan, dtype=np.float32)
    for name, late in (("mha-seed0", 0.5), ("mha-seed1", 0.7)):
        for step, induction, gain in ((0, 0.01, None), (2, late / 2, 1.0), (4, late, 10 * late)):
            shown = snapshot(step, induction, gain, entropy=entropy, cross_document=undefined)
            snapshots.write(shown, own / name / "attention")


def test_head_scores_are_of_the_last_snapshot_over_seeds(own, tmp_path):
    write_snapshots(own)
    table = table_of(every(own), tmp_path)
    assert table["induction, best head (chance 0.013)"] == ["0.600 ± 0.141", "-"]
    assert table["entropy, mean of heads (nats)"] == ["4.000 ± 0.000", "-"]  # of seven: one is undefined
    assert table["other documents, best head"] == ["-", "-"]
    assert table["copy gain (nats a token)"] == ["6.000 ± 1.414", "-"]
    assert (tmp_path / "comparison_heads.png").is_file()


def test_histories_have_every_look_at_the_heads_of_every_run_and_no_paths(own, tmp_path):
    write_snapshots(own)
    table_of(every(own), tmp_path)
    text = (tmp_path / "histories.json").read_text(encoding="utf-8")
    mha, mqa = json.loads(text)["variants"]
    assert [(one["name"], one["settings"]) for one in (mha, mqa)] == [
        ("mha", {"model.num_key_value_heads": 4}),
        ("mqa", {"model.num_key_value_heads": 1}),
    ]
    first, second = mha["runs"]
    assert [one["seed"] for one in (first, second)] == [0, 1]
    assert second["looks"] == [
        {"step": 0, "tokens": 0, "previous_token": None, "induction": 0.01, "copy_gain": None},
        {"step": 2, "tokens": 512, "previous_token": None, "induction": 0.35, "copy_gain": 1.0},
        {"step": 4, "tokens": 1024, "previous_token": None, "induction": 0.7, "copy_gain": 7.0},
    ]
    assert second["formed"] == {"layer": 1, "head": 2, "step": 2}
    assert second["chance"] == {"previous_token": None, "induction": 0.0125}
    ends = last_val(own / "mha-seed1")
    assert (second["loss"], second["bits_per_byte"]) == (round(ends["loss"], 4), round(ends["bits_per_byte"], 4))
    assert mqa["runs"][0]["looks"] == []
    assert mqa["runs"][0]["formed"] is None
    assert str(own) not in text


def test_without_snapshots_the_scores_are_a_dash_and_an_older_figure_goes(own, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/comparison_heads.png").write_bytes(b"of an earlier comparison")
    assert table_of(every(own), tmp_path / "out")["head scores"] == ["-", "-"]
    assert not (tmp_path / "out/comparison_heads.png").exists()
    assert "heads.png" not in (tmp_path / "out/comparison.md").read_text(encoding="utf-8")


def test_the_heads_of_all_variants_are_drawn_beside_each_other(own, tmp_path):
    weights = np.tril(np.ones((2, 4, 3, 3), dtype=np.float32)) / np.arange(1, 4)[:, None]
    for name, probes in (("mha-seed0", ("text", "repeated_2")), ("mqa-seed0", ("text",))):
        maps = {probe: ProbeMap(weights, ["<bos>", "a", "b"]) for probe in probes}
        snapshots.write(replace(snapshot(4, 0.5, 1.0), maps=maps), own / name / "attention")
    (tmp_path / "comparison_repeated_2.png").write_bytes(b"of an earlier comparison")
    command(*every(own), "--out", tmp_path, "--skip-decode")
    page = (tmp_path / "comparison.md").read_text(encoding="utf-8")
    for name in ("text", "scores"):
        assert (tmp_path / f"comparison_{name}.png").stat().st_size > 5_000
        assert f"](comparison_{name}.png)" in page
    assert not (tmp_path / "comparison_repeated_2.png").exists()  # one of them was not looked at on it


def test_a_broken_snapshot_is_reported_and_the_others_are_used(own, tmp_path):
    write_snapshots(own)
    broken = own / "mha-seed0/attention/step_00000004.npz"
    broken.write_bytes(broken.read_bytes()[:200])
    done = command(*every(own), "--out", tmp_path, "--skip-decode")
    assert f"{broken}: not a whole snapshot" in done.stderr
    assert "last readable snapshot of the heads is of step 2, not 4" in done.stderr
    rows = cells((tmp_path / "comparison.md").read_text(encoding="utf-8"))
    assert rows["copy gain (nats a token)"][0] == "4.000 ± 4.243"  # 1, 7


# Figures


@pytest.mark.slow
def test_the_figures_show_what_they_are_labelled_with(own, tmp_path, monkeypatch):
    write_snapshots(own)
    kept = keep_figures(monkeypatch)
    table = table_of(every(own), tmp_path)
    quality, losses, heads = kept
    bits, cache, parameters = quality.axes
    assert "bits per byte" in bits.get_xlabel()
    assert "KV-cache bytes" in cache.get_xlabel()
    assert [f"{bar.get_width():,.0f}" for bar in cache.patches] == table["KV-cache bytes per token"]
    assert "parameters" in parameters.get_xlabel()
    assert [f"{bar.get_width():,.0f}" for bar in parameters.patches] == table["parameters"]
    assert len(losses.axes[0].lines) == len(losses.axes[1].lines) == 5  # a line for each run
    last = losses.axes[0].lines[0].get_xydata()[-1]
    assert last.tolist() == [last_val(own / "mha-seed0")[key] for key in ("tokens", "bits_per_byte")]
    (band, _), mean_line = heads.axes[0].collections, heads.axes[0].lines[0].get_xydata()
    assert mean_line[:, 0].tolist() == [0, 512, 1024]
    assert mean_line[:, 1] == pytest.approx([0.01, 0.3, 0.6])
    edges = band.get_paths()[0].vertices
    assert sorted(set(edges[edges[:, 0] == 1024][:, 1].round(6))) == pytest.approx([0.5, 0.7])
    assert heads.axes[1].lines[0].get_xydata()[:, 0].tolist() == [512, 1024]  # no copy gain at step 0
    for name in ("quality", "loss", "heads"):
        assert len(Image.open(tmp_path / f"comparison_{name}.png").convert("RGB").getcolors(1 << 20)) > 20


def with_gains(own: Path, name: str, gains: list[float]) -> None:
    """Snapshots of a run, one a step from 0 on, with these copy gains."""
    for step, gain in enumerate(gains):
        snapshots.write(snapshot(step, 0.1, gain), own / name / "attention")


def test_the_step_from_which_a_model_copies_is_the_first_of_a_nat(own, tmp_path):
    with_gains(own, "mha-seed0", [0.0, 0.99, 1.0, 0.5, 4.0])
    with_gains(own, "mha-seed1", [0.0, 0.0, 0.0, 0.0, 1.5])
    with_gains(own, "mqa-seed0", [0.0, 0.0, 0.2, 0.2, 0.3])
    with_gains(own, "mqa-seed1", [0.0, 0.0, 0.0, 2.0, 2.0])
    table = table_of(every(own)[:4], tmp_path)
    assert table["copies from step (copy gain ≥ 1 nat)"] == ["3 ± 1", "3; 1 not in 4 steps"]
    page = (tmp_path / "comparison.md").read_text(encoding="utf-8")
    assert "- **mqa** copies in 1 of 2 seeds within 4 steps." in page
    assert re.search(r"\| mqa +\| +- \| +- \| +1 of 2 \|", page)


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([(1, 3), (1, 3), (2, 4)], "**other** copies 2 steps later than base (which needs 1; 95 % interval +2 to +2)"),
        (
            [(3, 1), (4, 2), (4, 1)],
            "**other** copies 2 steps earlier than base (which needs 4; 95 % interval -4 to -1)",
        ),
        ([(1, 3), (3, 1), (2, 2)], "Neither earlier nor later shows with these seeds: other"),
        ([(1, None), (1, None)], "**other** copies in 0 of 2 seeds within 4 steps"),
        ([(None, 1), (1, 1)], ""),
    ],
)
def test_earlier_or_later_is_said_with_its_interval_or_not_at_all(steps, said):
    def run(seed: int, first: int | None) -> SimpleNamespace:
        looks = [snapshot(step, 0.1, 2.0 if first is not None and step >= first else 0.0) for step in range(5)]
        return SimpleNamespace(seed=seed, snapshots=looks, last_step=4)

    base, other = (
        Variant(name, [run(seed, pair[place]) for seed, pair in enumerate(steps)])  # type: ignore[misc]
        for place, name in enumerate(("base", "other"))
    )
    text = formation.section([base, other])
    assert said in text if said else text == ""


def test_of_many_variants_each_has_a_row(own):
    for number in range(7):
        folder = own / f"m{number}-seed0"
        shutil.copytree(own / "mha-seed0", folder)
        edit(
            folder / "config.yaml", lambda text, n=number: text.replace("rope_theta: 10000.0", f"rope_theta: 1000{n}.0")
        )
        with_gains(own, folder.name, [0.0, 1.0 + number])
    done = command(*sorted(own.glob("m[0-6]-seed0")), "--skip-decode", "--out", own / "many")
    lines = [[cell.strip() for cell in line.split("|")][1:-1] for line in done.stdout.splitlines() if "|" in line]
    header = next(line for line in lines if line[-1] == "what it changes")
    third = next(line for line in lines if line[0] == "m3")
    assert dict(zip(header, third, strict=True))["copy gain (nats a token)"] == "4.000"
    assert third[-1] == "rope_theta 10003.0"
    assert next(line for line in lines if line[0] == "m0")[-1] == "nothing"
