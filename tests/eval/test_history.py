"""What is said of the heads: lines during training, when one begins to look somewhere, and report.md at the end."""

import numpy as np

from eval.attention.history import Changes, findings, in_one_sentence, without_them
from eval.attention.snapshots import Ablated, Snapshot, read, write
from eval.hooks.attention import Attention

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


# during training


def look(induction: list[list[float]], previous: float = 0.05, heads=(0, 3)) -> Snapshot:
    """Layers 1 and 2, heads 0 and 3; only layer 1, head 0 looks at the token before."""
    scores = {"induction": np.array(induction), "previous_token": np.array([[previous, 0.05], [0.05, 0.05]])}
    chance = {"induction": 0.027, "previous_token": 0.052}
    numbers = {"num_attention_heads": 4, "num_key_value_heads": 4}
    return Snapshot(0, 0, 0.0, [1, 2], list(heads), **numbers, maps={}, scores=scores, chance=chance)


def test_a_clear_change_is_told_once_from_the_value_told_before():
    changes = Changes()
    assert changes.notice(look([[0.02, 0.02], [0.02, 0.02]])) == []
    assert changes.notice(look([[0.02, 0.02], [0.02, 0.10]])) == []
    meaning = "attention to what followed the same token before"
    told = changes.notice(look([[0.02, 0.02], [0.02, 0.3]]))
    assert told == [f"layer 2, head 3: induction 0.02 → 0.30 (chance 0.03): {meaning}"]
    assert changes.notice(look([[0.02, 0.02], [0.02, 0.4]])) == []
    assert changes.notice(look([[0.02, 0.02], [0.02, 0.61]])) == [
        "layer 2, head 3: induction 0.30 → 0.61 (chance 0.03)"  # explained once
    ]
    assert changes.notice(look([[0.02, 0.02], [0.02, 0.05]])) == [
        "layer 2, head 3: induction 0.61 → 0.05 (chance 0.03)"  # heads also forget
    ]


def test_one_line_a_score_however_many_heads_change():
    changes = Changes()
    changes.notice(look([[0.02, 0.02], [0.02, 0.02]]))
    induction, previous = reversed(changes.notice(look([[0.3, 0.4], [0.02, 0.5]], previous=0.6)))
    assert previous.startswith("layer 1, head 0: previous token 0.05 → 0.60 (chance 0.05): attention to the token just")
    assert induction.startswith("layer 2, head 3: induction 0.02 → 0.50 (chance 0.03), and 2 more heads: ")
    assert changes.notice(look([[0.3, 0.4], [0.02, 0.5]], previous=0.6)) == []


def test_below_chance_nothing_is_told_and_an_undefined_score_waits():
    changes = Changes()
    first, later = look([[0.02, 0.02], [0.02, np.nan]]), look([[0.02, 0.02], [0.02, 0.5]])
    changes.notice(first)
    assert changes.notice(later) == []
    assert len(changes.notice(look([[0.02, 0.02], [0.02, 0.8]]))) == 1
    near_chance = look([[0.3, 0.3], [0.3, 0.3]])
    near_chance.chance["induction"] = 0.2
    changes = Changes()
    changes.notice(near_chance)
    near_chance.scores["induction"] = np.full((2, 2), 0.55)
    assert changes.notice(near_chance) == []


def test_a_resumed_run_does_not_tell_it_again(tmp_path):
    write(look([[0.02, 0.02], [0.02, 0.02]]), tmp_path / "attention")
    formed = look([[0.02, 0.02], [0.02, 0.6]])
    object.__setattr__(formed, "step", 100)
    write(formed, tmp_path / "attention")
    assert Attention().page(tmp_path).notice(look([[0.02, 0.02], [0.02, 0.65]])) == []
    assert Changes().notice(formed) == []
