"""What report.md says of the heads: when the induction head formed, or that it was there, or that there is none."""

import numpy as np

from eval.attention.findings import findings
from eval.attention.snapshots import Snapshot

COMMON = {"layers": [0, 2], "heads": [1, 3], "num_attention_heads": 4, "num_key_value_heads": 2, "maps": {}}


def snapshot(step: int, induction: float, **scalars) -> Snapshot:
    """Layers 0 and 2, heads 1 and 3; the induction head is layer 2, head 1."""
    scores = {"induction": np.array([[0.01, 0.02], [induction, 0.03]]), "sink": np.full((2, 2), 0.01)}
    chance = {"induction": 0.02, "sink": 0.06}
    return Snapshot(step, step * 100, step / 2, scores=scores, chance=chance, scalars=scalars, **COMMON)


def told(*snapshots: Snapshot) -> str:
    return "\n".join(findings(snapshots))


def test_the_head_the_step_and_the_seconds_at_which_it_formed():
    last = {"copy_gain": 4.0, "ablation_induction_heads": 3.0, "ablation_random_heads": 0.5}
    text = told(snapshot(0, 0.02, copy_gain=0.0), snapshot(40, 0.31), snapshot(80, 0.6, **last))
    assert (
        "An induction head formed: layer 2, head 1. It passed half of its final score at step 40, after 4,000 tokens"
        in text
    )
    assert "and 20 seconds of training. At step 80 it gives 0.600" in text
    assert "(chance 0.020)" in text
    assert "0.00 nats a token at step 0, 4.00 at step 80" in text
    assert "raises the loss on second copies by 3.00 nats a token, silencing as many random heads by 0.50" in text
    assert "| induction | layer 2, head 1 | 0.600 | 0.020 |" in text
    assert "| sink |" not in text  # below chance: no head does that


def test_a_head_that_was_there_before_did_not_form_in_this_run():
    text = told(snapshot(0, 0.5), snapshot(80, 0.6))
    assert "An induction head was there from the first look on (step 0): layer 2, head 1, which has 0.600" in text


def test_no_induction_head():
    text = told(snapshot(0, 0.02), snapshot(80, 0.1))
    assert "No induction head formed: the best one has 0.100 (chance 0.020)." in text


def test_nothing_measured():
    one = snapshot(0, 0.5)
    one.scores.clear()
    assert told(one) == "Induction was not measured.\n"
