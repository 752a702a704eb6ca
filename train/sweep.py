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
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import yaml

from configs.command import InputError, exit_on_bad_input, survive_lost_output, usable_cores, whole
from configs.loader import flatten
from train.checkpoint import find_start, own
from train.config import TRUST_HELP, RunConfig, load_run_config, script_of
from train.processes import stop_signals

REASONS = {2: " (bad input)", 3: " (its loss became non-finite)"}


@dataclass(frozen=True)
class PlannedRun:
    """One run: its variant, its checked config, and the overrides that make it on the command line.

    label: the variant's part of the name. changes: its own overrides, [] = the baseline. folder: of the sweep.
    """

    label: str
    changes: list[str]
    config: RunConfig
    overrides: list[str]
    folder: Path


def plan(path: str, arguments: Sequence[str], seeds: int, *, trust_hooks: bool = False) -> list[PlannedRun]:
    """Every run, baseline first, seed by seed. Trains and writes nothing.

    arguments: `key=value` holds for all runs, `key=a,b,c` is swept; where none is, the config's `rungs` are. Raises
    InputError for a key that does not exist, a value that does not fit, and if there is nothing to compare.
    """
    fixed, swept = list[str](), dict[str, list[str]]()
    for argument in arguments:
        key, _, text = argument.partition("=")
        values = split_values(text)
        if len(values) < 2 and not text.rstrip().endswith(","):  # `key=1,` sweeps one value against the baseline
            fixed.append(argument)
        elif key == "seed":
            raise InputError(f"`{argument}`: seeds are not swept: --seeds {len(values)} gives every variant as many")
        else:
            swept[key] = swept.get(key, []) + values
    base = load_run_config(path, fixed, trust_hooks=trust_hooks)
    rungs = {} if swept else base.rungs or {}
    if not swept and not rungs and seeds == 1:
        raise InputError(
            "nothing is swept: give a key two values or more, for example model.num_key_value_heads=1,2,4, or --seeds 3"
        )
    if base.rungs is not None:
        fixed.append("rungs=null")  # a single run has none

    # of one swept key the baseline is named after its value, so that the same run serves every sweep of that key
    own = flatten(base.model_dump()).get(*swept) if len(swept) == 1 else None
    variants = [("" if own is None else _slug(json.dumps(own, ensure_ascii=False)), list[str]())]
    for key, values in swept.items():
        prefix = f"{key.rpartition('.')[2]}-" if len(swept) > 1 else ""
        variants += [(prefix + (_slug(value) or "value"), [f"{key}={value}"]) for value in values]
    for name, changed in rungs.items():
        variants.append((_slug(name), [f"{key}={json.dumps(value)}" for key, value in flatten(changed).items()]))

    changes_of, configs = dict[str, list[str]](), list[RunConfig]()
    for label, changes in variants:
        try:
            config = load_run_config(path, [*fixed, *changes])
        except InputError as error:
            raise InputError(f"`rungs.{label}`: {error}" if rungs else str(error)) from None
        if config not in configs:  # mqa and 1 are one variant
            configs.append(config)
            label = label or "baseline"
            changes_of[f"{label}-{len(changes_of)}" if label in changes_of else label] = changes

    folder = Path(base.output_dir) / "-".join([base.name, "sweep", *(key.rpartition(".")[2] for key in swept)])
    runs = []
    for seed in range(base.seed, base.seed + seeds):
        for label, changes in changes_of.items():
            overrides = [*fixed, *changes, f"seed={seed}", f"name={json.dumps(f'{base.name}-{label}-seed{seed}')}"]
            runs.append(PlannedRun(label, changes, load_run_config(path, overrides), overrides, folder))
    return runs


def split_values(text: str) -> list[str]:
    """Split `a,b` at the commas outside brackets and quotes, as YAML does in a list. Raises InputError."""
    try:
        node = yaml.compose(f"[{text}]", Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise InputError(f"`{text}` is not valid YAML, value after value: {str(error).splitlines()[0]}") from None
    assert isinstance(node, yaml.SequenceNode)
    return [text[value.start_mark.index - 1 : value.end_mark.index - 1].strip() for value in node.value]


def _slug(value: str) -> str:
    """A value as part of a folder's name."""
    return re.sub(r"[^\w.+-]+", "_", value).strip("_")[:60]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m train.sweep", description=__doc__.split("\n")[0])
    parser.add_argument("config", help="the baseline, a YAML file, for example configs/demo.yaml")
    parser.add_argument("overrides", nargs="*", metavar="key=a,b,c", help="swept; key=value holds for all runs")
    for option, text in (
        ("--seeds", "runs of every variant, from the config's seed on"),
        ("--jobs", "runs at a time; they share the machine's threads"),
    ):
        parser.add_argument(option, type=whole(option, 1), default=1, help=text)
    parser.add_argument("--out", type=Path, help="folder of comparison.md; default: <output_dir>/<name>-sweep-<keys>")
    parser.add_argument("--skip-decode", action="store_true", help="do not measure decoding in the comparison")
    parser.add_argument("--trust-hooks", action="store_true", help=TRUST_HELP)
    given = parser.parse_intermixed_args()
    runs = plan(given.config, given.overrides, given.seeds, trust_hooks=given.trust_hooks)
    out = given.out or runs[0].folder
    with own(out):
        survive_lost_output()
        waiting = [run for run in runs if not find_start(run.config).finished]
        variants = {run.label: " ".join(run.changes) or f"the baseline, {given.config}" for run in runs}
        print(
            f"sweep: {len(variants)} variants x {given.seeds} seed{'s' * (given.seeds > 1)} = {len(runs)} runs, "
            f"{len(runs) - len(waiting)} of them already trained"
        )
        for label, changes in variants.items():
            print(f"  {label}: {changes}")
        command = [given.config, *["--trust-hooks"] * given.trust_hooks]
        with stop_signals() as stopped, ThreadPoolExecutor(given.jobs) as pool:
            codes = pool.map(lambda run: train(run, command, given.jobs, out, stopped), waiting)
            failed = {run.config.name: code for run, code in zip(waiting, codes, strict=True) if code}
        if stopped():
            print("sweep: stopped; the same command continues from here", file=sys.stderr)
            return 128 + stopped()

        from eval.compare import read_runs
        from eval.compare.__main__ import compare

        runs.sort(key=lambda run: list(variants).index(run.label))  # the baseline first
        paths = [run.config.directory for run in runs if run.config.name not in failed]
        notes = [f"{name} is left out: exit code {code}{REASONS.get(code, '')}" for name, code in failed.items()]
        if paths:
            print()
            compare(read_runs(paths), out, decode=not given.skip_decode, notes=notes)
        return 3 if 3 in failed.values() else next((code if code > 0 else 128 - code for code in failed.values()), 0)


def train(run: PlannedRun, command: list[str], jobs: int, folder: Path, stopped: Callable[[], int]) -> int:
    """Train a run in a new process, with fresh memory. Returns its exit code; 0 where a signal stopped the sweep.

    command: config and options. folder: of the sweep, which is a group in wandb. If several runs are trained at a time,
    what they print goes into files there.
    """
    if stopped():
        return 0
    name, environment, output = run.config.name, {"WANDB_RUN_GROUP": folder.name} | os.environ, None
    if jobs > 1:
        threads = int(os.environ.get("OMP_NUM_THREADS") or usable_cores())
        environment |= {"OMP_NUM_THREADS": str(max(1, threads // jobs)), "PYTHONIOENCODING": "utf-8"}
        output = (folder / f"{name}.txt").open("wb")
    print(f"sweep: {name}: training" + (f", see {output.name}" if output else ""), flush=True)
    line = [sys.executable, "-m", script_of(run.config), *command, *run.overrides]
    # a session of its own: Ctrl-C reaches the sweep alone, which passes it on once; twice would mean "stop at once"
    process = subprocess.Popen(line, env=environment, stdout=output, stderr=output, start_new_session=True)
    while process.poll() is None and not stopped():
        time.sleep(0.1)
    if stopped():
        if os.name != "nt":  # Ctrl-C reaches every process of a console on Windows
            process.send_signal(stopped())
        process.wait()
        return 0
    code = process.returncode
    what = f"FAILED, exit code {code}{REASONS.get(code, '')}; the others continue" if code else "trained"
    print(f"sweep: {name}: {what}", flush=True)
    return code


if __name__ == "__main__":
    exit_on_bad_input(main)
