"""The command line of every script that trains, and which script trains which config."""

from __future__ import annotations

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

from configs.command import InputError
from train.config import RunConfig, load_run_config
from train.run.config_checks import TRUST_HELP

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
    """Read `configs/x.yaml [section.key=value ...]` into a RunConfig that this script can train."""
    usage = f"python -m {script} configs/x.yaml [section.key=value ...] [--trust-hooks]"
    parser = ArgumentParser(
        usage=usage,
        description=description,
        epilog=MORE_HELP,
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("config", nargs="?", help=f"a YAML file, for example {example.split()[0]}")
    key_value = "section.key=value"
    parser.add_argument("overrides", nargs="*", metavar=key_value, help="for example seed=1")
    parser.add_argument("--trust-hooks", action="store_true", help=TRUST_HELP)
    # intermixed: an option may come between the config and the overrides
    args = parser.parse_intermixed_args()
    if args.config is None or "=" in Path(args.config).name:  # an override, and no config
        raise InputError(f"name a config: python -m {script} {example} (--help has more)")
    config = load_run_config(args.config, args.overrides, trust_hooks=args.trust_hooks)
    check_script(config, script)
    return config


# --------------------------------------------------------------------------------------------------
# which script trains which config

# Script: its section, and what data.records must be. "" = any.
METHODS = {
    "train.sft": ("", "conversations"),
    "train.dpo": ("dpo", "pairs"),
    "train.grpo": ("grpo", "conversations"),
    "train.distill": ("distill", ""),
}


def script_of(config: RunConfig) -> str:
    """Return the script that trains a config. Raises InputError if it has the sections of two."""
    sections = [section for section, _ in METHODS.values()]
    present = [name for name in sections if name and getattr(config, name) is not None]
    if len(present) > 1:
        both = " and ".join(present)
        raise InputError(f"the config has sections of {both}: set all but one of them to null")
    if present:
        return f"train.{present[0]}"
    if config.data.records == "pairs":
        return "train.dpo"
    tunes = config.init_from is not None and config.data.records == "conversations"
    return "train.sft" if tunes else "train.pretrain"


def check_script(config: RunConfig, script: str) -> None:
    """Raise InputError if this script cannot train this config."""
    own = script_of(config)
    own_section = METHODS.get(own, ("", ""))[0]
    section, records = METHODS.get(script, ("", ""))
    if own != script and own_section:
        has_section = getattr(config, own_section) is not None
        cause = own_section if has_section else "data.records: pairs"
        raise InputError(f"{script} cannot train a config with `{cause}`: use python -m {own}")
    if section in ("grpo", "distill") and getattr(config, section) is None:
        example = f"configs/{section}_demo.yaml"
        raise InputError(f"{section}: is null: {script} needs this section, as in {example}")
    if records and config.data.records != records:
        instead = "" if own == script else f", or use python -m {own}"
        raise InputError(f"{script} needs {records}: set data.records={records}{instead}")
    if records and config.init_from is None:
        raise InputError(
            f"{script} starts from a trained model: set init_from, for example init_from=runs/demo"
        )
