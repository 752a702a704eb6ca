"""What can this machine do? `python -m train.doctor [configs/x.yaml] [section.key=value ...]`

One verdict a line, as it goes, in a minute; then the settings for this config, with minutes that were measured. What is
found wrong is kept (train/machine/findings.py), and `auto` leaves it out from then on. Exit code 0: training will work
here; 2: it will not, and a line says why.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from configs.command import InputError, exit_on_bad_input
from train.config import RunConfig, load_run_config

if TYPE_CHECKING:
    from train.doctor.rehearsal import Child
    from train.doctor.speed import Timing
    from train.doctor.verdict import Verdict
    from train.machine.device import Device

DEFAULT = Path(__file__).parents[2] / "configs" / "demo.yaml"
WHOLE_S, COMPILE_S, STEPS_S = 60.0, 35.0, 5.0  # seconds: of everything; when compiling gives up; of timing each setting


class Examination:
    """Prints each verdict and keeps what follows from it."""

    def __init__(self, run: RunConfig, folder: Path) -> None:
        self.run, self.folder, self.began = run, folder, time.perf_counter()
        self.faults: dict[str, str] = {}
        self.fatal: list[str] = []
        self.can_compile = False

    def say(self, verdict: Verdict) -> Verdict:
        print(verdict.line(), flush=True)
        self.faults |= verdict.faults
        self.fatal += [verdict.what] if verdict.is_fatal else []
        return verdict

    def left(self, until: float) -> float:
        """Seconds until that many have passed since the beginning."""
        return until - (time.perf_counter() - self.began)

    def fails(self) -> int:
        """What keeps training from working, and the exit code."""
        print(f"\ntraining will not work here: {', '.join(self.fatal)}")
        return 2

    def keep(self, bf16_speed: float | None = None) -> None:
        """What was found so far, for `auto`. Without a speed, the next one who asks measures it again."""
        from train.machine.findings import Findings, remember

        remember(Findings(bf16_speed=bf16_speed, faults=self.faults, checked=time.strftime("%Y-%m-%d")))


def examine(run: RunConfig, folder: Path) -> int:
    """Everything, in an order in which nothing disturbs what is timed. Returns the exit code."""
    import torch

    from train.doctor import surroundings
    from train.machine.findings import recall
    from train.machine.load import share_of_others

    one = Examination(run, folder)
    one.say(surroundings.python())
    one.say(surroundings.packages())
    kind = _device(one)
    if one.fatal:
        return one.fails()
    one.say(surroundings.memory(kind))
    others = share_of_others()
    one.say(surroundings.load(others))
    one.say(surroundings.disk(run, folder))
    threads = torch.get_num_threads()
    with ExitStack() as stack:
        torch.set_num_threads(1)  # for what is tiny, and quicker so beside other programs
        stack.callback(torch.set_num_threads, threads)
        compiling, refusal, reporting = _children(one, kind, stack)
        for verdict in _numbers(kind, run):
            one.say(verdict)
        one.keep()
        device = _resolved(one)
        _rehearse(one, kind, device, compiling, refusal, reporting)
    one.keep(recall().bf16_speed)
    if one.fatal or device is None:
        return one.fails()
    print("\n" + _timed(one, device, others))
    return 0


def _device(one: Examination) -> str:
    """The kind of device that computes: the CPU, where `auto` finds a GPU that does not."""
    from model.backends.choice import choose_device
    from train.doctor import surroundings

    try:
        kind = choose_device(one.run.train.device).type
    except ValueError as error:
        raise InputError(f"train.device is {error}") from None
    works = not one.say(surroundings.device(kind)).faults
    if works or kind == "cpu":
        return kind
    if one.run.train.device != "auto":
        one.fatal.append(f"device {kind}")
        return kind
    one.say(surroundings.device("cpu"))
    return "cpu"


def _children(one: Examination, kind: str, stack: ExitStack) -> tuple[Child | None, str, Child | None]:
    """Compiling (or why not) and wandb, in processes of their own while other things are looked at."""
    from train.doctor.rehearsal import Child
    from train.machine.compilation import compiler_problem

    refusal = compiler_problem(kind)
    compiling = None if refusal else stack.enter_context(Child("compile_something", kind, one.folder))
    mode = one.run.tracking.wandb
    reporting = None if mode == "disabled" else stack.enter_context(Child("start_wandb", mode, one.folder))
    return compiling, refusal, reporting


def _numbers(kind: str, run: RunConfig) -> Iterator[Verdict]:
    from train.doctor import numbers

    for name in numbers.PRECISIONS:
        yield numbers.precision(name, kind)
    yield numbers.loss_scaling(kind)
    yield from numbers.all_attention(kind, run.model)


def _resolved(one: Examination) -> Device | None:
    """What this config stands for here, now that the faults are known; None where it cannot train."""
    from train.doctor.speed import refused
    from train.doctor.verdict import Verdict
    from train.fits import check_memory
    from train.machine.device import resolve_device

    try:
        device = resolve_device(one.run)
        check_memory(one.run, device, 1)
        problem = refused(device)
    except InputError as error:
        problem = str(error)
    if problem:
        one.say(Verdict("FAIL", "this config", problem, is_fatal=True))
        return None
    one.say(Verdict("ok", "this config", "; ".join(device.notes)))
    return device


def _rehearse(
    one: Examination, kind: str, device: Device | None, compiling: Child | None, refusal: str, reporting: Child | None
) -> None:
    from train.doctor import rehearsal

    if device is not None:
        one.say(rehearsal.save_and_resume(kind, device.precision, one.folder))
    one.say(rehearsal.wandb_verdict(one.run.tracking.wandb, reporting, one.left(COMPILE_S)))
    verdict = one.say(rehearsal.compile_verdict(kind, compiling, refusal, one.left(COMPILE_S)))
    one.can_compile = verdict.state == "ok"


def _timed(one: Examination, device: Device, others: float) -> str:
    """Real steps, and what they recommend. others: share of the CPU that other programs use."""
    from train.doctor.speed import candidates, recommendation, time_step

    found: list[Timing | None] = []
    for candidate in candidates(one.run, device):
        limit = min(STEPS_S, one.left(WHOLE_S))
        if limit > 1 or not found:
            found.append(time_step(one.run, candidate, max(1.0, limit), others))
    return recommendation(one.run, [timing for timing in found if timing is not None], one.can_compile, others)


def main() -> int:
    parser = argparse.ArgumentParser(description="Say what this machine can do, in a minute.")
    parser.add_argument("config", nargs="?", default=str(DEFAULT), help="a YAML file; default: configs/demo.yaml")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="for example train.precision=fp32")
    arguments = parser.parse_intermixed_args()
    path, overrides = arguments.config, arguments.overrides
    if "=" in path and not Path(path).is_file():  # the config was left out
        path, overrides = str(DEFAULT), [path, *overrides]
    run = load_run_config(path, overrides)

    from train.budget import with_vocabulary

    run, _ = with_vocabulary(run)
    beside = next(folder for folder in Path(run.output_dir, "x").absolute().parents if folder.is_dir())
    try:
        with tempfile.TemporaryDirectory(prefix=".headlight-doctor-", dir=beside, ignore_cleanup_errors=True) as folder:
            return examine(run, Path(folder))
    except OSError as error:
        raise InputError(f"output_dir: {beside} cannot be written ({error.strerror}): choose another one") from None


if __name__ == "__main__":
    exit_on_bad_input(main)
