"""The changes of a run while it trains: heads that are clamped, removed or frozen (train/fork.py).

Each change begins a new part of the run, and so does its end (train/pretrain.py). A part loads its
weights and moments from the checkpoint of the part before, and its config has the changed keys. So
the loop knows nothing of changes; what keys cannot say is put into the model here.

    clamp     eval/attention/clamp.py replaces the pattern of a head, in training and evaluation.
              A checkpoint cannot hold that: a command that opens it later sees the head's own
              pattern.
    without   the head's columns of o_proj become zero and are frozen. So checkpoints are right, and
              a head that comes back after `steps` has to learn again what it writes.
    freeze    gradients are zero before the optimizer sees them: they count neither for clipping nor
              for momentum, nor when Muon makes the update of a whole matrix orthogonal. Moments
              are zero from the start. After each step the weights are put back, because weight
              decay moves them even so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from configs.command import InputError
from eval.attention.clamp import Pattern, clamped
from eval.run_files import first_difference, read_metrics
from model import LanguageModel, load, save
from model.attention import Attention
from train.config import RunConfig
from train.machine.distributed import World
from train.run.run_directory import TRAIN_HERE, refuse

# A folder of the run: the models whose patterns are clamped.
MODELS = "models"
# A parameter, and an index of some of its numbers.
Part = tuple[Tensor, Any]


@contextmanager
def hold(
    config: RunConfig,
    lm: LanguageModel,
    optimizers: list[torch.optim.Optimizer],
    step: int,
    world: World,
) -> Iterator[None]:
    """Let the changes of this step hold within this context, in a model that is loaded.

    config: of this step (RunConfig.during). Raises InputError if the model cannot be changed so.
    """
    patterns: dict[tuple[int, int], Pattern] = {}
    models: dict[int, LanguageModel] = {}
    frozen: list[Part] = []
    for change in config.changes:
        if not change.is_on(step):
            continue
        for name, pattern in change.clamp.items():
            if isinstance(pattern, int):
                if pattern not in models:
                    with torch.random.fork_rng([]):  # a new model draws weights first
                        models[pattern] = load(model_folder(config.directory, pattern))
                    models[pattern].to(lm.device)
                patterns[head_of(name)] = models[pattern]
            else:
                patterns[head_of(name)] = pattern
        for name in change.without:
            column = written_by(lm, *head_of(name))
            with torch.no_grad():
                column[0][column[1]] = 0
            frozen.append(column)
        for name in change.freeze:
            frozen += weights_of(lm, name)
    if (frozen or patterns) and world.shares_model:
        raise InputError(f"changes: not with train.parallel={world.parallel}: use ddp")
    if frozen and lm.adapters is not None:
        raise InputError("changes: with lora every matrix is frozen: leave out lora, or freeze")
    freeze(optimizers, frozen)
    with ExitStack() as on_exit:
        try:
            on_exit.enter_context(clamped(lm, patterns))
        except ValueError as error:
            raise InputError(f"changes: clamp: {error}") from None
        yield


def keep_model(config: RunConfig, lm: LanguageModel, step: int) -> None:
    """Keep the model of this step if a later change clamps a head to its pattern."""
    # The run pauses at such a step (RunConfig.next_change). A fork has copied the models of earlier
    # checkpoints already.
    for change in config.changes:
        if step in change.clamp.values() and step <= change.at:
            folder = model_folder(config.directory, step)
            folder.mkdir(parents=True, exist_ok=True)
            save(lm, folder)


def model_folder(run: Path, step: int) -> Path:
    return run / MODELS / f"step_{step:08d}"


def head_of(name: str) -> tuple[int, int]:
    """Return (layer, head) of a name such as L0H2."""
    layer, head = map(int, re.findall(r"\d+", name))
    return layer, head


def written_by(lm: LanguageModel, layer: int, head: int) -> Part:
    """Return the columns of o_proj that read a head, as a parameter and an index."""
    weight = lm.attention_modules()[layer].o_proj.weight
    size = weight.shape[1] // lm.config.num_attention_heads
    return weight, (slice(None), slice(head * size, (head + 1) * size))


def weights_of(lm: LanguageModel, name: str) -> list[Part]:
    """Return the weights of a part, each a parameter and an index.

    Of a head: its rows of q_proj, k_proj and v_proj, and its columns of o_proj. With GQA other
    heads read the same rows of k_proj and v_proj, and find them frozen as well. The norms of
    queries and keys, which belong to all heads, still learn. A tied embedding is the output head
    as well.
    """
    if name == "embedding":
        modules = [lm.model.embed_tokens, lm.model.embed_positions]
        return [(p, ...) for module in modules if module is not None for p in module.parameters()]
    if "H" not in name:
        return [(p, ...) for p in lm.model.layers[int(name[1:])].parameters()]
    layer, head = head_of(name)
    attention = lm.attention_modules()[layer]
    if not isinstance(attention, Attention):
        kind = type(attention).__name__
        raise InputError(f"changes: {kind} has no rows of one head: freeze the layer, L{layer}")
    size = attention.head_dim
    heads = lm.config.num_attention_heads
    weights = [written_by(lm, layer, head)]
    for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
        # With GQA several query heads share a key head: this is the number of theirs.
        own = head * projection.out_features // size // heads
        rows = slice(own * size, (own + 1) * size)
        weights += [(parameter, rows) for parameter in projection.parameters()]
    if attention.smear is not None:  # one number for each key head
        weights.append((attention.smear, head * len(attention.smear) // heads))
    return weights


def freeze(optimizers: list[torch.optim.Optimizer], weights: list[Part]) -> None:
    """Let the optimizers leave these weights as they are, to the last bit."""
    masks: dict[Tensor, Tensor] = {}
    for parameter, index in weights:
        masks.setdefault(parameter, torch.zeros_like(parameter, dtype=torch.bool))[index] = True
    values = {parameter: parameter.detach()[mask] for parameter, mask in masks.items()}

    def restore(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        with torch.no_grad():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter in masks:
                        parameter[masks[parameter]] = values[parameter]

    for parameter, mask in masks.items():
        # mask=mask: the hook runs long after this loop, when `mask` is the last one
        parameter.register_hook(lambda grad, mask=mask: grad.masked_fill(mask, 0))
    for optimizer in optimizers:
        optimizer.register_step_post_hook(restore)
        for parameter in optimizer.state.keys() & masks.keys():
            for moment in optimizer.state[parameter].values():
                if moment.shape == parameter.shape:  # not AdamW's number of steps
                    moment[masks[parameter]] = 0


# --------------------------------------------------------------------------------------------------
# forks


def check_replay(config: RunConfig, step: int) -> None:
    """Raise InputError where a fork begins, if its log is not that of the run that it continues."""
    fork = config.forked_from
    if fork is None or fork.step != step:
        return
    logs = [read_metrics(run, lambda problem: None) for run in (Path(fork.run), config.directory)]
    # Later lines are of another training: the fork has not begun to differ yet.
    theirs, ours = ([line for line in log if line["step"] <= step] for log in logs)
    difference = first_difference(theirs, ours)
    if difference is not None:
        at, figure, before, now = difference
        refuse(
            config,
            f"{fork.run} cannot be repeated exactly here: at step {at:,} it had {figure} {before}, "
            f"and now {now}",
            remedy=TRAIN_HERE,
        )
