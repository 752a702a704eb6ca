"""MiniMind's own script, and then the held-out loss, which it does not log; started by benchmarks/compare.py.

python benchmarks/minimind.py VALIDATION.jsonl [option of train_pretrain.py …]     in its folder trainer/
"""

import runpy
import sys

import torch

file, sys.argv = sys.argv[1], ["train_pretrain.py", *sys.argv[2:]]
sys.path[0] = "."
script = runpy.run_path("train_pretrain.py", run_name="__main__")
model, tokenizer, args = script["model"].eval(), script["tokenizer"], script["args"]
nats, tokens = 0.0, 0
with torch.no_grad():
    for ids, labels in script["PretrainDataset"](file, tokenizer, max_length=args.max_seq_len):
        labels[labels == tokenizer.eos_token_id] = -100  # it ends every row with one, which is not of the text
        count = int((labels[1:] != -100).sum())
        nats, tokens = nats + float(model(ids[None], labels=labels[None]).loss) * count, tokens + count
print(f"step {args.epochs * len(script['loader'])}: val loss {nats / tokens:.4f}")  # nanoGPT's line
