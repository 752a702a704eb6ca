"""Runs side by side: the figures are those of the runs, seeds are put together, no more is claimed
than they show.
"""

import json
import math
import shutil
from pathlib import Path
from statistics import mean, median, stdev

import numpy as np
import pytest

from eval.attention import snapshots
from eval.attention.snapshots import Snapshot
from eval.compare import __main__ as compare
from eval.compare.pictures import curves, sharing_keys
from eval.compare.runs import difference, forks, histories, read_runs, spread
from model import load
from tests.eval.page.viewer_helpers import snapshot
from tests.train.helpers import metrics, pretrain, refusal, write_config
from train.machine.budget import kv_cache_bytes


def every(folder: Path) -> list[Path]:
    return sorted(folder.glob("m*-seed*"))


def command(*arguments):
    return pretrain(*arguments, script=compare.main)


def page(paths: list[Path], out: Path) -> dict[str, list[str]]:
    """The table of the page that is written."""
    command(*paths, "--out", out)
    return table((out / "comparison.md").read_text(encoding="utf-8"))


def table(text: str) -> dict[str, list[str]]:
    """Label -> cells of the first table."""
    rows = text[text.index("|  ") :].split("\n\n")[0].splitlines()
    split = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in rows[2:]]
    return {label: values for label, *values in split}


def change_lines(file: Path, **values) -> None:
    """Other values in the last line of a log."""
    *lines, last = file.read_text().splitlines()
    file.write_text("\n".join([*lines, json.dumps(json.loads(last) | values), ""]))


def test_a_difference_is_paired_by_seed_and_little_is_said_where_little_is_known():
    found = difference({0: 1.0, 1: 2.0, 2: 3.0}, {2: 3.6, 1: 2.4, 0: 1.5, 7: 9.0})
    reach = 4.303 * 0.1 / math.sqrt(3)
    assert found == (pytest.approx(0.5), pytest.approx((0.5 - reach, 0.5 + reach)))
    assert difference({0: 1.0, 1: 1.2}, {0: 2.0, 2: 2.2}) == (pytest.approx(1.0), None)
    assert difference({}, {0: 2.0}) is None
    assert (spread([]), spread([1.0, 1.0]), spread([1.0, 3.0], 1)) == ("-", "1.0000", "2.0 ± 1.4")


def test_the_figures_are_those_of_the_runs(runs, tmp_path):
    rows = page(every(runs), tmp_path)
    for column, name in enumerate(("mha", "mqa")):
        mine = [run for run in every(runs) if run.name.startswith(name)]
        for label, key in (("validation loss (nats per token)", "loss"), ("validation bits per byte", "bits_per_byte")):
            values = [metrics(run, "val")[-1][key] for run in mine]
            assert rows[label][column] == f"{mean(values):.4f} ± {stdev(values):.4f}"
        lines = [metrics(run, "train", without_clocks=False) for run in mine]
        speeds = [median(line["tokens_per_s"] for line in of_run) for of_run in lines]
        assert rows["train tokens/s"][column] == f"{mean(speeds):,.0f} ± {stdev(speeds):,.0f}"
        lm = load(mine[0])
        assert rows["parameters"][column] == f"{lm.num_parameters():,}"
        assert rows["KV-cache bytes per token"][column] == str(kv_cache_bytes(lm.config, 1, 2))
    assert rows["runs (seeds)"] == ["2 (0, 1)", "3 (0, 1, 2)"]
    settings = {label: values for label, values in rows.items() if label.startswith("`")}
    assert settings == {"`model.num_key_value_heads`": ["4", "1"]}


def test_a_comparison_of_other_runs_is_never_overwritten(own):
    one, two = ([own / f"mha-seed{seed}", own / "mqa-seed0"] for seed in (0, 1))
    command(*one)
    command(*one)  # the same runs: the same folder
    refusal(*two, script=compare.main)
    command(*two, "--out", own / "compare-two")
    assert sorted(folder.name for folder in own.glob("compare*")) == ["compare-mha-mqa", "compare-two"]


@pytest.mark.parametrize(
    ("bits", "cells"),
    [
        ((1.0, 1.1, 1.2, 1.301), ("+0.2005 (+0.1941 to +0.2069)", "worse, by more than noise")),
        ((1.0, 1.1, 1.2, 1.15), ("+0.1250 (-0.8280 to +1.0780)", "within noise")),
        # seeds agree to the last digit
        ((1.0, 1.1, 1.5, 1.6), ("+0.5000 (+0.5000 to +0.5000)", "within noise")),
        ((1.0, 0, 2.0, 0), ("+1.0000", "needs two seeds that both have")),
        ((1.0, 1.1, 1.2, None), ("-", "none: not in every seed")),
    ],
)
def test_the_verdict_says_what_the_interval_does(own, bits, cells):
    names = ("mha-seed0", "mha-seed1", "mqa-seed0", "mqa-seed1")
    chosen = {own / name: value for name, value in zip(names, bits, strict=True) if value != 0}
    for run, value in chosen.items():
        change_lines(run / "metrics.jsonl", bits_per_byte=value)
    done = command(*chosen)
    rows = table(done.stdout)
    assert rows["difference in bits per byte (95 %)"] == ["baseline", cells[0]]
    assert rows["difference in bits per byte, verdict"] == ["", cells[1]]
    assert done.stderr.count("its last loss is non-finite") == bits.count(None)


# What does not compare


def test_other_data_another_budget_and_another_tokenizer_are_warnings_and_no_verdict(runs, tmp_path):
    train = {"max_steps": 6, "checkpoint_every": 0}
    data = {"source": {"kind": "files", "path": str(tmp_path / "text.txt")}, "tokenizer": {"kind": "char"}}
    config = write_config(tmp_path, name="other", train=train, data=data, eval={"every": 2})
    pretrain(config, "model.num_key_value_heads=4")
    done = command(runs / "mha-seed0", tmp_path / "runs/other", "--out", tmp_path / "out")
    text = (tmp_path / "out/comparison.md").read_text(encoding="utf-8")
    for warning in ("the tokenizers differ", "other data (data.source.path)", "(1,536 tokens, against 1,024 tokens)"):
        assert warning in done.stderr
        assert warning in text
    rows = table(text)
    assert rows["difference in bits per byte, verdict"][-1] == "none: see the warnings"
    assert not [label for label in rows if "loss" in label]  # a token is another thing


def test_an_unfinished_run_and_a_broken_snapshot_are_reported_and_under_a_clock_steps_are_no_budget(own):
    mha, mqa = pair = own / "mha-seed0", own / "mqa-seed0"
    (mha / "result.json").unlink()
    for step in (2, 4):
        broken = snapshots.write(look(step, 0.1, float(step)), mha / "attention")
    broken.write_bytes(broken.read_bytes()[:200])
    change_lines(mqa / "metrics.jsonl", step=14)
    for run in pair:
        config = (run / "config.yaml").read_text()
        (run / "config.yaml").write_text(config.replace("max_minutes: null", "max_minutes: 2.0"))
    done = command(*pair)
    assert all(told in done.stderr for told in ("mha-seed0 is not finished", f"{broken}: the snapshot is damaged"))
    # of the last that can be read
    assert table(done.stdout)["copy gain (nats a token)"] == ["2.0000", "-"]
    assert "budget" not in done.stderr


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda run: shutil.rmtree(run / "checkpoints"), "mha-seed0: has no checkpoint"),
        (lambda run: next(run.glob("checkpoints/step*/config.json")).write_bytes(b"x"), "config.json: "),
        (lambda run: shutil.copytree(run, run.parent / "mha-seed7"), "the same run: all settings and seed 0 are equal"),
    ],
)
def test_what_is_not_a_whole_run_is_one_line(own, break_it, message):
    break_it(own / "mha-seed0")
    assert message in refusal(*every(own), script=compare.main)
    assert not list(own.glob("compare*"))


# Heads, and curves


def look(step: int, induction: float, gain: float | None, **scores) -> Snapshot:
    """One of a model of 2 layers x 4 heads, whose best induction head is layer 1, head 2."""
    scores["induction"] = np.zeros((2, 4), dtype=np.float32)
    scores["induction"][1, 2] = induction
    return snapshot(step, kv=4, scores=scores, chance={"induction": 0.0125}, scalars={"copy_gain": gain})


@pytest.fixture
def looked_at(own) -> Path:
    """mha was looked at three times."""
    entropy = np.arange(8, dtype=np.float32).reshape(2, 4)
    undefined = np.full((2, 4), math.nan, dtype=np.float32)
    entropy[0, 0] = math.nan
    for name, late in (("mha-seed0", 0.5), ("mha-seed1", 0.7)):
        for step, induction, gain in ((0, 0.01, None), (2, late / 2, 1.0), (4, late, 10 * late)):
            shown = look(step, induction, gain, entropy=entropy, cross_document=undefined)
            snapshots.write(shown, own / name / "attention")
    return own


def test_head_scores_are_of_the_last_snapshot_over_seeds_and_every_look_is_in_the_histories(looked_at, tmp_path):
    rows = page(every(looked_at), tmp_path)
    assert (tmp_path / "comparison.html").is_file()
    assert rows["induction, best head"] == ["0.6000 ± 0.1414", "-"]
    assert rows["entropy, mean of heads (nats)"] == ["4.0000", "-"]  # of seven: one is undefined
    assert rows["other documents, best head"] == ["-", "-"]
    assert rows["copy gain (nats a token)"] == ["6.0000 ± 1.4142", "-"]
    assert rows["copies from step (copy gain ≥ 1 nat; - = not yet)"] == ["2", "-"]
    text = (tmp_path / "histories.json").read_text(encoding="utf-8")
    mha, mqa = json.loads(text)["variants"]
    assert [one["settings"] for one in (mha, mqa)] == [{"model.num_key_value_heads": heads} for heads in (4, 1)]
    assert mha["runs"][1]["looks"] == [
        {"step": step, "tokens": 1000 * step, "induction": induction, "previous_token": None, "copy_gain": gain}
        for step, induction, gain in ((0, 0.01, None), (2, 0.35, 1.0), (4, 0.7, 7.0))
    ]
    assert mha["runs"][1]["loss"] == pytest.approx(metrics(looked_at / "mha-seed1", "val")[-1]["loss"], rel=1e-5)
    assert mqa["runs"][0]["looks"] == []
    assert str(looked_at) not in text


def test_the_curves_are_those_of_the_runs(looked_at):
    variants = read_runs(every(looked_at))
    bits, losses, induction, _ = curves(variants, {"variants": histories(variants)}).axes
    assert len(bits.lines) == len(losses.lines) == 5  # a line for each run
    end = metrics(looked_at / "mha-seed0", "val")[-1]
    assert bits.lines[0].get_xydata()[-1].tolist() == [end["tokens"], end["bits_per_byte"]]
    assert induction.lines[1].get_xydata() == pytest.approx(np.array([[0, 0.01], [2000, 0.35], [4000, 0.7]]))


def test_a_life_and_its_fork_part_at_the_first_logged_step_that_differs(own):
    """Made by hand from two runs: tests/train/run/test_fork.py has real forks."""
    life, fork = own / "mha-seed0", own / "fork"
    shutil.copytree(life, fork)
    shutil.copytree(life, own / "same_")
    for name in ("fork", "same_"):
        config = own / name / "config.yaml"
        text = config.read_text().replace("forked_from: null", f"forked_from: {{run: {life}, step: 2}}")
        config.write_text(text.replace("changes: []", f"changes: [{{at: 2, without: [L0H{len(name) % 4}]}}]"))
    lines = metrics(life, "train")
    change_lines(fork / "metrics.jsonl", split="train", step=lines[-1]["step"], loss=9.5, lr=0.0)
    variants = read_runs([life, fork, own / "same_"])
    parted, same = forks(variants)
    step = lines[-1]["step"]
    assert parted.sentence.startswith("fork continues mha-seed0 from step 2: the first logged step that differs is ")
    assert f"is {step:,}, with loss 9.5 against {lines[-1]['loss']:.6g}." in parted.sentence
    assert parted.tokens == max(line["tokens"] for line in lines if line["step"] <= 2)
    assert same.sentence == "same_ continues mha-seed0 from step 2: no logged step differs."
    assert forks(variants[1:]) == []
    bits, *_ = curves(variants, {"variants": histories(variants)}).axes
    assert [line.get_xdata() for line in bits.lines[-2:]] == [[parted.tokens] * 2] * 2
    said = command(life, fork, "--skip-stages", "--out", own / "compared").stdout
    assert parted.sentence in said
    assert parted.sentence in (own / "compared/comparison.md").read_text()


def test_shared_keys_are_drawn_as_the_mean_of_the_seeds_with_its_interval_and_only_where_nothing_else_differs():
    def variant(heads, steps, gains, **settings):
        looks = [[{"step": 2 * i, "tokens": i, "copy_gain": gain} for i, gain in enumerate(seed)] for seed in gains]
        settings |= {"model.num_key_value_heads": heads, "train.max_steps": steps}
        runs = [{"seed": seed, "looks": look} for seed, look in enumerate(looks)]
        return {"settings": settings, "kv_bytes": 256 * heads, "query_heads": 4, "runs": runs}

    mha = variant(4, 1200, [(0, 1, 4), (0, 3, 6, 7)])
    mqa = variant(1, 2400, [(0, 0.5)])
    left, right = sharing_keys([mha, mqa]).axes
    assert [axes.get_title("left") for axes in (left, right)] == ["1,200 steps", "2,400 steps"]
    (mean,) = [line for line in left.lines if line.get_label() == "MHA (4): 1,024 bytes"]
    # as far as every seed was watched
    assert mean.get_xydata().tolist() == [[0, 0], [1, 2], [2, 5]]
    band = left.collections[0].get_paths()[0].vertices[:, 1]
    # two seeds, a standard error of 1
    assert (band.min(), band.max()) == pytest.approx((2 - 12.706, 5 + 12.706))
    assert "MQA (1): 256 bytes" in [line.get_label() for line in right.lines]
    others = variant(2, 1200, [(0, 1)], **{"model.head_dim": 16}), variant(2, 1200, [()]), variant(2, 1200, [(None,)])
    assert [sharing_keys([mha, other]) for other in others] == [None] * 3
