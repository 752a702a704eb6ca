"""Does it answer questions about stories that it has never seen? Asked before the first step as well."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

from data.config import StoryworldSource
from eval.hooks.event import EvalEvent, Hook, Outcome

SPLITS = {"questions": False, "questions_new_names": True}  # split -> whether names have a form unseen in training


class Questions(Hook):
    """Exact match for each class of questions: with names as in training, and with names of a new form."""

    def look(self, event: EvalEvent) -> None:
        source, count = event.data_config.source, event.config.questions
        if not count or not isinstance(source, StoryworldSource) or event.data_config.records == "text":
            return
        from eval.questions import ask, figures, held_out_questions, score

        for split, new_names in SPLITS.items():
            asked = list(islice(held_out_questions(source, new_names=new_names), count))
            found = figures(score(asked, ask(event.lm, event.tokenizer, asked)))
            event.log(split, found)
            event.say(
                f"{split.replace('_', ' ')} {found['exact_match']:.1%} of {found['asked']} answers right "
                f"(chance {found['chance']:.1%})"
            )

    def outcome(self, directory: Path, metrics: list[dict[str, Any]]) -> Outcome:
        known, new = ([m for m in metrics if m["split"] == split] for split in SPLITS)
        if not known or not new:
            return Outcome()
        from eval.questions import table

        before = {"before": known[0]} if len(known) > 1 and known[0]["step"] == 0 else {}
        columns = {**before, "after": known[-1], "after, names of a new form": new[-1]}
        figures = {split: lines[-1]["exact_match"] for split, lines in zip(SPLITS, (known, new), strict=True)}
        heading = "## Questions about held-out stories, answered to the letter"
        return Outcome(figures, sections=[heading, "", table(columns), ""])
