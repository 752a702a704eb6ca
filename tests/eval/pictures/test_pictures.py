"""Pictures of attention show what the snapshots hold: every head in its place, one scale, frames,
labels, moments.
"""

import logging
import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from eval.attention.history import PhaseChange, choose, phase_change
from eval.attention.snapshots import ProbeMap
from eval.pictures import drawing
from eval.pictures.heads import (
    BETWEEN,
    GAP,
    MOST_FRAMES,
    badge,
    cell_size,
    mosaic,
    one_head,
    quick_mosaic,
    tile,
    timelapse,
)
from eval.pictures.run_pictures import PICTURES, render
from eval.pictures.scores import curves, score_maps
from tests.eval.page import viewer_helpers as helpers
from tests.eval.page.viewer_helpers import causal

CHANCE = {"previous_token": 0.04, "induction": 0.02, "sink": 0.05, "entropy": 2.0, "max_logit": None}
STRANGE = ["<bos>", "$x_1$", "␣the", "⏎", "⟨E4⟩", "\x07", "🙂", "a\\b", "^{", "averyverylongtoken", "你好", "世界和平"]


def snapshot(step=1000, layers=2, heads=4, kv_heads=None, induction=0.5, labels=None, **changed):
    scores = {name: np.full((layers, heads), chance or 1.0, np.float32) for name, chance in CHANCE.items()}
    scores["induction"][-1, -1] = induction
    about = {"scores": scores, "chance": dict(CHANCE), "scalars": {"copy_gain": 6 * induction}} | changed
    return helpers.snapshot(step, range(layers), range(heads), heads, kv_heads or heads, labels=labels, **about)


def training(final=0.6, steps=(0, 1, 2, 5, 10, 20, 50, *range(100, 2601, 100)), middle=900):
    """Induction of the last head is a step at `middle`."""
    return [snapshot(s, induction=0.02 + (final - 0.02) / (1 + math.exp(-(s - middle) / 60))) for s in steps]


@pytest.fixture(autouse=True)
def no_complaint(caplog):
    """matplotlib warns of characters without a picture, and logs about fonts that it did not find."""
    with warnings.catch_warnings(), caplog.at_level(logging.WARNING):
        warnings.simplefilter("error")
        yield
    assert not caplog.records


def test_the_tile_holds_every_head_in_its_place_and_nothing_above_the_diagonal():
    weights = causal(2, 3, 5, 0)
    canvas = tile(weights, cell=2)
    pitch = 5 * 2 + GAP
    assert canvas.shape == (2 * pitch - GAP, 3 * pitch - GAP)
    here = canvas[pitch : pitch + 10, 2 * pitch : 2 * pitch + 10]
    for row, column in np.ndindex(2, 2):  # a token has 2 x 2 pixels
        pixels = here[row::2, column::2]
        assert np.array_equal(np.tril(np.nan_to_num(pixels)), weights[1, 2])
        assert np.isnan(pixels[np.triu_indices(5, 1)]).all()
    assert (canvas[10:pitch] == BETWEEN).all()


@pytest.mark.parametrize("shape", [(2, 6, 51), (12, 12, 51), (24, 16, 257), (1, 1, 12), (30, 40, 3)])
def test_maps_fill_the_room_that_they_have_and_no_token_vanishes(shape):
    layers, heads, tokens = shape
    cell = cell_size(np.empty((*shape, tokens)), room=1600, largest=6)
    width = max(layers, heads) * (cell * tokens + GAP)
    assert cell >= 1
    assert cell == 1 or width <= 1600
    assert cell >= 6 or cell * tokens >= 150 or width + max(layers, heads) * tokens > 1600


def test_the_badge_is_the_pattern_that_stands_out_from_chance():
    for scores, expected in (
        ({"previous_token": 0.35, "sink": 0.4}, "previous token 0.35"),  # a sink counts half
        ({"previous_token": math.nan, "sink": 0.9}, "sink 0.90"),
        # induction: on another text
        ({"previous_token": 0.07, "sink": 0.05, "induction": 0.9, "entropy": 3.0}, ""),
    ):
        values = {name: np.full((1, 1), value, np.float32) for name, value in scores.items()}
        assert badge(snapshot(layers=1, heads=1, scores=values), "text", 0, 0) == expected


def test_a_weight_has_the_same_colour_in_every_snapshot_and_picture(tmp_path):
    """A map that is 0.25 everywhere, whatever else the snapshot holds, is one colour: that of the
    fixed scale.
    """
    expected = np.array(drawing.colour_map()(drawing.weight_norm()(0.25), bytes=True)[:3])
    for step, other in ((1, 0.3), (2, 1.0)):
        weights = np.full((1, 2, 4, 4), 0.25, np.float32)
        weights[0, 1] = other
        shot = snapshot(step, layers=1, heads=2, maps={"text": ProbeMap(weights, list("abcd"))}, scores={})
        mosaic(shot, tmp_path / "m.png")
        quick_mosaic(shot, tmp_path / "q.png")
        timelapse([shot], tmp_path / "t.gif")
        for name in ("m.png", "q.png", "t.gif"):
            with Image.open(tmp_path / name) as picture:
                pixels = np.asarray(picture.convert("RGB")).astype(int)
            share = (np.abs(pixels - expected.astype(int)).max(-1) <= 6).mean()
            assert share > 0.03, (name, step)


def test_a_quick_picture_names_the_step_and_every_head_and_shows_the_repeated_text(tmp_path):
    def drawn(shot):
        quick_mosaic(shot, tmp_path / "q.png")
        return (tmp_path / "q.png").read_bytes()

    first = snapshot(100)
    for change in ({"step": 200}, {"layers": [1, 2]}, {"heads": [4, 5, 6, 7]}):
        assert drawn(replace(first, **change)) != drawn(first), change
    plain = replace(first, maps={name: first.maps[name] for name in ("text", "packed")})
    repeated = replace(first, maps={"text": first.maps["text"], "repeated_2": first.maps["repeated_2"]})
    assert drawn(repeated) == drawn(first) != drawn(plain)


def test_chinese_and_strange_labels_are_drawn_without_a_complaint(tmp_path):
    shot = snapshot(labels=STRANGE)
    for suffix in ("png", "svg"):
        mosaic(shot, tmp_path / f"m.{suffix}", "中文 $run")
        one_head(shot, 0, 0, tmp_path / f"o.{suffix}", title="中文")
    timelapse([shot], tmp_path / "t.gif")
    shot.scores["max_logit"][:] = np.nan
    score_maps(shot, tmp_path / "heads.png", "中文")


@pytest.mark.parametrize("heads", [4, 6, 16])
def test_score_maps_are_no_wider_than_a_page_which_would_shrink_their_numbers(heads, tmp_path):
    with Image.open(score_maps(snapshot(heads=heads), tmp_path / "heads.png")) as picture:
        assert picture.width <= 1000


# Time


def test_the_phase_change_is_where_half_of_the_final_score_is_reached():
    assert phase_change(training()[::-1]) == PhaseChange(1, 3, 900, 900_000, 450.0)
    assert phase_change(training(final=0.19)) is None, "below ten times chance"
    assert phase_change(training(middle=-5000)) is None, "there from the first step"
    assert phase_change([snapshot(0, scores={}), snapshot(1, scores={})]) is phase_change([]) is None
    shots = [snapshot(step, induction=value) for step, value in ((0, 0.0), (10, 0.1), (20, 0.4), (30, 0.5))]
    for shot in shots:  # true numbers, and missing values
        shot.scores["induction"][0, 0] = np.nan
        shot.layers[:], shot.heads[:] = [3, 7], [0, 2, 4, 6]
    shots[2].scores["induction"][:] = np.nan
    assert phase_change(shots)[:3] == (7, 6, 30)


def test_frames_are_dense_early_and_hold_the_first_and_the_last():
    shots = training()
    steps = [shot.step for shot in choose(shots, 12)]
    assert (len(steps), steps[0], steps[-1]) == (12, 0, 2600)
    assert steps == sorted(set(steps))
    assert steps[1] - steps[0] < steps[-1] - steps[-2]
    assert choose(shots[:3], 12) == shots[:3]


@pytest.mark.slow
def test_a_run_is_drawn_whole(tmp_path):
    for name in ("demo", "plain"):
        (tmp_path / name / "attention").mkdir(parents=True)
    paths = render(tmp_path / "demo", training())
    names = {path.name for path in paths if path.is_file()}
    assert {"step_00000000.png", "step_00000900.png", "step_00002600.png", "viewer.html"} < names
    assert {path.split("/")[-1] for path in PICTURES} < names
    with Image.open(tmp_path / "demo/attention/timelapse.gif") as picture:
        assert picture.n_frames == MOST_FRAMES < len(training())
    plain = render(tmp_path / "plain", [snapshot(0, scores={}, scalars={})])  # nothing was measured
    assert [path.name for path in plain] == ["step_00000000.png", "timelapse.gif", "viewer.html"]
    curves([snapshot(step, scalars={}) for step in (0, 10)], tmp_path / "curves.svg")
