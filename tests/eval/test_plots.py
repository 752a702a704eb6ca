"""Pictures of attention show what the snapshots hold: every head in its place, one scale, frames, labels, moments."""

import logging
import math
import warnings

import numpy as np
import pytest
from PIL import Image
from PIL.ImageColor import getrgb

from eval.attention.history import PhaseChange, choose, phase_change
from eval.attention.pictures import drawing, score_plots
from eval.attention.pictures.grid import BETWEEN, badge, kv_heads, lay_out, legend, tile, without_sink
from eval.attention.pictures.plots import mosaic, one_head, quick_mosaic, side_by_side
from eval.attention.pictures.score_plots import curves, score_maps, score_maps_side_by_side
from eval.attention.pictures.timelapse import MOST_FRAMES, timelapse
from eval.attention.render import render
from eval.attention.snapshots import ProbeMap, Snapshot

CHANCE = {"previous_token": 0.04, "induction": 0.02, "sink": 0.05, "entropy": 2.0, "max_logit": None}


def causal(layers, heads, tokens, seed=0):
    """Random attention: peaked rows that sum to 1."""
    logits = 3 * np.random.default_rng(seed).standard_normal((layers, heads, tokens, tokens)).astype(np.float32)
    weights = np.where(np.tril(np.ones((tokens, tokens), dtype=bool)), np.exp(logits), 0)
    return (weights / weights.sum(-1, keepdims=True)).astype(np.float32)


def snapshot(step=1000, layers=2, heads=4, kv_heads=None, tokens=12, induction=0.5, labels=None, **changed):
    scores = {name: np.full((layers, heads), chance or 1.0, np.float32) for name, chance in CHANCE.items()}
    scores["induction"][-1, -1] = induction
    labels = labels or [f"w{t}" for t in range(tokens)]
    maps = {
        "text": ProbeMap(causal(layers, heads, tokens, step), labels),
        "repeated_2": ProbeMap(causal(layers, heads, tokens, step + 1), labels),
    }
    about = {"tokens": 2048 * step, "seconds": 0.1 * step, "maps": maps, "scores": scores, "chance": dict(CHANCE)}
    about |= {"scalars": {"copy_gain": 6 * induction}, "num_key_value_heads": kv_heads or heads} | changed
    return Snapshot(step, layers=[*range(layers)], heads=[*range(heads)], num_attention_heads=heads, **about)


def pixels(path):
    with Image.open(path) as picture:
        return np.asarray(picture.convert("RGB")).astype(int)


def has_colour(picture, colour, at_least=100):
    return (np.abs(picture - getrgb(colour)[:3]).max(-1) <= 2).sum() >= at_least


@pytest.fixture(autouse=True)
def no_complaint(caplog):
    """matplotlib warns of characters without a picture, and logs about fonts that it did not find."""
    with warnings.catch_warnings(), caplog.at_level(logging.WARNING):
        warnings.simplefilter("error")
        yield
    assert not caplog.records


# The grid


def test_the_tile_holds_every_head_in_its_place_and_nothing_above_the_diagonal():
    weights = causal(2, 3, 5)
    canvas = tile(weights, gap=2)
    assert canvas.shape == (2 * 7 - 2, 3 * 7 - 2)
    here = canvas[7:12, 14:19]
    assert np.array_equal(np.tril(np.nan_to_num(here)), weights[1, 2].astype(np.float32))
    assert np.isnan(here[np.triu_indices(5, 1)]).all()
    assert (canvas[5:7] == BETWEEN).all()
    assert (canvas[:, 12:14] == BETWEEN).all()


def test_several_tokens_in_a_cell_keep_the_largest_weight():
    weights = np.zeros((1, 1, 7, 7), np.float32)
    weights[0, 0, 6, 3], weights[0, 0, 4, 4] = 0.9, 0.2
    small = tile(weights, gap=1, pool=2)
    assert small.shape == (4, 4)
    assert small[3, 1] == np.float32(0.9)
    assert small[2, 2] == np.float32(0.2)
    assert np.isnan(small[0, 1])


@pytest.mark.parametrize(("layers", "heads"), [(2, 2), (4, 4), (8, 8), (12, 12), (2, 32), (48, 2)])
@pytest.mark.parametrize("tokens", [2, 8, 64, 256, 1024])
def test_the_grid_stays_within_its_room(layers, heads, tokens):
    grid = lay_out(layers, heads, tokens, room=2100)
    assert max(grid.width, grid.height) <= 2100
    assert grid.length * grid.pool >= tokens
    assert grid.cell >= 1


def test_the_first_token_of_each_document_can_be_hidden():
    weights = causal(1, 2, 6)
    weights[0, 0, 5] = [0, 0, 0, 1, 0, 0]  # all of it on the second document's first token
    hidden = without_sink(ProbeMap(weights, list("abcdef"), [0, 0, 0, 1, 1, 1]))
    assert np.isnan(hidden[..., [0, 3]]).all()
    assert np.isnan(hidden[0, 0, 5]).all()
    rows = np.nansum(hidden[0, 1], -1)
    assert rows[[1, 2, 4, 5]] == pytest.approx(1, abs=1e-6)
    assert hidden[0, 1, 2, 2] / hidden[0, 1, 2, 1] == pytest.approx(weights[0, 1, 2, 2] / weights[0, 1, 2, 1], rel=1e-5)
    assert weights[0, 0, 5, 3] == 1, "the snapshot itself must not change"
    assert "first token of each document hidden" in legend(
        snapshot(maps={"packed": ProbeMap(weights, [], [0, 1])}), "packed", lay_out(1, 2, 6), True
    )


# Badges


def with_scores(**scores):
    values = {name: np.full((1, 1), value, np.float32) for name, value in scores.items()}
    return snapshot(layers=1, heads=1, scores=values)


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ({"previous_token": 0.1, "sink": 0.11}, "previous token 0.10"),
        ({"previous_token": 0.35, "sink": 0.4}, "previous token 0.35"),  # a sink counts half
        ({"previous_token": 0.08, "sink": 0.9}, "sink 0.90"),
        ({"previous_token": math.nan, "sink": 0.9}, "sink 0.90"),
        ({"previous_token": 0.07, "sink": 0.05}, ""),
        ({"entropy": 3.0, "max_logit": 20.0}, ""),
    ],
)
def test_the_badge_is_the_pattern_that_stands_out_from_chance(scores, expected):
    assert badge(with_scores(**scores), "text", 0, 0) == expected


def test_a_badge_is_a_score_of_the_text_that_is_shown():
    """One head, one truth: song_induction 0.88 stood on the map of random tokens, where induction is 0.65."""
    shot = with_scores(induction=0.65, song_induction=0.88, previous_token=0.3)
    shot.chance["song_induction"] = 0.01
    assert badge(shot, "repeated_2", 0, 0) == "induction 0.65"
    assert badge(shot, "songs", 0, 0) == "induction in songs 0.88"
    assert badge(shot, "text", 0, 0) == "previous token 0.30"
    assert badge(shot, "fox", 0, 0) == "", "nothing is measured on a text of your own"


@pytest.mark.parametrize(("heads", "has_badges"), [(4, True), (32, False)])
def test_badges_are_promised_where_there_are_some(heads, has_badges):
    shot = snapshot(heads=heads, tokens=32)
    assert ("badge:" in legend(shot, "text", lay_out(2, heads, 32), False)) == has_badges


# Mosaics


def test_the_toggle_is_named():
    words = [kv_heads(snapshot(heads=8, kv_heads=count)) for count in (8, 2, 1)]
    assert words == ["MHA, 8 heads", "GQA, 8 heads on 2 KV heads", "MQA, 8 heads on 1 KV head"]
    assert kv_heads(snapshot(heads=8, attention="mla")) == "MLA, 8 heads on one latent"


@pytest.mark.parametrize("kv_heads", [8, 2, 1])
def test_a_mosaic_has_a_frame_around_every_group(tmp_path, kv_heads):
    for draw in (mosaic, lambda shot, path: quick_mosaic(shot.maps["text"].weights, path, kv_heads)):
        draw(snapshot(heads=8, kv_heads=kv_heads), tmp_path / "m.png")
        picture = pixels(tmp_path / "m.png")
        for group, colour in enumerate(drawing.GROUP_COLOURS[:7]):  # the eighth is also that of letters
            assert has_colour(picture, colour) == (group < kv_heads), f"frame of group {group}"


def test_a_weight_has_the_same_colour_in_every_snapshot_and_picture(tmp_path):
    """A map that is 0.25 everywhere, whatever else the snapshot holds, is one colour: that of the fixed scale."""
    expected = np.array(drawing.colour_map()(drawing.weight_norm()(0.25), bytes=True)[:3])
    for step, other in ((1, 0.3), (2, 1.0)):
        weights = np.full((1, 2, 4, 4), 0.25, np.float32)
        weights[0, 1] = other
        shot = snapshot(step, layers=1, heads=2, maps={"text": ProbeMap(weights, list("abcd"))}, scores={})
        mosaic(shot, tmp_path / "m.png")
        quick_mosaic(weights, tmp_path / "q.png")
        timelapse([shot], tmp_path / "t.gif")
        for name in ("m.png", "q.png", "t.gif"):
            share = (np.abs(pixels(tmp_path / name) - expected.astype(int)).max(-1) <= 6).mean()
            assert share > 0.03, (name, step)


def test_colours_darken_evenly():
    weights = np.linspace(0, 1, 1001, dtype=np.float32)
    grey = drawing.colour_map()(drawing.weight_norm()(weights), bytes=True)[:, :3] @ [0.299, 0.587, 0.114]
    assert (np.diff(grey) <= 0.5).all()
    assert grey[0] - grey[-1] > 200
    assert len(drawing.palette()) <= 256  # of a GIF


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layers", "heads", "tokens", "kilobytes"), [(2, 2, 8, 50), (8, 8, 32, 200), (8, 8, 256, 600), (12, 12, 256, 1200)]
)
def test_a_picture_is_neither_too_large_nor_too_heavy(tmp_path, layers, heads, tokens, kilobytes):
    """Noise, as here, packs worst: real maps take half of it."""
    mosaic(snapshot(layers=layers, heads=heads, tokens=tokens), tmp_path / "m.png")
    assert max(pixels(tmp_path / "m.png").shape) <= drawing.LONGEST_SIDE
    assert (tmp_path / "m.png").stat().st_size < 1000 * kilobytes


def test_where_a_document_ends_is_drawn(tmp_path):
    one = ProbeMap(causal(2, 2, 12), ["x"] * 12)
    two = ProbeMap(one.weights, one.labels, [0] * 5 + [1] * 7)
    for shown, drawn in ((one, False), (two, True)):
        mosaic(snapshot(heads=2, maps={"packed": shown}), tmp_path / "m.png", probe="packed")
        assert has_colour(pixels(tmp_path / "m.png"), drawing.BOUNDARY) == drawn


def test_hiding_the_sink_changes_the_picture(tmp_path):
    shot = snapshot()
    mosaic(shot, tmp_path / "a.png")
    mosaic(shot, tmp_path / "b.png", hide_sink=True)
    assert (tmp_path / "a.png").read_bytes() != (tmp_path / "b.png").read_bytes()


def test_one_head_and_models_side_by_side(tmp_path):
    gqa, mqa = snapshot(heads=8, kv_heads=2), snapshot(heads=4, kv_heads=1)
    one_head(gqa, 1, 7, tmp_path / "one.png", "a run", "repeated_2", hide_sink=True)
    side_by_side([("MHA", snapshot()), ("GQA", gqa), ("MQA", mqa)], tmp_path / "three.png")
    assert pixels(tmp_path / "three.png").shape[1] <= drawing.LONGEST_SIDE
    with pytest.raises(ValueError, match="layer 2 is not in this snapshot: it has layers"):
        one_head(gqa, 2, 0, tmp_path / "x.png")
    with pytest.raises(ValueError, match="has no maps of 'songs', but of"):
        mosaic(gqa, tmp_path / "x.png", probe="songs")
    with pytest.raises(ValueError, match="give at least one"):
        side_by_side([], tmp_path / "x.png")
    with pytest.raises(ValueError, match=r"x.jpg: a picture ends in .png or .svg"):
        mosaic(gqa, tmp_path / "x.jpg")


# Labels

STRANGE = ["<bos>", "$x_1$", "␣the", "⏎", "⟨E4⟩", "\x07", "🙂", "a\\b", "^{", "averyverylongtoken", "你好", "世界和平"]


def test_chinese_and_strange_labels_are_drawn_without_a_complaint(tmp_path):
    shot = snapshot(labels=STRANGE)
    for suffix in ("png", "svg"):
        mosaic(shot, tmp_path / f"m.{suffix}", "中文 $run")
        one_head(shot, 0, 0, tmp_path / f"o.{suffix}", "中文")
    timelapse([shot], tmp_path / "t.gif", "中文")
    assert (tmp_path / "m.svg").read_text().lstrip().startswith("<?xml")
    assert b"<svg" in (tmp_path / "o.svg").read_bytes()
    assert drawing.readable("🙂\x07") == "U+1F642U+0007"


def test_without_a_chinese_font_characters_are_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr(drawing, "fonts", lambda: ["DejaVu Sans"])
    drawing._drawable.cache_clear()
    assert drawing.readable("好 a⏎") == "U+597D a⏎"
    mosaic(snapshot(labels=STRANGE), tmp_path / "m.png", "中文")
    drawing._drawable.cache_clear()


needs_cjk = pytest.mark.skipif(len(drawing.fonts()) == 1, reason="no font with Chinese characters is installed here")


@needs_cjk
def test_an_installed_chinese_font_is_found():
    assert drawing.readable("好") == "好"


def test_labels_are_cut_by_the_width_that_they_take():
    assert drawing.shorten("averyverylongtoken") == "averyverylo…"
    assert drawing.shorten("short") == "short"


@needs_cjk
def test_wide_characters_count_twice_when_a_label_is_cut():
    assert drawing.shorten("世界和平世界和平") == "世界和平世…"


# Scores


def test_score_maps_mark_chance_and_hatch_what_is_missing(tmp_path):
    shot = snapshot()
    shot.scores["max_logit"][:] = np.nan
    score_maps(shot, tmp_path / "heads.png", "a run")
    picture = pixels(tmp_path / "heads.png")
    assert has_colour(picture, drawing.BOUNDARY, 60), "the chance level"
    assert has_colour(picture, drawing.NOTHING, 500), "the missing score"
    with pytest.raises(ValueError, match="has no head scores"):
        score_maps(snapshot(scores={}), tmp_path / "x.png")


def test_the_heads_that_stand_out_are_drawn_first_each_pattern_once(tmp_path):
    shot = snapshot()
    score_maps(shot, tmp_path / "none.png")  # of "induction" one head has 0.5, but no other score is above chance
    shot.scores["previous_token"][0] = [0.3, 0.9, 0.8, 0.7]
    assert score_plots.standing_out(shot) == [(0, 1, "previous_token"), (1, 3, "induction")]
    score_maps(shot, tmp_path / "heads.png")
    one, two = pixels(tmp_path / "none.png"), pixels(tmp_path / "heads.png")
    for picture, columns in ((one, 1), (two, 2)):
        above = (picture[: score_plots.LARGE] == getrgb(drawing.NOTHING)[:3]).all(-1)  # beside the large triangles
        middle = above[score_plots.LARGE // 2 - 100]
        assert np.diff(np.flatnonzero(middle), prepend=-100).clip(0, 100).tolist().count(100) == columns
    del shot.scores["previous_token"], shot.scores["induction"]
    assert score_plots.standing_out(shot) == []


def test_the_scale_of_a_score_is_its_range_or_shared():
    from eval.attention.metrics import SCORES

    small, large = snapshot(), snapshot()
    large.scores["entropy"][:] = 3.5
    bounded = score_plots._norm(SCORES["induction"], [small])
    assert (bounded.vmin, bounded.vmax) == (0, 1)
    assert score_plots._norm(SCORES["entropy"], [small]).vmax == pytest.approx(2.0)
    assert score_plots._norm(SCORES["entropy"], [small, large]).vmax == pytest.approx(3.5)


@pytest.mark.slow
@pytest.mark.parametrize(("layers", "heads"), [(2, 2), (48, 4), (2, 64)])
def test_score_maps_stay_within_a_page(tmp_path, layers, heads):
    score_maps(snapshot(layers=layers, heads=heads), tmp_path / "heads.png")
    assert max(pixels(tmp_path / "heads.png").shape) <= drawing.LONGEST_SIDE


def test_scores_side_by_side(tmp_path):
    models = [("MHA", snapshot()), ("GQA", snapshot(heads=8, kv_heads=2)), ("none", snapshot(scores={}))]
    score_maps_side_by_side(models, tmp_path / "s.png", ["induction", "sink", "distance"])
    assert (tmp_path / "s.png").stat().st_size > 5000
    with pytest.raises(ValueError, match="none of these snapshots has one of the scores"):
        score_maps_side_by_side(models, tmp_path / "s.png", ["distance"])


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_curves(tmp_path, suffix):
    shots = training()
    curves(shots, tmp_path / f"c.{suffix}", "run", phase_change(shots), log=True)
    without_gain = [snapshot(step, scalars={}) for step in (0, 10)]
    curves(without_gain, tmp_path / f"d.{suffix}")
    curves([snapshot(0, scores={})], tmp_path / f"e.{suffix}", log=True)
    with pytest.raises(ValueError, match="there is no snapshot"):
        curves([], tmp_path / "x.png")


# Time


def training(final=0.6, steps=(0, 1, 2, 5, 10, 20, 50, *range(100, 2601, 100)), middle=900):
    """Induction of the last head is a step at `middle`."""
    return [snapshot(s, induction=0.02 + (final - 0.02) / (1 + math.exp(-(s - middle) / 60))) for s in steps]


def test_the_phase_change_is_where_half_of_the_final_score_is_reached():
    shots = training()
    assert phase_change(shots[::-1]) == PhaseChange(1, 3, 900, 900 * 2048, 90.0)
    assert phase_change(training(middle=1450)).step == 1500


def test_there_is_no_phase_change_without_a_strong_head_or_in_one_that_was_there_before():
    assert phase_change(training(final=0.19)) is None, "below ten times chance"
    assert phase_change(training(middle=-5000)) is None, "there from the first step"
    assert phase_change([]) is None
    assert phase_change([snapshot(0, scores={}), snapshot(1, scores={})]) is None
    assert phase_change(training(), score="song_induction") is None


def test_the_phase_change_names_true_numbers_and_overlooks_missing_values():
    shots = [snapshot(step, induction=value) for step, value in ((0, 0.0), (10, 0.1), (20, 0.4), (30, 0.5))]
    for shot in shots:
        shot.scores["induction"][0, 0] = np.nan
        shot.layers[:], shot.heads[:] = [3, 7], [0, 2, 4, 6]
    shots[2].scores["induction"][:] = np.nan
    assert phase_change(shots)[:3] == (7, 6, 30)


def test_frames_are_dense_early_and_hold_the_first_and_the_last():
    shots = training()
    chosen = choose(shots[::-1], 12)
    steps = [shot.step for shot in chosen]
    assert len(steps) == 12
    assert (steps[0], steps[-1]) == (0, 2600)
    assert steps == sorted(set(steps))
    assert steps[1] - steps[0] < steps[-1] - steps[-2]
    assert choose(shots[:3], 12) == shots[:3]
    assert [shot.step for shot in choose(shots, 2)] == [0, 2600]


def test_the_timelapse_has_at_most_24_frames_from_the_first_step_to_the_last(tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr(
        "eval.attention.pictures.timelapse.moment", lambda shot: shown.append(shot.step) or f"step {shot.step}"
    )
    path = timelapse(training(), tmp_path / "t.gif", "run")
    with Image.open(path) as picture:
        assert picture.n_frames == MOST_FRAMES == 24
        first = picture.convert("RGB").copy()
        picture.seek(23)
        assert first.size == picture.size
        assert first.tobytes() != picture.convert("RGB").tobytes()
        assert picture.info["duration"] > 1000  # the last one stays
    assert (shown[1], shown[-1]) == (0, 2600)
    with pytest.raises(ValueError, match="there is no snapshot"):
        timelapse([], tmp_path / "x.gif")


def test_the_badges_of_the_timelapse_can_be_read_at_the_size_of_readme(tmp_path):
    """README shows it 400 pixels wide; there a badge had letters of four pixels."""
    shot = snapshot(heads=6, tokens=51, induction=0.9)
    timelapse([shot], tmp_path / "t.gif", probe="repeated_2")
    picture = pixels(tmp_path / "t.gif")
    lines = np.flatnonzero((np.abs(picture - getrgb(drawing.BADGE)[:3]).max(-1) <= 2).any(1))
    height = (lines[-1] - lines[0]) * 400 / picture.shape[1]
    assert height >= 12, "of two lines: induction, 0.90"


def test_the_last_frame_is_drawn_as_if_it_were_alone(tmp_path):
    """What moves is drawn anew: nothing of an earlier frame shines through."""
    shots = [snapshot(step, scalars={}, scores={}) for step in (0, 900, 2600)]
    for shot in shots:
        shot.scores["previous_token"] = np.full((2, 4), shot.step / 2600, np.float32)
    timelapse(shots, tmp_path / "all.gif")
    with Image.open(tmp_path / "all.gif") as picture:
        picture.seek(2)
        last = np.asarray(picture.convert("RGB"))
    timelapse(shots[2:], tmp_path / "one.gif")
    assert np.array_equal(last, pixels(tmp_path / "one.gif"))


@pytest.mark.slow
def test_a_run_is_drawn_whole(tmp_path):
    paths = render(tmp_path / "demo", training(steps=(0, 10, 300, 600, 900, 1200, 2600)), most=3)
    names = {path.relative_to(tmp_path).as_posix() for path in paths}
    for wanted in ("step_00000000.png", "step_00000900.png", "step_00002600.png", "heads.png", "curves.png",
                   "induction_head.png", "timelapse.gif", "viewer.html"):  # fmt: skip
        assert f"demo/attention/{wanted}" in names
    assert all(path.is_file() for path in paths)
    assert sum(path.name.startswith("step_") for path in paths) <= 4
    assert render(tmp_path / "nothing", []) == []
    assert not (tmp_path / "nothing").exists()
    plain = render(tmp_path / "plain", [snapshot(0, scores={}, scalars={})])
    assert [path.name for path in plain] == ["step_00000000.png", "timelapse.gif", "viewer.html"]


def test_a_quick_mosaic_is_that_of_a_snapshot_without_text(tmp_path):
    weights = causal(4, 4, 64)
    quick_mosaic(weights, tmp_path / "q.png", 2)
    picture = pixels(tmp_path / "q.png")
    grid = lay_out(4, 4, 64, room=1200, largest=4, smallest_head=48)
    centre = 4 + grid.cell // 2  # the margin, then the middle of the first cell
    for layer, head, query, key in ((0, 0, 0, 0), (1, 2, 30, 11), (3, 3, 63, 62)):
        y, x = ((place * grid.step + token) * grid.cell + centre for place, token in ((layer, query), (head, key)))
        colour = drawing.colour_map()(drawing.weight_norm()(weights[layer, head, query, key]), bytes=True)[:3]
        assert np.abs(picture[y, x] - np.array(colour, int)).max() <= 3
    assert tuple(picture[centre, centre + 40 * grid.cell]) == getrgb(drawing.NOTHING)  # after the query
