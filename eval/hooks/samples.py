"""What does it write? Fixed prompts, continued at every evaluation, so that you can read along while it learns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from eval.hooks.event import EvalEvent, Hook, Outcome
from eval.samples import complete

FILE = "samples.jsonl"


class Samples(Hook):
    """Continue `eval.prompts` and append them to samples.jsonl."""

    def look(self, event: EvalEvent) -> None:
        many_documents, lines = event.data.manifest["train"]["documents"] > 1, []
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
            lines.append(json.dumps({"step": event.step, "prompt": prompt, "text": text}, ensure_ascii=False) + "\n")
        if event.writes:
            with (event.directory / FILE).open("a", encoding="utf-8") as file:
                file.writelines(lines)

    def outcome(self, directory: Path, metrics: list[dict[str, Any]]) -> Outcome:
        file = directory / FILE
        lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
        return Outcome(sample=json.loads(lines[-1])["text"]) if lines else Outcome()
