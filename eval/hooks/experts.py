"""Do all experts get tokens, and does the router choose well? Looked at on held-out text while the model learns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from configs.command import InputError
from data.batches import Batch, validation_batches
from eval.config import EvalConfig
from eval.hooks.event import EvalEvent, Hook, Outcome
from model import ModelConfig

TOKENS = 8192  # held-out tokens of a look
PICTURE = "experts.png"


class Experts(Hook):
    """experts.jsonl: share of the tokens and mean weight of every expert, and which tokens go where, at every look. At
    the end also what random routing costs, and a picture."""

    def check(self, config: EvalConfig, model: ModelConfig) -> None:
        if model.num_experts is None:
            raise InputError(
                "eval.hooks: experts looks at a mixture of experts, and model.num_experts is null: set it, or take "
                "experts off the list"
            )

    def look(self, event: EvalEvent) -> None:
        """Every process looks at the same text, since each may hold only a share of the model; the first one writes."""
        from eval.experts import log, loss_with, routing
        from eval.experts.findings import in_a_line
        from eval.experts.routing import all_alike, at_random

        found = routing(event.lm, _batches(event), event.tokenizer.pad_id, event.autocast)
        labels = event.tokenizer.token_labels
        words = [
            [labels(x for x in ids if x >= 0) for ids in layer] for layer in log.characteristic_ids(found).tolist()
        ]
        look = log.look_of(found, event.step, event.tokens).model_copy(update={"words": words})
        if event.is_last:
            choices = {"learned": None, "random": at_random(), "all alike": all_alike}
            loss = {
                name: loss_with(event.lm, _batches(event), choice, event.autocast) for name, choice in choices.items()
            }
            look = look.model_copy(update={"loss": loss})
        if event.writes:
            log.write(event.directory, look)
        event.say(in_a_line(look))
        event.log("experts", {"weakest": look.of_fair.min(), "strongest": look.of_fair.max(), **look.loss})

    def finish(self, event: EvalEvent) -> None:
        from eval.experts import log
        from eval.experts.picture import shares_over_steps

        if looks := log.read(event.directory, event.tracker.say):
            path = shares_over_steps(looks, event.directory / PICTURE, event.directory.name)
            event.log_image("experts/shares", path)

    def outcome(self, directory: Path, metrics: list[dict[str, Any]]) -> Outcome:
        from eval.experts import log
        from eval.experts.findings import findings, in_a_line

        looks = log.read(directory, lambda problem: None)
        if not looks:
            return Outcome()
        last = looks[-1]
        figures = {"weakest": float(last.of_fair.min()), "strongest": float(last.of_fair.max()), **last.loss}
        pictures = [(PICTURE, "how many tokens every expert gets")]
        return Outcome({"experts": figures}, [in_a_line(last)], sections=findings(looks), pictures=pictures)


def _batches(event: EvalEvent) -> Iterator[Batch]:
    data = event.data_config
    packed = (data.isolate_documents, data.restart_positions)
    return validation_batches(event.held_out, event.tokenizer, event.rows_per_batch, *packed, TOKENS)
