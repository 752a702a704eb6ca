"""A trial: a run is killed four times at random moments, then goes to its end, and must equal the undisturbed one."""

from __future__ import annotations

import json
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.processes import start
from tests.train.trials.compare import checkpoints_kept, difference, leftovers
from tests.train.trials.lives import PHASES, End, Pace, live
from tests.train.trials.settings import Setting, write

KILLS = 4
MOST_KILLS = 8  # if the first four all came before a checkpoint, up to four more
LIFE_S = 3600  # of a machine that is busy with other things
AT_THE_END = ["complete", "draw", "report"]  # phases after the last step


@dataclass(frozen=True)
class Undisturbed:
    """The run that no signal came to. pace: what took how long."""

    folder: Path
    pace: Pace

    @cached_property
    def run(self) -> Path:
        return self.folder / "runs/tiny"


@dataclass
class Trial:
    """What came out. problem: "" if all is equal. ends: how its lives ended, in words. resumed: lives that trained a
    step after a checkpoint. steps: trained in all, again and again."""

    number: int
    setting: Setting
    problem: str = ""
    ends: list[str] = field(default_factory=list)
    resumed: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        verdict = f"DIFFERS {self.problem}" if self.problem else "equal"
        return (
            f"{self.number:4d} {verdict}   [{self.setting.number}: {self.setting.in_words}] "
            f"{', '.join(self.ends)}; {self.resumed} resumed; {self.seconds:.1f} s"
        )


def undisturbed(setting: Setting, folder: Path) -> Undisturbed:
    """Run a setting without any signal. Raises RuntimeError if that fails."""
    write(setting, folder)
    if setting.base:
        code = _life("train.pretrain", setting, folder, "base.yaml", None, None)
        if code:
            raise RuntimeError(f"{folder}: the run to start from ended with {code}")
        folder.with_suffix(".lives").unlink()
        shutil.copytree(folder / "runs", folder.with_suffix(".base"))
    code = _life(setting.module, setting, folder, "tiny.yaml", None, None)
    if code:
        raise RuntimeError(f"{folder}: the undisturbed run ended with {code}: {_last_line(folder)}")
    notes = _notes(folder)
    phases = {name: [note["seconds"] for note in notes if note.get("phase") == name] for name in PHASES}
    first = next(note["start"] for note in notes if "start" in note)
    cpu = next(note["work_of_a_step"] for note in notes if "work_of_a_step" in note)
    pace = Pace(first, cpu, {name: sum(found) / len(found) for name, found in phases.items() if found})
    return Undisturbed(folder, pace)


def attempt(
    number: int, seed: int, setting: Setting, whole: Undisturbed, folder: Path, ends: Sequence[End] = ()
) -> Trial:
    """Kill a run of this setting four times, let it end, and compare. The folder is removed if all is equal.

    ends: instead of random ones.
    """
    began, dice, trial = time.monotonic(), random.Random(f"trial {seed} {number}"), Trial(number, setting)
    write(setting, folder)
    if setting.base:
        shutil.copytree(whole.folder.with_suffix(".base"), folder / "runs")
    code = None
    kills = len(ends) or KILLS
    while len(trial.ends) < max(kills, MOST_KILLS) and (len(trial.ends) < kills or not trial.resumed):
        done = len(trial.ends)
        is_last = done == KILLS - 1 and trial.resumed > 0
        end = ends[done] if done < len(ends) else _end(dice, setting, whole, is_last=is_last, is_extra=done >= kills)
        before = len(_notes(folder))
        code = _life(setting.module, setting, folder, "tiny.yaml", end, whole.pace)
        if code == 0:  # it was killed after its result was written, or the signal was let pass
            break
        trial.ends.append(_in_words(end, code))
        if not _is_expected(end, code):
            trial.problem = f"ended with exit code {code}: {_last_line(folder)}"
            break
        trial.resumed += any(note.get("trained", 0) > 0 for note in _notes(folder)[before:])
    if not trial.problem and code != 0:
        before = len(_notes(folder))
        code = _life(setting.module, setting, folder, "tiny.yaml", None, None)
        trial.resumed += any(note.get("trained", 0) > 0 for note in _notes(folder)[before:])
        if code:
            trial.problem = f"the last life ended with exit code {code}: {_last_line(folder)}"
    trial.problem = trial.problem or _verdict(trial, whole, folder)
    if not trial.problem:
        for path in (folder, folder.with_suffix(".out"), folder.with_suffix(".lives")):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    else:
        trial.problem += f"   (kept: {folder} and {whole.folder})"
    trial.seconds = time.monotonic() - began
    return trial


def _verdict(trial: Trial, whole: Undisturbed, folder: Path) -> str:
    if not trial.ends or not trial.resumed:
        return "vacuous: no kill came, or nothing was resumed"
    if left := leftovers(folder / "runs"):
        return f"left over: {', '.join(left[:5])}"
    kept, wanted = checkpoints_kept(folder / "runs/tiny"), checkpoints_kept(whole.run)
    if kept != wanted:
        return f"checkpoints: {_shown(kept)}, and undisturbed {_shown(wanted)}"
    return difference(folder / "runs/tiny", whole.run)


def _end(dice: random.Random, setting: Setting, whole: Undisturbed, *, is_last: bool, is_extra: bool) -> End:
    """How a life ends: SIGKILL mostly."""
    number = dice.choices((signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP), (70, 14, 8, 8))[0]
    every = setting.values["train"]["checkpoint_every"]
    if is_extra:  # certainly behind a checkpoint, and in training
        gentle = number if every else signal.SIGTERM
        return End(gentle, "train", dice.uniform(0.3, 1), steps=every + 2 if every else 6)
    phases = [name for name in whole.pace.phases if name not in AT_THE_END] + ["evaluate"]
    if is_last:
        phases += AT_THE_END * 2
    where = dice.choices(("train", "start", "phase"), (45, 10, 45))[0]
    if where == "phase":
        where = dice.choice(phases)
    steps = max(4, dice.randint(1, 3) + every)
    if where in AT_THE_END:
        steps = 10**6
    entry = dice.choice((1, 1, 2, 3, 4)) if where in ("save", "evaluate") else 1
    if where in ("save", "evaluate") and dice.random() < 0.2:
        return End(number, where, dice.choice((0, 1)), dice.choice((0, 1, 2)), steps=steps)
    at = dice.random()
    return End(number, where, at, entry, dice.random() < 0.15 and number != signal.SIGKILL, steps)


def _life(module: str, setting: Setting, folder: Path, config: str, end: End | None, pace: Pace | None) -> int | None:
    process = start(live, module, folder, config, setting.threads, setting.draws, end, pace)
    process.join(timeout=LIFE_S)
    if process.exitcode is None:
        process.kill()
        process.join()
        return None
    return process.exitcode


def _is_expected(end: End, code: int | None) -> bool:
    """Whether this is how a process ends that gets this signal, or at the latest after some steps a SIGKILL."""
    number = int(end.number)
    return code in (-number, 128 + number, -signal.SIGKILL)


def _notes(folder: Path) -> list[dict[str, Any]]:
    file, notes = folder.with_suffix(".lives"), []
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else []:
        try:
            notes.append(json.loads(line))
        except ValueError:  # killed while it wrote
            continue
    return notes


def _last_line(folder: Path) -> str:
    said = folder.with_suffix(".out").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return said[-1][:200] if said else "it said nothing"


def _in_words(end: End, code: int | None) -> str:
    name = signal.Signals(end.number).name[3:] + ("x2" if end.again else "")
    late = "" if code != -signal.SIGKILL or end.number == signal.SIGKILL else " late KILL"
    return f"{name} in {end.where}{late}"


def _shown(kept: dict[str, str]) -> str:
    return " ".join(f"{name}{'=' + value if value else ''}" for name, value in sorted(kept.items()))


def table(trials: list[Trial]) -> str:
    """How many of how many were equal, by each choice of the settings, and where the kills came."""
    rows = [f"{'':24}equal   of"]
    choices = sorted({pair for trial in trials for pair in trial.setting.kinds.items()})
    for key, value in choices:
        those = [trial for trial in trials if trial.setting.kinds.get(key) == value]
        rows.append(f"{key + ' ' + value:24}{sum(not t.problem for t in those):5}{len(those):5}")
    ends = Counter(end for trial in trials for end in trial.ends)
    rows += ["", "kills: " + ", ".join(f"{count} {end}" for end, count in ends.most_common())]
    equal = sum(not trial.problem for trial in trials)
    resumed = sum(trial.resumed for trial in trials)
    rows.append(f"{equal} of {len(trials)} equal; {ends.total()} kills; {resumed} lives resumed from a checkpoint")
    return "\n".join(rows)
