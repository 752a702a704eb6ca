"""Is my run healthy? The band of recorded runs that differ from it in the seed alone.

`bands.json` has the lowest and the highest curve of several seeds of a config; for now it has
configs/small.yaml alone. A run with the same settings is drawn over its band. To record one:

    python -m train.sweep configs/cards/sharing.yaml --seeds 20
    python -m eval.band small runs/sharing-baseline-seed*
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from configs.command import InputError, command_parser, exit_on_bad_input
from configs.files import read_json, run_path, write_atomically
from configs.loader import flatten, load_config
from eval.run_files import read_metrics

BANDS = Path(__file__).with_name("bands.json")
CONFIG = "config.yaml"
# Curve -> the split of its lines in metrics.jsonl, and their key.
CURVES = {
    "loss": ("train", "loss"),
    "induction": ("attention", "induction_max"),
    "copy_gain": ("attention", "copy_gain"),
}
# A run reports the first if its curve is below the band, and the second if it is above.
WORDS = {
    "loss": ("the training loss is lower", "the training loss is higher"),
    "induction": ("the best head's induction is lower", "the best head's induction is higher"),
    "copy_gain": ("the copy gain is lower", "the copy gain is higher"),
}
# The loss of one step is noisy: a point is the mean of this many lines.
SMOOTHED = 5
# A run has left its band if its last points, this many or more, are all outside.
OUTSIDE = 3
# Points nearer than this share of the curve's range are still inside: where all runs are near zero,
# noise is wider than a band of few seeds.
MARGIN = 0.05
# These settings must be equal in all runs of a band: keys that begin so, and keys of `train`.
PREFIXES = ("model.", "data.", "train.optimizer.", "init_from", "lora")
TRAIN_KEYS = {
    "train.max_steps",
    "train.max_tokens",
    "train.max_minutes",
    "train.tokens_per_step",
    "train.schedule",
    "train.warmup_steps",
    "train.cooldown",
    "train.final_lr_fraction",
    "train.grad_clip",
}
# These may differ. The first three change only speed or rounding; the tokenizer decides the others.
IGNORED_KEYS = {
    "model.attn_implementation",
    "model.my_attention",
    "model.loadable_elsewhere",
    "model.vocab_size",
    "model.bos_token_id",
    "model.eos_token_id",
    "model.pad_token_id",
}
Curves = dict[str, tuple[list[int], list[float]]]  # name -> tokens, values


class Band(NamedTuple):
    """The curves between which all recorded runs stayed."""

    name: str  # of the config, such as "small"
    seeds: int
    tokens: dict[str, list[int]]  # curve -> where it is recorded
    low: dict[str, list[float]]
    high: dict[str, list[float]]

    def limits(self, curve: str, tokens: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
        """Return the band's lowest and highest values after so many tokens; NaN beyond its ends."""
        recorded = self.tokens[curve]
        low = np.interp(tokens, recorded, self.low[curve], left=np.nan, right=np.nan)
        high = np.interp(tokens, recorded, self.high[curve], left=np.nan, right=np.nan)
        return low, high


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("name", help="of the band: the config's, such as small")
    parser.add_argument("runs", nargs="+", type=run_path, help="finished runs, one for each seed")
    args = parser.parse_args()
    bands = read_json(BANDS, dict) if BANDS.exists() else {}
    bands[args.name] = recorded(args.runs)
    # a band a line, so that git shows which one changed
    lines = [f"{json.dumps(name)}: {json.dumps(band)}" for name, band in bands.items()]
    write_atomically(BANDS, "{" + ",\n".join(lines) + "}\n")
    print(f"wrote the band of {len(args.runs)} runs to {BANDS}")


def recorded(runs: Sequence[Path]) -> dict[str, Any]:
    """Return the entry of bands.json for these runs. Raises InputError if their settings differ."""
    settings = settings_of(runs[-1])
    curves_of_runs = []
    for run in runs:
        if not are_alike(settings_of(run), settings):
            raise InputError(f"{run}: differs from {runs[-1]} in more than the seed")
        curves_of_runs.append(curves_of(read_metrics(run, print)))
    band: dict[str, Any] = {"settings": settings, "seeds": len(runs)}
    for name in CURVES:
        # (runs, points); ValueError if a run has more points than another
        tokens = np.array([curves[name][0] for curves in curves_of_runs])
        values = np.array([curves[name][1] for curves in curves_of_runs])
        # a mean, because padding differs by seed, so the tokens of a point do a little, too
        mean_tokens = [round(mean) for mean in tokens.mean(axis=0)]
        # four digits are enough for a picture, and keep the file small
        low = [float(f"{value:.4g}") for value in values.min(axis=0)]
        high = [float(f"{value:.4g}") for value in values.max(axis=0)]
        band[name] = [mean_tokens, low, high]
    return band


def settings_of(run: Path) -> dict[str, Any]:
    """Return the settings of a run on which its curves depend, by dotted key."""
    settings = {}
    for key, value in flatten(load_config(run / CONFIG).values).items():
        if key in TRAIN_KEYS or (key.startswith(PREFIXES) and key not in IGNORED_KEYS):
            settings[key] = value
    return settings


def are_alike(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Compare settings. A key that only one has is newer than the other run: it has its default."""
    return all(a[key] == b[key] for key in a.keys() & b.keys())


def curves_of(lines: Sequence[Mapping[str, Any]]) -> Curves:
    """Return the curves of a run from the lines of its metrics.jsonl."""
    curves: Curves = {}
    for name, (split, key) in CURVES.items():
        tokens = []
        values = []
        for line in lines:
            if line["split"] == split and line.get(key) is not None:
                tokens.append(line["tokens"])
                values.append(line[key])
        if name == "loss":
            starts = range(0, len(values) - SMOOTHED + 1, SMOOTHED)
            tokens = [tokens[start + SMOOTHED // 2] for start in starts]  # of the middle line
            values = [float(np.mean(values[start : start + SMOOTHED])) for start in starts]
        curves[name] = (tokens, values)
    return curves


@cache
def band_of(run: Path) -> Band | None:
    """Return the band of a run's settings, or None.

    Kept for the life of the process: a run's settings do not change, and every picture asks.
    """
    try:
        settings = settings_of(run)
    except (InputError, OSError):
        return None  # a folder of snapshots without a config
    # the first that fits; bands of other settings differ in some key of SECTIONS
    for name, band in read_json(BANDS, dict).items():
        if are_alike(settings, band["settings"]):
            # {curve: [tokens, low, high]} -> three dicts of curves
            tokens, low, high = ({curve: band[curve][i] for curve in CURVES} for i in range(3))
            return Band(name, band["seeds"], tokens, low, high)
    return None


def left_at(band: Band, curves: Curves) -> str:
    """Return a sentence about the first curve that has left the band for good, or ""."""
    for name, (tokens, values) in curves.items():
        if not band.tokens[name]:
            continue  # the recorded runs did not measure it
        low, high = band.limits(name, tokens)
        margin = MARGIN * (max(band.high[name]) - min(band.low[name]))
        sides = (values < low - margin, values > high + margin)
        for words, is_outside in zip(WORDS[name], sides, strict=True):
            inside = np.flatnonzero(~is_outside)
            first = inside[-1] + 1 if len(inside) else 0  # the first point after the last inside
            if len(values) - first >= OUTSIDE:
                return (
                    f"From {tokens[first]:,} tokens on, {words} than in all {band.seeds} "
                    f"recorded runs of {band.name}.yaml."
                )
    return ""


def departure(run: Path, lines: Sequence[Mapping[str, Any]]) -> str:
    """Return a sentence if a curve of this run has left the band of its settings, or ""."""
    band = band_of(run)
    return left_at(band, curves_of(lines)) if band else ""


def health(run: Path, lines: Sequence[Mapping[str, Any]]) -> str:
    """Return the sentence of `departure`, or that the run is like others; "" without a band."""
    band = band_of(run)
    if band is None:
        return ""
    # A departure is the news. Without one, name the runs that this one was compared with.
    return departure(run, lines) or (
        f"Like {band.seeds} recorded runs of {band.name}.yaml: no curve has left their band."
    )


def draw_band(axes: Any, band: Band | None, curve: str, what: str, unit: float = 1) -> None:
    """Draw the band of a curve in grey, behind the curves.

    what: a name of the curve, for the legend
    unit: tokens in one unit of the horizontal axis
    """
    if band is None:
        return
    tokens = np.divide(band.tokens[curve], unit)
    label = f"{what} in {band.seeds} recorded runs"
    style = {"color": "#999999", "alpha": 0.22, "lw": 0, "zorder": 0, "label": label}
    axes.fill_between(tokens, band.low[curve], band.high[curve], **style)


if __name__ == "__main__":
    exit_on_bad_input(main)
