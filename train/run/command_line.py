"""The command line of every script that trains, and which script trains which config."""

from __future__ import annotations

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

from configs.command import InputError
from train.config import TRUST_HELP, RunConfig, load_run_config

MORE_HELP = """
What people change most:
  name=mine seed=1 data.source=my.txt init_from=runs/demo eval.every=50
    model.num_key_value_heads=mqa model.attn_implementation=eager model.hidden_size=384
  model.num_hidden_layers=8 train.max_steps=500 train.tokens_per_step=16384
  train.optimizer.lr=0.01 train.device=cpu

All keys, a sentence each: docs/configuration.md. Every file in configs/ begins with what it trains.

The run goes to runs/<name>, by default the config's name. It holds checkpoints, figures, samples,
report.md and attention/viewer.html, which shows the heads also while it trains. To resume after
Ctrl-C, a crash or a kill, type the same command again. A finished run prints its result again;
name=… starts another one. To train longer, raise train.max_steps.
"""


def parse_command_line(
    description: str, example: str = "configs/demo.yaml", script: str = "train.pretrain"
) -> RunConfig:
    """`configs/x.yaml [section.key=value ...]` -> RunConfig. script: whose command line it is."""
    usage = f"python -m {script} configs/x.yaml [section.key=value ...] [--trust-hooks]"
    parser = ArgumentParser(
        usage=usage,
        description=description,
        epilog=MORE_HELP,
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("config", nargs="?", help=f"a YAML file, for example {example.split()[0]}")
    parser.add_argument(
        "overrides", nargs="*", metavar="section.key=value", help="for example seed=1"
    )
    parser.add_argument("--trust-hooks", action="store_true", help=TRUST_HELP)
    arguments = parser.parse_intermixed_args()
    if arguments.config is None or "=" in Path(arguments.config).name:
        raise InputError(f"name a config: python -m {script} {example} (--help has more)")
    config = load_run_config(
        arguments.config, arguments.overrides, trust_hooks=arguments.trust_hooks
    )
    check_script(config, script)
    return config


# --------------------------------------------------------------------------------------------------
# which script trains it

# the scripts after train.pretrain: their section, and what data.records must be ("" = it does not
# matter)
METHODS = {
    "train.sft": ("", "conversations"),
    "train.dpo": ("dpo", "pairs"),
    "train.grpo": ("grpo", "conversations"),
    "train.distill": ("distill", ""),
}


def script_of(config: RunConfig) -> str:
    """The script that trains what a RunConfig says.

    Raises InputError where it has the sections of two.
    """
    named = [
        script
        for script, (section, _) in METHODS.items()
        if section and getattr(config, section) is not None
    ]
    if len(named) > 1:
        sections = " and ".join(METHODS[script][0] for script in named)
        raise InputError(f"the config has sections of {sections}: set all but one of them to null")
    if named or config.data.records == "pairs":
        return named[0] if named else "train.dpo"
    tunes = config.init_from is not None and config.data.records == "conversations"
    return "train.sft" if tunes else "train.pretrain"


def check_script(config: RunConfig, script: str) -> None:
    """Raises InputError where this script cannot train what a RunConfig says."""
    own, (section, records) = script_of(config), METHODS.get(script, ("", ""))
    if own != script and METHODS.get(own, ("", ""))[0]:
        named = (
            own.removeprefix("train.")
            if getattr(config, METHODS[own][0]) is not None
            else "data.records: pairs"
        )
        raise InputError(f"{script} knows nothing of `{named}`: use python -m {own}")
    if section in ("grpo", "distill") and getattr(config, section) is None:
        raise InputError(
            f"{section}: is null: {script} needs this section, as "
            f"configs/{section}_demo.yaml has it"
        )
    if records and config.data.records != records:
        instead = "" if own == script else f", or use python -m {own}"
        raise InputError(f"{script} needs {records}: set data.records={records}{instead}")
    if records and config.init_from is None:
        raise InputError(
            f"{script} starts from a trained model: set init_from, for example init_from=runs/demo"
        )
