"""The pictures of a finished run: drawn from its snapshots of the heads, and shown to its tracker."""

from __future__ import annotations

import math

from eval.attention.render import PICTURES, render
from eval.attention.snapshots import read_all
from train.run import Run


def draw(run: Run) -> None:
    """Every picture of the heads, and the viewer, from the run's snapshots; a few of them go to wandb."""
    if not run.world.is_first:
        return
    snapshots, problems = read_all(run.config.directory)
    for problem in problems:
        run.tracker.say(f"warning: {problem}")
    if not snapshots:
        return
    folder, step = run.config.directory / "attention", run.state.step
    try:
        *_, viewer = render(run.config.directory, snapshots)
    except Exception as error:  # the run is finished and saved: a picture that fails must not take that away
        again = f"python -m eval.attention {run.config.directory}"
        problem = f"{type(error).__name__}: {error}"
        run.tracker.say(f"warning: the heads could not be drawn: {problem}; `{again}` tries again")
        return
    for name in PICTURES:
        if (folder / name).is_file() and name.endswith(".png"):
            run.tracker.log_image(f"attention/{name.removesuffix('.png')}", folder / name, step)
    run.tracker.log_html("attention/viewer", viewer, step)
    last = snapshots[-1]
    rows = [
        [layer, head, last.group(head), *(_plain(values[i, j]) for values in last.scores.values())]
        for i, layer in enumerate(last.layers)
        for j, head in enumerate(last.heads)
    ]
    run.tracker.log_table("attention/scores", ["layer", "head", "kv_group", *last.scores], rows, step)


def _plain(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
