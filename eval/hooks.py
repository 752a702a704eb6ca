"""What runs during training, and when. A hook is a function of one event; it reads the model and logs figures.

Hooks draw no number from the global random state, so how often they run changes nothing in training.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from data.batches import validation_batches
from data.config import DataConfig, StoryworldSource
from data.packing import Rows
from data.prepare import PreparedData
from data.tokenizer import Tokenizer
from eval.config import EvalConfig
from eval.language_modeling import bits_per_byte, mean_loss
from eval.samples import complete
from model import LanguageModel


@dataclass(frozen=True)
class EvalEvent:
    """What a hook may read: the moment, the uncompiled model, the data; and two functions to log with.

    Where a run has several processes, each of them runs every hook, because each may hold a share of the model only;
    the first one, which `writes`, leaves files. any_process: whether something is true in one of them.
    """

    step: int
    is_last: bool
    lm: LanguageModel
    data: PreparedData
    held_out: Rows
    data_config: DataConfig
    config: EvalConfig
    rows_per_batch: int
    directory: Path
    autocast: Callable[[], AbstractContextManager]
    log: Callable[[str, dict[str, Any]], None]
    log_image: Callable[[str, Path], None]
    writes: bool = True
    any_process: Callable[[bool], bool] = bool

    @property
    def tokenizer(self) -> Tokenizer:
        return self.data.tokenizer

    def due(self, every: int) -> bool:
        """Each `every` steps and at the end; `every` 0 is for hooks that the end is enough for."""
        return self.is_last or (every > 0 and self.step % every == 0)


Hook = Callable[[EvalEvent], None]


def validation(event: EvalEvent) -> None:
    """Loss (nats a token), perplexity and bits per byte on the held-out part."""
    if not event.due(event.config.every):
        return
    while_training, at_the_end = event.config.max_tokens, event.config.final_max_tokens
    loss = _held_out_loss(event, at_the_end if event.is_last else while_training)
    counts = event.data.manifest["validation"]
    values = {
        "loss": loss,
        "perplexity": math.exp(min(loss, 700)),
        "bits_per_byte": bits_per_byte(loss, counts["trained_tokens"], counts["bytes"]),
    }
    if event.is_last and while_training != at_the_end:  # of the same tokens as before, so that the best can be told
        values["loss_comparable"] = _held_out_loss(event, while_training)
    event.log("val", values)


def _held_out_loss(event: EvalEvent, max_tokens: int | None) -> float:
    rows = event.rows_per_batch
    while True:
        batches = validation_batches(
            event.held_out,
            event.tokenizer,
            rows,
            event.data_config.isolate_documents,
            event.data_config.restart_positions,
            max_tokens,
        )
        try:
            return mean_loss(event.lm, batches, event.autocast())
        except torch.OutOfMemoryError:
            if rows == 1:
                raise
        rows = max(1, rows // 2)


def samples(event: EvalEvent) -> None:
    """Continue the fixed prompts and append them to samples.jsonl."""
    if not event.due(event.config.every):
        return
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
        with (event.directory / "samples.jsonl").open("a", encoding="utf-8") as file:
            file.writelines(lines)


def attention(event: EvalEvent) -> None:
    """Draw every head on a fixed text: attention/step_XXXXXXXX.png, the raw weights beside it as .npz."""
    every = event.config.attention.every
    if not every or not event.due(every):
        return
    import numpy as np

    from eval.attention.capture import capture
    from eval.attention.plots import as_snapshot, mosaic

    ids = probe_ids(event)
    device = next(event.lm.parameters()).device
    maps = capture(event.lm, torch.tensor([ids], device=device))
    if not event.writes:
        return
    folder = event.directory / "attention"
    folder.mkdir(exist_ok=True)
    stem = f"step_{event.step:08d}"
    labels = event.tokenizer.token_labels(ids)
    np.savez_compressed(folder / f"{stem}.npz", weights=maps.weights[:, 0].half().numpy(), tokens=ids)
    mosaic(as_snapshot(maps, labels, step=event.step), folder / f"{stem}.png", event.directory.name)
    event.log_image("attention/heads", folder / f"{stem}.png")


def questions(event: EvalEvent) -> None:
    """Ask about held-out stories, before the first step as well: exact match for each class of questions, once with
    names like those of training and once with names of another form."""
    source, count = event.data_config.source, event.config.questions
    if not count or not isinstance(source, StoryworldSource) or event.data_config.records != "conversations":
        return
    if not (event.step == 0 or event.due(event.config.every)):
        return
    from eval.questions import ask, figures, held_out_questions, score

    for split, new_names in (("questions", False), ("questions_new_names", True)):
        asked = list(islice(held_out_questions(source, new_names=new_names), count))
        event.log(split, figures(score(asked, ask(event.lm, event.tokenizer, asked))))


def probe_ids(event: EvalEvent) -> list[int]:
    """The tokens of the text that is drawn: eval.attention.text, or how the held-out part begins."""
    wanted = event.config.attention
    if wanted.text:
        return [event.tokenizer.bos_id, *event.tokenizer.encode(wanted.text)][: wanted.max_tokens]
    stream = event.data.stream("validation")
    ids = stream.read(0, min(wanted.max_tokens, len(stream))).tolist()
    end = ids.index(event.tokenizer.eos_id) + 1 if event.tokenizer.eos_id in ids else len(ids)
    return ids[:end]


HOOKS: tuple[Hook, ...] = (validation, questions, samples, attention)


def run_hooks(event: EvalEvent, switched_off: set[Hook], warn: Callable[[str], None]) -> None:
    """Run every hook. One that raises is reported and switched off; the run goes on."""
    for hook in HOOKS:
        if hook in switched_off:
            continue
        problem = "it failed in another process"
        try:
            hook(event)
            failed = False
        except Exception as error:
            failed, problem = True, f"{type(error).__name__}: {error}"
        if event.any_process(failed):
            switched_off.add(hook)
            warn(f"warning: the {hook.__name__} hook is off from here: {problem}")
