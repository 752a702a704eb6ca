"""What does it write? Fixed prompts, continued at every evaluation, so that you can read along while it learns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from configs.loader import shortened
from configs.read_back import append_line
from configs.shown_text import escape
from eval.hooks.event import EvalEvent, Hook, Outcome
from eval.run_files import SAMPLES, read_samples
from eval.samples import complete, thinks

SHOWN = 90  # characters of a sample that stand on the terminal


class Samples(Hook):
    """Continue `eval.prompts` and append them to samples.jsonl; the first one also to the terminal."""

    def look(self, event: EvalEvent) -> None:
        answers = event.data_config.records != "text"
        many_documents = event.data.manifest["train"]["documents"] > 1
        for number, prompt in enumerate(event.config.prompts):
            said = complete(
                event.lm,
                event.tokenizer,
                prompt,
                event.config.sample_tokens,
                event.config.temperature,
                event.config.top_p,
                begin_document=many_documents,
                chat=answers,
            )
            if event.writes:
                line = {"step": event.step, "prompt": prompt, "text": said.content}
                line |= {"reasoning_content": said.reasoning_content} if said.reasoning_content else {}
                append_line(event.directory / SAMPLES, line)
            if number == 0:
                text = said.content or thinks(said)  # it may have had tokens for thoughts alone
                event.say(in_a_line(f"{prompt} → {text}" if answers and prompt else text))

    def outcome(self, directory: Path, metrics: list[dict[str, Any]]) -> Outcome:
        lines = read_samples(directory, lambda problem: None)
        return Outcome(sample=lines[-1]["text"]) if lines else Outcome()


def in_a_line(text: str) -> str:
    """The beginning of a sample on one line, in quotes."""
    return f"writes “{shortened(escape(' '.join(text.split())), SHOWN)}”"
