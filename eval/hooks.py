"""What runs during training: hooks. A hook is a function of one event; it reads the model and logs figures.

YAML names them and says when each runs (`eval.hooks`); "module:function" is one of your own. The built-in ones draw
no number from the global random state, so how often they run changes nothing in training. One that raises is reported
and switched off; the run goes on.
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from configs.loader import InputError
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

    step, tokens, seconds: of training so far. log(split, figures): a line of metrics.jsonl, and to wandb.
    log_image(name, file): to wandb. kept: what hooks keep for themselves between two events.
    Where a run has several processes, each of them runs every hook, because each may hold a share of the model only;
    the first one, which `writes`, leaves files. any_process: whether something is true in one of them.
    """

    step: int
    tokens: int
    seconds: float
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
    kept: dict[str, Any] = field(default_factory=dict)

    @property
    def tokenizer(self) -> Tokenizer:
        return self.data.tokenizer


Hook = Callable[[EvalEvent], None]


def validation(event: EvalEvent) -> None:
    """Loss (nats a token), perplexity and bits per byte on the held-out part."""
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


def questions(event: EvalEvent) -> None:
    """Ask about held-out stories, before the first step as well: exact match for each class of questions, once with
    names like those of training and once with names of another form."""
    source, count = event.data_config.source, event.config.questions
    if not count or not isinstance(source, StoryworldSource) or event.data_config.records != "conversations":
        return
    from eval.questions import ask, figures, held_out_questions, score

    for split, new_names in (("questions", False), ("questions_new_names", True)):
        asked = list(islice(held_out_questions(source, new_names=new_names), count))
        event.log(split, figures(score(asked, ask(event.lm, event.tokenizer, asked))))


def attention(event: EvalEvent) -> None:
    """Every head's maps and scores: attention/step_XXXXXXXX.npz, and a plain picture beside it."""
    from eval.attention.record import record

    record(event)


BUILT_IN: dict[str, Hook] = {hook.__name__: hook for hook in (validation, questions, samples, attention)}


def load_hooks(config: EvalConfig) -> dict[str, Hook]:
    """The hooks that the YAML names, in their order. Raises InputError for one that does not exist."""
    return {name: BUILT_IN[name] if name in BUILT_IN else _imported(name) for name in config.cadences()}


def _imported(name: str) -> Hook:
    module, _, function = name.partition(":")
    if not function:
        known = ", ".join(BUILT_IN)
        raise InputError(f"eval.hooks: no hook is called {name!r}: use {known}, or module:function for one of your own")
    try:
        hook = getattr(importlib.import_module(module), function)
    except Exception as error:
        raise InputError(f"eval.hooks: {name} cannot be imported: {type(error).__name__}: {error}") from None
    if not callable(hook):
        raise InputError(f"eval.hooks: {name} is a {type(hook).__name__}, not a function of one event")
    return hook


def run_hooks(event: EvalEvent, hooks: dict[str, Hook], switched_off: set[str], warn: Callable[[str], None]) -> None:
    """Run every hook that is due. One that raises is reported and switched off; the run goes on."""
    cadences = event.config.cadences()
    for name, hook in hooks.items():
        if name in switched_off or not cadences[name].is_due(event.step, event.is_last):
            continue
        problem = "it failed in another process"
        try:
            hook(event)
            failed = False
        except Exception as error:
            failed, problem = True, f"{type(error).__name__}: {error}"
        if event.any_process(failed):
            switched_off.add(name)
            warn(f"warning: the {name} hook is off from here: {problem}")
