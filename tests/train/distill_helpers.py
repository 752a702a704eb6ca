"""What the tests of distillation share: a small student, and its config."""

from __future__ import annotations

from pathlib import Path

from data.prepare import open_prepared
from tests.train.helpers import metrics, pretrain, write_config
from train.config import load_run_config
from train.distill import OwnText, main

SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}


def student_config(folder, teacher, distill=None, **sections):
    distill = {"teacher": str(teacher)} | (distill or {})
    train = {"max_steps": 6, "checkpoint_every": 3, "trace": True} | sections.pop("train", {})
    model = SMALL | {"hidden_dropout": 0.1} | sections.pop("model", {})
    eval_ = {"hooks": ["validation"], "every": 0}
    return write_config(folder, name="student", distill=distill, train=train, model=model, eval=eval_, **sections)


def last_line(run, split="train"):
    return [line for line in metrics(run) if line["split"] == split][-1]


def own_text(config, **changes):
    pretrain(config, "name=prepared", "train.max_steps=1", script=main)
    [folder] = (config.parent / "runs/.prepared").glob("*/manifest.json")
    return OwnText(load_run_config(config, [f"{k}={v}" for k, v in changes.items()]), open_prepared(folder.parent))


def begun(folder: Path, steps: int = 30) -> Path:
    """A run that knows the text, after some steps."""
    folder.mkdir(exist_ok=True)
    pretrain(write_config(folder, name="teacher", train={"max_steps": steps}, eval={"hooks": []}))
    return folder / "runs/teacher"
