"""What is attacked: a tiny run with text beyond ASCII, trained once a session; every case damages a copy of its own."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

from tests.train.helpers import pretrain

CONFIG = {
    "output_dir": "runs",
    "name": "tiny",
    "model": {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1},
    "data": {
        "source": {"kind": "files", "path": "text.txt"},
        "tokenizer": {"kind": "byte"},
        "sequence_length": 32,
    },
    "train": {
        "max_steps": 4,
        "tokens_per_step": 128,
        "log_every": 1,
        "checkpoint_every": 2,
        "keep_last": 2,
        "precision": "fp32",
        "compile": False,
    },
    "eval": {"every": 2, "sample_tokens": 8, "prompts": ["Füße 猫 "], "attention": {"every": 2, "max_tokens": 8}},
    "tracking": {"wandb": "disabled"},
}


def write_config(folder: Path, **sections) -> Path:
    """tiny.yaml and its text, in an empty folder; keyword arguments replace keys of a section or top-level keys."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = (f"{i} die Füße der Katze 猫 sat on mat number {i * 7 % 13}.\n" for i in range(60))
    (folder / "text.txt").write_text("".join(lines), encoding="utf-8")
    values = dict(CONFIG)
    for key, value in sections.items():
        values[key] = values.get(key, {}) | value if isinstance(value, dict) else value
    path = folder / "tiny.yaml"
    path.write_text(json.dumps(values), encoding="utf-8")  # JSON is YAML
    return path


def own_folder() -> Path:
    """A folder of this process, removed at its end."""
    folder = Path(tempfile.mkdtemp(prefix="headlight-attack-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def _trained() -> Path:
    """A finished run, in a folder of this process."""
    folder = own_folder()
    here = Path.cwd()
    os.chdir(write_config(folder).parent)
    try:
        pretrain(Path("tiny.yaml"))
    finally:
        os.chdir(here)
    return folder


def trained(folder: Path) -> Path:
    """A copy of the finished run in this folder: tiny.yaml, text.txt, runs/tiny, runs/.prepared. Returns runs/tiny."""
    shutil.copytree(_trained(), folder, dirs_exist_ok=True)
    return folder / "runs" / "tiny"


def foreign(folder: Path) -> Path:
    """The same, and beside it the model of its last checkpoint as somebody else would give it: `model`, without the
    manifest by which Headlight knows its own files. Returns that folder."""
    checkpoint = trained(folder) / "checkpoints" / "step_00000004"
    return Path(shutil.copytree(checkpoint, folder / "model", ignore=shutil.ignore_patterns("training")))
