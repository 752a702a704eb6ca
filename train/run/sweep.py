"""Train one run for each value of a key, on the same data and budget, and compare them:

    python -m train.sweep configs/demo.yaml model.num_key_value_heads=1,2,6 [section.key=value ...]
    [--seeds 3]

`key=a,b,c` is swept, `key=value` holds for all runs. The baseline is the config itself. A config
may bring its variants along, under `rungs`: `python -m train.sweep configs/ladder.yaml --seeds 3`.
A rung `{fork: --at 100 --without previous_token}` is not trained from the start: train.fork
continues the baseline of the same seed with this change.

Runs are named <name>-<value or rung>-seed<seed>. A finished run is not trained again, so the same
command continues after a stop.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from configs.command import InputError, command_parser, integer
from configs.loader import flatten
from configs.parse import parse_yaml
from train.config import RunConfig, load_run_config
from train.machine.signals import stop_signals
from train.run.command_line import script_of
from train.run.config_checks import TRUST_HELP
from train.run.run_directory import find_start, own

# Exit codes of a run that explain themselves.
REASONS = {2: " (bad input)", 3: " (its loss became non-finite)"}


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep."""

    label: str  # the variant, a part of the run's name
    changes: list[str]  # overrides of the variant, or options of train.fork; [] = the baseline
    config: RunConfig  # of a fork, without its change
    command: list[str]  # after `python -m`
    folder: Path  # of the sweep


def plan(
    path: str, arguments: Sequence[str], seeds: int, *, trust_hooks: bool = False
) -> list[PlannedRun]:
    """Return every run, baseline first, seed by seed. It trains and writes nothing.

    arguments: `key=value` holds for all runs, `key=a,b,c` is swept; if nothing is, the config's
    `rungs` are. Raises InputError for a wrong key or value, and if there is nothing to compare.
    """
    fixed = list[str]()
    swept = dict[str, list[str]]()
    for argument in arguments:
        key, _, text = argument.partition("=")
        values = list[str]()
        # A YAML list: a comma within brackets or quotes belongs to the value. Text that is no YAML,
        # such as the path `[old] a.txt`, is one value.
        with suppress(InputError):
            listed = parse_yaml(f"[{text}]", f"`{argument}`")
            values = [json.dumps(value, ensure_ascii=False) for value in listed]
        is_list = text.rstrip().endswith(",")  # `key=1,` sweeps one value against the baseline
        if len(values) < 2 and not is_list:
            fixed.append(argument)
        elif key == "seed":
            remedy = f"--seeds {len(values)} gives every variant as many"
            raise InputError(f"`{argument}`: seeds are not swept: {remedy}")
        else:
            swept[key] = swept.get(key, []) + values
    base = load_run_config(path, fixed, trust_hooks=trust_hooks)
    rungs = {} if swept else base.rungs or {}
    if not swept and not rungs and seeds == 1:
        remedy = "give a key two values, for example train.cooldown=0.5,0.7, or --seeds 3"
        raise InputError(f"nothing is swept: {remedy}")
    # so that a run's own config.yaml has neither
    fixed += [f"{key}=null" for key in ("rungs", "outcome") if getattr(base, key) is not None]

    # If one key is swept, the baseline is named after its value of this key. So the same run serves
    # every sweep of that key.
    own_value = flatten(base.model_dump()).get(*swept) if len(swept) == 1 else None
    name = "baseline" if own_value is None else json.dumps(own_value, ensure_ascii=False)
    variants = [(name, list[str]())]
    for key, values in swept.items():
        prefix = f"{key.rpartition('.')[2]}-" if len(swept) > 1 else ""
        variants += [(prefix + value, [f"{key}={value}"]) for value in values]
    forks = dict[str, list[str]]()
    for name, rung in rungs.items():
        if "fork" in rung:
            if len(rung) > 1:
                raise InputError(f"`rungs.{name}`: a fork has no other keys: put them into `fork`")
            forks[label_of(name)] = shlex.split(str(rung["fork"]))
            continue
        settings = [f"{key}={json.dumps(value)}" for key, value in flatten(rung).items()]
        variants.append((name, settings))

    changes_of = dict[str, list[str]]()
    configs = list[RunConfig]()
    for name, changes in variants:
        label = label_of(name) or ("value" if changes else "baseline")
        try:
            config = load_run_config(path, [*fixed, *changes])
        except InputError as error:
            raise InputError(f"`rungs.{label}`: {error}" if rungs else str(error)) from None
        if config not in configs:  # mqa and 1 are the same variant
            configs.append(config)
            changes_of[f"{label}-{len(changes_of)}" if label in changes_of else label] = changes

    keys = [key.rpartition(".")[2] for key in swept]
    folder = Path(base.output_dir) / "-".join([base.name, "sweep", *keys])
    options = ["--trust-hooks"] * trust_hooks
    runs = []
    # Seed by seed: a sweep that is stopped early has all variants of some seeds.
    for seed in range(base.seed, base.seed + seeds):
        for label, changes in (changes_of | forks).items():
            name = json.dumps(f"{base.name}-{label}-seed{seed}")
            own_keys = changes if label in changes_of else []
            overrides = [*fixed, *own_keys, f"seed={seed}", f"name={name}"]
            config = load_run_config(path, overrides)
            command = [script_of(config), path, *options, *overrides]
            if label in forks:
                baseline = config.directory.with_name(f"{base.name}-{variants[0][0]}-seed{seed}")
                command = ["train.fork", str(baseline), *options, *changes, f"name={name}"]
            runs.append(PlannedRun(label, changes, config, command, folder))
    return runs


def label_of(name: str) -> str:
    """Return a variant's name as a part of a folder's name."""
    return re.sub(r"[^\w.+-]+", "_", name).strip("_")[:60]


def main() -> int:
    description = __doc__.split("\n")[0]
    parser = command_parser(description)
    parser.add_argument("config", help="the baseline, a YAML file, for example configs/demo.yaml")
    swept = "swept; key=value holds for all runs"
    parser.add_argument("overrides", nargs="*", metavar="key=a,b,c", help=swept)
    seeds = "runs of every variant, from the config's seed on"
    parser.add_argument("--seeds", type=integer("--seeds", 1), default=1, help=seeds)
    folder = "folder of comparison.md; default: <output_dir>/<name>-sweep-<keys>"
    parser.add_argument("--out", type=Path, help=folder)
    parser.add_argument("--trust-hooks", action="store_true", help=TRUST_HELP)
    args = parser.parse_intermixed_args()
    runs = plan(args.config, args.overrides, args.seeds, trust_hooks=args.trust_hooks)
    out = args.out or runs[0].folder
    # two sweeps at once would train the same runs twice
    with own(out):
        waiting = [run for run in runs if not is_finished(run)]
        baseline = f"the baseline, {args.config}"
        variants = {run.label: " ".join(run.changes) or baseline for run in runs}
        print(f"sweep: {len(variants)} variants x {args.seeds} seeds = {len(runs)} runs,", end=" ")
        print(f"{len(runs) - len(waiting)} of them already trained")
        for label, changes in variants.items():
            print(f"  {label}: {changes}")
        failed = dict[str, int]()
        with stop_signals() as stopped:
            for run in waiting:
                code = train(run, out.name, stopped)
                if code:
                    failed[run.config.name] = code
                if stopped():
                    print("sweep: stopped; the same command continues from here", file=sys.stderr)
                    return 128 + stopped()

        # here, because matplotlib takes long to import
        from eval.compare.__main__ import compare
        from eval.compare.runs import read_runs

        paths = [run.config.directory for run in runs if run.config.name not in failed]
        notes = [
            f"{name} is left out: exit code {code}{REASONS.get(code, '')}"
            for name, code in failed.items()
        ]
        if paths:
            print()
            compare(read_runs(paths), out, notes=notes)
        if 3 in failed.values():
            return 3
        first = next(iter(failed.values()), 0)
        return first if first >= 0 else 128 - first  # killed by a signal: -9 is 137 to a shell


def is_finished(run: PlannedRun) -> bool:
    directory = run.config.directory
    if run.command[0] == "train.fork":  # it has a config of its own there
        if not directory.exists():
            return False
        return find_start(load_run_config(directory / "config.yaml")).finished
    return find_start(run.config).finished


def train(run: PlannedRun, group: str, stopped: Callable[[], int]) -> int:
    """Train a run in a new process, with fresh memory. Returns its exit code.

    group: of the sweep's runs in wandb.
    """
    print(f"sweep: {run.config.name}: training", flush=True)
    line = [sys.executable, "-m", *run.command]
    # In a session of its own Ctrl-C reaches only the sweep, which passes it on once. A run that
    # gets it twice stops without saving.
    environment = {"WANDB_RUN_GROUP": group} | os.environ
    process = subprocess.Popen(line, env=environment, start_new_session=True)
    while process.poll() is None and not stopped():
        time.sleep(0.1)
    if stopped() and os.name != "nt":  # on Windows Ctrl-C reaches every process of a console
        process.send_signal(stopped())
    code = process.wait()
    outcome = "trained"
    if stopped():
        outcome = "stopped"
    elif code:
        outcome = f"FAILED, exit code {code}{REASONS.get(code, '')}; the others continue"
    print(f"sweep: {run.config.name}: {outcome}", flush=True)
    return code
