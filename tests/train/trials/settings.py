"""Which run does a trial kill? Small random settings, the same ones for the same seed."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LENGTH = 32  # tokens in a row; conversations need more
CHAT_LENGTH = 96
QUESTIONS_LENGTH = 512


@dataclass(frozen=True)
class Setting:
    """One run. values: its YAML. base: values of the run that it starts from (train.sft). threads: of PyTorch.

    draws: whether the pictures at the end are drawn, which takes seconds; the viewer is always written.
    """

    number: int
    values: dict[str, Any]
    base: dict[str, Any] | None
    threads: int
    draws: bool
    kinds: dict[str, str] = field(default_factory=dict)

    @property
    def module(self) -> str:
        """Whose command it is."""
        return "train.sft" if self.base else "train.pretrain"

    @property
    def in_words(self) -> str:
        """The choices that the summary counts by."""
        return " ".join(self.kinds.values())


def draw(seed: int, number: int, *, compiles: bool = False) -> Setting:
    """Setting `number` of this seed."""
    dice = random.Random(f"setting {seed} {number}")
    kind = dice.choices(("files", "storyworld", "mix", "chats", "questions", "sft"), (4, 2, 1, 2, 1, 2))[0]
    is_chat = kind in ("chats", "questions", "sft")
    length = QUESTIONS_LENGTH if kind == "questions" else CHAT_LENGTH if is_chat else LENGTH
    precision = dice.choices(("fp32", "bf16", "fp16", "auto"), (5, 3, 1, 1))[0]
    model, heads = _model(dice, half=precision == "bf16")
    if kind == "questions":  # rows are long
        model |= {"hidden_size": 16, "num_hidden_layers": 1}
    if compiles:
        precision, model = "fp32", model | {"attn_implementation": "auto"}
    optimizer = dice.choice(("muon", "adamw"))
    train, amounts = _train(dice, length, precision, optimizer, compiles)
    values = {
        "name": "tiny",
        "output_dir": "runs",
        "seed": dice.randrange(100),
        "model": model,
        "data": _data(dice, kind, length),
        "train": train,
        "eval": _evaluation(dice, asks=kind == "questions"),
        "tracking": {"wandb": "disabled"},
    }
    base = None
    if kind == "sft":
        base = values | {
            "name": "base",
            "data": {"source": _text(), "tokenizer": {"kind": "byte"}, "sequence_length": LENGTH},
            "train": {"max_steps": 2, "tokens_per_step": 128, "precision": "fp32", "checkpoint_every": 0},
            "eval": {"hooks": []},
        }
        values["init_from"] = "runs/base"
    threads = dice.choice((1, 2))
    kinds = {
        "data": kind,
        "heads": heads,
        "optimizer": optimizer,
        "precision": precision,
        "attention": model["attn_implementation"],
        "dropout": "dropout" if model["hidden_dropout"] or model["attention_dropout"] else "none",
        "threads": f"{threads} threads",
        "compile": "compiled" if compiles else "plain",
        "length": amounts,
    }
    draws = dice.random() < 0.02
    if dice.random() < 0.3:  # they add up their gradients once a step
        kinds["threads"], train["processes"], threads = "2 processes", 2, 2
        values["data"]["rows_joined"] = 1
    return Setting(number, values, base, threads, draws, kinds)


def write(setting: Setting, folder: Path) -> Path:
    """The setting's YAML and texts in an empty folder; its commands run there. Returns the YAML."""
    folder.mkdir(parents=True)
    lines = [f"{i} die Füße der Katze 猫 sat on mat number {i * 7 % 13}.\n" for i in range(240)]
    (folder / "text.txt").write_text("<|endoftext|>".join(map("".join, zip(*[iter(lines)] * 4))), encoding="utf-8")  # noqa: B905
    chats = [
        {"messages": [{"role": "user", "content": "Count."}, {"role": "assistant", "content": "one, " * (1 + i % 9)}]}
        for i in range(120)
    ]
    (folder / "chats.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats), encoding="utf-8")
    if setting.base:
        (folder / "base.yaml").write_text(json.dumps(setting.base), encoding="utf-8")
    path = folder / "tiny.yaml"
    path.write_text(json.dumps(setting.values), encoding="utf-8")  # JSON is YAML
    return path


def _model(dice: random.Random, half: bool) -> tuple[dict[str, Any], str]:
    heads = dice.choice(("mha", "gqa", "mqa"))
    dropout = dice.random() < 0.5
    attention_dropout = dice.choice((0.0, 0.1)) if dropout else 0.0
    backends = ["auto", "auto", "eager", "sdpa"]
    if not attention_dropout:
        backends += ["flash", *(["blocked"] if half else [])]
    model = {
        "hidden_size": dice.choice((16, 32, 48)),
        "num_hidden_layers": dice.choice((1, 2, 2, 3)),
        "num_attention_heads": 4,
        "num_key_value_heads": heads,
        "qk_norm": dice.random() < 0.8,
        "tie_word_embeddings": dice.random() < 0.7,
        "attention_dropout": attention_dropout,
        "hidden_dropout": dice.choice((0.1, 0.3)) if dropout else 0.0,
        "sliding_window": dice.choice((None, None, None, 8)),
        "attn_implementation": dice.choice(backends),
    }
    return model, heads


def _text() -> dict[str, Any]:
    return {"kind": "files", "path": "text.txt"}


def _data(dice: random.Random, kind: str, length: int) -> dict[str, Any]:
    stories = {"kind": "storyworld", "documents": dice.choice((30, 60)), "validation_documents": 8}
    source: dict[str, Any] = {
        "files": _text(),
        "storyworld": stories | {"repeats": dice.choice((0.0, 0.3))},
        "mix": {"kind": "mix", "parts": [{"weight": 2, "source": _text()}, {"source": stories}]},
        "chats": {"kind": "files", "path": "chats.jsonl"},
        "questions": stories | {"chats": "questions"},
        "sft": {"kind": "files", "path": "chats.jsonl"},
    }[kind]
    is_chat = kind in ("chats", "questions", "sft")
    isolated = dice.random() < 0.5
    data: dict[str, Any] = {
        "source": source,
        "records": "conversations" if is_chat else "text",
        "tokenizer": {"kind": "byte"},
        "sequence_length": length,
        "isolate_documents": isolated,
        "restart_positions": isolated and dice.random() < 0.5,
        "validation_fraction": 0.1,
    }
    if kind == "questions" or (kind == "storyworld" and dice.random() < 0.5):
        data["tokenizer"] = {"kind": "bpe", "vocab_size": 1024 if kind == "questions" else 512}
    if is_chat:
        data["rows_joined"] = dice.choice(("auto", 1))
    return data


def _train(
    dice: random.Random, length: int, precision: str, optimizer: str, compiles: bool
) -> tuple[dict[str, Any], str]:
    rows, steps = (
        dice.choice((2, 4) if length > CHAT_LENGTH else (4, 8) if length > LENGTH else (4, 8, 12)),
        dice.randint(20, 44),
    )
    tokens = rows * length
    by = dice.choice(("max_steps", "max_tokens"))
    micro = dice.choice(("auto", "auto", 2, rows // 2))
    train = {
        by: steps if by == "max_steps" else steps * tokens - dice.randrange(tokens),
        "tokens_per_step": tokens,
        "micro_batch_size": micro,
        "schedule": dice.choice(("wsd", "cosine", "constant")),
        "warmup_steps": dice.choice((0, 3)),
        "grad_clip": dice.choice((1.0, 0.0)),
        "precision": precision,
        "compile": True if compiles else dice.choice(("auto", False)),
        "activation_checkpointing": not compiles and dice.random() < 0.15,
        "log_every": dice.choice((1, 1, 3)),
        "checkpoint_every": dice.choice((0, 2, 3, 5, 7)),
        "keep_last": dice.randint(1, 3),
        "keep_best": dice.random() < 0.7,
        "trace": dice.random() < 0.5,
        "optimizer": {"name": "muon"} if optimizer == "muon" else {"name": "adamw", "lr": 0.003},
    }
    return train, by


def _evaluation(dice: random.Random, asks: bool) -> dict[str, Any]:
    looks = dice.choice((0, 0, 4, 9))
    evaluation = {
        "every": dice.choice((0, 3, 5, 8)),
        "max_tokens": dice.choice((None, 256)),
        "floor_documents": 4,
        "prompts": dice.choice(([""], ["猫 sat", "The"])),
        "sample_tokens": dice.randint(1, 5),
        "questions": 2 if asks else 0,
        "attention": {"every": looks, "early": dice.choice(([], [0, 1, 6])), "max_tokens": 12},
    }
    if dice.random() < 0.3:
        samples = {"name": "samples", "every": dice.choice((2, 7)), "early": [0, 1]}
        evaluation["hooks"] = [samples, "validation", "questions", "attention"]
    return evaluation
