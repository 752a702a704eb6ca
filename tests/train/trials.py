"""Does a run that is killed end as the run that never was? `python -m tests.train.trials 30 [--seed
0] [--compiled]`

A trial draws a small random run, kills it four times at random moments (SIGKILL mostly: while it
prepares its data, trains, evaluates, saves, draws), lets it end, and compares its files with those
of the run that nobody disturbed, but for what a clock decides. `max_minutes` is not among the
settings: there the clock decides what is trained.
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

import torch

import configs.command
from eval.hooks import EvalEvent, Hook
from eval.pictures import run_pictures as pictures
from tests.processes import exit_code, print_to
from tests.train.helpers import CHATS, write_config

KILLS = 4
CLOCKS = {"time_s", "seconds", "tokens_per_s", "data_wait_share", "memory_gb", "tflops", "eval_s", "save_s", "logged"}
CLOCKS |= {"attention_seconds", "training/trainer_state.json", "summary"}
TEXT = "{kind: files, path: text.txt}"
STORIES = "{kind: storyworld, documents: 40, validation_documents: 8}"
CHAT = "{kind: files, path: chats.jsonl}"
DICE = "{name: 'tests.train.trials:Dice', every: %d}"
SETTINGS = {
    "seed": range(100),
    "data.source": [TEXT, TEXT, STORIES, CHAT, f"{{kind: mix, parts: [{{source: {TEXT}}}, {{source: {STORIES}}}]}}"],
    "model.hidden_size": [16, 32],
    "model.num_key_value_heads": ["mha", "gqa", "mqa"],
    "model.tie_word_embeddings": ["true", "true", "false"],
    "model.hidden_dropout": [0.0, 0.2],
    "model.attn_implementation": ["auto", "eager", "sdpa"],
    "train.max_steps": range(20, 41),
    "train.micro_batch_size": ["auto", 2],
    "train.processes": [1, 1, 2],
    "train.schedule": ["wsd", "cosine"],
    "train.precision": ["fp32", "bf16", "fp16"],
    "train.log_every": [1, 3],
    "train.checkpoint_every": [0, 2, 3, 5],
    "train.keep_last": [1, 2, 3],
    "train.keep_best": ["true", "true", "false"],
    "train.optimizer": ["{name: muon}", "{name: adamw, lr: 0.003}"],
    "eval.every": [0, 3, 5],
    "eval.attention.every": [0, 4, 9],
    "eval.attention.early": [[], [0, 1, 6]],
    # any step may be the best one
    "eval.hooks": ["[validation, samples, attention]", *(f"[{DICE % every}, samples]" for every in (2, 4, 6))],
}


class Dice(Hook):
    """A validation loss that depends on nothing but the step."""

    def evaluate(self, event: EvalEvent) -> float:
        return 1 + random.Random(event.step).random()


def draw(seed: int, number: int, compiled: bool = False) -> list[str]:
    """The overrides of trial `number`. Half of the runs on chats fine-tune another run."""
    dice = random.Random(f"{seed} {number}")
    drawn = {key: dice.choice(values) for key, values in SETTINGS.items()}
    rows = dice.choice([4, 8])
    length = 96 if drawn["data.source"] == CHAT else 32
    drawn |= {"data.sequence_length": length, "train.tokens_per_step": rows * length, "train.compile": compiled}
    if compiled:
        drawn["train.precision"] = "fp32"
    if dice.random() < 0.5:
        steps, drawn["train.max_steps"] = drawn["train.max_steps"], "null"
        drawn["train.max_tokens"] = steps * rows * length - 5
    if drawn["data.source"] == STORIES:
        drawn["data.tokenizer"] = "{kind: bpe, vocab_size: 512}"
    if drawn["data.source"] == CHAT:
        drawn["data.records"] = "conversations"
        if dice.random() < 0.5:
            drawn["init_from"] = "runs/base"
    return [f"{key}={value}" for key, value in drawn.items()]


def live(folder: Path, overrides: list[str], number: int | None, seconds: float) -> None:
    """One life: the real command in this folder. A signal ends it after so many seconds of its own
    work, wherever it is then: in Python, in a kernel of PyTorch, in a write. What work came before
    is in `NAME.work`.
    """
    os.chdir(folder)
    print_to(folder.with_suffix(".out"))
    pictures.render = lambda *arguments, **options: []  # pictures take seconds
    torch.set_num_threads(2 if "train.processes=2" in overrides else 1)
    module = importlib.import_module("train.sft" if "init_from=runs/base" in overrides else "train.pretrain")
    if number is not None:
        signal.signal(signal.SIGPROF, lambda *_: os.kill(os.getpid(), number))
        if number == signal.SIGKILL:
            # without a handler it kills at once, and not between two
            signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, max(seconds, 0.001))  # bytecodes
    began = time.process_time()
    sys.argv = ["train", "tiny.yaml", *overrides, "--trust-hooks"]
    try:
        configs.command.exit_on_bad_input(module.main)
    finally:
        folder.with_suffix(".work").write_text(str(time.process_time() - began))


def attempt(seed: int, number: int, folder: Path, compiled: bool = False) -> str:
    """One trial, in words; they hold DIFFERS where the killed run did not end as the other.

    Its folder stays then.
    """
    dice = random.Random(f"kills {seed} {number}")
    overrides = draw(seed, number, compiled)
    whole = folder / "whole"
    killed = folder / "killed"
    whole.mkdir(parents=True)
    lines = [f"{i} die Füße der Katze 猫 sat on mat number {i * 7 % 13}.\n" for i in range(240)]
    (whole / "text.txt").write_text("<|endoftext|>".join(lines), encoding="utf-8")
    (whole / "chats.jsonl").write_text("".join(json.dumps(each) + "\n" for each in CHATS[:90]))
    data = {"validation_fraction": 0.1, "rows_joined": 1}
    write_config(whole, output_dir="runs", data=data, train={"trace": True}, eval={"sample_tokens": 3})

    def run(place: Path, overrides: list[str], *end: Any) -> int | None:
        return exit_code(live, place, overrides, *(end or (None, 0)))

    if "init_from=runs/base" in overrides:
        shape = [each for each in overrides if not each.startswith(("init_from", "train."))]
        assert run(whole, [*shape, "name=base", "train.max_steps=2", "train.tokens_per_step=192"]) == 0
    shutil.copytree(whole, killed)
    assert run(whole, overrides) == 0, whole.with_suffix(".out").read_text()
    work = float(whole.with_suffix(".work").read_text())
    codes = list[int | None]()
    while len(codes) < KILLS and 0 not in codes:
        end = dice.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
        codes.append(run(killed, overrides, end, dice.uniform(0, work * 0.6)))
        if codes[-1] not in (0, -end, -signal.SIGPROF, 128 + end):
            return f"DIFFERS: exit code {codes[-1]}: {killed.with_suffix('.out').read_text()[-300:]} ({folder})"
    if 0 not in codes and (code := run(killed, overrides)):
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
        a = (ours / name).read_bytes()
        b = (theirs / name).read_bytes()
        if name.endswith((".jsonl", ".json")):
            parts = (raw.splitlines() if name.endswith(".jsonl") else [raw] for raw in (a, b))
            x, y = ([_without_clocks(json.loads(line)) for line in lines] for lines in parts)
            if x != y:
                return f"{name}: {next((p, q) for p, q in zip([*x, None], [*y, None], strict=False) if p != q)}"
        elif a != b and not name.endswith((".html", ".md", ".png", ".gif", ".yaml", ".npz")):
            return f"{name} differs"  # tensors, and what `latest` and `best` name
    return ""


def _files(run: Path) -> set[str]:
    """All files of a run, but for checkpoints that neither `latest` nor `best` names: a stop saves
    one more.
    """
    checkpoints = run / "checkpoints"
    named = {file.read_text().strip() for file in checkpoints.iterdir() if file.is_file()}
    more = [directory for directory in checkpoints.glob("step_*") if directory.name not in named]
    files = (path for path in run.rglob("*") if path.is_file() and not any(map(path.is_relative_to, more)))
    return {path.relative_to(run).as_posix() for path in files}


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
    folder = Path(tempfile.mkdtemp(prefix="headlight-trials-"))
    bad = 0
    for number in range(given.trials):
        verdict = attempt(given.seed, number, folder / str(number), given.compiled)
        bad += "DIFFERS" in verdict
        print(f"{number:4d} {verdict}", flush=True)
    print(f"{given.trials - bad} of {given.trials} equal")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
