"""The figure of recall over cache bytes: what histories.json says is where it is drawn, a missing phase change too."""

import pytest

from eval.compare.recall import Point, draw, points, recall_over_cache


def variant(heads, size, kv_bytes, runs, attention="heads"):
    settings = {"model.num_key_value_heads": heads, "model.head_dim": size, "model.attention": attention}
    looks = [{"recall": [[0, 0.0], [20, first], [40, last]]} for first, last in runs]
    return {"settings": settings, "kv_bytes": kv_bytes, "parameters": 100, "runs": looks}


HISTORIES = {
    "variants": [
        variant(8, 16, 1024, [(0.6, 0.9), (0.2, 0.7)]),
        variant(1, 16, 128, [(0.1, 0.4), (0.5, 0.51)]),
        variant(8, 16, 256, [(0.9, 1.0)], "mla"),
    ]
}


def test_points_have_the_end_and_the_phase_change_of_every_seed():
    found = points(HISTORIES)
    assert found[0] == Point("8", 16, 1024, 100, [0.9, 0.7], [20, 40], 40)
    assert found[1].half_at == [None, 40]
    assert [one.form for one in found] == ["8", "1", "mla"]


def test_a_model_is_drawn_at_its_bytes_and_yours_as_a_star():
    yours = Point("2", 24, 384, 100, [0.8], [None], 40)
    left, right = recall_over_cache(points(HISTORIES), yours).axes
    lines = {line.get_label(): line for line in left.lines}
    assert lines["8 (MHA)"].get_ydata() == pytest.approx([0.8])
    assert lines["8 (MHA)"].get_xdata() == pytest.approx([1024], rel=0.07)
    (star,) = [line for line in left.lines if line.get_marker() == "*"]
    assert (star.get_xdata(), star.get_ydata()) == ([384], [0.8])
    (late,) = [line for line in right.lines if line.get_marker() == "*"]
    assert late.get_ydata()[0] > 40  # no phase change: above the last step
    named = [text.get_text() for text in right.get_legend().get_texts()]
    assert named[0] == "8 (MHA)"
    assert named[-1] == "yours: 2 (GQA), size 24"


def test_a_comparison_draws_it_only_where_every_model_has_a_place_in_it(tmp_path):
    file = tmp_path / "recall.png"
    assert draw(HISTORIES, file)
    assert file.stat().st_size > 10_000
    other_heads = variant(3, 16, 512, [(0.1, 0.2)])
    not_asked = variant(8, 32, 512, []) | {"runs": [{"recall": []}]}
    same_size = variant(4, 16, 512, [(0.1, 0.2)])
    del same_size["settings"]["model.head_dim"]
    for one in (other_heads, not_asked, same_size):
        assert not draw({"variants": [*HISTORIES["variants"], one]}, tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()
