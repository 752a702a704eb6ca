"""Pretraining: `python -m train.pretrain configs/demo.yaml [section.key=value ...]`

Several GPUs: `torchrun --nproc_per_node=N -m train.pretrain configs/x.yaml`. `_run` reads top to bottom: what can be
wrong, where to resume, data, model, optimizer, train, report. Another kind of training calls `run` with another
objective and another source of batches.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch

from configs.command import InputError, exit_on_bad_input
from configs.language import translated
from data.batches import make_rows
from data.prepare import prepare
from eval.hooks import Hooks
from model import LanguageModel
from model.backends import mine
from train.config import RunConfig
from train.machine.budget import check_memory
from train.machine.device import keep_freed_memory, resolve_device, set_float32_products
from train.machine.processes import check_shares, number_of_processes, on_processes, processes, shard
from train.methods.init_from import find_initial_weights, load_initial_weights
from train.methods.sources import TextBatches
from train.objective import MakeObjective, NextToken
from train.optimizer import build_optimizers
from train.run import report
from train.run.begin_and_end import train_to_the_end
from train.run.command_line import parse_command_line
from train.run.metrics import Meter, Tracker
from train.run.run import Run, resume
from train.run.run_directory import find_start, open_for, own


def main() -> int:
    return run(parse_command_line("Train a language model from scratch."), "train.pretrain")


def run(
    config: RunConfig,
    script: str,
    objective: MakeObjective | None = None,
    source: Callable[..., Any] = TextBatches,
    *,
    parts: int | None = None,
) -> int:
    """One run from its config to its report. Returns the exit code.

    script: the module of the command. objective: (config, data, lm, device) -> what a step minimises; default: the next
    token. It may open a second model (train/methods/reference.py). source: (config, data, world, device) -> a
    BatchSource; default: rows of the prepared text. parts: of a step, that may be computed apart; default: its rows, or
    1 with an objective or a source of one's own.

    On a CPU each core gets a process, if there are parts to share.
    """
    if parts is None and (objective, source) != (None, TextBatches):
        parts = 1
    return on_processes(number_of_processes(config, parts), partial(_run, config, script, objective, source))


def _run(config: RunConfig, script: str, objective: MakeObjective | None, source: Any) -> int:
    # 1. This process and the others; the run directory is theirs alone until the end. What can be wrong is found before
    # text is read.
    with processes(config.train.parallel, config.train.device) as world, ExitStack() as until_the_end:
        world.on_rank0(lambda: until_the_end.enter_context(own(config.directory)))
        check_shares(config, world)
        hooks = Hooks(config.eval, config.model)

        # 2. Whether this run is new, half-way or finished, and where it computes.
        start = world.on_rank0(lambda: find_start(config))
        if start.finished:
            if world.rank == 0:
                print(translated(report.summary(config.directory)))
            return 0
        if (file := config.model.my_attention) is not None:
            about = mine.open_file(file)
            if world.rank == 0:
                print(about)
        device = world.on_rank0(lambda: resolve_device(config, start.state.resolved if start.state else None))
        find = partial(find_initial_weights, config, start.checkpoint)
        initial = None if config.init_from is None else world.on_rank0(find)
        world.on_rank0(lambda: check_memory(config, device, world.size))

        # 3. Text -> tokens -> rows. The tokenizer has the last numbers of the network.
        data = prepare(config.data, Path(config.output_dir), show_progress=world.rank == 0)
        batches = source(config, data, world, device.device)
        held_out = make_rows(config.data, data, "validation")
        tokenizer, turns = data.tokenizer, config.data.records != "text"
        numbers = {
            "vocab_size": tokenizer.vocab_size,
            "bos_token_id": tokenizer.bos_id,
            "eos_token_id": tokenizer.stop_ids if turns else tokenizer.eos_id,
            "pad_token_id": tokenizer.pad_id,
        }
        for key, number in numbers.items():
            if (wanted := getattr(config.model, key)) not in (None, number):
                what = f"{number} ids" if key == "vocab_size" else f"{number} there"
                raise InputError(f"model.{key} is {wanted}, but the tokenizer has {what}: leave that key out")
        config = config.model_copy(update={"model": config.model.model_copy(update=numbers)})
        world.on_rank0(lambda: check_memory(config, device, world.size))  # now the vocabulary is known

        # 4. The network, and how its gradients become steps; a stopped run resumes here.
        if device.device.type == "cpu":
            keep_freed_memory()
        until_the_end.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
        set_float32_products(device, writes=source is not TextBatches)
        torch.manual_seed(config.seed)  # of the random weights; those in `initial` take their place
        lm = LanguageModel(config.model).to(device.device)
        lm.set_attn_implementation(device.attention)
        lm.model.activation_checkpointing = config.train.activation_checkpointing
        if initial is not None:
            added = load_initial_weights(lm, initial, tokenizer, config.lora)
            if added and world.rank == 0:
                print(added)
        if world.shares_model:
            shard(lm, device.dtype, world)
        if world.rank:  # the weights are drawn, alike everywhere: each process draws its own dropout from here on
            torch.manual_seed((config.seed * 1_000_003 + world.rank) % 2**63)
        learned = objective(config, data, lm, device) if objective else NextToken()
        optimizers = build_optimizers(lm, config.train.optimizer, world, device.dtype)
        scaler = torch.amp.GradScaler(device.device.type, enabled=device.precision == "fp16")
        state = resume(config, start, lm, optimizers, batches, data, device, world)
        if state.scaler and scaler.is_enabled():
            scaler.load_state_dict(state.scaler)
        world.on_rank0(lambda: open_for(config, start))
        tracker, meter = Tracker(config, state, world.rank == 0), Meter(config, lm, device, world.size)
        run = Run(
            config, script, device, world, data, batches, held_out, learned, lm, optimizers, scaler, hooks, tracker,
            meter, state,
        )  # fmt: skip

        # 5. Train; draw while the tracker is still open.
        exit_code = 1
        try:
            run.tracker.say(report.opening(run, start.checkpoint))
            exit_code = train_to_the_end(run)
            if exit_code == 0 and hooks.hooks:
                with run.tracker.doing("drawing"):
                    hooks.on_rank0("finish", run)
        finally:
            run.tracker.close(exit_code)

        # 6. The result.
        if exit_code == 0 and world.rank == 0:
            report.write(run)
            print(translated(report.summary(config.directory)))
        return exit_code


if __name__ == "__main__":
    exit_on_bad_input(main)
