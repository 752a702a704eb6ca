"""Runs side by side: the figures are those of the runs, seeds are put together, no more is claimed than they show."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import mean, median, stdev

import pytest

from eval import quantised as decode_speed
from eval.compare import __main__ as compare
from eval.compare import text as compare_text
from eval.compare.runs import group, read_runs
from model import load
from tests.eval.comparing import cells, command, edit, every, keep_figures, last_val, table_of
from tests.train.helpers import metrics, pretrain, write_config
from train.budget import kv_cache_bytes

# The table


def test_the_figures_are_those_of_the_runs(runs, tmp_path):
    table = table_of(every(runs), tmp_path)
    for column, name in enumerate(("mha", "mqa")):
        mine = [run for run in every(runs) if run.name.startswith(name)]
        for label, key in (("validation loss (nats per token)", "loss"), ("validation bits per byte", "bits_per_byte")):
            values = [last_val(run)[key] for run in mine]
            assert table[label][column] == f"{mean(values):.4f} ± {stdev(values):.4f}"
        lines = [[line for line in metrics(run, without_clocks=False) if line["split"] == "train"] for run in mine]
        speeds = [median(line["tokens_per_s"] for line in one) for one in lines]
        assert table["train tokens/s"][column] == f"{mean(speeds):,.0f} ± {stdev(speeds):,.0f}"
        tokens = [one[-1]["tokens"] for one in lines]
        assert table["tokens trained on"][column] == f"{mean(tokens):,.0f} ± {stdev(tokens):,.0f}"
        lm = load(mine[0])
        assert table["parameters"][column] == f"{lm.num_parameters():,}"
        assert table["KV-cache bytes per token"][column] == str(kv_cache_bytes(lm.config, 1, 2))
    assert table["runs (seeds)"] == ["2 (0, 1)", "3 (0, 1, 2)"]
    assert table["`model.num_key_value_heads`"] == ["4", "1"]
    assert [label for label in table if label.startswith("`")] == ["`model.num_key_value_heads`"]


def test_equal_and_differing_settings_are_all_there_once(runs, tmp_path):
    table_of(every(runs), tmp_path)
    text = (tmp_path / "comparison.md").read_text(encoding="utf-8")
    assert "What differs: `model.num_key_value_heads`." in text
    equal = [line.split("`")[1] for line in text.split("<summary>")[1].splitlines() if line.startswith("- `")]
    assert f"{len(equal)} settings are equal" in text
    assert {"model.hidden_size", "train.optimizer.lr", "data.source.path", "eval.every"} <= set(equal)
    assert not {"model.num_key_value_heads", "seed", "name"} & set(equal)


def test_one_seed_has_no_plus_minus(runs, tmp_path):
    table = table_of([runs / "mha-seed0", runs / "mqa-seed0"], tmp_path)
    assert table["runs (seeds)"] == ["1 (0)", "1 (0)"]
    assert "±" not in " ".join(table["validation bits per byte"])


def test_the_first_run_named_is_the_baseline_and_a_comparison_has_its_own_folder(own):
    before = sorted(own.iterdir())
    done = command(own / "mqa-seed0", own / "mha-seed0", "--skip-decode")
    folder = own / "compare-mqa-mha"
    assert sorted(own.iterdir()) == sorted([*before, folder]), "no loose file among the runs"
    assert "Baseline: **mqa**" in (folder / "comparison.md").read_text(encoding="utf-8")
    assert "against mqa" in done.stdout
    assert str(folder / "comparison.md") in done.stdout


def test_the_terminal_shows_six_rows_and_the_rest_on_request(own):
    runs = (own / "mha-seed0", own / "mqa-seed0", "--skip-decode")
    shown, whole = command(*runs).stdout, command(*runs, "--all").stdout
    written = table_of([*runs[:2]], own / "compare-mha-mqa")
    few, all_rows = cells("\n\n" + shown), cells("\n\n" + whole)
    for rows in (few, all_rows, written):  # the header and the line below it
        del rows["mha"], rows[next(label for label in rows if not label.strip("-"))]
    assert len(few) == 6
    assert few.keys() <= all_rows.keys() == written.keys()
    assert all(values == written[label] for label, values in few.items())
    assert {"parameters", "KV-cache bytes per token", "validation bits per byte"} <= few.keys()
    assert "- **mqa**: " in shown  # the verdict
    assert shown.strip().splitlines()[-1].startswith("all rows (--all), figures and heads: ")


def test_a_comparison_of_other_runs_is_never_overwritten(own):
    one, two = ([own / f"mha-seed{seed}", own / "mqa-seed0"] for seed in (0, 1))
    first = own / "compare-mha-mqa"
    command(*one, "--skip-decode")
    command(*one, "--skip-decode")  # the same runs: the same folder
    assert [folder.name for folder in own.glob("compare*")] == [first.name]
    done = command(*two, "--skip-decode", "--out", first, code=2)
    assert "holds a comparison of other runs: name another folder" in done.stderr
    (own / "elsewhere").mkdir()
    shutil.copytree(own / "mha-seed0", own / "elsewhere/mha-seed0")
    command(own / "elsewhere/mha-seed0", own / "mqa-seed0", "--skip-decode")  # of the same names
    assert (own / f"{first.name}-2/comparison.md").is_file()


@pytest.mark.slow
def test_decoding_is_measured_for_every_variant_or_left_out(runs, tmp_path):
    command(runs / "mha-seed0", runs / "mqa-seed0", "--out", tmp_path / "with")
    text = (tmp_path / "with/comparison.md").read_text(encoding="utf-8")
    assert all(float(cell.replace(",", "")) > 0 for cell in cells(text)["decode tokens/s"])
    assert "Decode tokens/s: greedy" in text
    table_of([runs / "mha-seed0"], tmp_path / "without")
    assert "ecode tokens/s" not in (tmp_path / "without/comparison.md").read_text(encoding="utf-8")


def test_decoding_takes_turns_and_a_slow_model_is_slower(runs, monkeypatch):
    """On a clock that moves when a model reads: 1 second a pass of one, 4 of the other, and the first one a minute."""
    models, order, now = {name: load(runs / "mha-seed0") for name in ("quick", "slow")}, [], [0.0]
    monkeypatch.setattr(decode_speed.time, "perf_counter", lambda: now[0])

    def reads(name: str, seconds: float) -> None:
        now[0] += seconds if name in order else 60.0
        order.append(name)

    models["quick"].register_forward_pre_hook(lambda *_: reads("quick", 1.0))
    models["slow"].register_forward_pre_hook(lambda *_: reads("slow", 4.0))
    speeds = decode_speed.decode_speeds(models, rounds=1)
    assert speeds == {"quick": 1.0, "slow": 0.25}  # a pass gives a token
    turns = [name for i, name in enumerate(order) if i == 0 or order[i - 1] != name]
    assert turns == ["quick", "slow"] * 2  # the first turn only warms up


# Several seeds


def with_bits(folder: Path, bits: dict[str, float]) -> list:
    """The variants, with these bits per byte as the last evaluations' figures."""
    for name, value in bits.items():
        lines = (folder / name / "metrics.jsonl").read_text().splitlines()
        lines[-1] = json.dumps(json.loads(lines[-1]) | {"bits_per_byte": value})
        (folder / name / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return group(read_runs([folder / name for name in bits])[0])


COSTS = {name: compare.Cost(1000, 64) for name in ("mha", "mqa")}


@pytest.mark.parametrize(
    ("bits", "said"),
    [
        ((1.0, 1.1, 1.2, 1.301), "**mqa** needs 0.2005 more bits per byte than mha (95 % interval +0.1941"),
        ((1.2, 1.3, 1.0, 1.101), "**mqa** needs 0.1995 fewer bits per byte than mha (95 % interval -0.2059"),
        ((1.0, 1.1, 1.2, 1.15), "no difference to mha shows (+0.1250 bits per byte, 95 % interval -0.8280"),
    ],
)
def test_the_verdict_says_what_the_interval_does(own, bits, said):
    names = ("mha-seed0", "mha-seed1", "mqa-seed0", "mqa-seed1")
    (line,) = compare_text.verdicts(with_bits(own, dict(zip(names, bits, strict=True))), COSTS)
    assert said in line
    assert "2 seeds, paired" in line
    assert "parameters" not in line


def test_the_verdict_of_one_seed_is_none_and_another_size_is_reported(own):
    variants = with_bits(own, {"mha-seed0": 1.0, "mqa-seed0": 2.0})
    (line,) = compare_text.verdicts(variants, COSTS | {"mqa": compare.Cost(900, 16)})
    assert "+1.0000 bits per byte against mha, without a measure of chance" in line
    assert "it also has 10.0% fewer parameters" in line
    assert " than " not in line


# What does not compare


def other_run(folder: Path, name: str, *overrides, **sections) -> Path:
    """A further run, in a folder of its own."""
    (folder / name).mkdir(parents=True)
    sections = {"train": {"max_steps": 4, "checkpoint_every": 0}, "eval": {"every": 2}} | sections
    config = write_config(folder / name, name=name, **sections)
    pretrain(config, "model.num_key_value_heads=4", *overrides)
    return folder / name / "runs" / name


def test_another_tokenizer_is_compared_in_bits_per_byte_only(tmp_path, monkeypatch):
    text = write_config(tmp_path).parent / "text.txt"
    chars = other_run(
        tmp_path, "char", data={"source": {"kind": "files", "path": str(text)}, "tokenizer": {"kind": "char"}}
    )
    bytes_ = other_run(tmp_path, "byte", data={"source": {"kind": "files", "path": str(text)}})
    kept = keep_figures(monkeypatch)
    done = command(bytes_, chars, "--out", tmp_path / "out", "--skip-decode")
    page = (tmp_path / "out/comparison.md").read_text(encoding="utf-8")
    assert "compared in bits per byte only" in done.stderr
    assert "compared in bits per byte only" in page
    assert "validation loss" not in page
    table = cells(page)
    assert table["validation bits per byte"] == [f"{last_val(run)['bits_per_byte']:.4f}" for run in (bytes_, chars)]
    assert [len(figure.axes) for figure in kept] == [3, 1]  # no curve of a loss per token
    assert "other data" not in page


@pytest.mark.parametrize(
    ("sections", "warning"),
    [
        ({"train": {"max_steps": 6, "checkpoint_every": 0}}, "another budget (1,536 tokens, against 1,024 tokens)"),
        ({"data": {"validation_fraction": 0.2}}, "other data (data.validation_fraction)"),
        ({"eval": {"every": 2, "final_max_tokens": 64}}, "another number of held-out tokens"),
    ],
)
def test_other_data_or_another_budget_is_a_warning_and_no_verdict(tmp_path, sections, warning):
    text = str(tmp_path / "text.txt")
    data = {"source": {"kind": "files", "path": text}}
    write_config(tmp_path)
    first = other_run(tmp_path, "first", data=data)
    other = other_run(tmp_path, "other", **(sections | {"data": data | sections.get("data", {})}))
    done = command(first, other, "--out", tmp_path / "out", "--skip-decode")
    page = (tmp_path / "out/comparison.md").read_text(encoding="utf-8")
    assert f"> **Warning:** other against first: {warning}" in page
    assert warning in done.stderr
    assert "no verdict, because it has" in page


def test_the_same_settings_over_a_changed_text_are_other_data(tmp_path):
    text = write_config(tmp_path).parent / "text.txt"
    data = {"source": {"kind": "files", "path": str(text)}}
    first = other_run(tmp_path, "first", data=data)
    edit(text, lambda old: old.replace("cat", "dog"))
    second = other_run(tmp_path, "second", "seed=1", data=data)
    assert "other data (the text itself" in command(first, second, "--skip-decode").stderr


def test_an_unfinished_run_and_an_infinite_loss_are_reported(own):
    (own / "mha-seed0/result.json").unlink()
    file = own / "mqa-seed0/metrics.jsonl"
    edit(file, lambda text: text.replace(json.dumps(last_val(own / "mqa-seed0")["bits_per_byte"]), "null"))
    done = command(own / "mha-seed0", own / "mqa-seed0", "--skip-decode")
    assert "mha-seed0 is not finished: its last step is 4" in done.stderr
    assert "mqa-seed0: its last loss is non-finite" in done.stderr
    assert "no verdict, because a loss is non-finite" in done.stdout


@pytest.mark.slow
def test_runs_limited_by_the_clock_have_the_same_budget_whatever_their_steps(tmp_path):
    data = {"source": {"kind": "files", "path": str(write_config(tmp_path).parent / "text.txt")}}
    sections = {"data": data, "train": {"max_steps": None, "max_minutes": 0.02, "checkpoint_every": 0}}
    first, second = (other_run(tmp_path, name, f"seed={seed}", **sections) for seed, name in enumerate(("a", "b")))
    edit(second / "metrics.jsonl", lambda text: text.replace('"step": ', '"step": 1'))  # far more of them
    last = max(line["step"] for line in metrics(second))
    edit(second / "result.json", lambda text: json.dumps(json.loads(text) | {"step": last}))
    assert "budget" not in command(first, second, "--skip-decode").stderr
    (second / "result.json").unlink()  # stopped before its time
    assert "have different budgets: 0.02 minutes and" in command(first, second, "--skip-decode").stderr


# Bad input


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda run: (run / "config.yaml").unlink(), "mha-seed0: is not a run (it has no config.yaml)"),
        (lambda run: (run / "config.yaml").write_text("a: 1"), "config.yaml: is not the resolved config of a run"),
        (lambda run: (run / "config.yaml").write_text("a: [1"), "config.yaml:1: not valid YAML"),
        (lambda run: shutil.rmtree(run / "checkpoints"), "mha-seed0: has no checkpoint"),
        (lambda run: (run / "metrics.jsonl").unlink(), "mha-seed0: has no evaluation in metrics.jsonl"),
        (lambda run: edit(run / "metrics.jsonl", lambda text: text[:100]), "mha-seed0: has no evaluation"),
        (lambda run: next(run.glob("checkpoints/step*/model.safetensors")).write_bytes(b"x"), "model.safetensors: "),
    ],
)
def test_what_is_not_a_whole_run_is_one_line(own, break_it, message):
    break_it(own / "mha-seed0")
    done = command(*every(own), code=2)
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not list(own.glob("compare*"))


def test_the_same_run_twice(own):
    done = command(own / "mha-seed0", own / "mha-seed1", own / "x/../mha-seed0", code=2)
    assert "are the same run: name it once" in done.stderr
    shutil.copytree(own / "mha-seed0", own / "copy")
    done = command(own / "mha-seed0", own / "copy", code=2)
    assert "are the same run: all settings and seed 0 are equal" in done.stderr


def test_a_place_that_cannot_be_written(own, tmp_path):
    (tmp_path / "file").write_text("in the way")
    assert "--out:" in command(own / "mha-seed0", "--out", tmp_path / "file", "--skip-decode", code=2).stderr


def test_help_needs_no_matplotlib():
    check = "import sys, eval.compare.__main__; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check]).returncode == 0
