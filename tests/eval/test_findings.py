"""What report.md says of the heads: when the induction head formed, or that it was there, or that there is none."""

import numpy as np

from eval.attention.findings import findings, in_one_sentence, without_them
from eval.attention.snapshots import Ablated, Snapshot, read, write

COMMON = {"layers": [0, 2], "heads": [1, 3], "num_attention_heads": 4, "num_key_value_heads": 2, "maps": {}}


def snapshot(step: int, induction: float, **scalars) -> Snapshot:
    """Layers 0 and 2, heads 1 and 3; the induction head is layer 2, head 1."""
    scores = {"induction": np.array([[0.01, 0.02], [induction, 0.03]]), "sink": np.full((2, 2), 0.01)}
    chance = {"induction": 0.02, "sink": 0.06}
    return Snapshot(step, step * 100, step / 2, scores=scores, chance=chance, scalars=scalars, **COMMON)


def told(*snapshots: Snapshot) -> str:
    return "\n".join(findings(snapshots))


def test_the_head_the_step_and_the_seconds_at_which_it_formed():
    text = told(snapshot(0, 0.02, copy_gain=0.0), snapshot(40, 0.31), snapshot(80, 0.6, copy_gain=4.0))
    assert "An induction head formed: L2 H1. It passed half of its final score at step 40, after 4,000 tokens" in text
    assert "and 20 seconds of training. At step 80 it gives 0.600" in text
    assert "(chance 0.020)" in text
    assert "0.00 nats a token at step 0, 4.00 at step 80" in text
    assert "| induction |  repeated_2 |          L2 H1 | 0.600 |  0.020 |" in text
    assert "| sink" not in text  # below chance: no head does that


def test_every_ablation_is_reported_with_its_heads(tmp_path):
    """One mean over random draws hid that one of them held the previous-token head."""
    last = snapshot(80, 0.6)
    last.ablations.append(Ablated("strongest induction heads", [(2, 0), (3, 1)], 3.694))
    last.ablations.append(Ablated("random draw 1", [(0, 0), (3, 3)], 0.02))
    kept = read(write(last, tmp_path))
    assert kept.ablations == last.ablations
    text = " ".join(told(snapshot(0, 0.02), kept).split())
    assert "| strongest induction heads | L2 H0, L3 H1 | 3.69 |" in text
    assert "| random draw 1 | L0 H0, L3 H3 | 0.02 |" in text


def test_a_head_that_was_there_before_did_not_form_in_this_run():
    text = told(snapshot(0, 0.5), snapshot(80, 0.6))
    assert "An induction head was there at the first look (step 0): L2 H1. It has 0.600 at step 80 (was 0.500;" in text
    text = told(snapshot(0, 0.5), snapshot(80, 0.1))
    assert "The induction head that was there at the first look (step 0) is weaker: L2 H1 has 0.100 at step 80" in text


def test_no_induction_head():
    text = told(snapshot(0, 0.02), snapshot(80, 0.1))
    assert "No induction head formed: the best one has 0.100 (chance 0.020)." in text


def test_nothing_measured():
    one = snapshot(0, 0.5)
    one.scores.clear()
    assert told(one) == "Induction was not measured.\n"


def test_one_sentence_for_each_of_these():
    formed = in_one_sentence([snapshot(0, 0.02), snapshot(40, 0.31), snapshot(80, 0.6)])
    assert formed.startswith("Around step 40, layer 2, head 1 learned to look at what followed the same token before")
    assert formed.endswith("(induction 0.02 → 0.60, chance 0.02).")
    there = in_one_sentence([snapshot(0, 0.5), snapshot(80, 0.6)])
    assert there.startswith("From the first look on, layer 2, head 1 looks at what followed the same token before")
    assert there.endswith("(induction 0.60, chance 0.02, was 0.50 at step 0).")
    weaker = in_one_sentence([snapshot(0, 0.5), snapshot(80, 0.1)])
    assert weaker.startswith("What followed the same token before: layer 2, head 1 looked at it at first")
    assert weaker.endswith("(induction 0.10, chance 0.02, was 0.50 at step 0).")
    none = in_one_sentence([snapshot(0, 0.02), snapshot(80, 0.1)])
    assert none.startswith("No head has learned yet")
    assert none.endswith("(the best: layer 2, head 1, induction 0.10, chance 0.02, was 0.02 at step 0).")
    unmeasured = snapshot(0, 0.5)
    unmeasured.scores.clear()
    assert in_one_sentence([unmeasured]) == ""


def test_what_the_ablation_costs_in_one_sentence():
    last = snapshot(80, 0.6)
    assert without_them(last) == ""  # a part of the heads was looked at: nothing was ablated
    last.ablations.append(Ablated("strongest induction heads", [(2, 0), (3, 1)], 3.694))
    last.ablations.append(Ablated("previous-token heads below them", [(0, 1), (0, 3)], 3.1))
    assert without_them(last) == (
        "The loss on the second copy of random words rises by 3.69 without the strongest induction heads (layer 2, "
        "head 0; layer 3, head 1) and by 3.10 without the previous-token heads below them (layer 0, heads 1 and 3), in "
        "nats a token."
    )
    last.ablations.extend([Ablated("random draw 1", [(0, 0)], 0.02), Ablated("random draw 2", [(1, 0)], -0.1)])
    assert without_them(last).endswith("in nats a token; without as many random heads by 0.02 at most.")
    last.scores["induction"][:] = 0.1  # no induction head: nothing to say of it
    assert without_them(last) == ""
