"""How is a run started, and what does `--help` say? Which configs there are, what people change, where a run goes."""

from __future__ import annotations

import re
import textwrap
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

import configs
from configs.command import InputError
from configs.schema import fields
from train.config import RunConfig, add_trust_option, load_run_config

WIDTH = 100
COLUMN = 38  # where the explanations begin
MOST_CHANGED = (
    "name=mine",
    "data.source=my.txt",
    "model.num_key_value_heads=mqa",
    "model.attn_implementation=eager",
    "model.hidden_size=384",
    "model.num_hidden_layers=8",
    "train.max_steps=500",
    "train.max_minutes=10",
    "train.tokens_per_step=16384",
    "train.optimizer.lr=0.01",
    "train.device=cpu",
    "eval.every=50",
    "init_from=runs/demo",
    "seed=1",
)
METHODS = {
    "train.sft": "sft",
    "train.dpo": "dpo",
    "train.grpo": "grpo",
    "train.distill": "distill",
}  # script -> what the names of its configs hold
AFTERWARDS = """
The run goes to runs/<name>, by default the config's name. It holds checkpoints, figures, samples, report.md and
attention/viewer.html. live.html shows the heads while it trains. To resume after Ctrl-C, a crash or a kill, type the
same command again. A finished run prints its result again; name=… starts another one. To train longer, raise
train.max_steps.
All keys, a sentence each: docs/configuration.md.
"""


def parse_command_line(
    description: str, example: str = "configs/demo.yaml", script: str = "train.pretrain"
) -> RunConfig:
    """`configs/x.yaml [section.key=value ...]` -> RunConfig. script: whose command line it is."""
    parser = Parser(script, description)
    parser.add_argument("config", nargs="?", help=f"a YAML file, for example {example.split()[0]}")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="for example seed=1")
    add_trust_option(parser)
    arguments = parser.parse_intermixed_args()
    if arguments.config is None or "=" in Path(arguments.config).name:
        raise InputError(f"name a config: python -m {script} {example} (--help lists the configs and the main keys)")
    return load_run_config(arguments.config, arguments.overrides, trust_hooks=arguments.trust_hooks)


class Parser(ArgumentParser):
    """An argparse parser whose help is put together only if somebody asks for it."""

    def __init__(self, script: str, description: str):
        usage = f"python -m {script} configs/x.yaml [section.key=value ...] [--trust-hooks]"
        super().__init__(usage=usage, description=description, formatter_class=RawDescriptionHelpFormatter)
        self.method = METHODS.get(script, "")

    def format_help(self) -> str:
        """What argparse says, and all that this file adds."""
        shipped = [
            (f"configs/{file.name}", first_sentence(file))
            for file in sorted(Path(configs.__file__).parent.glob("*.yaml"))
            if next((method for method in METHODS.values() if method in file.stem), "") == self.method
        ]
        meanings = {".".join(path): field.description or "" for path, field in fields(RunConfig)}
        changed = [(example, meanings[example.partition("=")[0]]) for example in MOST_CHANGED]
        begin = f"{self.method}_demo" if self.method else "demo"
        parts = [
            f"configs, of which configs/{begin}.yaml is the one to begin with:",
            *_rows(shipped),
            "",
            "what people change most:",
            *_rows(changed),
        ]
        self.epilog = "\n".join([*parts, AFTERWARDS.rstrip()])
        return super().format_help()


def first_sentence(file: Path) -> str:
    """How a shipped config introduces itself."""
    lines = file.read_text(encoding="utf-8").splitlines()
    end = next((number for number, line in enumerate(lines) if not line.startswith("# ") or "$schema" in line), 0)
    return re.split(r"(?<=[.:])\s(?=[A-Z ])", " ".join(line[2:] for line in lines[:end]))[0].rstrip(":")


def _rows(pairs: list[tuple[str, str]]) -> list[str]:
    rows = []
    for name, text in pairs:
        first, *more = textwrap.wrap(text, WIDTH - COLUMN) or [""]
        rows += [f"  {name:<{COLUMN - 4}}  {first}", *(" " * COLUMN + line for line in more)]
    return rows
