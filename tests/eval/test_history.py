"""What is said of the heads: lines during training, when one begins to look somewhere, and report.md at the end."""

from dataclasses import replace

import numpy as np
import pytest

from eval.attention.history import changes, findings, formed, without_them
from eval.attention.snapshots import Ablated, Snapshot, read, write

LEARNED = "layer 2, head 1 learned to look at what followed the same token before"


def snapshot(step: int, induction: float, others=(0.01, 0.02, 0.03), previous: float = 0.05, **scalars) -> Snapshot:
    """Layers 0 and 2, heads 1 and 3; the induction head is layer 2, head 1; layer 0, head 1 looks at the one before."""
    scores = {"induction": np.array([others[:2], [induction, others[2]]]), "sink": np.full((2, 2), 0.01)}
    scores["previous_token"] = np.array([[previous, 0.05], [0.05, 0.05]])
    chance = {"induction": 0.02, "sink": 0.06, "previous_token": 0.052}
    shape = {"layers": [0, 2], "heads": [1, 3], "num_attention_heads": 4, "num_key_value_heads": 2, "maps": {}}
    return Snapshot(step, step * 100, step / 2, scores=scores, chance=chance, scalars=scalars, **shape)


def test_the_report_has_the_head_its_step_and_what_copying_is_worth(tmp_path):
    last = snapshot(80, 0.6, copy_gain=4.0)
    last.ablations.append(Ablated("strongest induction heads", [(2, 0), (3, 1)], 3.694))
    saved = read(write(last, tmp_path))
    assert saved.ablations == last.ablations
    text = "\n".join(findings([snapshot(0, 0.02, copy_gain=0.0), snapshot(40, 0.31), saved]))
    assert f"Around step 40 (4,000 tokens, 20 seconds), {LEARNED}" in text
    assert "(induction 0.60, chance 0.02)." in text
    assert "0.00 nats a token at step 0, 4.00 at step 80" in text
    assert "rises by 3.69 without the strongest induction heads (L2 H0, L3 H1), in nats a token." in text
    assert "| induction |  repeated_2 |          L2 H1 | 0.600 |  0.020 |" in text
    assert "| sink" not in text  # below chance: no head does that


@pytest.mark.parametrize(
    ("scores", "begins", "ends"),
    [
        ((0.02, 0.31, 0.6), f"Around step 1 (100 tokens, 0 seconds), {LEARNED}", "(induction 0.60, chance 0.02)."),
        ((0.5, 0.6), "From the first look on, layer 2, head 1 looked", "0.60, chance 0.02, was 0.50 at step 0)."),
        ((0.5, 0.1), "From the first look on, layer 2, head 1 looked", "0.10, chance 0.02, was 0.50 at step 0)."),
        ((0.02, 0.1), "No head has learned yet", "induction 0.10, chance 0.02, was 0.02 at step 0)."),
    ],
)
def test_one_sentence_for_each_of_these(scores, begins, ends):
    sentence = formed([snapshot(step, score) for step, score in enumerate(scores)])
    assert sentence.startswith(begins)
    assert sentence.endswith(ends)


def test_nothing_measured():
    unmeasured = replace(snapshot(0, 0.5), scores={})
    assert formed([unmeasured]) == ""
    assert findings([unmeasured]) == ["Induction was not measured.\n"]


def test_what_the_ablation_costs_in_one_sentence():
    last = snapshot(80, 0.6)
    assert without_them(last) == ""  # a part of the heads was looked at: nothing was ablated
    last.ablations.append(Ablated("strongest induction heads", [(2, 0), (3, 1)], 3.694))
    assert without_them(last).endswith("by 3.69 without the strongest induction heads (L2 H0, L3 H1), in nats a token.")
    last.ablations.extend([Ablated("random draw 1", [(0, 0)], 0.02), Ablated("random draw 2", [(1, 0)], -0.1)])
    assert without_them(last).endswith("in nats a token; without as many random heads by 0.02 at most.")
    last.scores["induction"][:] = 0.1  # no induction head: nothing to say of it
    assert without_them(last) == ""


# during training


def lines(*looks: Snapshot) -> list[str]:
    return [line for _, line in changes([replace(look, step=step) for step, look in enumerate(looks)])]


def test_a_clear_change_is_told_once_from_the_value_told_before():
    meaning = "attention to what followed the same token before"
    scores = (0.02, 0.10, 0.3, 0.4, 0.61, 0.05)  # heads also forget
    assert lines(*(snapshot(0, score) for score in scores)) == [
        f"layer 2, head 1: induction {change} (chance 0.02): {meaning}"
        for change in ("0.02 → 0.30", "0.30 → 0.61", "0.61 → 0.05")
    ]


def test_one_line_a_score_however_many_heads_change():
    later = snapshot(0, 0.5, (0.3, 0.4, 0.02), previous=0.6)
    previous, induction = lines(snapshot(0, 0.02), later, later)
    assert previous.startswith("layer 0, head 1: previous token 0.05 → 0.60 (chance 0.05): attention to the token just")
    assert induction.startswith("layer 2, head 1: induction 0.02 → 0.50 (chance 0.02), and 2 more: ")


def test_below_chance_nothing_is_told_and_an_undefined_score_waits():
    assert lines(snapshot(0, np.nan), snapshot(0, 0.5)) == []
    assert len(lines(snapshot(0, np.nan), snapshot(0, 0.5), snapshot(0, 0.8))) == 1
    near_chance = [replace(snapshot(0, score), chance={"induction": 0.2}) for score in (0.3, 0.55)]
    assert lines(*near_chance) == []
