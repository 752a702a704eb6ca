"""How far does each project come with the same text, and how soon? `python -m benchmarks.compare --peers FOLDER`

FOLDER has checkouts, each optional: nanoGPT, minimind; transformers' Trainer needs none. Each is trained by its own
script, in a process of its own and a copy of its checkout, with its own shape, optimizer and schedule; ours as its
config says. Whole trainings take turns. Figures are of a project's own log: its lines, and when each of them came. Its
held-out loss is as it measures it: nanoGPT on 20 random batches, the Trainer on all, ours on as much as eval says.

A file is read by characters, a folder as pieces of words. nanoGPT and the Trainer get the ids of our prepared data:
characters renumbered as nanoGPT does it (by their order, without our first and last token), pieces as they are.
MiniMind has a tokenizer of its own, so compare bits per byte and bytes/s there. It reads the text a whole number of
times, and its held-out loss is measured once, when it has ended (benchmarks/minimind.py).
"""

from __future__ import annotations

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
from itertools import chain, pairwise, zip_longest
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import psutil
import tokenizers
import torch

from benchmarks import ngram
from configs.command import InputError, exit_on_bad_input, integer, number
from configs.text import markdown, table
from data.prepare import SPLITS, PreparedData, prepare
from eval.pictures.drawing import MARKERS, group_colour, new_figure
from train.config import load_run_config
from train.machine.device import CPU, machine

HERE = Path(__file__).parents[1]
CHECKOUTS = {"nanoGPT": "train.py", "minimind": "trainer/train_pretrain.py"}
# lines of nanoGPT and of benchmarks/trainer.py, of ours, of MiniMind
STEP = re.compile(r'^iter (\d+): loss|"step": (\d+),.*"split": "train"|^Epoch:\[\d+/\d+\]\((\d+)/')
HELD_OUT = re.compile(r'^step (\d+): .*val loss ([\d.]+)|"step": (\d+),.*"split": "val", "loss": ([\d.]+)')
LOOK_S, SAMPLE_S = 0.02, 0.5  # between two looks at a log, and at memory and load
NGRAM = 5  # the best of 2 to 8 on Shakespeare's held-out part
TRIED = 60  # steps of a first training that tells how many fit into --minutes (so run nothing beside it), not evaluated
NANOGPT = """train.py config/train_shakespeare_char.py --dataset=headlight --device=cpu --compile=False --eval_iters=20
    --block_size=64 --batch_size=12 --n_layer=4 --n_head=4 --n_embd=128 --max_iters=STEPS --lr_decay_iters=STEPS
    --dropout=0.0 --eval_interval=EVERY"""  # what its README says for a CPU
MINIMIND = """../validation.jsonl --data_path=../train.jsonl --device=cpu --hidden_size=128 --num_hidden_layers=4
    --max_seq_len=340 --batch_size=32 --epochs=EPOCHS --accumulation_steps=1 --num_workers=1 --log_interval=1"""
COLUMNS = {
    "nats": ("held-out loss, nats a token", ".3f"), "bits_per_byte": ("bits per byte", ".3f"),
    "reached": ("seconds to the last loss of ", ".1f"), "steps": ("steps", ",.0f"), "seconds": ("seconds", ".1f"),
    "tokens_per_s": ("tokens/s", ",.0f"), "bytes_per_s": ("bytes/s", ",.0f"), "first_step_s": ("first step, s", ".1f"),
    "peak_mb": ("peak memory, MB", ",.0f"), "load": ("load", ".1f"),
}  # fmt: skip


@dataclass(frozen=True)
class Project:
    """command: with STEPS and EVERY, or EPOCHS. steps: of its recipe. ratio: bytes a token of text. log: None: what it
    prints."""

    name: str
    folder: Path
    command: list[str]
    steps: int
    tokens_per_step: int
    ratio: float
    log: Path | None = None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="for our config")
    parser.add_argument("--peers", type=Path, required=True, metavar="FOLDER", help="has the checkouts")
    parser.add_argument("--text", type=Path, default=Path("data/tinyshakespeare/input.txt"), help="a file or a folder")
    parser.add_argument("--minutes", type=number("--minutes", 0.01), help="of each training; default: as its recipe")
    parser.add_argument("--rounds", type=integer("--rounds", 1), default=1, help="trainings of each (1)")
    parser.add_argument("--only", help="names, with commas between them")
    parser.add_argument("--out", type=Path, default=Path("runs/compare"), help="folder of compare.md, .png and .jsonl")
    given = parser.parse_intermixed_args()
    if not given.text.exists():
        raise InputError(f"--text: {given.text} does not exist")
    records, steps = list[dict[str, Any]](), dict[str, int]()
    with tempfile.TemporaryDirectory(prefix="headlight-compare-") as folder:
        projects = projects_of(given, work := Path(folder).resolve())
        given.out.mkdir(parents=True, exist_ok=True)
        for project in projects:
            steps[project.name] = project.steps
            if given.minutes and project.log is None:  # our config knows minutes
                speed = train(project, TRIED, work).get("tokens_per_s", 0.0)
                steps[project.name] = max(TRIED, round(60 * given.minutes * speed / project.tokens_per_step))
        for turn, project in ((turn, project) for turn in range(1, given.rounds + 1) for project in projects):
            print(f"round {turn} of {given.rounds}: {project.name} …", flush=True)
            records.append({"project": project.name, "round": turn} | train(project, steps[project.name], work))
            lines = "".join(json.dumps(record) + "\n" for record in records)
            (given.out / "compare.jsonl").write_text(lines, encoding="utf-8")
    if given.text.is_file() and not given.only:
        records.append(count_characters(given.text))
    page = report(records, f"{given.text.name}, {given.rounds} in turn").replace(str(work), "WORK")
    (given.out / "compare.md").write_text(page, encoding="utf-8")
    draw(records, given.out / "compare.png")
    print(f"\n{page}\n{given.out}: compare.md, compare.png, compare.jsonl")


def count_characters(file: Path) -> dict[str, Any]:
    """A baseline that learns nothing: how far does counting characters come? (benchmarks/ngram.py)"""
    began = time.perf_counter()
    bits = ngram.held_out_bits(file.read_text(encoding="utf-8"), NGRAM)
    seconds = time.perf_counter() - began
    command = shlex.join(["python", "-m", "benchmarks.ngram", str(file)])
    name = f"{NGRAM}-gram of characters"
    return {"project": name, "round": 1, "command": command, "bits_per_byte": bits, "seconds": seconds}


def projects_of(given: argparse.Namespace, work: Path) -> list[Project]:
    """Ours and theirs in turn. Raises InputError where there is no checkout, and for a name that is not here."""
    by_characters, source = given.text.is_file(), {"kind": "files", "path": str(given.text.resolve())}
    configs = {"Headlight 15s": "shakespeare_char_15s"} if by_characters and not given.minutes else {}
    configs["Headlight"] = "shakespeare_char" if by_characters else "demo"
    present = [name for name, script in CHECKOUTS.items() if (given.peers / name / script).is_file()]
    if not present:
        raise InputError(f"--peers: {given.peers} has no checkout: neither {' nor '.join(CHECKOUTS)}")
    names = [*configs, *present, "transformers"]
    only = given.only.split(",") if given.only else names
    if unknown := [name for name in only if name not in names]:
        raise InputError(f"--only: there is no {unknown[0]!r} here, only {', '.join(names)}")
    for name in present:
        shutil.copytree(given.peers / name, work / name, ignore=shutil.ignore_patterns(".git", "assets", "images"))

    overrides = [f"data.source={json.dumps(source)}", f"output_dir={work.as_posix()}", "train.device=cpu"]
    overrides += ["train.max_steps=null", f"train.max_minutes={given.minutes}"] if given.minutes else []
    overrides += given.overrides
    ours, theirs = [], []
    for name, config in configs.items():
        run = load_run_config(file := HERE / f"configs/{config}.yaml", overrides)
        data = prepare(run.data, work)
        ratio, log = data.manifest["validation"]["bytes_per_token"], work / name / "metrics.jsonl"
        command = ["-m", "train.pretrain", str(file), *overrides, f"name={json.dumps(name)}"]
        ours.append(Project(name, HERE, command, run.max_steps or 0, run.train.tokens_per_step, ratio, log))
    size = write_ids(data, work / "ids", by_characters)
    if "nanoGPT" in present:
        shutil.copytree(work / "ids", work / "nanoGPT/data/headlight")
        theirs.append(Project("nanoGPT", work / "nanoGPT", NANOGPT.split(), 2000, 12 * 64, ratio))
    if "minimind" in present:
        theirs.append(minimind(data, work / "minimind"))
    command = [str(HERE / "benchmarks/trainer.py"), str(work / "ids"), str(size), "STEPS", "EVERY"]
    steps = 3 * data.manifest["train"]["tokens"] // (8 * 128)  # three epochs, its default
    theirs.append(Project("transformers", work, command, steps, 8 * 128, ratio))
    turns = chain.from_iterable(zip_longest(ours, theirs))
    return [project for project in turns if project is not None and project.name in only]


def write_ids(data: PreparedData, folder: Path, by_characters: bool) -> int:
    """Our token ids as nanoGPT's train.bin, val.bin and meta.pkl -> the size of the vocabulary."""
    folder.mkdir()
    streams, size = [data.stream(split) for split in SPLITS], data.tokenizer.vocab_size
    parts, numbers = [stream.read(0, len(stream)) for stream in streams], np.arange(size)
    if by_characters:
        parts = [ids[1:-1] for ids in parts]  # one document, between our bos and eos
        used = sorted(set(np.concatenate(parts).tolist()), key=lambda token: data.tokenizer.decode([token]))
        numbers[used], size = np.arange(len(used)), len(used)
    for name, ids in zip(("train.bin", "val.bin"), parts, strict=True):
        numbers[ids].astype(np.uint16).tofile(folder / name)
    (folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": size}))
    return size


def minimind(data: PreparedData, folder: Path) -> Project:
    """Each line of its file fills a row of 340 tokens of its own, the first and the last of which it adds itself."""
    tokenizer, rows = tokenizers.Tokenizer.from_file(str(folder / "model/tokenizer.json")), dict[str, int]()
    for split in SPLITS:
        stream = data.stream(split)
        text = data.tokenizer.decode(stream.read(0, len(stream)))
        ends = [end for _, end in tokenizer.encode(text, add_special_tokens=False).offsets]
        parts = [text[a:b] for a, b in pairwise([0, *ends[337:-1:338], len(text)])]
        lines = "".join(json.dumps({"text": part}) + "\n" for part in parts)
        (folder / f"{split}.jsonl").write_text(lines, encoding="utf-8")
        rows[split], ratio = len(parts), len(text.encode()) / len(ends)
    command = [str(HERE / "benchmarks/minimind.py"), *MINIMIND.split()]
    return Project("minimind", folder / "trainer", command, -(-rows["train"] // 32), 32 * 338, ratio)


def train(project: Project, steps: int, work: Path) -> dict[str, Any]:
    """Train once, in a process of its own -> its figures; `failed` says why there are none."""
    lengths = {"STEPS": str(steps), "EVERY": str(steps // 8 if steps > TRIED else steps)}
    lengths["EPOCHS"] = str(max(1, round(steps / project.steps)) if project.steps else 1)
    command = [re.sub("STEPS|EVERY|EPOCHS", lambda match: lengths[match[0]], part) for part in project.command]
    if project.log:
        shutil.rmtree(project.log.parent, ignore_errors=True)  # a finished run would not be trained again
    printed, log, looked, goes_on = work / "printed.txt", None, -math.inf, True
    trained, held_out = dict[float, int](), list[tuple[float, float]]()  # seconds: step; seconds, nats a token
    memory, load, end = list[int](), list[float](), 0
    env = os.environ | {"PYTHONUNBUFFERED": "1"}
    if work in project.folder.parents:  # MiniMind has a package named model, as we have
        env["PYTHONPATH"] = str(project.folder.parent)
    with printed.open("wb") as output:
        began, line = time.perf_counter(), [sys.executable, *command]
        process = psutil.Popen(line, cwd=project.folder, env=env, stdout=output, stderr=subprocess.STDOUT)
    try:
        while goes_on:
            goes_on = process.poll() is None  # after its end its log is read once more
            now = time.perf_counter() - began
            if log is None and (project.log or printed).exists():
                log = (project.log or printed).open(encoding="utf-8", errors="replace")
            while log and (text := log.readline()):
                if match := STEP.search(text):
                    trained[now] = int(match[match.lastindex or 0])
                elif match := HELD_OUT.search(text):
                    held_out.append((now, float(match[match.lastindex or 0])))
                    end = max(end, int(match[1] or match[3]))
            if now - looked > SAMPLE_S:
                looked = now
                load.append(psutil.getloadavg()[0])
                with suppress(psutil.Error):
                    memory.append(tree_bytes([process, *process.children(recursive=True)]))
            time.sleep(LOOK_S)
    finally:
        with suppress(psutil.Error):  # after Ctrl-C
            for each in (*process.children(recursive=True), process):
                each.kill()
    record: dict[str, Any] = {"command": shlex.join(["python", *command]), "seconds": now, "load": mean(load)}
    if process.returncode or len(trained) < 2:
        last = printed.read_text("utf-8", "replace").strip().rpartition("\n")[2]
        return record | {
            "failed": f"exit code {process.returncode}, {len(trained)} lines of steps; last line: {last[:200]}"
        }
    a_step = median((b - a) / max(1, trained[b] - trained[a]) for a, b in pairwise(trained))
    (first, step), speed = next(iter(trained.items())), project.tokens_per_step / a_step
    record |= {"steps": max(end, *trained.values()), "tokens_per_s": speed, "bytes_per_s": speed * project.ratio}
    record["first_step_s"] = first - max(0, step - 1) * a_step  # it may log every tenth
    record["peak_mb"] = max(memory, default=0) / 1e6
    for seconds, nats in held_out:
        record |= {"nats": nats, "bits_per_byte": nats / math.log(2) / project.ratio}
        record.setdefault("held_out", []).append([seconds, nats, record["bits_per_byte"]])
    return record


def tree_bytes(processes: list[psutil.Process]) -> int:
    """Their memory. What they share is divided between them, where the system says how much (Linux)."""
    total = 0
    for process in processes:
        with suppress(psutil.Error):
            memory = process.memory_full_info()
            total += getattr(memory, "pss", memory.rss)
    return total


def report(records: list[dict[str, Any]], title: str) -> str:
    """The table in Markdown: medians of the rounds that ended well."""
    known = [(record["project"], record["bits_per_byte"]) for record in records if "bits_per_byte" in record]
    goal = next((name for name, _ in known if not name.startswith("Headlight")), "")
    goal_bits = median([bits for name, bits in known if name == goal] or [-math.inf])
    rows, notes = list[list[str]](), list[str]()
    for name in dict.fromkeys(record["project"] for record in records):
        runs, cells = [record for record in records if record["project"] == name], list[str]()
        for run in runs:
            if reached := [seconds for seconds, _, bits in run.get("held_out", []) if bits <= goal_bits]:
                run["reached"] = reached[0]
        failed = [run["failed"] for run in runs if "failed" in run]
        notes += [f"- {name} **failed**: {markdown(failed[0])}\n"] if failed else []
        runs = [run for run in runs if "failed" not in run]
        for key, (_, form) in COLUMNS.items():
            values = [run[key] for run in runs if key in run]
            cells.append(f"{median(values):{form}}" if runs and len(values) == len(runs) else "–")
        rows.append([name + f" ({len(failed)} failed)" * bool(failed), *cells])
    flags = [name for name in ("avx2", "avx512_f", "avx512_bf16", "amx_bf16") if CPU.get(name)]
    here = f"{machine(torch.device('cpu'))}, {torch.backends.cpu.get_cpu_capability()} ({', '.join(flags)})"
    header = ["", *(text + goal * (key == "reached") for key, (text, _) in COLUMNS.items())]
    notes += dict.fromkeys(f"- {record['project']}: `{record['command']}`\n" for record in records)
    return f"{title}; {here}, torch {torch.__version__}\n\n{table(header, rows)}\n\n{''.join(notes)}"


def draw(records: list[dict[str, Any]], file: Path) -> None:
    """Held-out bits per byte against seconds: a colour for each project, a line for each round."""
    from matplotlib.ticker import LogLocator

    figure, names = new_figure(900, 500), list(dict.fromkeys(record["project"] for record in records))
    axes = figure.add_subplot()
    for record in records:
        if points := record.get("held_out"):
            number, label = names.index(record["project"]), record["project"] if record["round"] == 1 else None
            colour, marker = group_colour(number), MARKERS[number % len(MARKERS)]
            seconds, _, bits = zip(*points, strict=True)
            axes.plot(seconds, bits, label=label, color=colour, marker=marker, markersize=4)
        elif "bits_per_byte" in record:  # the baseline, which is not trained
            label = record["project"]
            axes.axhline(record["bits_per_byte"], label=label, color="grey", linestyle="--")
    axes.set(xlabel="seconds since the process started", ylabel="held-out bits per byte", xscale="log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("")
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend(frameon=False)
    figure.savefig(file)


if __name__ == "__main__":
    exit_on_bad_input(main)
