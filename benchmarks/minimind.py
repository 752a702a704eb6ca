"""Run MiniMind's own script, and then measure the held-out loss, which it does not log.

benchmarks/compare.py starts it in MiniMind's folder trainer/:

    python benchmarks/minimind.py VALIDATION.jsonl [option of train_pretrain.py …]
"""

import runpy
import sys
from pathlib import Path

import torch

_, validation, *options = sys.argv
sys.argv = ["train_pretrain.py", *options]
sys.path[0] = str(Path("..").resolve())  # its package is named model, like ours
# its script has no function to call: what it leaves behind are its variables
script = runpy.run_path("train_pretrain.py", run_name="__main__")
model = script["model"].eval()
tokenizer = script["tokenizer"]
args = script["args"]
nats = 0.0
tokens = 0
with torch.no_grad():
    for ids, labels in script["PretrainDataset"](validation, tokenizer, args.max_seq_len):
        # It adds this token at the end of every row; it is not in the text.
        labels[labels == tokenizer.eos_token_id] = -100
        count = int((labels[1:] != -100).sum())
        nats += float(model(ids[None], labels=labels[None]).loss) * count
        tokens += count
steps = args.epochs * len(script["loader"])
print(f"step {steps}: val loss {nats / tokens:.4f}")  # nanoGPT's line
