"""The lines that say, during training, that a head began to look somewhere."""

import numpy as np

from eval.attention.changes import Changes
from eval.attention.snapshots import Snapshot, write
from eval.hooks.attention import _shown_so_far


def snapshot(induction: list[list[float]], previous: float = 0.05, heads=(0, 3)) -> Snapshot:
    """Layers 1 and 2, heads 0 and 3; only layer 1, head 0 looks at the token before."""
    scores = {"induction": np.array(induction), "previous_token": np.array([[previous, 0.05], [0.05, 0.05]])}
    chance = {"induction": 0.027, "previous_token": 0.052}
    numbers = {"num_attention_heads": 4, "num_key_value_heads": 4}
    return Snapshot(0, 0, 0.0, [1, 2], list(heads), **numbers, maps={}, scores=scores, chance=chance)


def test_a_clear_change_is_told_once_from_the_value_told_before():
    changes = Changes()
    assert changes.notice(snapshot([[0.02, 0.02], [0.02, 0.02]])) == []
    assert changes.notice(snapshot([[0.02, 0.02], [0.02, 0.10]])) == []
    meaning = "attention to what followed the same token before"
    told = changes.notice(snapshot([[0.02, 0.02], [0.02, 0.3]]))
    assert told == [f"layer 2, head 3: induction 0.02 → 0.30 (chance 0.03): {meaning}"]
    assert changes.notice(snapshot([[0.02, 0.02], [0.02, 0.4]])) == []
    assert changes.notice(snapshot([[0.02, 0.02], [0.02, 0.61]])) == [
        "layer 2, head 3: induction 0.30 → 0.61 (chance 0.03)"  # explained once
    ]
    assert changes.notice(snapshot([[0.02, 0.02], [0.02, 0.05]])) == [
        "layer 2, head 3: induction 0.61 → 0.05 (chance 0.03)"  # heads also forget
    ]


def test_one_line_a_score_however_many_heads_change():
    changes = Changes()
    changes.notice(snapshot([[0.02, 0.02], [0.02, 0.02]]))
    induction, previous = reversed(changes.notice(snapshot([[0.3, 0.4], [0.02, 0.5]], previous=0.6)))
    assert previous.startswith("layer 1, head 0: previous token 0.05 → 0.60 (chance 0.05): attention to the token just")
    assert induction.startswith("layer 2, head 3: induction 0.02 → 0.50 (chance 0.03), and 2 more heads: ")
    assert changes.notice(snapshot([[0.3, 0.4], [0.02, 0.5]], previous=0.6)) == []


def test_below_chance_nothing_is_told_and_an_undefined_score_waits():
    changes = Changes()
    first, later = snapshot([[0.02, 0.02], [0.02, np.nan]]), snapshot([[0.02, 0.02], [0.02, 0.5]])
    changes.notice(first)
    assert changes.notice(later) == []
    assert len(changes.notice(snapshot([[0.02, 0.02], [0.02, 0.8]]))) == 1
    near_chance = snapshot([[0.3, 0.3], [0.3, 0.3]])
    near_chance.chance["induction"] = 0.2
    changes = Changes()
    changes.notice(near_chance)
    near_chance.scores["induction"] = np.full((2, 2), 0.55)
    assert changes.notice(near_chance) == []


def test_other_heads_than_before_begin_anew_and_other_scores_are_left_alone():
    changes = Changes()
    changes.notice(snapshot([[0.02, 0.02], [0.02, 0.02]]))
    assert changes.notice(snapshot([[0.5, 0.5], [0.5, 0.5]], heads=(1, 2))) == []
    without = snapshot([[0.02, 0.02], [0.02, 0.02]])
    without.scores.clear()
    assert Changes().notice(without) == []


def test_a_resumed_run_does_not_tell_it_again(tmp_path):
    write(snapshot([[0.02, 0.02], [0.02, 0.02]]), tmp_path / "attention")
    formed = snapshot([[0.02, 0.02], [0.02, 0.6]])
    object.__setattr__(formed, "step", 100)
    write(formed, tmp_path / "attention")
    assert _shown_so_far(tmp_path).notice(snapshot([[0.02, 0.02], [0.02, 0.65]])) == []
    assert Changes().notice(formed) == []
