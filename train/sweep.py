"""Train one run for each value of a key, on the same data and budget, and compare them:

    python -m train.sweep configs/demo.yaml model.num_key_value_heads=1,2,6 [section.key=value ...] [--seeds 3]

`key=a,b,c` is swept, `key=value` holds for all runs. The baseline is the config itself. A config may bring its variants
along, under `rungs`: `python -m train.sweep configs/ladder.yaml --seeds 3`. Runs are named <name>-<value or
rung>-seed<seed>. A finished run is not trained again, so the same command continues after a stop.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from configs.command import InputError, exit_on_bad_input, usable_cores, whole
from configs.loader import flatten
from configs.schema import Tag, keys_with
from eval.run_files import read_result
from train.config import RunConfig, add_trust_option, load_run_config
from train.machine.signals import stop_signals
from train.method_config import script_of
from train.saving.run_directory import find_start
from train.saving.run_lock import holder, owned
from train.sft import as_fine_tuning

POLL_S = 0.1
BAD_INPUT = 2
REASONS = {BAD_INPUT: "bad input", 3: "its loss became non-finite"}


@dataclass(frozen=True)
class Variant:
    """label: part of the names of its runs. changes: its overrides besides the fixed ones, [] = the baseline.

    is_rung: whether the config's `rungs` have it, not the command line.
    """

    label: str
    changes: list[str]
    config: RunConfig
    is_rung: bool = False


@dataclass(frozen=True)
class PlannedRun:
    """One run of one variant: its checked config, and the overrides that make it on the command line."""

    variant: Variant
    config: RunConfig
    overrides: list[str]

    @property
    def script(self) -> str:
        """Fine-tuning and every other method have their own script."""
        if (own := script_of(self.config)) is not None:
            return own
        tunes = self.config.init_from is not None and self.config.data.records == "conversations"
        return "train.sft" if tunes else "train.pretrain"

    @property
    def is_finished(self) -> bool:
        """Whether it has been trained to its end. Raises InputError if the directory belongs to another run."""
        if holder(self.config.directory):  # its files may change while they are read
            return False
        return find_start(as_fine_tuning(self.config) if self.script == "train.sft" else self.config).finished


# ---------------------------------------------------------------------------------------------------------
# which runs: the baseline, and one for each changed key or rung, all of them with every seed


def plan(path: str, arguments: Sequence[str], seeds: int, *, trust_hooks: bool = False) -> list[PlannedRun]:
    """Every run, baseline first, seed by seed. Trains and writes nothing.

    arguments: `key=value` holds for all runs, `key=a,b,c` is swept; where none is, the config's `rungs` are. Raises
    InputError for a key that does not exist or cannot be swept, a value that does not fit, and if there is nothing to
    compare.
    """
    fixed, swept = _read_arguments(arguments)
    rungs = load_run_config(path, fixed, trust_hooks=trust_hooks).rungs
    if rungs is not None:
        fixed.append("rungs=null")  # a single run has none
    variants = _rungs(path, fixed, rungs) if rungs and not swept else _variants(path, fixed, swept)
    if len(variants) == 1 and not swept and seeds == 1:
        raise InputError(
            "nothing is swept: give a key two values or more, for example model.num_key_value_heads=1,2,4, or --seeds 3"
        )
    base, runs = variants[0].config, []
    for seed in range(base.seed, base.seed + seeds):
        for variant in variants:
            name = "-".join(filter(None, (base.name, variant.label, f"seed{seed}")))
            overrides = [*fixed, *variant.changes, f"seed={seed}", f"name={json.dumps(name, ensure_ascii=False)}"]
            runs.append(PlannedRun(variant, load_run_config(path, overrides), overrides))
    return runs


def _read_arguments(arguments: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """(overrides that hold for all runs, values of each swept key). Raises InputError."""
    fixed, swept, seen = list[str](), dict[str, list[str]](), set[str]()
    for argument in arguments:
        key, equals, text = argument.partition("=")
        if not key or not equals:
            raise InputError(f"`{argument}`: write key=value,value,…, for example model.num_key_value_heads=1,2,4")
        if key in seen:
            raise InputError(f"`{key}` is given twice: write its values together, {key}=value,value")
        seen.add(key)
        values = split_values(text)
        if len(values) < 2 and not text.rstrip().endswith(","):  # `key=1,` sweeps one value against the baseline
            fixed.append(argument)
        elif key == "seed":
            raise InputError(f"`{argument}`: seeds are not swept: --seeds {len(values)} gives every variant as many")
        else:
            _check_sweepable(f"`{argument}`", key)
            swept[key] = values
    return fixed, swept


def split_values(text: str) -> list[str]:
    """Split `a,b` at the commas outside brackets and quotes, as YAML does in a list. Raises InputError."""
    try:
        node = yaml.compose(f"[{text}]", Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise InputError(f"`{text}` is not valid YAML, value after value: {str(error).splitlines()[0]}") from None
    assert isinstance(node, yaml.SequenceNode)
    return [text[value.start_mark.index - 1 : value.end_mark.index - 1].strip() for value in node.value]


def _variants(path: str, fixed: list[str], swept: dict[str, list[str]]) -> list[Variant]:
    """The baseline, then a variant for each value that changes it. No config comes twice. Raises InputError."""
    base = load_run_config(path, fixed)
    label = "baseline"
    if len(swept) == 1:  # the baseline's own value, so that the same run serves every sweep of that key
        value = flatten(base.model_dump()).get(*swept)
        label = (_slug(json.dumps(value, ensure_ascii=False)) if value is not None else "") or label
    baseline = Variant(label, [], base)
    variants = [baseline]
    for key, values in swept.items():
        for value in values:
            change = f"{key}={value}"
            try:
                config = load_run_config(path, [*fixed, change])
            except InputError as error:
                raise InputError(f"{error}" if f"`{change}`" in str(error) else f"`{change}`: {error}") from None
            label = (_slug(value) or "value") if len(swept) == 1 else f"{key.rpartition('.')[2]}-{_slug(value)}"
            if config == base:
                if len(swept) == 1 and variants[0] is baseline:  # its runs are named after it as it is written here
                    variants[0] = Variant(label, [], base)
            elif all(config != variant.config for variant in variants):
                taken = label in {variant.label for variant in variants}  # such as the lists [1, 2] and "1_2"
                variants.append(Variant(f"{label}-{len(variants)}" if taken else label, [change], config))
    return variants


def _rungs(path: str, fixed: list[str], rungs: dict[str, dict[str, Any]]) -> list[Variant]:
    """The baseline, then every rung: sets of changes with a name, {key: value}, in the order of the file."""
    variants = [Variant("baseline", [], load_run_config(path, fixed))]
    for name, values in rungs.items():
        where = f"{path}: `rungs.{name}`"
        if _slug(name) != name or name == "baseline":
            raise InputError(f"{where}: a rung's name is letters, digits and _ . + -, and not baseline: choose another")
        changes = [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in flatten(values).items()]
        for change in changes:
            _check_sweepable(where, change.partition("=")[0])
        try:
            config = load_run_config(path, [*fixed, *changes])
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        if same := next((variant for variant in variants if variant.config == config), None):
            raise InputError(f"{where} is the same as {same.label}: give it a change of its own, or leave it out")
        variants.append(Variant(name, changes, config, is_rung=True))
    return variants


def _check_sweepable(where: str, key: str) -> None:
    if key.partition(".")[0] in ("extends", *keys_with(RunConfig, Tag.RUNTIME)):
        raise InputError(f"{where}: {key} changes nothing that is trained, so there is nothing to sweep")


def _slug(value: str) -> str:
    """A value as part of a folder's name."""
    return re.sub(r"[^\w.+-]+", "_", value).strip("_")[:60]


def default_folder(runs: Sequence[PlannedRun]) -> Path:
    """<output_dir>/<name>-sweep-<the last part of each swept key>, so that another sweep has another folder. Of rungs
    and seeds alone: <output_dir>/<name>-sweep."""
    base = runs[0]
    name = base.config.name.removesuffix(f"-seed{base.config.seed}").removesuffix(f"-{base.variant.label}")
    swept = [change for run in runs for change in run.variant.changes if not run.variant.is_rung]
    keys = dict.fromkeys(change.partition("=")[0].rpartition(".")[2] for change in swept)
    return Path(base.config.output_dir) / "-".join([name, "sweep", *keys])


# ---------------------------------------------------------------------------------------------------------
# train them, and compare


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m train.sweep", description=__doc__.split("\n")[0])
    parser.add_argument("config", help="the baseline, a YAML file, for example configs/demo.yaml")
    parser.add_argument("overrides", nargs="*", metavar="key=a,b,c", help="swept; key=value holds for all runs")
    parser.add_argument(
        "--seeds",
        type=whole("--seeds", 1),
        default=1,
        help="runs of every variant: the config's seed, seed + 1, …",
    )
    parser.add_argument(
        "--jobs", type=whole("--jobs", 1), default=1, help="runs at a time; they share the machine's threads"
    )
    parser.add_argument("--out", type=Path, help="folder of comparison.md; default: <output_dir>/<name>-sweep-<keys>")
    parser.add_argument("--skip-decode", action="store_true", help="do not measure decoding in the comparison")
    add_trust_option(parser)
    given = parser.parse_intermixed_args()
    runs = plan(given.config, given.overrides, given.seeds, trust_hooks=given.trust_hooks)
    out = given.out or default_folder(runs)
    with owned(out, named="--out" if given.out else "output_dir") as owner:
        if owner.problem:
            raise InputError(owner.problem)
        sweep = Sweep(runs, {run.config.name for run in runs if run.is_finished})
        variants = {run.variant.label: run.variant for run in runs}
        print(
            f"sweep: {len(variants)} variants x {given.seeds} seed{'s' * (given.seeds > 1)} = {len(runs)} runs, "
            f"{len(sweep.finished)} of them already trained"
        )
        for variant in variants.values():
            print(f"  {variant.label}: {' '.join(variant.changes) or f'the baseline, {given.config}'}")
        command = [given.config, *["--trust-hooks"] * given.trust_hooks]
        if stopped := sweep.train(command, given.jobs):
            print("sweep: stopped; the same command continues from here", file=sys.stderr)
            return 128 + stopped
        return sweep.compare(out, decode=not given.skip_decode)


class Sweep:
    """The runs of a sweep, and how far they are. By name: finished, failed (exit codes)."""

    def __init__(self, runs: list[PlannedRun], finished: set[str]):
        self.runs, self.finished, self.failed = runs, finished, dict[str, int]()

    def train(self, command: list[str], jobs: int) -> int:
        """Train the runs that are not finished, `jobs` at a time, each in a new process, with fresh memory. A run that
        another process trains, as a killed sweep leaves it behind, waits until that ends.

        command: config and options. Returns 0, or the signal that stopped the sweep.
        """
        waiting = [run for run in self.runs if run.config.name not in self.finished]
        running: dict[str, tuple[PlannedRun, subprocess.Popen[str], threading.Thread]] = {}
        waited_for, told = set[str](), False
        with stop_signals() as stopped:
            while (waiting and not stopped()) or running:
                for run in list(waiting):
                    if len(running) == jobs or stopped():
                        break
                    name = run.config.name
                    if who := holder(run.config.directory):
                        if name not in waited_for:
                            self._say(name, f"is trained by {who}, already: waiting until that ends")
                        waited_for.add(name)
                        continue
                    self._say(name, f"training{self._time_left(len(waiting) + len(running), jobs)}")
                    waiting.remove(run)
                    running[name] = run, *_start(run, command, jobs, default_folder(self.runs).name)
                if stopped() and not told and os.name != "nt":  # Ctrl-C reaches every process of a console on Windows
                    for _, process, _ in running.values():
                        process.send_signal(stopped())
                    told = True
                for name, (run, process, output) in list(running.items()):
                    code = process.poll()
                    if code is None:
                        continue
                    output.join(timeout=10)
                    del running[name]
                    if code == 0:
                        self.finished.add(name)
                        self._say(name, "trained")
                    elif stopped():
                        self._say(name, "stopped")
                    elif code == BAD_INPUT and holder(run.config.directory):  # another process was quicker
                        waiting.append(run)
                    else:
                        self.failed[name] = code
                        self._say(name, f"FAILED, exit code {code} ({_reason(code)}); the others continue")
                time.sleep(POLL_S)
            return stopped()

    def compare(self, out: Path, *, decode: bool) -> int:
        """Compare the finished runs and say which ones failed. Returns the exit code: 0, or that of a failed run."""
        from eval.compare.__main__ import compare

        labels = list(dict.fromkeys(run.variant.label for run in self.runs))
        trained = sorted(self.runs, key=lambda run: labels.index(run.variant.label))  # the baseline first
        paths = [run.config.directory for run in trained if run.config.name not in self.failed]
        notes = [f"{name} is left out: {_reason(code)}" for name, code in self.failed.items()]
        if paths:
            comparison = compare(paths, out, decode=decode, notes=notes)
            for warning in comparison.warnings:
                print(f"warning: {warning}", file=sys.stderr)
            print(f"\n{comparison.short}\n\nall rows, figures and heads: {comparison.file}")
        else:
            print("sweep: no run was trained to its end, so there is nothing to compare", file=sys.stderr)
        codes = list(self.failed.values())
        return 3 if 3 in codes else next((code if code > 0 else 128 - code for code in codes), 0)

    def _say(self, name: str, what: str) -> None:
        done = len(self.finished) + len(self.failed)
        print(f"sweep: [{done}/{len(self.runs)}] {name}: {what}", flush=True)

    def _time_left(self, to_do: int, jobs: int) -> str:
        """In words, from the finished runs; nothing before the first one."""
        directories = [run.config.directory for run in self.runs if run.config.name in self.finished]
        results = [read_result(directory, lambda problem: None) or {} for directory in directories]
        seconds = [result["seconds"] for result in results if "seconds" in result]
        if not seconds:
            return ""
        return f"; about {median(seconds) * to_do / jobs / 60:.1f} minutes for the {to_do} that are left"


def _start(
    run: PlannedRun, command: list[str], jobs: int, group: str
) -> tuple[subprocess.Popen[str], threading.Thread]:
    """A run in a new process, and the thread that prints what it says: if others run beside it, after its name.

    A session of its own: Ctrl-C in a terminal reaches the sweep alone, which passes it on once. Twice would mean "stop
    at once". group: of the sweep's runs in wandb.
    """
    threads = int(os.environ.get("OMP_NUM_THREADS") or usable_cores())
    share = {"OMP_NUM_THREADS": str(max(1, threads // jobs)), "PYTHONIOENCODING": "utf-8"} if jobs > 1 else {}
    process = subprocess.Popen(
        [sys.executable, "-m", run.script, *command, *run.overrides],
        env={"WANDB_RUN_GROUP": group} | os.environ | share,  # wandb's own name for what belongs together
        stdout=subprocess.PIPE if jobs > 1 else None,
        stderr=subprocess.STDOUT if jobs > 1 else None,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )

    def show() -> None:
        for line in process.stdout or []:
            print(f"{run.config.name} | {line}", end="", flush=True)

    output = threading.Thread(target=show, daemon=True)
    output.start()
    return process, output


def _reason(code: int) -> str:
    return REASONS.get(code, f"killed by signal {-code}" if code < 0 else "see what it printed")


if __name__ == "__main__":
    exit_on_bad_input(main)
