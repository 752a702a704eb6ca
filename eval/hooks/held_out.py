"""Hooks on held-out text: `validation`, `samples`, `questions` and `recall`."""

from __future__ import annotations

import math
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from configs import IGNORED
from configs.files import append_line
from configs.text import escape, table
from data.batches import validation_batches
from data.config import StoryworldSource
from data.packing import Rows
from data.reply import read_reply
from data.tokenizer import Tokenizer
from eval.hooks import EvalEvent, Hook, Outcome, figures_in, lines_of
from eval.language_modeling import bits_per_byte, compare_with_floor, loss_sums, mean
from eval.run_files import SAMPLES, read_samples
from eval.samples import complete, thinks

if TYPE_CHECKING:  # only a run that asks for facts loads it
    from eval.lookups import Exam


class Validation(Hook):
    """Loss on the held-out part, in nats a token. The processes of a run share its rows."""

    def evaluate(self, event: EvalEvent) -> float:
        config = event.eval_config
        max_tokens = config.final_max_tokens if event.is_last else config.max_tokens
        # the last evaluation reads more text: its figure is the one that is quoted
        loss, tokens = held_out_loss(event, max_tokens)
        # of the whole part: the ratio of tokens to bytes hardly differs in the tokens read
        counts = event.data.manifest["validation"]
        values = {
            "loss": loss,
            "perplexity": math.exp(min(loss, 700)),  # exp(710) overflows
            "bits_per_byte": bits_per_byte(loss, counts["trained_tokens"], counts["bytes"]),
            "held_out_tokens": tokens,
        }
        comparable = loss
        if max_tokens != config.max_tokens:
            # the best checkpoint is chosen on the same tokens
            comparable, _ = held_out_loss(event, config.max_tokens)
            values["loss_comparable"] = comparable
        event.log("val", values)
        event.say(f"val loss {loss:.4f}   bits per byte {values['bits_per_byte']:.4f}")
        if event.is_last:
            log_floor(event)
        return comparable

    def outcome(self, directory: Path, lines: list[dict[str, Any]]) -> Outcome:
        figures = {}
        summary = []
        for line in lines_of(lines, "val")[-1:]:
            names = ("loss", "perplexity", "bits_per_byte", "held_out_tokens")
            val = {name: line.get(name) for name in names}
            figures["val"] = val
            if val["loss"] is None:
                summary.append(
                    "validation loss and weights are non-finite (skipped steps: metrics.jsonl)"
                )
            else:
                summary.append(
                    f"validation loss {val['loss']:.4f} nats per token   "
                    f"perplexity {val['perplexity']:.2f}   "
                    f"bits per byte {val['bits_per_byte']:.4f}   "
                    f"on {val['held_out_tokens']:,} held-out tokens"
                )
        for line in lines_of(lines, "floor")[-1:]:
            figures["floor"] = figures_in(line)
            head = f"bits per byte, {line['documents']} whole held-out stories:"
            gap = line["model"] - line["floor"]
            text = f"{head:<47} {line['model']:.4f}   floor {line['floor']:.4f}   gap {gap:+.4f}"
            if line["left_out"]:
                text += f"   ({line['left_out']} longer stories left out)"
            summary.append(text)
        return Outcome(figures, summary)


def held_out_loss(event: EvalEvent, max_tokens: int | None) -> tuple[float, int]:
    """Return the mean loss in nats a token, and the number of tokens."""
    rows = validation_batches(
        event.held_out,
        event.tokenizer,
        event.rows_per_batch,
        event.data_config.isolate_documents,
        event.data_config.restart_positions,
        max_tokens,
        (event.world.rank, event.world.size),
    )
    sums = loss_sums(event.lm, rows, event.autocast, may_retry=not event.world.shares_model)
    gathered = event.world.gather(sums)
    # Rows in the order of one process: so the sum of the floats is equal to the last bit.
    ordered = []
    for turn in zip(*gathered, strict=True):
        for part in turn:
            ordered += part
    return mean(ordered)


def log_floor(event: EvalEvent) -> None:
    """Compare the loss on whole stories of the built-in world with the entropy of its choices."""
    data = event.data_config
    source = data.source
    if not isinstance(source, StoryworldSource) or data.records != "text":
        return
    if not source.tells_stories:
        return
    from storyworld import tell

    # at most those of the data, on which the validation loss is measured as well
    count = min(event.eval_config.floor_documents, source.validation_documents)
    stories = [tell(source.seed, index, "validation", source.level) for index in range(count)]
    documents, model, floor = compare_with_floor(event.lm, event.tokenizer, stories)
    if documents:
        left_out = count - documents  # too long for the context
        values = {"documents": documents, "left_out": left_out, "model": model, "floor": floor}
        event.log("floor", values)


class Samples(Hook):
    """Continue `eval.prompts`, or answer them if the data is conversations.

    All samples go to samples.jsonl, and the first one also to the terminal.
    """

    def evaluate(self, event: EvalEvent) -> None:
        settings = event.eval_config
        is_chat = event.data_config.records != "text"
        # one long text has no beginnings that a sample could start with
        many_documents = event.data.manifest["train"]["documents"] > 1
        for number, prompt in enumerate(settings.prompts):
            start: str | list[int] = prompt
            more: dict[str, str] = {}
            if is_chat and not prompt:
                # without a prompt of yours, the data's own question shows what training is about
                start, prompt, more["expected"] = held_out_question(event.held_out, event.tokenizer)
            reply = complete(
                event.lm,
                event.tokenizer,
                start,
                settings.sample_tokens,
                settings.temperature,
                settings.top_p,
                begin_document=many_documents,
                chat=is_chat,
            )
            if reply.reasoning_content:
                more["reasoning_content"] = reply.reasoning_content
            if event.writes:
                line = {"step": event.step, "prompt": prompt, "text": reply.content, **more}
                append_line(event.directory / SAMPLES, line)
            if number == 0:
                text = escape(" ".join((reply.content or thinks(reply)).split()))
                text = text[:90] + "…" * (len(text) > 90)
                # a question is at the end of its prompt: a story may come before it
                question = escape(" ".join(prompt.split()))
                question = "…" * (len(question) > 60) + question[-60:]
                event.say(f"asked “{question}”, writes “{text}”" if is_chat else f"writes “{text}”")

    def outcome(self, directory: Path, lines: list[dict[str, Any]]) -> Outcome:
        samples = read_samples(directory, lambda problem: None)
        if not samples:
            return Outcome()
        # the sample that was on the terminal: the first one of the last step
        sample = next(line for line in samples if line["step"] == samples[-1]["step"])
        prompt = sample["prompt"]
        text = sample["text"]
        if not text.startswith(prompt):  # an answer
            text = f"asked:   {prompt}\nwrites:  {text}"
        if "expected" in sample:
            text += f"\nthe data's answer: {sample['expected']}"
        return Outcome({"sample": text})


def held_out_question(rows: Rows, tokenizer: Tokenizer) -> tuple[list[int], str, str]:
    """Return a held-out conversation's first prompt, as ids; its question; and the answer."""
    # the first row, at every evaluation the same: so its answers can be compared
    ids, labels = (array.tolist() for array in rows.row(0))
    # the first tokens with labels are the assistant's first answer
    start = next(i for i, label in enumerate(labels) if label != IGNORED)
    end = next((i for i in range(start, len(ids)) if labels[i] == IGNORED), len(ids))
    prompt = ids[:start]
    turn_start = tokenizer.special_id("<|im_start|>")
    turn_starts = [i for i, token in enumerate(prompt) if token == turn_start]
    # the prompt ends with the header of the answer; the turn before it is the question
    *_, question_start, answer_start = [0, *turn_starts]
    question = tokenizer.decode(prompt[question_start:answer_start]).partition("\n")[2]
    answer = read_reply(tokenizer, ids[start:end], prompt).content
    return prompt, question.strip(), answer.strip()


# Split of metrics.jsonl -> True if the questions have names of a form that training does not have.
SPLITS = {"questions": False, "questions_new_names": True}


class Questions(Hook):
    """Exact match for each class of questions, with names as in training and of a new form."""

    def evaluate(self, event: EvalEvent) -> None:
        source = event.data_config.source
        count = event.eval_config.questions
        is_text = event.data_config.records == "text"
        if not count or not isinstance(source, StoryworldSource) or is_text:
            return
        from eval.questions import ask, figures, held_out_questions

        for split, new_names in SPLITS.items():
            questions = list(islice(held_out_questions(source, new_names=new_names), count))
            values = figures(questions, ask(event.lm, event.tokenizer, questions))
            event.log(split, values)
            event.say(
                f"{split.replace('_', ' ')} {values['exact_match']:.1%} of {values['asked']} "
                f"answers right (chance {values['chance']:.1%})"
            )

    def outcome(self, directory: Path, lines: list[dict[str, Any]]) -> Outcome:
        # from the log, so a run that was resumed has all its evaluations here
        old_names, new_names = (lines_of(lines, split) for split in SPLITS)
        if not old_names or not new_names:
            return Outcome()
        from eval.questions import table_of_classes

        columns = {"after": old_names[-1], "after, names of a new form": new_names[-1]}
        if len(old_names) > 1 and old_names[0]["step"] == 0:
            # they were also asked before the first step
            columns = {"before": old_names[0], **columns}
        heading = "## Questions about held-out stories, answered to the letter"
        figures = {split: lines_of(lines, split)[-1]["exact_match"] for split in SPLITS}
        return Outcome(figures, sections=[heading, "", table_of_classes(columns), ""])


class Recalls(Hook):
    """Share of right answers about held-out facts, by sort of question and distance."""

    exam: Exam | None = None  # the same at every evaluation

    def evaluate(self, event: EvalEvent) -> None:
        from eval.lookups import figures, held_out, right

        source = event.data_config.source
        if isinstance(source, StoryworldSource) and source.recall is not None:
            # made once: a curve needs the same questions at every step
            self.exam = self.exam or held_out(source, event.tokenizer)
            values = figures(self.exam, right(event.lm, self.exam))
            event.log("recall", values)
            count = len(self.exam.questions)
            event.say(f"recall {values['accuracy']:.1%} of {count} answers right")

    def outcome(self, directory: Path, lines: list[dict[str, Any]]) -> Outcome:
        from eval.lookups import half_at

        lines = lines_of(lines, "recall")
        if not lines:
            return Outcome()
        last = figures_in(lines[-1])
        step = half_at(lines)  # of the phase change
        half = "never more than half"
        if step is not None:
            half = f"more than half from step {step:,}"
        summary = f"recall {last['accuracy']:.1%} of held-out answers right, {half}"
        rows = [[name.replace("_", " "), f"{value:.1%}"] for name, value in last.items()]
        sections = ["## Recall of facts", "", table(["question", "right"], rows), ""]
        return Outcome({"recall": last | {"half_at_step": step}}, [summary], sections=sections)
