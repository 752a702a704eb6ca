"""transformers' Trainer with its defaults, started by benchmarks/compare.py; it prints nanoGPT's lines.

    python benchmarks/trainer.py FOLDER VOCAB_SIZE STEPS EVERY     FOLDER has nanoGPT's train.bin and val.bin

The network is GPT-2 in the shape of nanoGPT's recipe, because the Trainer has none of its own.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments


class Lines(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **others):
        for name, line in {"loss": "iter {}: loss {}", "eval_loss": "step {}: val loss {}"}.items():
            if name in logs:
                print(line.format(state.global_step, logs[name]))


folder, (vocab_size, steps, every) = Path(sys.argv[1]), map(int, sys.argv[2:])
rows = {}
for name in ("train", "val"):
    ids = torch.from_numpy(np.fromfile(folder / f"{name}.bin", np.uint16).astype(np.int64))
    rows[name] = [{"input_ids": row, "labels": row} for row in ids[: len(ids) // 128 * 128].view(-1, 128)]
model = GPT2LMHeadModel(GPT2Config(vocab_size=vocab_size, n_layer=4, n_head=4, n_embd=128, n_positions=128))
options = {"max_steps": steps, "eval_strategy": "steps", "eval_steps": every, "save_strategy": "no", "use_cpu": True}
options |= {"logging_steps": 10, "logging_first_step": True, "report_to": "none", "disable_tqdm": True}
arguments = TrainingArguments(str(folder / "trainer"), **options)  # batches of 8
Trainer(model, arguments, train_dataset=rows["train"], eval_dataset=rows["val"], callbacks=[Lines()]).train()
