"""Continue a run from one of its steps, with one change from there on:

    python -m train.fork runs/small --at 600 --clamp L0H2=previous name=held [section.key=value ...]

Training is the same to the last bit each time, so every difference has this one cause. The fork
begins as a copy of the run at its last checkpoint up to that step. From there, or from the start,
it repeats the steps between, and compares its log with the run's. It is a run like any other:
`config.yaml` has the change, and the same command, or train.pretrain with that file, resumes it.

`section.key=value` holds from that step on if it makes a run what it is, such as seed, data.source
or train.optimizer.lr. Others, such as eval.every, hold from the beginning: no step changes by them.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from configs.command import InputError, integer
from configs.files import MANIFEST, STATE, TRAINING, checkpoints_of, run_path, write_atomically
from configs.loader import flatten
from configs.parse import dump_yaml
from data.config import DataConfig
from eval.attention.history import best_head
from eval.attention.metrics import SCORES
from eval.attention.snapshots import read_all
from train.config import IDENTITY, LIMITS, RunConfig, load_run_config
from train.methods.config import PATTERNS, Change, Fork
from train.run.changes import model_folder
from train.run.checkpoint import commit, damage, read_state
from train.run.command_line import script_of
from train.run.config_checks import TRUST_HELP
from train.run.run_directory import log_sizes

# The head with the lowest score in the layer of the one with the highest.
LEAST = "least_"
# Other keys of data change the rows, but neither the text nor its tokens.
TEXT = ("data.source", "data.records", "data.chat_fields", "data.validation", "data.drop_dup")


def main() -> int:
    args = parse_arguments()
    run = run_path(args.run)
    if not (run / "config.yaml").is_file():
        raise InputError(f"{run}: is not a run (it has no config.yaml): train.pretrain makes one")
    config = plan(run, args)
    directory = config.directory
    is_new = not directory.exists()
    if is_new:
        copy(run, config)
    else:
        there = load_run_config(directory / "config.yaml")
        if (there.forked_from, there.changes) != (config.forked_from, config.changes):
            raise InputError(f"{directory} exists and is not this fork: choose another name")
    if args.prepare:
        print(f"ready: python -m {script_of(config)} {directory / 'config.yaml'} trains it")
        return 0
    sizes = log_sizes(directory)
    # The script that trains reads its own command line, as if you had typed it.
    sys.argv[1:] = [str(directory / "config.yaml"), *["--trust-hooks"] * args.trust_hooks]
    try:
        return importlib.import_module(script_of(config)).main()
    except InputError:
        if is_new and log_sizes(directory) == sizes:  # it was refused before its first step
            shutil.rmtree(directory, ignore_errors=True)
        raise


def parse_arguments() -> argparse.Namespace:
    description = __doc__.split("\n")[0].rstrip(":") + "."
    parser = argparse.ArgumentParser(prog="python -m train.fork", description=description)
    parser.add_argument("run", help="the run to continue, for example runs/small")
    key_value = "section.key=value"
    fork_name = "name=… of the fork, and other keys, for example train.optimizer.lr=0.01"
    parser.add_argument("overrides", nargs="*", metavar=key_value, help=fork_name)
    at = "the last step that both have; 0 = the start"
    parser.add_argument("--at", type=integer("--at", 0), required=True, metavar="STEP", help=at)
    steps = "the change lasts so many steps; default: to the end"
    parser.add_argument("--for", type=integer("--for", 1), dest="steps", metavar="N", help=steps)
    clamp = "hold a head's pattern: L0H2=uniform, previous, itself, or the step of another model"
    without = (
        "a head that writes nothing: L0H2; or previous_token: the head that has the highest score "
        "in the run's last look, or least_previous_token: the lowest in the same layer"
    )
    freeze = "a part that is not updated: a head (L0H2), a layer (L0), or embedding"
    data = "other text: a key below data.source, such as repeats=0.5, or below data"
    for option, about in (
        ("--clamp", clamp),
        ("--without", without),
        ("--freeze", freeze),
        ("--data", data),
    ):
        about += "; several: give it again"
        parser.add_argument(option, action="append", default=[], metavar="CHANGE", help=about)
    prepare = "only write the fork's directory; then torchrun … -m train.pretrain can train it"
    parser.add_argument("--prepare", action="store_true", help=prepare)
    parser.add_argument("--trust-hooks", action="store_true", help=TRUST_HELP)
    return parser.parse_intermixed_args()


def plan(run: Path, args: argparse.Namespace) -> RunConfig:
    """Return the config of the fork. Raises InputError if there can be no such fork."""
    file = run / "config.yaml"
    # These belong to the run itself, or to the sweep that trained it.
    overrides = ["resume=auto", "rungs=null", "outcome=null", *args.overrides]
    for text in args.data:
        name = text.partition("=")[0].partition(".")[0]
        overrides.append(f"data.{'' if name in DataConfig.model_fields else 'source.'}{text}")
    # Keys that make a run what it is hold from the fork on, and so do its limits. A path of data
    # may change in a run, but only if the text does not.
    later: list[str] = []
    begun: list[str] = []
    for text in overrides:
        key = text.partition("=")[0]
        is_limit = key in [f"train.{limit}" for limit in LIMITS]
        holds_later = key.startswith("data.") or key in IDENTITY or is_limit
        (later if holds_later else begun).append(text)
    if not any(text.startswith("name=") and text != "name=" for text in begun):
        raise InputError(f"the fork needs a name: add name=…, for example name={run.name}-fork")
    # `base` holds up to the fork, `changed` from there on. Their difference is the change.
    base = load_run_config(file, begun, trust_hooks=args.trust_hooks)
    changed = load_run_config(file, overrides, trust_hooks=args.trust_hooks)
    if base.directory.resolve() == run.resolve():
        raise InputError(f"name: {base.name} is the run itself: give the fork another name")
    if base.max_steps is None or changed.max_steps is None:
        problem = f"{run}: its schedule follows the clock (train.max_minutes)"
        raise InputError(f"{problem}, so no step can be repeated: fork a run of train.max_steps")
    # - 1: at least one step must follow with the change
    last = min(base.max_steps, changed.max_steps - 1)
    if args.at > last:
        raise InputError(f"--at {args.at}: {run} can be forked at steps 0 to {last:,}")
    limits = [text for text in later if text.startswith("train.max_")]
    if args.steps is not None and limits:
        raise InputError(f"{limits[0]}: a run has one length to its end: leave out --for")

    before = flatten(base.model_dump())
    after = flatten(changed.model_dump())
    keys = {key: value for key, value in after.items() if before.get(key, ...) != value}
    if any(key.startswith(TEXT) for key in keys) and changed.data.tokenizer.kind != "pretrained":
        # The same tokens: the tokenizer of the run, not one that the other text teaches.
        keys = {key: keys[key] for key in keys if not key.startswith("data.tokenizer.")}
        keys["data.tokenizer.kind"] = "pretrained"
        keys["data.tokenizer.path"] = str(base.directory if args.at else run)
    clamp = dict(clamp_of(run, text) for text in args.clamp)
    a_head = "a head, such as L0H2 or previous_token"
    values = {
        "at": args.at,
        "steps": args.steps,
        "clamp": clamp,
        "without": names(run, "--without", args.without, r"L\d+H\d+", a_head),
        "freeze": names(
            run, "--freeze", args.freeze, r"L\d+(H\d+)?|embedding", f"{a_head}, L0 or embedding"
        ),
        "keys": keys,
    }
    fork = Fork(run=str(run), step=args.at)
    changes = [*base.changes, Change.model_validate(values)]
    config = base.model_copy(update={"forked_from": fork, "changes": changes})
    try:
        config.check_changes()
    except ValueError as error:
        raise InputError(str(error)) from None
    config.during(args.at)  # it checks the keys
    intact = checkpoints(run)
    for step in clamp.values():
        if isinstance(step, int) and step > args.at and step not in intact:
            raise InputError(
                f"--clamp: {run} has no checkpoint of step {step:,}: name a step up to {args.at}"
            )
    return config


def clamp_of(run: Path, text: str) -> tuple[str, str | int]:
    """Read `L0H2=previous`."""
    head, _, pattern = text.partition("=")
    match = re.fullmatch(rf"{'|'.join(PATTERNS)}|\d{{1,9}}", pattern)
    head = head_of(run, head)
    if match is None or not re.fullmatch(r"L\d+H\d+", head):
        kinds = ", ".join(PATTERNS)
        raise InputError(f"--clamp {text[:40]}: write L0H2=…, with {kinds} or a step")
    return head, int(pattern) if pattern.isdecimal() else pattern


def names(run: Path, option: str, texts: list[str], pattern: str, what: str) -> list[str]:
    found = [head_of(run, text) for text in texts]
    for text in found:
        if not re.fullmatch(pattern, text):
            raise InputError(f"{option} {text[:40]}: it must be {what}; several: {option} again")
    return found


def head_of(run: Path, name: str) -> str:
    """Return `L0H2` for a score's name: the head with the highest one in the run's last look.

    least_NAME is the head with the lowest score in the same layer. Other names are returned as
    they are.
    """
    score = name.removeprefix(LEAST)
    if score not in SCORES:
        return name
    snapshots, _ = read_all(run)
    best = best_head(snapshots[-1], score) if snapshots else None
    if best is None:
        raise InputError(f"{name}: {run} has not measured {score}: name a head, such as L0H2")
    last = snapshots[-1]
    layer, head = best
    if name != score:
        head = int(np.nanargmin(last.scores[score][layer]))
    return f"L{last.layers[layer]}H{last.heads[head]}"


def checkpoints(run: Path) -> dict[int, Path]:
    """Return the checkpoints of a run that are complete: step -> folder."""
    return {step: folder for step, folder in checkpoints_of(run).items() if damage(folder) is None}


def copy(run: Path, config: RunConfig) -> None:
    """Make the fork's directory: the run as it was at a checkpoint, or before its first step."""
    assert config.forked_from is not None
    intact = checkpoints(run)
    # Models whose patterns are clamped: from a checkpoint, or the fork comes by on its way.
    models = [step for step in config.changes[-1].clamp.values() if isinstance(step, int)]
    missing = [step for step in models if step not in intact]
    before = min([config.forked_from.step, *missing])
    start = max((step for step in intact if step <= before), default=None)
    # First under another name: a fork that is killed here leaves no half of a run.
    partial = config.directory.with_name(f".{config.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    (partial / "attention").mkdir(parents=True)
    for step in models:
        if step in intact:
            without_state = shutil.ignore_patterns(TRAINING)
            shutil.copytree(intact[step], model_folder(partial, step), ignore=without_state)
    if start is not None:
        copy_checkpoint(intact[start], partial / "checkpoints")
        # the logs as they were when the run saved this state
        for name, size in read_state(intact[start]).logged.items():
            if (run / name).is_file():
                (partial / name).write_bytes((run / name).read_bytes()[:size])
        for file in (run / "attention").glob("step_????????.*"):
            if int(file.stem[5:]) <= start:
                shutil.copy(file, partial / "attention")
    write_atomically(partial / "config.yaml", dump_yaml(config.model_dump()))
    partial.rename(config.directory)


def copy_checkpoint(checkpoint: Path, folder: Path) -> None:
    state = read_state(checkpoint)
    # It has curves of its own in wandb, and no evaluation of the run comes twice.
    state = replace(state, wandb_id=None, evaluated_at=state.step)

    def fill(directory: Path) -> None:
        ignore = shutil.ignore_patterns(MANIFEST)
        shutil.copytree(checkpoint, directory, dirs_exist_ok=True, ignore=ignore)
        text = json.dumps(vars(state), indent=2) + "\n"
        (directory / TRAINING / STATE).write_text(text, encoding="utf-8")

    commit(folder, state.step, fill, keep_last=1, best_step=None)
