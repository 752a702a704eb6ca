"""Train with transformers' Trainer and its defaults, and print nanoGPT's lines.

benchmarks/compare.py starts it; FOLDER has nanoGPT's train.bin and val.bin:

    python benchmarks/trainer.py FOLDER VOCAB_SIZE STEPS EVERY [LEARNING_RATE]

The network is a GPT-2 of the size in nanoGPT's recipe, because the Trainer has none of its own.
The Trainer's own learning rate, 5e-5, is for fine-tuning.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments


class Lines(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **others):
        if "loss" in logs:
            print(f"iter {state.global_step}: loss {logs['loss']}")
        if "eval_loss" in logs:
            print(f"step {state.global_step}: val loss {logs['eval_loss']}")


def rows(file):
    ids = torch.from_numpy(np.fromfile(file, np.uint16).astype(np.int64))
    ids = ids[: len(ids) // 128 * 128].view(-1, 128)  # (rows, 128), without the rest
    return [{"input_ids": row, "labels": row} for row in ids]  # the model shifts labels


folder = Path(sys.argv[1])
vocab_size, steps, every = map(int, sys.argv[2:5])
# none given: the Trainer's own
rate = {"learning_rate": float(sys.argv[5])} if sys.argv[5:] else {}
shape = GPT2Config(vocab_size=vocab_size, n_layer=4, n_head=4, n_embd=128, n_positions=128)
arguments = TrainingArguments(
    str(folder / "trainer"),
    max_steps=steps,
    **rate,
    eval_strategy="steps",
    eval_steps=every,
    # checkpoints would be timed, and nobody reads them
    save_strategy="no",
    use_cpu=True,
    logging_steps=10,
    # compare.py takes the time of the first step from its line
    logging_first_step=True,
    # or it would start every tracker that is installed
    report_to="none",
    disable_tqdm=True,
)
data = {"train_dataset": rows(folder / "train.bin"), "eval_dataset": rows(folder / "val.bin")}
Trainer(GPT2LMHeadModel(shape), arguments, callbacks=[Lines()], **data).train()
