"""What can this machine do? `python -m train.doctor [configs/x.yaml] [section.key=value ...]`

One verdict a line, as it goes, in a minute; then the settings for this config, with minutes that were measured. What is
found wrong is kept (train/machine/machine_cache.py), and `auto` leaves it out from then on. Exit code 0: training will
work here; 2: it will not, and a line says why.
"""

from __future__ import annotations

import argparse
import tempfile
import textwrap
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from configs.command import InputError, exit_on_bad_input
from model.backends.choice import BACKENDS, choose_device
from train.budget import with_vocabulary
from train.config import RunConfig, load_run_config
from train.doctor import checks, speed
from train.machine.device import resolve_device
from train.machine.hardware import share_of_others
from train.machine.machine_cache import Findings, recall, remember

DEFAULT = Path(__file__).parents[2] / "configs" / "demo.yaml"
WIDTH, INDENT = 118, 32


def main() -> int:
    parser = argparse.ArgumentParser(description="Say what this machine can do, in a minute.")
    parser.add_argument("config", nargs="?", default=str(DEFAULT), help="a YAML file; default: configs/demo.yaml")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="for example train.precision=fp32")
    arguments = parser.parse_intermixed_args()
    path, overrides = arguments.config, arguments.overrides
    if "=" in path and not Path(path).is_file():  # the config was left out
        path, overrides = str(DEFAULT), [path, *overrides]
    run, _ = with_vocabulary(load_run_config(path, overrides))
    beside = next(folder for folder in Path(run.output_dir, "x").absolute().parents if folder.is_dir())
    try:
        with tempfile.TemporaryDirectory(prefix=".headlight-doctor-", dir=beside, ignore_cleanup_errors=True) as folder:
            return examine(run, Path(folder))
    except OSError as error:
        raise InputError(f"output_dir: {beside} cannot be written ({error.strerror}): choose another one") from None


class Verdicts:
    """Prints each one, and keeps what follows from it."""

    def __init__(self) -> None:
        self.faults: dict[str, str] = {}
        self.fatal: list[str] = []

    def check(self, what: str, test: Callable[[], str], fault: str = "", is_fatal: bool = False) -> bool:
        """Whether a test ends well; then it returns what it found, in words.

        fault: what `auto` must not take from here on, if it does not (machine_cache.Findings). is_fatal: training will
        not work then.
        """
        faults: dict[str, str] = {}
        try:
            state, said = "ok", test()
        except checks.Unwell as verdict:
            state, said, faults = verdict.state, str(verdict), verdict.faults
        except InputError as error:
            state, said = "FAIL", str(error)
        except Exception as error:  # a check is there to find them
            state, said = "FAIL", checks.in_short(error)
        if state == "FAIL" and fault:
            faults = {fault: said}
        self.faults |= faults
        self.fatal += [what] if state == "FAIL" and is_fatal else []
        said += "; auto leaves it out" if faults else ""
        line = f"{state:<6}{what:<{INDENT - 6}}{said}"
        print(textwrap.fill(line, WIDTH, subsequent_indent=" " * INDENT, break_long_words=False), flush=True)
        return state == "ok"

    def remember(self, bf16_speed: float | None = None) -> None:
        """Keep what was found so far, for `auto`. Without a speed, the next one who asks measures it again."""
        remember(Findings(bf16_speed=bf16_speed, faults=self.faults, checked=time.strftime("%Y-%m-%d")))


def examine(run: RunConfig, folder: Path) -> int:
    """Everything, one after the other, so that nothing disturbs what is timed. Returns the exit code."""
    verdicts = Verdicts()
    verdicts.check("Python and packages", checks.packages, is_fatal=True)
    try:
        kind = choose_device(run.train.device).type
    except ValueError as error:
        raise InputError(f"train.device is {error}") from None
    is_only_choice = kind == "cpu" or run.train.device != "auto"
    works = verdicts.check(f"device {kind}", partial(checks.device, kind), f"device {kind}", is_fatal=is_only_choice)
    if not works and not is_only_choice:
        kind = "cpu"
        verdicts.check("device cpu", partial(checks.device, kind), is_fatal=True)
    if verdicts.fatal:
        return refuse(verdicts)
    others = share_of_others()
    verdicts.check("room", partial(checks.room, run, kind, folder, others), is_fatal=True)
    for name in ("fp32", "tf32", "bf16", "fp16"):
        is_needed = name == "fp32"
        verdicts.check(
            f"precision {name}", partial(checks.precision, name, kind), f"precision {kind} {name}", is_needed
        )
    for name in BACKENDS:
        verdicts.check(f"attention {name}", partial(checks.attention, name, kind, run.model))
    verdicts.remember()  # what this config stands for here depends on it
    verdicts.check("this config", partial(checks.this_config, run), is_fatal=True)
    if verdicts.fatal:
        return refuse(verdicts)
    device = resolve_device(run)
    verdicts.check("save and resume", partial(checks.save_and_resume, kind, device.precision, folder), is_fatal=True)
    can_compile = verdicts.check("torch.compile", partial(checks.compiling, kind, folder), f"compile {kind}")
    verdicts.remember(recall().bf16_speed)
    if verdicts.fatal:
        return refuse(verdicts)
    timings = [speed.time_step(run, candidate) for candidate in speed.candidates(run, device)]
    print("\n" + speed.recommendation(run, [one for one in timings if one is not None], can_compile, others))
    return 0


def refuse(verdicts: Verdicts) -> int:
    """What keeps training from working, and the exit code."""
    print(f"\ntraining will not work here: {', '.join(verdicts.fatal)}")
    return 2


if __name__ == "__main__":
    exit_on_bad_input(main)
