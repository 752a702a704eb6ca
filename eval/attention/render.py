"""What is drawn at the end of a run? Everything in its attention folder, from the snapshots on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from eval.attention.history import choose, like_the_last, phase_change
from eval.attention.metrics import SCORES
from eval.attention.pictures.plots import mosaic, one_head
from eval.attention.pictures.score_plots import curves, score_maps
from eval.attention.pictures.timelapse import timelapse
from eval.attention.snapshots import Snapshot, file_of
from eval.attention.viewer import VIEWER, write_viewer
from eval.experts.log import for_viewer, read

PICTURES = {  # that bear no step in their name, and what they show
    "timelapse.gif": "every head while it learns",
    "curves.png": "the heads' scores over training",
    "heads.png": "the heads that stand out most, and the scores of every head, at the last look",
    "induction_head.png": "the induction head, on random repeated tokens",
}


def render(
    run_directory: Path,
    snapshots: Sequence[Snapshot],
    probe: str | None = None,
    most: int = 8,
    folder: Path | None = None,
) -> list[Path]:
    """Draw a run's attention folder (or another one, `folder`); the paths of what was drawn.

    step_XXXXXXXX.png   every head on the probe (default: the first one), of at most `most` snapshots: the first, the
                        last, that of the phase change, and others dense early
    heads.png           the three heads that stand out most in the last snapshot, large, and every score of every head
    curves.png          the scores over training
    induction_head.png  the head that made the phase change, if there was one, on repeated tokens
    timelapse.gif       the heads while they learn, on repeated tokens if that probe was recorded
    viewer.html         all of it, to look around in, and the experts of a run that has some

    Nothing is drawn of no snapshots, and no scores where none were measured. Only the viewer has snapshots that looked
    at other heads or texts than the last one.
    """
    if not snapshots:
        return []
    ordered = like_the_last(snapshots)
    folder, name, last = folder or run_directory / "attention", run_directory.name, ordered[-1]
    folder.mkdir(parents=True, exist_ok=True)
    change = phase_change(ordered)
    shown = choose(ordered, most)
    if change and change.step not in [snapshot.step for snapshot in shown]:
        shown += [snapshot for snapshot in ordered if snapshot.step == change.step]
    paths = [mosaic(one, file_of(folder, one.step).with_suffix(".png"), name, probe) for one in shown]
    if any(score in SCORES for score in last.scores):
        paths += [score_maps(last, folder / "heads.png", name)]
        paths += [curves(ordered, folder / "curves.png", f"{name}: what the heads do", change)]
    copying = "repeated_2" if "repeated_2" in last.maps else None  # where learning to copy shows as a stripe
    (folder / "induction_head.png").unlink(missing_ok=True)  # of an earlier time, when it may have been another head
    if change and SCORES["induction"].probe in last.maps:
        repeated = SCORES["induction"].probe
        file = folder / "induction_head.png"
        paths += [one_head(last, change.layer, change.head, file, name, repeated, score="induction")]
    experts = for_viewer(read(run_directory, lambda problem: None))
    viewer = write_viewer([(name, list(snapshots))], folder / VIEWER, experts=[experts])  # each step with its own texts
    return [*paths, timelapse(ordered, folder / "timelapse.gif", name, probe or copying), viewer]
