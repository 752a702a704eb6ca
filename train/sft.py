"""Supervised fine-tuning on conversations: `python -m train.sft configs/sft_demo.yaml init_from=runs/demo [...]`

The same run as pretraining (train/pretrain.py), from the weights, the architecture and the tokenizer of another one,
and with the same loss. Only the labels differ: what the user says is masked with -100, which the loss leaves out. So
the model learns to answer, and not to ask.

    input_ids   <|im_start|> user ⏎ Hi ! <|im_end|> ⏎ <|im_start|> assistant ⏎ Hel lo ! <|im_end|> ⏎
    labels      -100 -100 -100 -100 … -100                                     Hel lo ! <|im_end|> ⏎

    labels = np.where(flags & TRAINED, ids, -100)          data/packing.py; the template sets the flags (data/chat.py)
    loss   = Σ -ln p(label) / number of labels             over labels that are not -100 (train/objective.py: NextToken)
"""

from __future__ import annotations

from configs.command import InputError, exit_on_bad_input
from train.config import RunConfig
from train.pretrain import parse_command_line, run


def main() -> int:
    example = "configs/sft_demo.yaml init_from=runs/demo"
    config = parse_command_line("Fine-tune a trained model on conversations.", example, "train.sft")
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
        script = {"text": "train.pretrain", "pairs": "train.dpo"}.get(config.data.records, "train.sft")
        raise InputError(
            f"data.records is {config.data.records}, but fine-tuning needs {records}: set data.records={records}, or "
            f"use {script}"
        )
    return config


if __name__ == "__main__":
    exit_on_bad_input(main)
