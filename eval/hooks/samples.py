"""What does it write? Fixed prompts, continued at every evaluation, so that you can read along while it learns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from configs.read_back import append_line
from eval.hooks.event import EvalEvent, Hook, Outcome
from eval.run_files import SAMPLES, read_samples
from eval.samples import complete


class Samples(Hook):
    """Continue `eval.prompts` and append them to samples.jsonl."""

    def look(self, event: EvalEvent) -> None:
        many_documents = event.data.manifest["train"]["documents"] > 1
        for prompt in event.config.prompts:
            text = complete(
                event.lm,
                event.tokenizer,
                prompt,
                event.config.sample_tokens,
                event.config.temperature,
                event.config.top_p,
                begin_document=many_documents,
                chat=event.data_config.records == "conversations",
            )
            if event.writes:
                append_line(event.directory / SAMPLES, {"step": event.step, "prompt": prompt, "text": text})

    def outcome(self, directory: Path, metrics: list[dict[str, Any]]) -> Outcome:
        lines = read_samples(directory, lambda problem: None)
        return Outcome(sample=lines[-1]["text"]) if lines else Outcome()
