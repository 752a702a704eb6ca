"""Does it recall what it has just read? Asked while it learns, on held-out documents of facts and questions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from configs.text import table
from data.config import StoryworldSource
from eval.hooks.event import EvalEvent, Hook, Outcome

TAKEN = ("step", "tokens", "time_s", "split")


class Recalls(Hook):
    """Share of right answers, for each sort of question and each distance; at the end also the step of the phase
    change, the first look with more than half of the answers right."""

    def __init__(self) -> None:
        self.exam: Any = None

    def look(self, event: EvalEvent) -> None:
        """Every process asks the same questions, since each may hold only a share of the model; the first one says."""
        from eval.recall import figures, held_out, right

        source = event.data_config.source
        if not isinstance(source, StoryworldSource) or source.recall is None:
            return
        self.exam = self.exam or held_out(source, event.tokenizer)
        found = figures(self.exam, right(event.lm, self.exam))
        event.log("recall", found)
        event.say(f"recall {found['accuracy']:.1%} of {len(self.exam.questions)} answers right")

    def outcome(self, directory: Path, metrics: list[dict[str, Any]]) -> Outcome:
        from eval.recall import half_at

        looks = [line for line in metrics if line["split"] == "recall"]
        if not looks:
            return Outcome()
        last = {name: value for name, value in looks[-1].items() if name not in TAKEN}
        step = half_at(looks)
        when = "never more than half at a look" if step is None else f"more than half from step {step:,}"
        line = f"recall {last['accuracy']:.1%} of held-out answers right, {when}"
        rows = [[name.replace("_", " "), f"{value:.1%}"] for name, value in last.items()]
        sections = ["## Recall of facts", "", table(["question", "right"], rows), ""]
        return Outcome({"recall": last | {"half_at_step": step}}, [line], sections=sections)
