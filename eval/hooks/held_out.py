"""How does it do on what it was not trained on? The hooks `validation`, `samples`, `questions` and `recall`."""

from __future__ import annotations

import math
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from configs import IGNORED
from configs.files import append_line
from configs.text import escape, table
from data.batches import validation_batches
from data.chat import read_reply
from data.config import StoryworldSource
from data.packing import Rows
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
        while_training, at_the_end = event.eval_config.max_tokens, event.eval_config.final_max_tokens
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
        event.say(f"val loss {loss:.4f}   bits per byte {values['bits_per_byte']:.4f}")
        if event.is_last:
            log_floor(event)
        return comparable

    def outcome(self, directory: Path, lines: list[dict[str, Any]]) -> Outcome:
        figures, summary = {}, []
        for line in lines_of(lines, "val")[-1:]:
            names = ("loss", "perplexity", "bits_per_byte", "held_out_tokens")
            val = figures["val"] = {name: line.get(name) for name in names}
            if val["loss"] is None:
                summary.append("validation loss is non-finite, and so are the weights (skipped steps: metrics.jsonl)")
            else:
                summary.append(
                    f"validation loss {val['loss']:.4f} nats per token   perplexity {val['perplexity']:.2f}   "
                    f"bits per byte {val['bits_per_byte']:.4f}   on {val['held_out_tokens']:,} held-out tokens"
                )
        for line in lines_of(lines, "floor")[-1:]:
            figures["floor"], head = figures_in(line), f"bits per byte, {line['documents']} whole held-out stories:"
            bits = f"{line['model']:.4f}   floor {line['floor']:.4f}   gap {line['model'] - line['floor']:+.4f}"
            longer = f"   ({line['left_out']} longer stories left out)" if line["left_out"] else ""
            summary.append(f"{head:<47} {bits}{longer}")
        return Outcome(figures, summary)


def held_out_loss(event: EvalEvent, max_tokens: int | None) -> tuple[float, int]:
    """Mean loss in nats a token, equal to the last bit whatever the number of processes; and of how many tokens."""
    isolate, restart = event.data_config.isolate_documents, event.data_config.restart_positions
    share, rows = (event.world.rank, event.world.size), event.rows_per_batch
    mine = validation_batches(event.held_out, event.tokenizer, rows, isolate, restart, max_tokens, share)
    sums = loss_sums(event.lm, mine, event.autocast, may_retry=not event.world.shares_model)
    turns = zip(*event.world.gather(sums), strict=True)
    return mean(part for turn in turns for parts in turn for part in parts)  # in the order of the rows


def log_floor(event: EvalEvent) -> None:
    """Whole held-out stories beside the entropy of the choices that made them; only where the built-in world tells."""
    source = event.data_config.source
    if not isinstance(source, StoryworldSource) or source.recall or event.data_config.records != "text":
        return
    from storyworld import tell

    count = min(event.eval_config.floor_documents, source.validation_documents)
    stories = [tell(source.seed, index, "validation", source.level) for index in range(count)]
    documents, model, floor = compare_with_floor(event.lm, event.tokenizer, stories)
    if documents:  # that the model can read whole
        left_out = count - documents
        event.log("floor", {"documents": documents, "left_out": left_out, "model": model, "floor": floor})


class Samples(Hook):
    """Continue `eval.prompts`, at every evaluation, so that you can read along while it learns; where it learns
    conversations, answer them. Each is appended to samples.jsonl; the first one is also shown on the terminal."""

    def evaluate(self, event: EvalEvent) -> None:
        settings, is_chat = event.eval_config, event.data_config.records != "text"
        options = (settings.sample_tokens, settings.temperature, settings.top_p)
        many_documents = event.data.manifest["train"]["documents"] > 1
        for number, prompt in enumerate(settings.prompts):
            given: str | list[int] = prompt
            more: dict[str, str] = {}
            if is_chat and not prompt:
                given, prompt, more["expected"] = held_out_question(event.held_out, event.tokenizer)
            reply = complete(event.lm, event.tokenizer, given, *options, begin_document=many_documents, chat=is_chat)
            if reply.reasoning_content:
                more["reasoning_content"] = reply.reasoning_content
            if event.writes:
                line = {"step": event.step, "prompt": prompt, "text": reply.content, **more}
                append_line(event.directory / SAMPLES, line)
            if number == 0:
                question, text = (escape(" ".join(text.split())) for text in (prompt, reply.content or thinks(reply)))
                end = f"{'…' * (len(question) > 60)}{question[-60:]}"  # a story may stand before it
                event.say(f"{f'asked “{end}”, ' if is_chat else ''}writes “{text[:90]}{'…' * (len(text) > 90)}”")

    def outcome(self, directory: Path, lines: list[dict[str, Any]]) -> Outcome:
        samples = read_samples(directory, lambda problem: None)
        if not samples:
            return Outcome()
        first = next(line for line in samples if line["step"] == samples[-1]["step"])  # that the terminal showed
        prompt, text = first["prompt"], first["text"]
        parts = [text] if text.startswith(prompt) else [f"asked:   {prompt}", f"writes:  {text}"]
        parts += [f"the data's answer: {first['expected']}"] if "expected" in first else []
        return Outcome({"sample": "\n".join(parts)})


def held_out_question(rows: Rows, tokenizer: Tokenizer) -> tuple[list[int], str, str]:
    """The first question of held-out conversations: the ids of its prompt, as training has them; it; and its answer."""
    ids, labels = (array.tolist() for array in rows.row(0))
    first = next(at for at, label in enumerate(labels) if label != IGNORED)
    end = next((at for at in range(first, len(ids)) if labels[at] == IGNORED), len(ids))
    prompt, start = ids[:first], tokenizer.special_id("<|im_start|>")
    *_, turn, answer = [0, *(at for at, token in enumerate(prompt) if token == start)]  # where the last turns begin
    question = tokenizer.decode(prompt[turn:answer]).partition("\n")[2]
    return prompt, question.strip(), read_reply(tokenizer, ids[first:end], prompt).content.strip()


SPLITS = {"questions": False, "questions_new_names": True}  # split -> whether names have a form unseen in training


class Questions(Hook):
    """Exact match for each class of questions, before the first step as well: with names as in training, and with names
    of a new form."""

    def evaluate(self, event: EvalEvent) -> None:
        source, count = event.data_config.source, event.eval_config.questions
        if not count or not isinstance(source, StoryworldSource) or event.data_config.records == "text":
            return
        from eval.questions import ask, figures, held_out_questions

        for split, new_names in SPLITS.items():
            questions = list(islice(held_out_questions(source, new_names=new_names), count))
            values = figures(questions, ask(event.lm, event.tokenizer, questions))
            event.log(split, values)
            right = f"{values['exact_match']:.1%} of {values['asked']} answers right (chance {values['chance']:.1%})"
            event.say(f"{split.replace('_', ' ')} {right}")

    def outcome(self, directory: Path, lines: list[dict[str, Any]]) -> Outcome:
        known, new = (lines_of(lines, split) for split in SPLITS)
        if not known or not new:
            return Outcome()
        from eval.questions import table_of_classes

        before = {"before": known[0]} if len(known) > 1 and known[0]["step"] == 0 else {}
        columns = table_of_classes({**before, "after": known[-1], "after, names of a new form": new[-1]})
        heading = "## Questions about held-out stories, answered to the letter"
        figures = {split: lines_of(lines, split)[-1]["exact_match"] for split in SPLITS}
        return Outcome(figures, sections=[heading, "", columns, ""])


class Recalls(Hook):
    """Share of right answers about held-out documents of facts, for each sort of question and each distance; at the end
    also the step of the phase change, the first look with more than half of the answers right."""

    exam: Exam | None = None

    def evaluate(self, event: EvalEvent) -> None:
        """Every process asks the same questions, since each may hold only a share of the model; the first one says."""
        from eval.lookups import figures, held_out, right

        source = event.data_config.source
        if isinstance(source, StoryworldSource) and source.recall is not None:
            self.exam = self.exam or held_out(source, event.tokenizer)
            values = figures(self.exam, right(event.lm, self.exam))
            event.log("recall", values)
            event.say(f"recall {values['accuracy']:.1%} of {len(self.exam.questions)} answers right")

    def outcome(self, directory: Path, lines: list[dict[str, Any]]) -> Outcome:
        from eval.lookups import half_at

        lines = lines_of(lines, "recall")
        if not lines:
            return Outcome()
        last, step = figures_in(lines[-1]), half_at(lines)
        when = "never more than half at a look" if step is None else f"more than half from step {step:,}"
        summary = [f"recall {last['accuracy']:.1%} of held-out answers right, {when}"]
        rows = [[name.replace("_", " "), f"{value:.1%}"] for name, value in last.items()]
        sections = ["## Recall of facts", "", table(["question", "right"], rows), ""]
        return Outcome({"recall": last | {"half_at_step": step}}, summary, sections=sections)
