"""All pictures of a run, and its viewer.html, from its attention snapshots."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from configs.command import InputError
from eval.attention import history
from eval.attention.history import best_head
from eval.attention.snapshots import Snapshot, file_of
from eval.band import band_of
from eval.page.page_model import MOST_BYTES, read_models
from eval.page.viewer import VIEWER, write_viewer
from eval.pictures.heads import one_head, quick_mosaic, shown_probe, timelapse
from eval.pictures.scores import curves, score_maps

# File name -> title, in the order of report.md.
PICTURES = {
    "timelapse.gif": "every head while it learns",
    "curves.png": "the heads' scores over training",
    "heads.png": "the scores of every head, at the last look",
    "induction_head.png": "the strongest induction head, on random repeated tokens",
}


def render(
    run_directory: Path,
    snapshots: Sequence[Snapshot],
    folder: Path | None = None,
    page: str = "auto",
) -> list[Path]:
    """Draw all pictures of a run, and viewer.html, into `folder` (default: attention/).

    page: auto = the model is in viewer.html, if it can be | plain

    Snapshots of other heads or texts than the last one's are only in the viewer.
    """
    folder = folder or run_directory / "attention"
    name = run_directory.name
    ordered = history.like_the_last(snapshots)
    last = ordered[-1]
    probe = shown_probe(last)
    paths = []
    for snapshot in ordered:
        paths.append(file_of(folder, snapshot.step).with_suffix(".png"))
        quick_mosaic(snapshot, paths[-1], probe)
    healthy = band_of(run_directory)
    if last.scores:
        paths.append(score_maps(last, folder / "heads.png", name))
        title = f"{name}: what the heads do"
        mark = history.phase_change(ordered)
        paths.append(curves(ordered, folder / "curves.png", title, mark, healthy))
    best = best_head(last, "induction")
    if best and probe == "repeated_2":
        layer = last.layers[best[0]]
        head = last.heads[best[1]]
        file = folder / "induction_head.png"
        paths.append(one_head(last, layer, head, file, title=name, probe=probe))
    paths.append(timelapse(ordered, folder / "timelapse.gif", probe))
    networks = {}
    if page == "auto":
        # else the model is too large for a page, or of a kind that the page cannot compute
        with suppress(InputError):
            networks[name] = read_models(run_directory, (), MOST_BYTES, snapshots)
    runs = [(name, snapshots)]
    file = folder / VIEWER
    viewer = write_viewer(runs, file, networks=networks, healthy=healthy)
    return [*paths, viewer]
