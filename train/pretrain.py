"""Pretraining: `python -m train.pretrain configs/demo.yaml [section.key=value ...]`

Several GPUs: `torchrun --nproc_per_node=N -m train.pretrain configs/x.yaml`. `_run` reads top to bottom: what can be
wrong, where to resume, data, model, optimizer, train, report. Another kind of training calls `run` with another
objective and another source of batches; train/sft.py only changes the config.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from configs.command import InputError, exit_on_bad_input
from train.command_line import parse_command_line
from train.config import RunConfig
from train.methods.sections import check_script

if TYPE_CHECKING:
    from data.tokenizer import Tokenizer
    from model import LanguageModel
    from train.machine.device import Device
    from train.machine.distributed import World
    from train.objective import MakeObjective


def main() -> int:
    # The config: one YAML file, checked before anything heavy is imported or written.
    return run(parse_command_line("Train a language model from scratch."), "train.pretrain")


def run(
    config: RunConfig,
    script: str,
    objective: MakeObjective | None = None,
    source: Callable[..., Any] | None = None,
    complete: Callable[[RunConfig], RunConfig] | None = None,
    *,
    parts: int | None = None,
) -> int:
    """One run from its config to its report. Returns the exit code.

    script: the module of the command. objective: (config, data, lm, device) -> what a step minimises; default: the
    next token. It may open a second model (train/methods/reference.py). source: (config, data, world, device) -> a
    BatchSource; default: rows of the prepared text. complete: what the config takes over from the run directory or
    another run. parts: of a step, that may be computed apart: default: its rows, or 1 with an objective or a source.

    On a CPU each core gets a process, if there are parts to share.
    """
    from train.machine.cpu_processes import number_of_processes, on_processes

    work = partial(_run, config, script, objective, source, complete)
    parts = 1 if parts is None and (objective or source) else parts
    return on_processes(number_of_processes(config, parts), work)


def _run(
    config: RunConfig,
    script: str,
    objective: MakeObjective | None,
    source: Callable[..., Any] | None,
    complete: Callable[[RunConfig], RunConfig] | None,
) -> int:
    from data.batches import make_rows
    from data.prepare import prepare
    from eval.hooks.registry import Hooks
    from train import report
    from train.budget import check_memory
    from train.loop import train
    from train.machine.device import resolve_device
    from train.machine.distributed import check_shares, processes
    from train.objective import TextBatches, next_token
    from train.run import open_run
    from train.saving.initial_weights import find_base, find_initial_weights
    from train.saving.run_directory import Owner, find_start

    # 1. This process and the others; the run directory is theirs alone until the end. What can be wrong is found before
    # text is read.
    with (
        processes(config.train.parallel, config.train.device) as world,
        Owner(config.directory) as owner,
    ):
        world.first(owner.take)
        check_script(config, script)
        config = complete(config) if complete else config
        check_shares(config, world)
        hooks = Hooks(config.eval)
        hooks.check(config.eval, config.model)

        # 2. Whether this run is new, half-way or finished, and where it computes.
        start = world.first(lambda: find_start(config))
        if start.finished:
            world.say(report.summary(config.directory))
            return 0
        device = world.first(lambda: resolve_device(config, start.state.resolved if start.state else None))
        starts_from = config.init_from is not None and start.checkpoint is None
        initial = world.first(lambda: find_initial_weights(config)) if starts_from else None
        if config.lora is not None:  # also where it resumes: a checkpoint holds the adapters alone
            initial = world.first(lambda: find_base(config, start.checkpoint))
        world.first(lambda: check_memory(config, device, world.size))

        # 3. Text -> tokens -> rows.
        data = prepare(config.data, Path(config.output_dir), show_progress=world.is_first)
        batches = (source or TextBatches)(config, data, world, device.device)
        held_out = make_rows(config.data, data, "validation")

        # 4. The network, and how its gradients become steps; a stopped run resumes here.
        config = with_tokenizer(config, data.tokenizer)
        world.first(lambda: check_memory(config, device, world.size))  # now the vocabulary is known
        lm = build_model(config, device, world, data.tokenizer, initial)
        learned = (objective or next_token)(config, data, lm, device)
        run = open_run(config, script, start, owner, device, world, data, batches, held_out, learned, lm, hooks)

        # 5. Train; draw while the tracker is still open.
        exit_code = 1
        try:
            run.tracker.say(report.opening(run, start.checkpoint))
            exit_code = train(run)
            if exit_code == 0 and hooks.hooks:
                run.check_owner()
                with run.tracker.doing("drawing"):
                    hooks.finish(run.event(is_last=True))
        finally:
            run.tracker.close(exit_code)

        # 6. The result.
        if exit_code == 0:
            run.check_owner()
            report.write(run)
            world.say(report.summary(config.directory))
        return exit_code


def build_model(
    config: RunConfig, device: Device, world: World, tokenizer: Tokenizer, initial: Path | None
) -> LanguageModel:
    """The network on its device: random weights from the seed, or those in `initial`; under fsdp2, a share of it."""
    import torch

    from model import LanguageModel
    from train.machine.device import keep_freed_memory
    from train.machine.distributed import shard
    from train.saving.initial_weights import load_initial_weights

    if device.device.type == "cpu":
        keep_freed_memory()
    if device.threads is not None:
        torch.set_num_threads(device.threads)
    if device.precision == "tf32":
        torch.set_float32_matmul_precision("high")
    torch.manual_seed(config.seed)
    lm = LanguageModel(config.model).to(device.device)
    lm.set_attn_implementation(device.attention)
    if config.train.activation_checkpointing:
        lm.set_activation_checkpointing(True)
    if initial is not None and (added := load_initial_weights(lm, initial, tokenizer, config.lora)):
        world.say(added)
    if world.shares_model:
        shard(lm, device.dtype)
    if world.rank:  # the weights are drawn, alike everywhere: each process draws its own dropout from here on
        torch.manual_seed((config.seed * 1_000_003 + world.rank) % 2**63)
    return lm


def with_tokenizer(config: RunConfig, tokenizer: Tokenizer) -> RunConfig:
    """The config with the tokenizer's numbers filled in. Raises InputError if the YAML has others."""
    turns = config.data.records != "text"
    numbers = {
        "vocab_size": tokenizer.vocab_size,
        "bos_token_id": tokenizer.bos_id,
        "eos_token_id": tokenizer.stop_ids if turns else tokenizer.eos_id,
        "pad_token_id": tokenizer.pad_id,
    }
    for key, number in numbers.items():
        wanted = getattr(config.model, key)
        if wanted not in (None, number):
            what = f"{number} ids" if key == "vocab_size" else f"{number} there"
            raise InputError(f"model.{key} is {wanted}, but the tokenizer has {what}: leave that key out")
    return config.model_copy(update={"model": config.model.model_copy(update=numbers)})


if __name__ == "__main__":
    exit_on_bad_input(main)
