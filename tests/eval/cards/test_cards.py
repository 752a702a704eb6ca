"""Tables of findings: statistics against numbers worked out by hand, and every card from training to
its table.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from scipy import stats

from configs.command import InputError
from eval.cards.__main__ import in_words
from eval.cards.reading import CONFIGS, RESULTS, half_way, read_results
from eval.cards.survival import holm, logrank_p, loss_difference, median_step, reached_at, times
from eval.compare.runs import read_runs
from tests.train.helpers import pretrain, write_config
from train.config import load_run_config

ROOT = Path(__file__).parents[3]
OUTCOME = {"score": "copy_gain", "at_least": 1.0}
CARDS = sorted(path.stem for path in CONFIGS.glob("*.yaml"))


def run(seed: int, *values: float | None, loss: float = 5.0) -> dict:
    steps = [100 * i for i in range(len(values))]
    return {"seed": seed, "steps": steps, "values": [*values], "loss": loss}


def at(seed: int, step: int | None, loss: float = 5.0) -> dict:
    """A run of 1,200 steps that reaches 1 at this step, or never."""
    return run(seed, *(float(step is not None and 100 * i >= step) for i in range(13)), loss=loss)


def test_a_run_reaches_the_outcome_at_the_first_step_with_it_or_is_censored_at_its_last():
    assert reached_at(run(0, 0.0, 0.99, 1.0, 0.2), 1.0) == (200, True)
    assert reached_at(run(0, 0.0, None, 0.9), 1.0) == (200, False)


def test_the_median_step_is_the_first_at_which_half_have_reached_the_outcome():
    early = [at(seed, step) for seed, step in enumerate((300, 400, 500, 600, 700))]
    assert median_step(times(early, 1.0)).startswith("500 (")
    # the product of (1 - 1/5) (1 - 1/4) (1 - 1/3) at 500 is 0.4; at 400 it is 0.6
    late = [at(seed, step) for seed, step in enumerate((300, 400, 500, None, None))]
    assert median_step(times(late, 1.0)).startswith("500 (")
    never = [at(seed, step) for seed, step in enumerate((300, 400, None, None, None))]
    assert median_step(times(never, 1.0)).startswith("– (")


def test_p_values_are_corrected_for_their_number():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.5]) == [1.0, 1.0]
    assert holm([]) == []


def test_log_rank_is_exact_and_1_where_nobody_gets_there():
    early = times([at(seed, 100 * seed + 100) for seed in range(5)], 1.0)
    late = times([at(seed, 100 * seed + 600) for seed in range(5)], 1.0)
    never = times([at(seed, None) for seed in range(5)], 1.0)
    # the two most extreme of 10! / (5! 5!) ways to choose five of ten
    assert logrank_p(early, late) == logrank_p(never, early) == pytest.approx(2 / 252)
    assert logrank_p(early, early) == logrank_p(never, never) == 1.0
    assert logrank_p(early[:1], late) == 1.0


def test_log_rank_is_scipys_for_many_runs():
    steps = [100 * (1 + seed * seed % 11) for seed in range(20)]
    early = times([at(seed, step) for seed, step in enumerate(steps)], 1.0)
    late = times([at(seed, step + 200 if step < 900 else None) for seed, step in enumerate(steps)], 1.0)

    def censored(sample):
        return stats.CensoredData.right_censored([step for step, _ in sample], [not hit for _, hit in sample])

    assert logrank_p(early, late) == pytest.approx(stats.logrank(censored(early), censored(late)).pvalue, rel=0.2)


def test_losses_are_compared_seed_by_seed():
    baseline = [at(seed, 300, loss=5 + seed) for seed in range(4)]
    other = [at(seed, 300, loss=5.5 + seed + 0.1 * (-1) ** seed) for seed in (3, 2, 1, 0)]
    # standard deviation 0.11547, standard error 0.05774, times 3.182 (3 degrees of freedom)
    assert loss_difference(baseline, other) == "+0.500 (+0.316 to +0.684)"
    assert loss_difference(baseline, [at(9, 300)]) == "–"


def test_the_table_tells_a_slow_variant_from_one_that_is_like_the_baseline():
    def variant(name, steps):
        runs = [at(seed, step, loss=5 + 0.01 * seed) for seed, step in enumerate(steps)]
        return {"name": name, "parameters": 1000, "kv_bytes": 64, "runs": runs}

    variants = [variant("baseline", (300, 400, 500, 600) * 5), variant("slow", (1100, None, None, None) * 5)]
    variants.append(variant("alike", (400, 300, 600, 500) * 5))
    text = in_words({"outcome": OUTCOME, "variants": variants})
    cells = {row[0]: row for row in ([c.strip() for c in line.split("|")[1:-1]] for line in text.splitlines()) if row}
    assert cells["baseline"][3] == "20 of 20"
    assert cells["slow"][3] == "5 of 20"
    assert float(cells["slow"][5]) < 1e-3
    assert float(cells["alike"][5]) == 1.0


def test_figures_at_the_end_are_a_second_table_of_what_was_measured():
    ends = [{"induction_varied": 0.5, "prose_induction": 0.1}, {"induction_varied": 0.3, "prose_induction": None}]
    runs = [at(seed, 300) | {"end": end} for seed, end in enumerate(ends)]
    variants = [{"name": "baseline", "parameters": 1, "kv_bytes": 1, "runs": runs}]
    *_, header, _, row, _, note = in_words({"outcome": OUTCOME, "variants": variants}).splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in (header, row)]
    assert cells[0] == ["variant", "random tokens, blocks of 12 to 40", "prose as it is"]
    assert cells[1] == ["baseline", "0.40 (0.30 to 0.50)", "0.10 (0.10 to 0.10)"]
    assert note.startswith("At the end")


def test_half_of_the_way_is_the_first_step_past_the_middle_whatever_the_direction():
    assert half_way({0: 0.0, 50: 0.2, 100: -0.9, 150: -1.6, 200: -2.0}) == 150
    assert half_way({0: 0.1, 50: 0.3, 100: 0.3, 150: 0.5}) == 50
    assert half_way({0: 1.0, 50: 1.0}) == 0


def test_a_late_fork_has_no_p_and_its_heads_are_compared_without_the_changed_ones():
    def life(seed, previous, induction, **more):
        heads = {"previous_token": previous, "induction": induction}
        return at(seed, 300) | {"heads": heads, "changed": [], "forked_at": 0} | more

    before = [life(seed, {"L0H0": 0.8, "L0H1": 0.3}, {"L1H0": 0.7, "L1H1": 0.1}) for seed in range(2)]
    after = {"previous": {"L0H0": 0.9, "L0H1": 0.6}, "changed": ["L0H0"], "forked_at": 400, "values": [1.25, 2.0]}
    after |= {"steps": [410, 500]}
    late = [
        life(0, induction={"L1H0": 0.1, "L1H1": 0.6}, **after),
        life(1, induction={"L1H0": 0.7, "L1H1": 0.6}, **after),
    ]
    variants = [{"name": name, "parameters": 1, "kv_bytes": 1} for name in ("baseline", "late")]
    variants[0] |= {"runs": before}
    variants[1] |= {"runs": late}
    text = in_words({"outcome": OUTCOME, "variants": variants})
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| late")]
    assert rows[0][5] == "–"
    assert rows[1] == ["late", "400", "1.25", "0.60", "0.30", "1 of 2"]


def test_a_run_of_another_card_is_refused(tmp_path):
    pretrain(write_config(tmp_path), "name=small-seed0", "train.max_steps=2")
    with pytest.raises(InputError, match="small is no rung of configs/cards/parts.yaml"):
        read_results("parts", [tmp_path / "runs" / "small-seed0"])


@pytest.mark.parametrize("name", CARDS)
def test_the_stored_results_are_those_of_the_cards_config(name):
    file = RESULTS / f"{name}.json"
    if not file.is_file():
        pytest.skip(f"{name} is not measured yet")
    config = load_run_config(CONFIGS / f"{name}.yaml")
    results = json.loads(file.read_text())
    assert results["outcome"] == config.outcome.model_dump()
    names = [variant["name"] for variant in results["variants"]]
    assert set(names) <= {"baseline", *config.rungs}
    assert all(len(variant["runs"]) >= 5 for variant in results["variants"])
    assert in_words(results)


@pytest.mark.slow
@pytest.mark.parametrize("name", CARDS)
def test_a_card_goes_from_training_to_its_table_on_small_settings(name, tmp_path):
    small = [f"output_dir={tmp_path}", "train.max_steps=4", "eval.final_max_tokens=1024"]
    small += ["eval.attention.every=2", "eval.floor_documents=0"]
    # the baseline and one rung
    card = load_run_config(CONFIGS / f"{name}.yaml").model_dump(exclude_none=True)
    if card["data"]["source"]["kind"] == "files":
        small += [f"data.source.path={ROOT}/docs/*.md"]
    else:
        small += ["data.source.documents=300", "data.source.validation_documents=20"]
    rung, changes = next(iter(card["rungs"].items()))
    config = tmp_path / f"{name}.yaml"
    config.write_text(json.dumps(card | {"rungs": {rung: changes}}))

    def command(*arguments):
        line = [sys.executable, "-m", *map(str, arguments)]
        done = subprocess.run(line, cwd=ROOT, capture_output=True, encoding="utf-8", timeout=600)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    command("train.sweep", config, "--seeds", 1, f"name={name}", *small)
    runs = sorted(tmp_path.glob(f"{name}-*-seed*"))
    results = ["--out", tmp_path / "results.json"]
    prose = ["--prose", ROOT / "docs" / "measure.md"] if name != "head-size" else []
    said = command("eval.cards", name, *results, *prose, "--runs", *runs)
    names = [line.split()[1] for line in said.splitlines() if line.startswith("| ")]
    assert (names[0], *names[2:4]) == ("variant", "baseline", rung)
    assert ("prose, each passage twice" in said) == bool(prose)
    measures_context = "in_context" in json.dumps(card["eval"]["hooks"])
    assert ("in-context score, nats" in said) == measures_context
    assert said.endswith(command("eval.cards", name, *results))
    command("eval.cards", name, *results, "--picture", tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 5000


def test_runs_of_a_rung_belong_together_although_an_older_config_lacks_a_key(tmp_path):
    """A sweep that goes on after an update of Headlight: its first runs know fewer keys."""
    small = ["train.max_steps=2", "train.precision=fp32", "eval.hooks=[validation,attention]", "eval.attention.every=1"]
    config = write_config(tmp_path)
    paths = []
    for seed in range(2):
        pretrain(config, f"name=parts-baseline-seed{seed}", f"seed={seed}", *small)
        paths.append(tmp_path / "runs" / f"parts-baseline-seed{seed}")
    old = paths[0] / "config.yaml"
    old.write_text(re.sub(r"\n  kv_sharing: both", "", old.read_text("utf-8")), "utf-8")
    assert len(read_runs(paths)) == 2  # for eval.compare they are two variants
    (variant,) = read_results("parts", paths)["variants"]
    assert variant["name"] == "baseline"
    assert [run["seed"] for run in variant["runs"]] == [0, 1]
    assert variant["runs"][0]["steps"] == [0, 1, 2]


def test_new_runs_join_the_stored_ones_and_replace_those_of_their_seed(tmp_path):
    small = ["train.max_steps=1", "eval.hooks=[validation,attention]", "eval.attention.every=1", "seed=5"]
    pretrain(write_config(tmp_path), "name=parts-baseline-seed5", *small)
    run = tmp_path / "runs" / "parts-baseline-seed5"
    new = read_results("parts", [run])
    (variant,) = new["variants"]
    steps = variant["runs"][0]["steps"]
    earlier = [{"seed": seed, "steps": steps} for seed in (7, 5, 2)]
    others = [{**variant, "name": "mla", "runs": earlier}, {**variant, "runs": earlier}]
    baseline, mla = read_results("parts", [run], stored={**new, "variants": others})["variants"]
    assert [run["seed"] for run in mla["runs"]] == [2, 5, 7]
    assert [run["seed"] for run in baseline["runs"]] == [2, 5, 7]
    assert baseline["runs"][1] == variant["runs"][0]
    for other in ({"parameters": 1}, {"runs": [{"seed": 7, "steps": [0, 600]}]}):
        stored = {**new, "variants": [{**variant, **other}]}
        with pytest.raises(InputError, match="other runs of baseline have another size or length"):
            read_results("parts", [run], stored=stored)
    with pytest.raises(InputError, match="old was stored, and is no rung"):
        read_results("parts", [run], stored={**new, "variants": [{**variant, "name": "old"}]})
    with pytest.raises(InputError, match="the stored results have another outcome"):
        read_results("parts", [run], stored={**new, "outcome": {"score": "copy_gain", "at_least": 9.0}})
