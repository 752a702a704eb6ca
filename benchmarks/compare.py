"""Train each project on the same text: `python -m benchmarks.compare --peers FOLDER`

FOLDER has checkouts of nanoGPT and minimind, each optional; transformers' Trainer needs none. Each
project runs its own recipe, one after the other. All figures come from its log, and from the time
of each line. nanoGPT measures held-out loss on 20 random batches, the Trainer and MiniMind on all
of it, ours on as much as `eval` sets.

A file is read by characters, a folder as pieces of words. MiniMind has its own tokenizer, so
compare bits per byte and bytes/s.
"""

import argparse
import json
import math
import os
import pickle
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
import tokenizers
import torch

from benchmarks import ngram
from configs.command import InputError, command_parser, exit_on_bad_input, number
from configs.text import markdown, table
from data.prepare import SPLITS, PreparedData, prepare
from eval.pictures import drawing
from train.config import load_run_config
from train.machine.device import machine

HERE = Path(__file__).parents[1]
CHECKOUTS = {"nanoGPT": "train.py", "minimind": "trainer/train_pretrain.py"}
# The patterns of nanoGPT and of benchmarks/trainer.py, of ours, and of MiniMind.
STEP = re.compile(r'^iter (\d+): loss|"step": (\d+),.*"split": "train"|^Epoch:\[.*?\]\((\d+)/')
HELD_OUT = re.compile(r'^step \d+: .*val loss ([\d.]+)|"split": "val", "loss": ([\d.]+)')
LOG_S = 0.02  # seconds between two looks at the log
MEMORY_S = 0.5  # seconds between two looks at the memory
# The best of 0.0003, 0.001, 0.003 and 0.01 on Shakespeare's held-out part, after one epoch.
TRAINER_RATE = "0.001"
NGRAM = 5  # The best n of 2 to 8 on Shakespeare's held-out part.
TRIAL = 60  # A first training of so many steps shows how many fit into --minutes.
# What nanoGPT's README recommends for a CPU.
NANOGPT = """train.py config/train_shakespeare_char.py --dataset=headlight --device=cpu
    --compile=False --eval_iters=20 --block_size=64 --batch_size=12 --n_layer=4 --n_head=4
    --n_embd=128 --dropout=0.0 --max_iters=STEPS --lr_decay_iters=STEPS
    --eval_interval=EVERY"""
MINIMIND = """../validation.jsonl --data_path=../train.jsonl --device=cpu --hidden_size=128
    --num_hidden_layers=4 --max_seq_len=340 --batch_size=32 --epochs=EPOCHS
    --accumulation_steps=1 --num_workers=1 --log_interval=1"""
COLUMNS = {
    "bits_per_byte": ("bits per byte", ".3f"),
    "reached": ("seconds to nanoGPT's last loss", ".1f"),
    "seconds": ("seconds", ".1f"),
    "tokens_per_s": ("tokens/s", ",.0f"),
    "bytes_per_s": ("bytes/s", ",.0f"),
    "first_step_s": ("first step, s", ".1f"),
    "peak_mb": ("peak memory, MB", ",.0f"),
}


@dataclass(frozen=True)
class Project:
    """A project and its recipe."""

    name: str
    folder: Path  # the command starts here
    command: list[str]  # STEPS, EVERY and EPOCHS in it are replaced by numbers
    steps: int  # of the recipe; in MiniMind, of one epoch
    tokens_per_step: int
    bytes_per_token: float
    log: Path | None = None  # None: it prints its log


def main() -> None:
    parser = command_parser(__doc__)
    add = parser.add_argument
    add("overrides", nargs="*", metavar="section.key=value", help="for our config")
    add("--peers", type=Path, required=True, metavar="FOLDER", help="has the checkouts")
    text = Path("data/tinyshakespeare/input.txt")
    add("--text", type=Path, default=text, help=f"a file or a folder ({text})")
    minutes = number("--minutes", 0.01)
    add("--minutes", type=minutes, help="of each training; default: as its recipe")
    add("--out", type=Path, default=Path("runs/compare"), help="folder (runs/compare)")
    args = parser.parse_intermixed_args()
    if not args.text.exists():
        raise InputError(f"--text: {args.text} does not exist")
    args.out.mkdir(parents=True, exist_ok=True)
    records = []
    with tempfile.TemporaryDirectory(prefix="headlight-compare-") as name:
        # everything is written here: a benchmark leaves only --out behind
        work = Path(name).resolve()
        for project in projects_of(args, work):
            steps = project.steps
            if args.minutes and project.log is None:  # our config knows minutes
                speed = train(project, TRIAL, work).get("tokens_per_s", 0.0)
                steps = max(TRIAL, round(60 * args.minutes * speed / project.tokens_per_step))
            print(f"{project.name} …", flush=True)
            records.append({"project": project.name} | train(project, steps, work))
        if args.text.is_file():  # a baseline that learns nothing
            began = time.perf_counter()
            bits = ngram.held_out_bits(args.text.read_text(encoding="utf-8"), NGRAM)
            name = f"{NGRAM}-gram of characters"
            command = shlex.join(["python", "-m", "benchmarks.ngram", str(args.text)])
            baseline = {"project": name, "command": command, "bits_per_byte": bits}
            records.append(baseline | {"seconds": time.perf_counter() - began})
        page = report(records, args.text.name).replace(str(work), "WORK")
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (args.out / "compare.jsonl").write_text(lines, encoding="utf-8")
    draw(records, args.out / "compare.png")
    print(f"\n{page}\n{args.out}: compare.png, compare.jsonl")


def projects_of(args: argparse.Namespace, work: Path) -> list[Project]:
    """Prepare the text for each project. Raises InputError if there is no checkout."""
    present = [name for name, script in CHECKOUTS.items() if (args.peers / name / script).is_file()]
    if not present:
        raise InputError(f"--peers: {args.peers} has no checkout of {' or '.join(CHECKOUTS)}")
    for name in present:
        # a copy, because projects write into their folders
        ignored = shutil.ignore_patterns(".git", "assets", "images")
        shutil.copytree(args.peers / name, work / name, ignore=ignored)
    # nanoGPT's recipe for one file reads characters; a folder may have any of them
    by_characters = args.text.is_file()
    configs = {"Headlight": "shakespeare_char" if by_characters else "demo"}
    if by_characters and not args.minutes:
        configs["Headlight 15s"] = "shakespeare_char_15s"
    source = json.dumps({"kind": "files", "path": str(args.text.resolve())})
    settings = [f"data.source={source}", f"output_dir={work.as_posix()}", "train.device=cpu"]
    if args.minutes:
        settings += ["train.max_steps=null", f"train.max_minutes={args.minutes}"]
    settings += args.overrides

    projects = []
    for name, config in configs.items():
        file = HERE / f"configs/{config}.yaml"
        run = load_run_config(file, settings)
        data = prepare(run.data, work)
        ratio = data.manifest["validation"]["bytes_per_token"]
        command = ["-m", "train.pretrain", str(file), *settings, f"name={json.dumps(name)}"]
        log = work / name / "metrics.jsonl"
        tokens = run.train.tokens_per_step
        # 0 steps: our config says how long it trains
        projects.append(Project(name, HERE, command, 0, tokens, ratio, log))
    # the others read our ids, so all predict the same tokens (except MiniMind, see above)
    size = write_ids(data, work / "ids", by_characters)
    if "nanoGPT" in present:
        folder = work / "nanoGPT"
        shutil.copytree(work / "ids", folder / "data/headlight")
        # 2,000 steps of 12 rows of 64 tokens, as in its recipe
        projects.append(Project("nanoGPT", folder, NANOGPT.split(), 2000, 12 * 64, ratio))
    if "minimind" in present:
        projects.append(minimind(data, work / "minimind"))
    steps = 3 * data.manifest["train"]["tokens"] // (8 * 128)  # three epochs, its default
    command = [str(HERE / "benchmarks/trainer.py"), str(work / "ids"), str(size), "STEPS", "EVERY"]
    for name, rate in (("Trainer", []), (f"Trainer, rate {TRAINER_RATE}", [TRAINER_RATE])):
        projects.append(Project(name, work, [*command, *rate], steps, 8 * 128, ratio))
    return projects


def write_ids(data: PreparedData, folder: Path, by_characters: bool) -> int:
    """Write our ids as nanoGPT's train.bin, val.bin and meta.pkl; return the vocabulary's size."""
    folder.mkdir()
    size = data.tokenizer.vocab_size
    numbers = np.arange(size)
    parts = [data.stream(split).read(0, len(data.stream(split))) for split in SPLITS]
    if by_characters:  # nanoGPT's ids are characters in order; it has no first and last token
        parts = [ids[1:-1] for ids in parts]
        used = np.unique(np.concatenate(parts)).tolist()
        used.sort(key=lambda token: data.tokenizer.decode([token]))
        size = len(used)
        numbers[used] = np.arange(size)
    for name, ids in zip(("train.bin", "val.bin"), parts, strict=True):
        # nanoGPT reads 16 bits a token
        numbers[ids].astype(np.uint16).tofile(folder / name)
    (folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": size}))
    return size


def minimind(data: PreparedData, folder: Path) -> Project:
    """Write MiniMind's data: each line fills a row of 340 tokens, of which it adds two itself."""
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "model/tokenizer.json"))
    for split in reversed(SPLITS):
        stream = data.stream(split)
        text = data.tokenizer.decode(stream.read(0, len(stream)))
        ends = [end for _, end in tokenizer.encode(text, add_special_tokens=False).offsets]
        # cut by its own tokens: a row of characters would be padded, or lose its end
        rows = [text[a:b] for a, b in pairwise([0, *ends[337:-1:338], len(text)])]
        lines = "".join(json.dumps({"text": row}) + "\n" for row in rows)
        (folder / f"{split}.jsonl").write_text(lines, encoding="utf-8")
    command = [str(HERE / "benchmarks/minimind.py"), *MINIMIND.split()]
    steps = -(-len(rows) // 32)
    ratio = len(text.encode()) / len(ends)
    return Project("minimind", folder / "trainer", command, steps, 32 * 338, ratio)


def train(project: Project, steps: int, work: Path) -> dict[str, Any]:
    """Train once and return the figures, or the reason of a failure as `failed`."""
    lengths = {"STEPS": steps, "EVERY": steps // 8 if steps > TRIAL else steps}
    lengths["EPOCHS"] = max(1, round(steps / max(1, project.steps)))
    command = project.command
    for key, length in lengths.items():
        command = [part.replace(key, str(length)) for part in command]
    record: dict[str, Any] = {"command": shlex.join(["python", *command]), "held_out": []}
    if project.log:
        shutil.rmtree(project.log.parent, ignore_errors=True)  # a finished run trains no more
    printed = work / "printed.txt"
    log = None
    steps_at: dict[float, int] = {}  # seconds -> step
    peak = 0
    next_sample = 0.0
    options: dict[str, Any] = {"cwd": project.folder, "stderr": subprocess.STDOUT}
    # or lines come in blocks, and their times mean nothing
    options["env"] = os.environ | {"PYTHONUNBUFFERED": "1"}
    with printed.open("wb") as output:
        began = time.perf_counter()
        process = psutil.Popen([sys.executable, *command], stdout=output, **options)
    try:
        is_running = True
        while is_running:
            is_running = process.poll() is None  # before reading, so that no last line is missed
            now = time.perf_counter() - began
            if log is None and (project.log or printed).exists():
                log = (project.log or printed).open(encoding="utf-8", errors="replace")
            # what was appended since the last look
            for line in iter(log.readline, "") if log else ():
                step_line = STEP.search(line)
                loss_line = HELD_OUT.search(line)
                if step_line:
                    steps_at[now] = int(step_line[step_line.lastindex or 0])
                if loss_line:
                    nats = float(loss_line[loss_line.lastindex or 0])
                    bits = nats / math.log(2) / project.bytes_per_token
                    record["held_out"].append([now, nats, bits])
                    record["bits_per_byte"] = bits
            if now >= next_sample:
                peak = max(peak, memory_of(process))
                next_sample = now + MEMORY_S
            time.sleep(LOG_S)
    finally:
        # an error here must not leave a training behind
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    record["seconds"] = now
    if process.returncode or len(steps_at) < 2:
        # the last line of a traceback names the error
        last = printed.read_text("utf-8", "replace").strip().rpartition("\n")[2][:200]
        record["failed"] = f"exit code {process.returncode}; last line: {last}"
        return record
    # seconds of a step, between two lines of the log
    seconds = [(b - a) / max(1, steps_at[b] - steps_at[a]) for a, b in pairwise(steps_at)]
    # the median, because steps with an evaluation or a checkpoint take longer
    record["tokens_per_s"] = project.tokens_per_step / median(seconds)
    record["bytes_per_s"] = record["tokens_per_s"] * project.bytes_per_token
    first, step = next(iter(steps_at.items()))
    # the first line may be that of the tenth step
    record["first_step_s"] = first - max(0, step - 1) * median(seconds)
    record["peak_mb"] = peak / 1e6
    return record


def memory_of(process: psutil.Process) -> int:
    """Return the bytes of a process and its children."""
    total = 0
    with suppress(psutil.Error):  # it may have ended
        for part in (process, *process.children(recursive=True)):
            memory = part.memory_full_info()
            total += getattr(memory, "pss", memory.rss)  # pss, on Linux: shared pages count once
    return total


def report(records: list[dict[str, Any]], title: str) -> str:
    """Return the table in Markdown, and below it failures and commands."""
    # A speed alone says little: `reached` is the time to the loss that nanoGPT has at its end.
    nanogpt = [record for record in records if record["project"] == "nanoGPT"]
    goal = nanogpt[0].get("bits_per_byte", -math.inf) if nanogpt else -math.inf
    rows = []
    notes = ""
    for record in records:
        # backwards: `reached` becomes the earliest of all that are low enough
        for seconds, _, bits in reversed(record.get("held_out", [])):
            if bits <= goal:
                record["reached"] = seconds
        name = record["project"]
        figures = record
        if "failed" in record:
            notes += f"- {name} **failed**: {markdown(record['failed'])}\n"
            name = f"{name} (failed)"
            figures = {}
        row = [name]
        for key, (_, form) in COLUMNS.items():
            row.append(f"{figures[key]:{form}}" if key in figures else "–")
        rows.append(row)
    notes += "".join(f"- {record['project']}: `{record['command']}`\n" for record in records)
    here = f"{machine(torch.device('cpu'))}, torch {torch.__version__}"
    header = ["", *(label for label, _ in COLUMNS.values())]
    return f"{title}; {here}\n\n{table(header, rows)}\n\n{notes}"


def draw(records: list[dict[str, Any]], file: Path) -> None:
    figure = drawing.new_figure(900, 500)
    axes = figure.add_subplot()
    for i, record in enumerate(records):
        if record.get("held_out"):
            seconds, _, bits = zip(*record["held_out"], strict=True)
            drawing.draw_curve(axes, seconds, bits, i, record["project"])
        elif "bits_per_byte" in record:  # the baseline, which is not trained
            axes.axhline(record["bits_per_byte"], color="grey", ls="--", label=record["project"])
    axes.set(xlabel="seconds since the process started", ylabel="held-out bits per byte")
    # most of the loss goes in the first seconds, which a linear scale would hide
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(file)


if __name__ == "__main__":
    exit_on_bad_input(main)
