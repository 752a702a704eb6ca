"""Pretraining: `python -m train.pretrain configs/demo.yaml [section.key=value ...]`

Reads top to bottom: config, device, data, model, optimizer, resume, train, report.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from configs.loader import InputError, exit_on_bad_input
from train.config import RunConfig, parse_command_line

if TYPE_CHECKING:
    from data.batches import TrainBatches
    from data.prepare import PreparedData


def main() -> int:
    # 1. The config: one YAML file, checked before anything heavy is imported or written.
    config = parse_command_line("Train a language model from scratch.")
    from data.batches import make_rows, too_long
    from data.prepare import describe, prepare
    from model import LanguageModel
    from train import report, run_directory
    from train.checkpoint import TrainerState, load_checkpoint
    from train.device import resolve_device
    from train.initial_weights import find_initial_weights, load_initial_weights
    from train.loop import Run, train
    from train.optimizer import build_optimizers
    from train.tracking import Tracker

    # 2. Where it computes, and whether this run is new, half-way or finished.
    device = resolve_device(config)
    start = run_directory.find_start(config)
    if start.finished:
        print(report.result(config.directory))
        return 0
    initial = find_initial_weights(config) if start.checkpoint is None else None

    # 3. Text -> tokens -> rows.
    data = prepare(config.data, Path(config.output_dir))
    batches, held_out = training_batches(config, data), make_rows(config.data, data, "validation")

    # 4. The network. The tokenizer says how many ids there are and which are special.
    config = with_tokenizer(config, data.tokenizer)
    torch.manual_seed(config.seed)
    lm = LanguageModel(config.model).to(device.device)
    lm.set_attn_implementation(device.attention)
    if initial is not None:
        load_initial_weights(lm, initial, data.tokenizer)

    # 5. How gradients become steps.
    optimizers = build_optimizers(lm, config.train.optimizer)

    # 6. Go on where the run stopped.
    state = TrainerState(identity=config.identity())
    if start.checkpoint is not None:
        state = load_checkpoint(start.checkpoint, lm, optimizers)
        if start.checkpoint.parent != config.directory / "checkpoints":
            state.wandb_id = None  # another run goes on under a name of its own
    run_directory.check_contents(config, state, data)
    run_directory.open_for(config, state.step)
    tracker = Tracker(config, state.step, state.wandb_id)
    run = Run(config, device, data, batches, held_out, lm, optimizers, state, tracker)
    notes = [report.opening(run), describe(data), too_long(batches.rows, config.data)]
    tracker.say("\n".join(filter(None, notes)))
    if start.checkpoint is not None:
        tracker.say(f"resumed from {start.checkpoint}, step {state.step:,}")

    # 7. Train.
    exit_code = 1
    try:
        exit_code = train(run)
    finally:
        tracker.close(exit_code)

    # 8. What came of it.
    if exit_code == 0:
        report.write(run)
        print(report.result(config.directory))
    return exit_code


def training_batches(config: RunConfig, data: PreparedData) -> TrainBatches:
    """The rows of every step. Raises InputError if an epoch does not fill a single step."""
    from data.batches import TrainBatches, make_rows

    rows = make_rows(config.data, data, "train", config.rows_per_step)
    wanted = config.train.tokens_per_step // rows.length
    if rows.per_epoch < wanted:
        raise InputError(
            f"data.source: the training text has {data.manifest['train']['tokens']:,} tokens, which make "
            f"{rows.per_epoch:,} rows, fewer than the {wanted:,} of a step (train.tokens_per_step): "
            "give more text or lower train.tokens_per_step"
        )
    is_joined = rows.length > config.data.sequence_length
    packed_as = (config.data.isolate_documents, config.data.restart_positions or is_joined)
    return TrainBatches(rows, data.tokenizer, wanted, config.seed, *packed_as)


def with_tokenizer(config: RunConfig, tokenizer) -> RunConfig:
    """The config with the tokenizer's numbers filled in. Raises InputError if the YAML says another size."""
    wanted = config.model.vocab_size
    if wanted not in (None, tokenizer.vocab_size):
        raise InputError(
            f"model.vocab_size is {wanted}, but the tokenizer has {tokenizer.vocab_size} ids: leave that key out"
        )
    ids = {
        "vocab_size": tokenizer.vocab_size,
        "bos_token_id": tokenizer.bos_id,
        "eos_token_id": tokenizer.stop_ids if config.data.records == "conversations" else tokenizer.eos_id,
        "pad_token_id": tokenizer.pad_id,
    }
    return config.model_copy(update={"model": config.model.model_copy(update=ids)})


if __name__ == "__main__":
    exit_on_bad_input(main)
