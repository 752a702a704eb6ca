"""Ask gradients which documents teach a model to copy: `python -m eval.taught_by RUN …`

The truth is a sweep that leaves out each group of documents once: configs/cards/taught_by.yaml. It
costs a training for each group. An estimate costs a few gradients, as in TracIn (Pruthi et al.
2020, arXiv 2002.08484). At some checkpoints of one run, the gradient of the loss on a group's
documents is compared with that of the loss where copying helps. If both point the same way, a step
on this group also teaches copying. The more it does, the later a model without it should copy.
TracIn multiplies the gradients. Here it is their cosine, because a group's length does not count.

The runs are baselines of that sweep, with a checkpoint every 50 steps. The table compares the order
of the groups with that in eval/cards/taught_by.json.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import torch
import torch.nn.functional as F
from torch import Tensor

from configs.command import InputError, command_parser, exit_on_bad_input
from configs.files import checkpoints_of, read_json, run_path
from configs.loader import load_config
from configs.text import table
from data.config import DataConfig, StoryworldSource
from data.tokenizer import Tokenizer
from eval.attention.controls import copied
from eval.attention.probes import build_probes
from eval.cards.reading import RESULTS
from eval.cards.survival import reached_at, scipy_stats
from eval.load_model import open_checkpoint
from eval.questions import data_config_of
from model import LanguageModel
from storyworld import blocks
from storyworld.recall import BlockDocuments

CARD = Path(__file__).resolve().parents[1] / "configs/cards/taught_by.yaml"
STEPS = (50, 100, 150)  # of the checkpoints, before most runs can copy
DOCUMENTS = 128  # of each group, held out


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("runs", nargs="+", type=run_path, help="baselines of the sweep")
    parser.add_argument("--truth", type=Path, default=RESULTS / "taught_by.json", help="the card")
    args = parser.parse_args()
    card = read_json(args.truth, dict)
    truth = {variant["name"]: variant["runs"] for variant in card["variants"]}
    at_least = card["outcome"]["at_least"]
    groups = groups_of_the_card()
    rows = {name: [name] for name in groups}
    correlations = []
    # the slow part: a gradient of each group at each checkpoint of each run
    estimates = [estimate(run, groups) for run in args.runs]
    for name in groups:
        values = [each[name] for each in estimates]
        rows[name].append(f"{fmean(values):.3f} ({min(values):.3f} to {max(values):.3f})")
        # the truth: the steps at which the runs without this group begin to copy
        steps = [reached_at(run, at_least)[0] for run in truth[name]]
        rows[name].append(f"{fmean(steps):.0f}")
    for run, each in zip(args.runs, estimates, strict=True):
        seed = load_config(run / "config.yaml").values["seed"]
        # Of the same seed: then only the group differs, not the luck of the first weights.
        delays = {name: delay(truth, name, seed, at_least) for name in groups}
        correlation = scipy_stats().spearmanr([*each.values()], [*delays.values()])
        correlations.append(float(correlation.statistic))
    print(table(["left out", "estimate: mean (lowest to highest)", "copies at"], [*rows.values()]))
    print(f"\nSpearman's rank correlation of estimate and delay: {interval(correlations)}")


def groups_of_the_card() -> dict[str, list[int]]:
    """Return the lengths of blocks that each rung leaves out."""
    rungs = load_config(CARD).values["rungs"]
    return {name: rung["data.source.blocks.without"] for name, rung in rungs.items()}


def shape_of(config: DataConfig, run: Path) -> BlockDocuments:
    """Return the blocks of a run. Raises InputError if it has learned from other text."""
    source = config.source
    if not isinstance(source, StoryworldSource) or source.blocks is None:
        raise InputError(f"{run}: is no run of {CARD.name}: it has no data.source.blocks")
    return source.blocks


def estimate(run: Path, groups: dict[str, list[int]]) -> dict[str, float]:
    """Return the cosine of each group's gradient and that of copying, mean over checkpoints."""
    config = data_config_of(run)
    shape = shape_of(config, run)
    saved = checkpoints_of(run)
    missing = [step for step in STEPS if step not in saved]
    if missing:
        raise InputError(f"{run}: has no checkpoint of step {missing[0]}: see {CARD.name}")
    cosines: dict[str, list[float]] = {name: [] for name in groups}
    for step in STEPS:
        lm, tokenizer, _ = open_checkpoint(saved[step], "cpu")
        longest = lm.config.max_position_embeddings
        # No text and no held-out part is given, so repeated_2 is the first.
        probe = build_probes(tokenizer, config, longest)[0]
        assert probe.name == "repeated_2"
        copying = gradient(lm, probe.input_ids, copied(probe)[1])
        for name, lengths in groups.items():
            # Held-out ones: the gradient on documents that were learned by heart is small.
            ids = documents(shape, tokenizer, lengths)
            cosine = F.cosine_similarity(gradient(lm, ids), copying, dim=0)
            cosines[name].append(cosine.item())
    return {name: fmean(values) for name, values in cosines.items()}


def documents(shape: BlockDocuments, tokenizer: Tokenizer, lengths: Sequence[int]) -> Tensor:
    """Return held-out documents with blocks of these lengths, (documents, T)."""
    # only blocks of this group, whatever the run itself has left out
    own = {"shortest": min(lengths), "longest": max(lengths), "without": []}
    shape = shape.model_copy(update=own)
    texts = [blocks(0, i, shape, held_out=True) for i in range(DOCUMENTS)]
    return torch.tensor([[tokenizer.bos_id, *tokenizer.encode(text)] for text in texts])


def gradient(lm: LanguageModel, ids: Tensor, counted: Tensor | None = None) -> Tensor:
    """Return the gradient of the mean loss, all weights as one vector. counted: (B, T), or all."""
    # a token predicts the next one, and the last one has none
    logits = lm(ids)[:, :-1]
    losses = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    if counted is not None:
        losses = losses[counted[:, 1:].flatten()]
    # autograd.grad leaves the parameters' own .grad alone
    slopes = torch.autograd.grad(losses.mean(), [*lm.parameters()])
    return torch.cat([slope.flatten() for slope in slopes])


def delay(truth: dict[str, list[dict]], name: str, seed: int, at_least: float) -> int:
    """Return how many steps later the run of this seed copies without the group."""
    steps = []
    for variant in (name, "baseline"):
        run = next((run for run in truth[variant] if run["seed"] == seed), None)
        if run is None:
            raise InputError(f"{variant}: the card has no run with seed {seed}")
        steps.append(reached_at(run, at_least)[0])
    return steps[0] - steps[1]


def interval(values: Sequence[float]) -> str:
    """Return the mean with Student's 95 % interval."""
    if len(values) == 1:
        return f"{values[0]:+.2f} (one run)"
    # 0.0 does not matter here: only the interval around the mean is read
    limits = scipy_stats().ttest_1samp(values, 0.0).confidence_interval()
    return f"{fmean(values):+.2f} ({limits.low:+.2f} to {limits.high:+.2f}), {len(values)} runs"


if __name__ == "__main__":
    exit_on_bad_input(main)
