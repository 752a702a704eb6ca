"""Reports of the heads: a line when a head's pattern begins, and report.md at the end."""

import re
from dataclasses import replace

import numpy as np

from eval.attention.history import changes, findings, formed, without_them
from eval.attention.snapshots import Ablated, Snapshot, read, write

LEARNED = "layer 2, head 1 learned to look at what followed the same token before"


def snapshot(step: int, induction: float, others=(0.01, 0.02, 0.03), previous: float = 0.05, **scalars) -> Snapshot:
    """Layers 0 and 2, heads 1 and 3; the induction head is layer 2, head 1; layer 0, head 1 looks
    at the one before.
    """
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
    for said in (
        f"Around step 40 (4,000 tokens, 20 seconds), {LEARNED}",
        "0.00 nats a token at step 0, 4.00 at step 80",
        "rises by 3.69 without the strongest induction heads (L2 H0, L3 H1), in nats a token.",
        "| induction |  repeated_2 |          L2 H1 | 0.600 |  0.020 |",
    ):
        assert said in text
    assert "| sink" not in text  # below chance: no head does that
    unmeasured = replace(snapshot(0, 0.5), scores={})
    assert formed([unmeasured]) == ""
    assert findings([unmeasured]) == ["Induction was not measured.\n"]


def test_when_a_head_learned():
    for scores, begins in (
        ((0.02, 0.31, 0.6), f"Around step 1 (100 tokens, 0 seconds), {LEARNED}"),
        ((0.5, 0.6), "From the first look on, layer 2, head 1 looked"),
        ((0.5, 0.1), "From the first look on, layer 2, head 1 looked"),
        ((0.02, 0.1), "No head has learned yet"),
    ):
        sentence = formed([snapshot(step, score) for step, score in enumerate(scores)])
        assert sentence.startswith(begins)
        assert f"{scores[-1]:.2f}, chance 0.02" in sentence


def test_what_the_ablation_costs():
    last = snapshot(80, 0.6)
    assert without_them(last) == ""  # a part of the heads was looked at: nothing was ablated
    costs = {"strongest induction heads": 3.694, "random draw 1": 0.02, "random draw 2": -0.1}
    last.ablations.extend(Ablated(name, [(2, 0)], cost) for name, cost in costs.items())
    assert re.findall(r"by (\S+) ", without_them(last)) == ["3.69", "0.02"]
    last.ablations.pop(1)
    # it falls without them: no rise
    assert re.findall(r"by (\S+) ", without_them(last)) == ["3.69", "0.00"]
    last.scores["induction"][:] = 0.1  # no induction head: nothing to say of it
    assert without_them(last) == ""


# during training


def lines(*looks: Snapshot) -> list[str]:
    return [line for _, line in changes([replace(look, step=step) for step, look in enumerate(looks)])]


def test_a_clear_change_is_told_once_from_the_value_told_before():
    # heads also forget
    said = lines(*(snapshot(0, score) for score in (0.02, 0.10, 0.3, 0.4, 0.61, 0.05)))
    for line, change in zip(said, ("0.02 → 0.30", "0.30 → 0.61", "0.61 → 0.05"), strict=True):
        assert line.startswith(f"layer 2, head 1: induction {change} (chance 0.02): ")


def test_one_line_a_score_however_many_heads_change():
    later = snapshot(0, 0.5, (0.3, 0.4, 0.02), previous=0.6)
    previous, induction = lines(snapshot(0, 0.02), later, later)
    assert previous.startswith("layer 0, head 1: previous token 0.05 → 0.60 (chance 0.05)")
    assert induction.startswith("layer 2, head 1: induction 0.02 → 0.50 (chance 0.02), and 2 more: ")


def test_below_chance_nothing_is_told_and_an_undefined_score_waits():
    assert len(lines(snapshot(0, np.nan), snapshot(0, 0.5), snapshot(0, 0.8))) == 1
    assert lines(*(replace(snapshot(0, score), chance={"induction": 0.2}) for score in (0.3, 0.55))) == []
