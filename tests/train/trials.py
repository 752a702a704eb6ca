"""Does a run that is killed end as the run that never was? `python -m tests.train.trials 30 [--seed 0] [--compiled]`

A trial draws a small random run, kills it four times at random moments (SIGKILL mostly: while it prepares its data,
trains, evaluates, saves, draws), lets it end, and compares its files with those of the run that nobody disturbed, but
for what a clock decides. `max_minutes` is not among the settings: there the clock decides what is trained.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.processes import exit_code, print_to

KILLS = 4
TEXT = {"kind": "files", "path": "text.txt"}
CHATS = {"kind": "files", "path": "chats.jsonl"}
STORIES = {"kind": "storyworld", "documents": 40, "validation_documents": 8}
CLOCKS = {"time_s", "seconds", "tokens_per_s", "data_wait_share", "memory_gb", "tflops", "eval_s", "save_s", "logged"}
CLOCKS |= {"attention_seconds", "training/trainer_state.json", "summary"}


def draw(seed: int, number: int, compiled: bool = False) -> dict[str, Any]:
    """The YAML of setting `number`. One in three runs in two processes, one in five fine-tunes another run."""
    dice = random.Random(f"{seed} {number}")
    mix = {"kind": "mix", "parts": [{"source": TEXT}, {"source": STORIES}]}
    source = dice.choice([TEXT, TEXT, STORIES, CHATS, mix])
    length = 96 if source is CHATS else 32
    optimizer = dice.choice([{"name": "muon"}, {"name": "adamw", "lr": 0.003}])
    dropout = dice.choice([0.0, 0.2])
    steps, rows = dice.randint(20, 40), dice.choice([4, 8])
    by_tokens = dice.random() < 0.5
    looks = {"every": dice.choice([0, 4, 9]), "early": dice.choice([[], [0, 1, 6]]), "max_tokens": 12}
    hooks = ["validation", "samples", "attention"]
    if dice.random() < 0.5:  # any step may be the best one
        hooks = [{"name": "tests.train.holding:Dice", "every": dice.choice([2, 4, 6])}, "samples"]
    return {
        "name": "tiny",
        "output_dir": "runs",
        "seed": dice.randrange(100),
        "init_from": "runs/base" if source is CHATS and dice.random() < 0.5 else None,
        "model": {
            "hidden_size": dice.choice([16, 32]),
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": dice.choice(["mha", "gqa", "mqa"]),
            "tie_word_embeddings": dice.random() < 0.7,
            "hidden_dropout": dropout,
            "attn_implementation": dice.choice(["auto", "eager", "sdpa"]),
        },
        "data": {
            "source": source,
            "records": "conversations" if source is CHATS else "text",
            "tokenizer": {"kind": "bpe", "vocab_size": 512} if source is STORIES else {"kind": "byte"},
            "sequence_length": length,
            "validation_fraction": 0.1,
            "rows_joined": 1,
        },
        "train": {
            "max_tokens" if by_tokens else "max_steps": steps * rows * length - 5 if by_tokens else steps,
            "tokens_per_step": rows * length,
            "micro_batch_size": dice.choice(["auto", 2]),
            "processes": dice.choice([1, 1, 2]),
            "schedule": dice.choice(["wsd", "cosine"]),
            "precision": "fp32" if compiled else dice.choice(["fp32", "bf16", "fp16"]),
            "compile": compiled,
            "log_every": dice.choice([1, 3]),
            "checkpoint_every": dice.choice([0, 2, 3, 5]),
            "keep_last": dice.randint(1, 3),
            "keep_best": dice.random() < 0.7,
            "trace": True,
            "optimizer": optimizer,
        },
        "eval": {"every": dice.choice([0, 3, 5]), "sample_tokens": 3, "attention": looks, "hooks": hooks},
        "tracking": {"wandb": "disabled"},
    }


def live(folder: Path, name: str, number: int | None, seconds: float) -> None:
    """One life: the real command on `name` in this folder. A signal ends it after so many seconds of its own work,
    wherever it is then: in Python, in a kernel of PyTorch, in a write. What work came before is in `NAME.work`."""
    import torch

    import configs.command
    from eval.attention import render

    os.chdir(folder)
    print_to(folder.with_suffix(".out"))
    render.render = lambda *arguments, **options: []  # pictures take seconds
    values = json.loads(Path(name).read_text())
    torch.set_num_threads(values["train"].get("processes", 1))
    module = importlib.import_module("train.sft" if values["init_from"] else "train.pretrain")
    if number is not None:
        signal.signal(signal.SIGPROF, lambda *_: os.kill(os.getpid(), number))
        if number == signal.SIGKILL:
            signal.signal(signal.SIGPROF, signal.SIG_DFL)  # without a handler it kills at once, and not between two
        signal.setitimer(signal.ITIMER_PROF, max(seconds, 0.001))  # bytecodes
    began = time.process_time()
    sys.argv = ["train", name, "--trust-hooks"]
    try:
        configs.command.exit_on_bad_input(module.main)
    finally:
        folder.with_suffix(".work").write_text(str(time.process_time() - began))


def prepared(values: dict[str, Any], folder: Path) -> Path:
    """The folder of a run, with its texts, its YAML, and the run that it starts from."""
    folder.mkdir(parents=True)
    lines = [f"{i} die Füße der Katze 猫 sat on mat number {i * 7 % 13}.\n" for i in range(240)]
    (folder / "text.txt").write_text("<|endoftext|>".join(lines), encoding="utf-8")
    turns = [
        [{"role": "user", "content": "Count."}, {"role": "assistant", "content": "1, " * (i % 9)}] for i in range(90)
    ]
    (folder / "chats.jsonl").write_text("".join(json.dumps({"messages": each}) + "\n" for each in turns))
    (folder / "tiny.yaml").write_text(json.dumps(values))  # JSON is YAML
    if values["init_from"]:
        base = {"name": "base", "init_from": None, "train": {"max_steps": 2, "tokens_per_step": 192}}
        (folder / "base.yaml").write_text(json.dumps(values | base))
        assert exit_code(live, folder, "base.yaml", None, 0) == 0, folder.with_suffix(".out").read_text()
    return folder


def attempt(seed: int, number: int, folder: Path, compiled: bool = False) -> str:
    """One trial, in words; they hold DIFFERS where the killed run did not end as the other. Its folder stays then."""
    dice, values = random.Random(f"kills {seed} {number}"), draw(seed, number, compiled)
    whole, killed = prepared(values, folder / "whole"), folder / "killed"
    shutil.copytree(whole, killed)
    assert exit_code(live, whole, "tiny.yaml", None, 0) == 0, whole.with_suffix(".out").read_text()
    work, codes, code = float(whole.with_suffix(".work").read_text()), list[int | None](), None
    for _ in range(KILLS):
        end = dice.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
        code = exit_code(live, killed, "tiny.yaml", end, dice.uniform(0, work * 0.6))
        codes.append(code)
        if code == 0:
            break
        if code not in (-end, -signal.SIGPROF, 128 + end):
            return f"DIFFERS: exit code {code}: {killed.with_suffix('.out').read_text()[-300:]} ({folder})"
    if code != 0 and (code := exit_code(live, killed, "tiny.yaml", None, 0)):
        return f"DIFFERS: exit code {code} in the end: {killed.with_suffix('.out').read_text()[-300:]} ({folder})"
    if problem := difference(killed / "runs/tiny", whole / "runs/tiny"):
        return f"DIFFERS: {problem} ({folder})"
    shutil.rmtree(folder)
    return f"equal after {len([code for code in codes if code])} kills"


def difference(ours: Path, theirs: Path) -> str:
    """The first difference between two runs, in words, or ""."""
    here, there = (_files(run) for run in (ours, theirs))
    if here != there:
        return f"files in one of them only: {sorted(here ^ there)[:5]}"
    for name in sorted(here):
        a, b = (ours / name).read_bytes(), (theirs / name).read_bytes()
        if name.endswith((".jsonl", ".json")):
            x, y = ([_without_clocks(json.loads(part)) for part in _parts(name, raw)] for raw in (a, b))
            if x != y:
                return f"{name}: {next((p, q) for p, q in zip([*x, None], [*y, None], strict=False) if p != q)}"
        elif a != b and not name.endswith((".html", ".md", ".png", ".gif", ".yaml", ".npz")):
            return f"{name} differs"  # tensors, and what `latest` and `best` name
    return ""


def _files(run: Path) -> set[str]:
    """All files of a run, but for checkpoints that neither `latest` nor `best` names: a stop saves one more."""
    checkpoints = run / "checkpoints"
    named = {file.read_text().strip() for file in checkpoints.iterdir() if file.is_file()}
    more = [directory for directory in checkpoints.glob("step_*") if directory.name not in named]
    files = (path for path in run.rglob("*") if path.is_file() and not any(path.is_relative_to(one) for one in more))
    return {path.relative_to(run).as_posix() for path in files}


def _parts(name: str, raw: bytes) -> list[bytes]:
    return raw.splitlines() if name.endswith(".jsonl") else [raw]


def _without_clocks(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_clocks(each) for key, each in value.items() if key not in CLOCKS}
    return value


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.train.trials", description=__doc__.split("\n\n")[1])
    parser.add_argument("trials", type=int, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="another one draws other settings and moments")
    parser.add_argument("--compiled", action="store_true", help="train with torch.compile")
    given = parser.parse_args()
    os.environ.update(OMP_WAIT_POLICY="passive", HF_HUB_OFFLINE="1", WANDB_MODE="offline")
    folder, bad = Path(tempfile.mkdtemp(prefix="headlight-trials-")), 0
    for number in range(given.trials):
        verdict = attempt(given.seed, number, folder / str(number), given.compiled)
        bad += "DIFFERS" in verdict
        print(f"{number:4d} {verdict}", flush=True)
    print(f"{given.trials - bad} of {given.trials} equal")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
