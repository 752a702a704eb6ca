"""A tiny model in training, for the tests of checkpoints: no data, no command line, a few
milliseconds a step.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from data.config import TokenizerConfig
from data.tokenizer import train_tokenizer
from model import LanguageModel
from tests.conftest import tiny_config
from train.config import OptimizerConfig
from train.machine.distributed import World
from train.optimizer import build_optimizers
from train.run.checkpoint import TrainerState, load_checkpoint, save_checkpoint

TOKENIZER = train_tokenizer(TokenizerConfig(kind="byte"), [])


def world() -> World:
    return World(dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else World()


@dataclass
class Training:
    lm: LanguageModel
    optimizers: list[torch.optim.Optimizer]
    state: TrainerState

    def steps(self, count: int) -> None:
        """Steps on random rows with dropout: what a step does depends on the random state as well."""
        self.lm.train()
        for _ in range(count):
            ids = torch.randint(0, 192, (2, 16))
            loss_sum, trained = self.lm(ids, labels=ids)
            (loss_sum / trained).backward()
            for optimizer in self.optimizers:
                optimizer.step()
                optimizer.zero_grad()
            self.state.step += 1

    def save(self, checkpoints: Path, keep_last: int = 2, keep_best: bool = True) -> Path:
        return save_checkpoint(
            checkpoints, self.lm, self.optimizers, TOKENIZER, self.state, keep_last, keep_best, world()
        )

    def load(self, directory: Path) -> "Training":
        self.state = load_checkpoint(directory, self.lm, self.optimizers, world())
        return self


def edit_state(checkpoint: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Let a checkpoint have been saved with another trainer_state.json; its manifest agrees."""
    state = json.loads((checkpoint / "training/trainer_state.json").read_text())
    change(state)
    raw = json.dumps(state, indent=2).encode() + b"\n"
    (checkpoint / "training/trainer_state.json").write_bytes(raw)
    manifest = json.loads((checkpoint / "training/manifest.json").read_text())
    entry = {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    manifest["training/trainer_state.json"] = entry
    (checkpoint / "training/manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")


def training(seed: int = 0, **changes) -> Training:
    torch.manual_seed(seed)
    lm = LanguageModel(tiny_config(hidden_dropout=0.1, **changes))
    return Training(lm, build_optimizers(lm, OptimizerConfig()), TrainerState())
