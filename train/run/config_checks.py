"""Checks of a config that need more than its values: a name for a folder, and whose code it is."""

from __future__ import annotations

import unicodedata
from pathlib import Path

from configs.command import InputError
from configs.loader import KeyPath, LoadedConfig
from eval.config import EvalConfig
from model.config import ModelConfig
from train.methods.config import GRPOConfig

TRUST_HELP = (
    "run the code that eval.hooks, grpo.reward and model.my_attention name, also in a config that "
    "came from elsewhere"
)


def problem_of_name(name: str) -> str:
    """Return the problem with a run's name; "" if it can be a folder's name on every system."""
    # Unicode's classes L, M and N: letters, their marks, numbers
    is_plain = all(c in " _.+=-" or unicodedata.category(c)[0] in "LMN" for c in name)
    # File systems allow 255 bytes. Windows drops a space or a dot at the end of a name.
    fits = is_plain and 0 < len(name.encode()) <= 200
    if fits and name[0] not in " .-+=" and name[-1] not in " .":
        return ""
    return (
        "must be 1 to 100 letters, digits, spaces and _ . + = -, begin with a letter or digit and "
        "not end in a dot"
    )


def refuse_foreign_code(
    loaded: LoadedConfig, hooks: EvalConfig, model: ModelConfig, grpo: GRPOConfig | None
) -> None:
    """Raise InputError for code that a config from elsewhere names.

    Code named on the command line or in a config under the working directory is trusted. A config
    from elsewhere may be someone else's.
    """
    names = [hook if isinstance(hook, str) else hook.name for hook in hooks.hooks]
    named: list[tuple[KeyPath, str]] = [(("eval", "hooks"), name) for name in names if ":" in name]
    if grpo is not None and ":" in grpo.reward:
        named.append((("grpo", "reward"), grpo.reward))
    if model.my_attention:
        named.append((("model", "my_attention"), model.my_attention))
    own_folders = [Path.cwd().resolve(), Path(__file__).resolve().parents[2]]
    for key, code in named:
        place = loaded.where(key)
        if place.startswith("command line "):
            continue
        file = Path(place.rpartition(":")[0]).resolve()
        is_below = any(file.is_relative_to(folder) for folder in own_folders)
        if is_below and file.name != "config.yaml":  # a run keeps its config, perhaps a stranger's
            continue
        raise InputError(
            f"{place}: `{'.'.join(key)}` names {code[:100]}, code that training would run, in a "
            "config that came from elsewhere: name built-in ones instead, or read that code and "
            "give --trust-hooks"
        )
