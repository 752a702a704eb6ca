"""Supervised fine-tuning on conversations: `python -m train.sft configs/sft_demo.yaml init_from=runs/demo [...]`

The same run as pretraining (train/pretrain.py), from the weights, the architecture and the tokenizer of another one.
Only what the assistant says is trained on (data/chat.py).
"""

from __future__ import annotations

from configs.command import InputError, exit_on_bad_input
from train.config import RunConfig
from train.pretrain import parse_command_line


def main() -> int:
    example = "configs/sft_demo.yaml init_from=runs/demo"
    config = parse_command_line("Fine-tune a trained model on conversations.", example, "train.sft")
    from train.pretrain import run

    return run(config, "train.sft", complete=as_fine_tuning)


def as_fine_tuning(config: RunConfig, records: str = "conversations") -> RunConfig:
    """The config, whose shape and tokenizer are those of `init_from` (train/config.py).

    records: what the data must be. Raises InputError without init_from, and for other data.
    """
    if config.init_from is None:
        raise InputError(
            "init_from: fine-tuning starts from a trained model: name a run, for example init_from=runs/demo"
        )
    if config.data.records != records:
        other = {"text": "train.pretrain to continue with plain text", "pairs": "train.dpo for pairs of answers"}
        instead = other.get(config.data.records, "train.sft for conversations")
        raise InputError(
            f"data.records is {config.data.records}, but fine-tuning needs {records}: set data.records={records}, or "
            f"use {instead}"
        )
    return config


if __name__ == "__main__":
    exit_on_bad_input(main)
