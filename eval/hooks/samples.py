"""What does it write? Fixed prompts, continued at every evaluation, so that you can read along while it learns; where
it learns conversations, what it answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from configs.files import append_line
from configs.text import escape, shortened
from data.packing import IGNORED, Rows
from data.reply import read_reply
from data.tokenizer import Tokenizer
from eval.hooks.event import EvalEvent, Hook, Outcome
from eval.run_files import SAMPLES, read_samples
from eval.samples import complete, thinks

SHOWN, SHOWN_QUESTION = 90, 60  # characters of a sample, and of its question, that stand on the terminal


class Samples(Hook):
    """Continue `eval.prompts` and append them to samples.jsonl; the first one also to the terminal."""

    def look(self, event: EvalEvent) -> None:
        answers = event.data_config.records != "text"
        many_documents = event.data.manifest["train"]["documents"] > 1
        for number, prompt in enumerate(event.config.prompts):
            ids, expected = None, {}
            if answers and not prompt:
                ids, prompt, right = held_out_question(event.held_out, event.tokenizer)
                expected = {"expected": right}
            said = complete(
                event.lm,
                event.tokenizer,
                ids or prompt,
                event.config.sample_tokens,
                event.config.temperature,
                event.config.top_p,
                begin_document=many_documents,
                chat=answers,
            )
            if event.writes:
                line = {"step": event.step, "prompt": prompt, "text": said.content, **expected}
                line |= {"reasoning_content": said.reasoning_content} if said.reasoning_content else {}
                append_line(event.directory / SAMPLES, line)
            if number == 0:
                text = said.content or thinks(said)  # it may have had tokens for thoughts alone
                event.say(in_a_line(text, prompt if answers else ""))

    def outcome(self, directory: Path, metrics: list[dict[str, Any]]) -> Outcome:
        lines = read_samples(directory, lambda problem: None)
        if not lines:
            return Outcome()
        first = next(line for line in lines if line["step"] == lines[-1]["step"])  # the one that the terminal showed
        prompt, text = first["prompt"], first["text"]
        parts = [text] if text.startswith(prompt) else [f"asked:   {prompt}", f"writes:  {text}"]
        parts += [f"the data's answer: {first['expected']}"] if "expected" in first else []
        return Outcome(sample="\n".join(parts))


def held_out_question(rows: Rows, tokenizer: Tokenizer) -> tuple[list[int], str, str]:
    """The first question of held-out conversations: the ids of its prompt, as training has them; it; and its answer."""
    ids, labels = (array.tolist() for array in rows.row(0))
    first = next(at for at, label in enumerate(labels) if label != IGNORED)
    end = next((at for at in range(first, len(ids)) if labels[at] == IGNORED), len(ids))
    prompt, start = ids[:first], tokenizer.special_id("<|im_start|>")
    *_, asked, answer = [0, *(at for at, token in enumerate(prompt) if token == start)]  # where the last turns begin
    question = tokenizer.decode(prompt[asked:answer]).partition("\n")[2]
    return prompt, question.strip(), read_reply(tokenizer, ids[first:end], prompt).content.strip()


def in_a_line(text: str, question: str = "") -> str:
    """The beginning of a sample on one line, in quotes; after the end of its question, if it is an answer."""
    asked = ""
    if question:
        line = escape(" ".join(question.split()))
        asked = f"asked “{'…' * (len(line) > SHOWN_QUESTION)}{line[-SHOWN_QUESTION:]}”, "
    return f"{asked}writes “{shortened(escape(' '.join(text.split())), SHOWN)}”"
