"""The parts of a training script, in the order in which train/pretrain.py and train/sft.py use them."""

from __future__ import annotations

from pathlib import Path

import torch

from configs.loader import InputError
from data.batches import TrainBatches, make_rows, too_long
from data.packing import Rows
from data.prepare import PreparedData, describe, prepare
from data.tokenizer import Tokenizer
from eval.attention.record import check as check_attention
from eval.hooks import load_hooks
from model import LanguageModel
from train import report
from train.announcement import opening
from train.config import RunConfig
from train.machine.allocator import keep_freed_memory
from train.machine.device import Device, resolve_device
from train.machine.distributed import World, seed_rank, shard
from train.meters import SpikeDetector
from train.optimizer import build_optimizers
from train.run import Run
from train.saving import run_directory
from train.saving.checkpoint import TrainerState, load_checkpoint
from train.saving.initial_weights import load_initial_weights
from train.saving.run_directory import Start
from train.step_memory import micro_batch_rows
from train.tracking import Tracker


def check(config: RunConfig, world: World) -> None:
    """What can be wrong before any text is read. Raises InputError if the rows of a step cannot be shared out evenly,
    and for a hook or a file of probes that does not exist."""
    load_hooks(config.eval)
    check_attention(config.eval.attention, config.model)
    rows = config.rows_per_step
    if rows % world.size:
        fitting = max(n for n in range(1, world.size + 1) if rows % n == 0)
        raise InputError(
            f"{world.size} processes cannot share the {rows} rows of a step evenly (train.tokens_per_step / "
            f"data.sequence_length): start {fitting}, or make the rows a multiple of {world.size}"
        )
    if world.size > 1 and world.parallel == "fsdp2" and config.train.precision == "fp16":
        raise InputError("train.precision is fp16, which train.parallel: fsdp2 does not scale: use bf16, or ddp")


def read_data(config: RunConfig, world: World) -> tuple[PreparedData, TrainBatches, Rows]:
    """Text -> tokens -> rows: the prepared data, the batches of every step, the held-out rows."""
    data = prepare(config.data, Path(config.output_dir))
    batches = training_batches(config, data)
    if batches.rows_per_batch % world.size:
        raise InputError(
            f"{world.size} processes cannot share the {batches.rows_per_batch} joined rows of a step evenly: "
            "set data.rows_joined=1"
        )
    return data, batches, make_rows(config.data, data, "validation")


def training_batches(config: RunConfig, data: PreparedData) -> TrainBatches:
    """The rows of every step. Raises InputError if an epoch does not fill a single step."""
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


def with_tokenizer(config: RunConfig, tokenizer: Tokenizer) -> RunConfig:
    """The config with the tokenizer's numbers filled in. Raises InputError if the YAML has others."""
    conversations = config.data.records == "conversations"
    numbers = {
        "vocab_size": tokenizer.vocab_size,
        "bos_token_id": tokenizer.bos_id,
        "eos_token_id": tokenizer.stop_ids if conversations else tokenizer.eos_id,
        "pad_token_id": tokenizer.pad_id,
    }
    for key, number in numbers.items():
        wanted = getattr(config.model, key)
        if wanted not in (None, number):
            what = f"{number} ids" if key == "vocab_size" else f"{number} there"
            raise InputError(f"model.{key} is {wanted}, but the tokenizer has {what}: leave that key out")
    return config.model_copy(update={"model": config.model.model_copy(update=numbers)})


def build_model(
    config: RunConfig, device: Device, world: World, initial: Path | None, tokenizer: Tokenizer
) -> LanguageModel:
    """The network on its device: random weights from the seed, or those of another run; with fsdp2, a share of it."""
    if device.device.type == "cpu":
        keep_freed_memory()
    torch.manual_seed(config.seed)
    lm = LanguageModel(config.model).to(device.device)
    lm.set_attn_implementation(device.attention)
    lm.set_activation_checkpointing(config.train.activation_checkpointing)
    if device.precision == "tf32":
        torch.set_float32_matmul_precision("high")
    if initial is not None:
        load_initial_weights(lm, initial, tokenizer)
    shard(lm, world, device.dtype)
    seed_rank(world, config.seed)
    return lm


def build_run(
    config: RunConfig,
    start: Start,
    device: Device,
    world: World,
    material: tuple[PreparedData, TrainBatches, Rows],
    lm: LanguageModel,
    script: str,
) -> Run:
    """Optimizers and the state to go on from; then the run directory is opened and the run announced."""
    data, batches, held_out = material
    optimizers = build_optimizers(lm, config.train.optimizer)
    state = TrainerState(identity=config.identity())
    if start.checkpoint is not None:
        state = load_checkpoint(start.checkpoint, lm, optimizers)
        if not start.is_own(config):
            state.wandb_id = None  # another run goes on under a name of its own
    run_directory.check_contents(config, state, data)
    world.first(lambda: run_directory.open_for(config, start))
    scaler = torch.amp.GradScaler(device.device.type, enabled=device.precision == "fp16")
    if state.scaler and scaler.is_enabled():
        scaler.load_state_dict(state.scaler)
    rows = _rows_at_a_time(config, device, world, state)
    run = Run(
        config=config,
        device=device,
        world=world,
        data=data,
        batches=batches,
        held_out=held_out,
        lm=lm,
        optimizers=optimizers,
        scaler=scaler,
        state=state,
        tracker=Tracker(config, state.step, state.seconds, state.wandb_id, world.is_first),
        spikes=SpikeDetector.of(state.spikes),
        forward=lm,
        micro_rows=max(1, rows * config.data.sequence_length // batches.rows.length),
        non_finite=torch.tensor(float(state.skipped), device=device.device),
        saved_at=state.step if start.is_own(config) else None,
        script=script,
        hooks=load_hooks(config.eval),
    )
    state.resolved |= {"device": device.device.type, "precision": device.precision, "attention": device.attention}
    state.resolved |= {"micro_batch_size": rows, "world_size": world.size}
    announce(run, start)
    return run


def _rows_at_a_time(config: RunConfig, device: Device, world: World, state: TrainerState) -> int:
    """Rows of a forward pass; a run that goes on as it was begun keeps what `auto` came to (memory may have ended)."""
    resolved, here = state.resolved, (device.device.type, world.size)
    if config.train.micro_batch_size == "auto" and (resolved.get("device"), resolved.get("world_size")) == here:
        return resolved["micro_batch_size"]
    return micro_batch_rows(config, device, world.size)


def announce(run: Run, start: Start) -> None:
    """What is about to happen, in a few lines."""
    notes = [opening(run), describe(run.data), too_long(run.batches.rows, run.config.data)]
    run.tracker.say("\n".join(filter(None, notes)))
    if start.checkpoint is not None:
        run.tracker.say(f"resumed from {start.checkpoint}, step {run.state.step:,}")


def finish(run: Run, exit_code: int) -> int:
    """What came of a run: report.md, and its gist on the terminal."""
    if exit_code == 0:
        try:
            report.write(run)
        except OSError as error:
            raise InputError(
                f"{run.config.directory}/report.md cannot be written ({error.strerror}), but the run is finished and "
                "saved: make room, then the same command writes it"
            ) from None
        if run.world.is_first:
            print(report.result(run.config.directory))
    return exit_code


def device_for(config: RunConfig, start: Start) -> Device:
    """Where it computes and how; a run that goes on keeps what `auto` stood for."""
    return resolve_device(config, start.state.resolved if start.state else None)
