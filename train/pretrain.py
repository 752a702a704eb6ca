"""Pretraining: `python -m train.pretrain configs/demo.yaml [section.key=value ...]`

Several GPUs: `torchrun --nproc_per_node=N -m train.pretrain configs/x.yaml`. Read `_run` and
`_part` from top to bottom: they are the whole run. Other kinds of training call `run` with another
objective or another source of batches.
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
from data.tokenizer import Tokenizer
from eval.hooks import Hooks
from model import LanguageModel
from model.backends import mine
from train.config import RunConfig
from train.machine.budget import check_memory
from train.machine.cpu_processes import number_of_processes, on_processes
from train.machine.device import keep_freed_memory, resolve_device, set_float32_products
from train.machine.distributed import World, check_shares, processes, shard
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
    """Run a training from its config to its report, and return the exit code.

    script     the module of the command
    objective  (config, data, lm, device) -> an Objective; default: the next token
    source     (config, data, world, device) -> a BatchSource; default: rows of the prepared text
    parts      of a step, which processes can share; default: its rows
    """
    if parts is None and (objective, source) != (None, TextBatches):
        parts = 1  # an objective or a source of your own may need all rows at once
    # On a CPU a run starts one process a core: see train/machine/cpu_processes.py.
    number = number_of_processes(config, parts)
    return on_processes(number, partial(_run, config, script, objective, source))


def _run(config: RunConfig, script: str, objective: MakeObjective | None, source: Any) -> int:
    # 1. Join the other processes, the `world`; most runs are alone. `own` locks the run directory
    # until the end. Bad input is found here, before minutes go into reading text.
    with processes(config.train.parallel, config.train.device) as world, ExitStack() as on_exit:
        world.on_rank0(lambda: on_exit.enter_context(own(config.directory)))
        check_shares(config, world)
        # Most runs have one part. Others go on with the next where one of their `changes` begins
        # or ends, just as a stopped run goes on: from its newest checkpoint.
        exit_code = None
        while exit_code is None:
            exit_code = _part(config, script, objective, source, world)
        return exit_code


def _part(
    config: RunConfig, script: str, objective: MakeObjective | None, source: Any, world: World
) -> int | None:
    """Train from the newest checkpoint to the end or to the next change; None if that comes."""
    with ExitStack() as on_exit:
        hooks = Hooks(config.eval, config.model)

        # 2. Is this run new, half-way or finished? And where does it compute? Rank 0 looks and
        # broadcasts what it sees: two processes might see two states of a disk.
        start = world.on_rank0(lambda: find_start(config))
        if start.finished:
            if world.rank == 0:
                print(translated(report.summary(config.directory)))
            return 0
        # `plan` has all changes of the run, `config` the values that hold from this step on.
        plan = config
        config = plan.during(start.state.step if start.state else 0)
        if config.model.my_attention is not None:
            about = mine.open_file(config.model.my_attention)
            if world.rank == 0:
                print(about)
        resolved = start.state.resolved if start.state else None
        device = world.on_rank0(lambda: resolve_device(config, resolved))
        # A new run only: a checkpoint has the weights, except those that adapters leave frozen.
        initial = None
        if config.init_from is not None:
            initial = world.on_rank0(lambda: find_initial_weights(config, start.checkpoint))
        world.on_rank0(lambda: check_memory(config, device, world.size))

        # 3. Text -> tokens -> rows. A tokenizer is trained if need be; then we know the size of
        # the vocabulary, and can say whether the model still fits into memory.
        data = prepare(config.data, Path(config.output_dir), show_progress=world.rank == 0)
        batches = source(config, data, world, device.device)
        held_out = make_rows(config.data, data, "validation")
        config = with_tokenizer(config, data.tokenizer)
        plan = with_tokenizer(plan, data.tokenizer)
        world.on_rank0(lambda: check_memory(config, device, world.size))

        # 4. The network, its loss and its optimizers. A stopped run gets its weights here.
        if device.device.type == "cpu":
            keep_freed_memory()
        precision = torch.get_float32_matmul_precision()
        on_exit.callback(torch.set_float32_matmul_precision, precision)
        set_float32_products(device, writes=source is not TextBatches)
        torch.manual_seed(config.seed)  # all processes draw the same random weights
        lm = LanguageModel(config.model).to(device.device)
        lm.set_attn_implementation(device.attention)
        lm.model.activation_checkpointing = config.train.activation_checkpointing
        if initial is not None:
            added = load_initial_weights(lm, initial, data.tokenizer, config.lora)
            if added and world.rank == 0:
                print(added)
        if world.shares_model:  # before the optimizers are built, which hold the parameters
            shard(lm, device.dtype, world)
        if world.rank:  # from here on each process draws its own dropout
            torch.manual_seed((config.seed * 1_000_003 + world.rank) % 2**63)
        chosen = objective(config, data, lm, device) if objective else NextToken()
        optimizers = build_optimizers(lm, config.train.optimizer, world, device.dtype)
        # Only fp16 needs a loss scale: bf16 has the exponents of fp32.
        scaler = torch.amp.GradScaler(device.device.type, enabled=device.precision == "fp16")
        state = resume(config, start, lm, optimizers, batches, data, device, world)
        if state.scaler and scaler.is_enabled():
            scaler.load_state_dict(state.scaler)
        state.until = plan.next_change(state.step)
        if plan.changes:
            from train.run.changes import check_replay, hold, keep_model  # most runs have none

            world.on_rank0(lambda: keep_model(plan, lm, state.step))
            world.on_rank0(lambda: check_replay(config, state.step))
            on_exit.enter_context(hold(config, lm, optimizers, state.step, world))
        # Late: until here a run may be refused, and then the logs of its earlier start are whole.
        world.on_rank0(lambda: open_for(plan, start))
        run = Run(
            config=config,
            script=script,
            device=device,
            world=world,
            data=data,
            source=batches,
            held_out=held_out,
            objective=chosen,
            lm=lm,
            optimizers=optimizers,
            scaler=scaler,
            hooks=hooks,
            tracker=Tracker(config, state, world.rank == 0),
            meter=Meter(config, lm, device, world.size),
            state=state,
        )

        # 5. Train. Then hooks draw their figures, while wandb is still there to take them.
        exit_code = 1  # what trackers get if an exception ends the training
        try:
            run.tracker.say(report.opening(run, start.checkpoint))
            exit_code = train_to_the_end(run)
            if exit_code == 0 and state.is_last and hooks.hooks:
                with run.tracker.doing("drawing"):
                    hooks.on_rank0("finish", run)
        finally:
            run.tracker.close(exit_code)

        # 6. The result: report.md, and what the run prints at its end.
        if exit_code == 0 and not state.is_last:
            return None  # a change begins or ends here: `_run` goes on with the next part
        if exit_code == 0 and world.rank == 0:
            report.write(run)
            print(translated(report.summary(config.directory)))
        return exit_code


def with_tokenizer(config: RunConfig, tokenizer: Tokenizer) -> RunConfig:
    """Return the config with the tokenizer's numbers in `model:`. Raises InputError for others."""
    is_text = config.data.records == "text"
    numbers = {
        "vocab_size": tokenizer.vocab_size,
        "bos_token_id": tokenizer.bos_id,
        "eos_token_id": tokenizer.eos_id if is_text else tokenizer.stop_ids,
        "pad_token_id": tokenizer.pad_id,
    }
    for key, number in numbers.items():
        configured = getattr(config.model, key)
        if configured not in (None, number):
            problem = f"model.{key} is {configured}, but the tokenizer has {number}"
            raise InputError(f"{problem}: leave that key out")
    return config.model_copy(update={"model": config.model.model_copy(update=numbers)})


if __name__ == "__main__":
    exit_on_bad_input(main)
