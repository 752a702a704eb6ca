"""Where figures go: metrics.jsonl always, a progress bar, and wandb on top. A tracker never stops a run."""

from __future__ import annotations

import json
import os
import secrets
import sys
from pathlib import Path
from typing import Any

from tqdm import tqdm

from train.config import RunConfig


def truncate_after(file: Path, step: int) -> None:
    """Drop the lines of a .jsonl file that are later than `step`: the run goes on from there."""
    if not file.is_file():
        return
    kept = []
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line + "\n")
        except (ValueError, KeyError):
            continue  # a line cut off when the process was killed
    temporary = file.with_suffix(".tmp")
    temporary.write_text("".join(kept), encoding="utf-8")
    temporary.replace(file)


def append_line(file: Path, record: dict[str, Any]) -> None:
    with file.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(record, ensure_ascii=False) + "\n")


class Tracker:
    """One run's metrics.jsonl, progress bar and wandb run."""

    def __init__(self, config: RunConfig, start_step: int, wandb_id: str | None):
        self.file = config.directory / "metrics.jsonl"
        truncate_after(self.file, start_step or -1)  # a fresh start begins with an empty file
        self.bar = tqdm(
            total=config.train.max_steps,
            initial=start_step,
            desc=config.name,
            unit="step",
            dynamic_ncols=True,
            mininterval=0.5,
            bar_format="{desc} {percentage:3.0f}%|{bar:20}| {n}/{total} [{elapsed}<{remaining}{postfix}]",
            disable=None,  # only on a terminal
        )
        self.wandb_id = wandb_id
        self._wandb: Any = None
        self._start_wandb(config)

    def log(self, split: str, step: int, tokens: int, time_s: float, values: dict[str, Any]) -> None:
        """One line of metrics.jsonl; the same figures go to wandb as `train/loss`, `val/loss`, …"""
        record = {"step": step, "tokens": tokens, "time_s": round(time_s, 3), "split": split, **values}
        append_line(self.file, record)
        self._to_wandb({f"{split}/{key}": value for key, value in values.items()}, step)

    def log_image(self, name: str, path: Path, step: int) -> None:
        """A picture that lies on the disk, to wandb."""
        if self._wandb is not None:
            import wandb

            self._to_wandb({name: wandb.Image(str(path))}, step)

    def progress(self, step: int, **shown: str) -> None:
        self.bar.set_postfix(shown, refresh=False)
        self.bar.update(step - self.bar.n)

    def say(self, text: str) -> None:
        """Print a line without tearing the progress bar."""
        try:
            self.bar.write(text, file=sys.stdout)
            sys.stdout.flush()
        except BrokenPipeError:  # whoever read along (head, less) has left: the run goes on without
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def close(self, exit_code: int = 0) -> None:
        self.bar.close()
        if self._wandb is not None:
            self._guard(lambda: self._wandb.finish(exit_code=exit_code))

    def _start_wandb(self, config: RunConfig) -> None:
        if config.tracking.wandb == "disabled":
            return

        def start() -> None:
            import wandb

            self.wandb_id = self.wandb_id or secrets.token_hex(4)
            self._wandb = wandb.init(
                project=config.tracking.project,
                name=config.name,
                id=self.wandb_id,
                resume="allow",
                mode=config.tracking.wandb,
                dir=str(config.directory),
                config=config.model_dump(),
                settings=wandb.Settings(silent=True),
            )
            self._wandb.define_metric("step")
            self._wandb.define_metric("*", step_metric="step")

        self._guard(start)

    def _to_wandb(self, values: dict[str, Any], step: int) -> None:
        if self._wandb is not None:
            self._guard(lambda: self._wandb.log({**values, "step": step}))

    def _guard(self, action: Any) -> None:
        """A tracker that fails is switched off; the run goes on."""
        try:
            action()
        except Exception as error:
            self._wandb = None
            self.say(f"warning: wandb is off from here: {type(error).__name__}: {error}")
