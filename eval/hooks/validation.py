"""How well does it predict text that it was not trained on? Loss, perplexity and bits per byte; and, at the end, how
far they are above the entropy floor of the built-in world."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from data.batches import validation_batches
from data.config import StoryworldSource
from eval.floor import compare_with_floor, fitting, floor_lines
from eval.hooks.event import EvalEvent, Hook, Outcome
from eval.language_modeling import bits_per_byte, loss_sums, mean

FIGURES = ("loss", "perplexity", "bits_per_byte", "held_out_tokens")  # of result.json


class Validation(Hook):
    """Loss on the held-out part, in nats a token. The processes of a run share its rows."""

    def look(self, event: EvalEvent) -> float:
        while_training, at_the_end = event.config.max_tokens, event.config.final_max_tokens
        loss, tokens = held_out_loss(event, at_the_end if event.is_last else while_training)
        counts = event.data.manifest["validation"]
        values = {
            "loss": loss,
            "perplexity": math.exp(min(loss, 700)),
            "bits_per_byte": bits_per_byte(loss, counts["trained_tokens"], counts["bytes"]),
            "held_out_tokens": tokens,
        }
        comparable = loss
        if event.is_last and while_training != at_the_end:  # the same tokens as before: the best is chosen by these
            comparable = values["loss_comparable"] = held_out_loss(event, while_training)[0]
        event.log("val", values)
        event.say(f"val loss {loss:.4f}   bits per byte {values['bits_per_byte']:.4f}{harder(event)}")
        if event.is_last:
            log_floor(event)
        return comparable

    def outcome(self, directory: Path, metrics: list[dict[str, Any]]) -> Outcome:
        figures, lines = {}, []
        for val in [m for m in metrics if m["split"] == "val"][-1:]:
            figures["val"] = {name: val.get(name) for name in FIGURES}
            if val["loss"] is None:
                lines.append("validation loss is non-finite, and so are the weights (skipped steps: metrics.jsonl)")
            else:
                lines.append(
                    f"validation loss {val['loss']:.4f} nats per token   perplexity {val['perplexity']:.2f}   "
                    f"bits per byte {val['bits_per_byte']:.4f}{_of(val.get('held_out_tokens'))}"
                )
        for floor in [m for m in metrics if m["split"] == "floor"][-1:]:
            figures["floor"] = {k: v for k, v in floor.items() if k not in ("step", "tokens", "time_s", "split")}
            lines += floor_lines(figures["floor"])
        return Outcome(figures, lines)


def _of(tokens: int | None) -> str:
    return f"   on {tokens:,} held-out tokens" if tokens else ""


def held_out_loss(event: EvalEvent, max_tokens: int | None) -> tuple[float, int]:
    """Mean loss in nats a token, equal to the last bit whatever the number of processes; and of how many tokens."""
    rows, tokens = event.held_out, event.tokenizer
    isolate, restart = event.data_config.isolate_documents, event.data_config.restart_positions
    share = (event.world.rank, event.world.size)
    mine = validation_batches(rows, tokens, event.rows_per_batch, isolate, restart, max_tokens, share)
    sums = loss_sums(event.lm, mine, event.autocast, may_retry=not event.world.shares_model)
    turns = zip(*event.world.gather(sums), strict=True)
    return mean(part for turn in turns for parts in turn for part in parts)  # in the order of the rows


def harder(event: EvalEvent) -> str:
    """Why the last loss is above that of training, where the built-in world makes it so."""
    source = event.data_config.source
    is_text = event.data_config.records == "text"
    if not (event.is_last and is_text and isinstance(source, StoryworldSource) and source.repeats):
        return ""
    share = f"{100 * source.repeats:.0f} % of the documents"
    return f"   (harder than training: {share} are random words, here with names that training never has)"


def log_floor(event: EvalEvent) -> None:
    """Whole held-out stories beside the entropy of the choices that made them; only where the built-in world tells."""
    source, count = event.data_config.source, event.config.floor_documents
    if not isinstance(source, StoryworldSource) or not count or event.data_config.records != "text" or source.recall:
        return
    from data.storyworld import tell

    count = min(count, source.validation_documents)
    stories = [tell(source.seed, index, "validation", source.level) for index in range(count)]
    whole = fitting(event.lm, event.tokenizer, stories)
    longest = event.lm.config.max_position_embeddings
    values: dict[str, Any] = {"documents": len(whole), "left_out": count - len(whole), "longest": longest}
    values["random_words"] = source.repeats
    if whole:
        values |= asdict(compare_with_floor(event.lm, event.tokenizer, whole))
    event.log("floor", values)
