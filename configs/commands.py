"""Run any command by a short name: `headlight NAME …`

Each name stands for a module and perhaps its first arguments; `headlight MODULE …` works, too.
"""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

from configs.command import InputError, exit_on_bad_input
from configs.language import translated
from configs.text import did_you_mean

ROOT = Path(__file__).parents[1]
# name: (module and first arguments, what the user adds, explanation)
COMMANDS = {
    "demo": (
        "train.pretrain configs/small.yaml",
        "",
        "train a very small model to copy",
    ),
    "story": ("train.pretrain configs/demo.yaml", "", "train a model that writes stories"),
    "train": ("train.pretrain", "CONFIG", "train the model that a config describes"),
    "sft": ("train.sft", "CONFIG", "teach a model to answer"),
    "dpo": ("train.dpo", "CONFIG", "teach it which of two answers is better"),
    "grpo": ("train.grpo", "CONFIG", "let it try answers, and reward the good ones"),
    "distill": ("train.distill", "CONFIG", "train a small model on a large one's predictions"),
    "sweep": ("train.sweep", "CONFIG KEY=A,B", "train variants of a config"),
    "fork": ("train.fork", "RUN --at STEP", "continue a run with one change"),
    "samples": ("eval.samples", "RUN TEXT", "let a model continue a text"),
    "chat": ("eval.chat", "RUN", "talk to a model"),
    "serve": ("serve", "runs", "see and use all runs in a browser"),
    "see": ("eval.attention", "RUN", "draw what every head attends to"),
    "compare": ("eval.compare", "RUN RUN", "compare runs"),
    "questions": ("eval.questions", "RUN", "count how many questions a model answers correctly"),
    "data": ("data.inspect", "CONFIG", "show what a model will read"),
    "budget": ("train.budget", "CONFIG", "compute parameters, memory and time"),
    "doctor": ("train.doctor", "CONFIG", "test what works on this machine"),
    "export": ("model.export", "RUN …", "write a model for other programs"),
    "check": ("notebooks.check", "EXERCISE", "build the parts of a model yourself"),
}
# With the names, one screen of 80 by 24.
HELP = "Usage: headlight NAME …   (or a module: headlight eval.tasks …)"
MORE_HELP = """\
CONFIG: a YAML file, such as configs/base.yaml. Options: headlight NAME --help
RUN: a folder in runs/, or a shipped model: small, demo, reader_sft"""


def main() -> None:
    """Print the help, or raise InputError for an unknown name."""
    name = "".join(sys.argv[1:2])
    if name not in ("", "-h", "--help", "help"):
        if name == "check" or name.startswith("notebooks."):
            raise InputError(f"headlight {name}: a clone has the course, this installation has not")
        hint = did_you_mean(name, {each: each for each in COMMANDS})
        raise InputError(f"there is no command {name}{hint}: headlight --help lists them")
    print(translated(HELP))
    for name, (_, words, explanation) in COMMANDS.items():
        print(f"  {name:<10} {words:<15} {translated(explanation)}")
    print(translated(MORE_HELP))


def is_command(module: str) -> bool:
    """Return True if a module of Headlight can be run with `python -m`."""
    # A word of the user: nothing in it may lead out of this folder.
    if not re.fullmatch(r"[a-z_]+(\.[a-z_]+)*", module):
        return False
    path = ROOT / module.replace(".", "/")
    files = [path / "__main__.py", path.with_suffix(".py")]
    # read, not imported: a module may take seconds, or do something
    return any("\nif __name__ ==" in file.read_text("utf-8") for file in files if file.is_file())


if __name__ == "__main__":
    words = sys.argv[1:] or [""]
    # any other word is taken for a module, so that both ways to call it work
    module, *arguments = COMMANDS.get(words[0], (words[0],))[0].split() or [""]
    if is_command(module):
        # the module reads its own command line
        sys.argv[1:] = [*arguments, *words[1:]]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        exit_on_bad_input(main)
