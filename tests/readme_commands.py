"""Run what README.md and the guides of PAGES show, in their order and word for word:
`python tests/readme_commands.py [--quick] [--list] [PAGE ...]`.

Every fenced code block counts; its language says what becomes of it:

    none, sh, bash   every line is a command, run by `sh` in the repository's root; a line that ends in \\ continues in
                     the next; `# comments` may follow. A line is a process of its own: no `cd`, no variables
    python           the block is run as it stands by .venv/bin/python, in the repository's root
    yaml             the block is checked as a config; without `extends` of its own it extends base.yaml

What cannot be run like that is tagged by HTML comments (a reader does not see them on the page),
each on its own line directly above the fence:

    <!-- needs: gpu -->               or a network, Windows, a person, a file that one must bring: skipped
    <!-- slow: 7 minutes -->          takes more than a minute, or makes or changes .venv: --quick leaves it out
    <!-- not a command: a story -->   what a run prints, a folder, …: nothing to run
    <!-- slow: 7 minutes `make demo` -->   for those commands alone that contain this text

A command that is neither tagged nor recognised (PROGRAMS below) is an error, and so is a tag that
fits nothing.

All runs in a fresh copy of the working tree: your runs/ are neither used nor touched. Without
--quick the copy makes its own .venv, as a newcomer would: packages are downloaded, and it takes
hours (`make readme`). With --quick (`make readme-quick`, a part of CI) it borrows the .venv that
this script runs in, and every training is a short one: the same command with the overrides SHORT.

One line a command: ok, skipped or failed, seconds, page and line, command, reason. The exit code is
1 if one failed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "docs/install.md", "docs/runs.md", "docs/faq.md")
# with a space after each
PROGRAMS = r"([A-Z_]+=\S+ )*(make|\.venv/bin/\w+|python3? -m venv|torchrun|git|bash) "
CHANGES_VENV = r"-m venv|pip install|make (clean|install)|\brm "
TAG = re.compile(r"<!--\s*(needs|slow|not a command):\s*([^`]*?)\s*(?:`([^`]+)`)?\s*-->")
MAKE_TRAINS = {
    "make demo": ".venv/bin/python -m train.pretrain configs/small.yaml",
    "make story": ".venv/bin/python -m train.pretrain configs/demo.yaml",
}
SHORT = (
    " train.max_steps=3 train.max_tokens=null train.max_minutes=null train.compile=false "
    "eval.final_max_tokens=2048 eval.floor_documents=2 eval.questions=4 eval.sample_tokens=8 eval.attention.early=[0]"
)
SHORT_STORIES = " data.source.documents=400 data.source.validation_documents=40"
CHECK_CONFIG = "import sys; from train.config import load_run_config; load_run_config(sys.argv[1])"
SECONDS = 2 * 3600  # a command that hangs ends here


@dataclass
class Command:
    """One thing to run.

    kind: shell, python or yaml; skip, slow: why it is not run, or not with --quick.
    """

    kind: str
    text: str
    place: str
    skip: str = ""
    slow: str = ""

    @property
    def title(self) -> str:
        """Its first line, without the comment that follows."""
        if self.kind != "shell":
            return f"({self.kind})"
        return re.sub(r"\s+", " ", re.sub(r"\s#\s.*", "", self.text.replace("\\\n", " "))).strip()


def read(text: str, page: str) -> list[Command]:
    """Every command of a Markdown text. Raises ValueError with page and line."""
    commands = []
    for block in re.finditer(r"((?:^ *<!--[^\n]*-->\n)*)^ *```(\w*)\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL):
        tags, language, body = block.groups()
        line = text.count("\n", 0, block.start(3))  # of the fence, from 1
        body = textwrap.dedent(body)
        found = [TAG.fullmatch(tag.strip()) for tag in tags.splitlines()]
        if not all(found):
            raise ValueError(
                f"{page}:{line}: a comment above a code block must be a tag (see tests/readme_commands.py)"
            )
        if any(tag and tag[1] == "not a command" for tag in found):
            continue
        if language in ("python", "yaml"):
            inside = [Command(language, body, f"{page}:{line}")]
        elif language in ("", "sh", "bash"):
            inside = []
            for shown in re.finditer(r"^(?!\s*#)(?:.*\\\n)*.*\S.*$", body, re.MULTILINE):
                number = line + 1 + body.count("\n", 0, shown.start())
                inside.append(Command("shell", shown[0], f"{page}:{number}"))
        else:
            raise ValueError(f"{page}:{line}: nothing is known to do with {language!r}: sh, python, yaml, or tag it")
        for tag in filter(None, found):
            fitting = [command for command in inside if (tag[3] or "") in command.text]
            if not fitting or not tag[2]:
                raise ValueError(f"{page}:{line}: a tag fits no command of this block, or gives no reason: {tag[0]}")
            for command in fitting:
                if tag[1] == "slow":
                    command.slow = f"slow: {tag[2].rstrip(' ,:')}"
                else:
                    command.skip = f"needs: {tag[2].rstrip(' ,:')}"
        for command in inside:
            if command.kind == "shell" and not command.skip:
                if not re.match(PROGRAMS, command.title + " "):
                    raise ValueError(f"{command.place}: not recognised as a command, and not tagged: {command.title}")
                if re.search(CHANGES_VENV, command.title) and not command.slow:
                    raise ValueError(f"{command.place}: this changes .venv, which --quick only borrows: tag it slow")
        commands += inside
    if text.count("```") % 2:
        raise ValueError(f"{page}: a code block is not closed")
    return commands


def in_short(command: Command) -> str:
    """A training command with overrides that end it after three steps; "" for a command that does
    not train.
    """
    title = MAKE_TRAINS.get(command.title, command.title)
    if not re.search(r"-m train\.(pretrain|sft) \S+\.yaml", title):
        return ""
    return title + SHORT + ("" if "kind: files" in title or "source.path=" in title else SHORT_STORIES)


def arguments(command: Command, folder: Path, quick: bool) -> list[str]:
    """The process that does in `folder` what the page says."""
    python = ".venv/bin/python"
    if command.kind == "shell":
        return ["sh", "-c", (quick and in_short(command)) or command.text]
    if command.kind == "python":
        return [python, "-c", command.text]
    config = folder.parent / "shown.yaml"
    extends = "" if re.search(r"^extends:", command.text, re.MULTILINE) else f"extends: {folder}/configs/base.yaml\n"
    config.write_text(extends + command.text, encoding="utf-8")
    return [python, "-c", CHECK_CONFIG, str(config)]


def fresh_copy(folder: Path, quick: bool) -> dict[str, str]:
    """Copy the tracked files, and return a newcomer's environment, in which no venv is active."""
    listing = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listing, check=True, capture_output=True, text=True).stdout.split("\0"):
        if name and (ROOT / name).is_file():  # else deleted, and not committed yet
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    ours = ("VIRTUAL_ENV", "PYTHONPATH", "WANDB_SERVICE", "_WANDB_SERVICE")
    environment = {key: value for key, value in os.environ.items() if key not in ours}
    paths = os.environ.get("PATH", "").split(os.pathsep)
    environment["PATH"] = os.pathsep.join(path for path in paths if not (Path(path).parent / "pyvenv.cfg").exists())
    # a .venv of links to the one that runs this, which make takes for ready; its tree is that of
    # the copy
    if quick:
        (folder / ".venv").mkdir()
        for entry in Path(sys.prefix).iterdir():
            if entry.name not in ("installed", "ready"):
                (folder / ".venv" / entry.name).symlink_to(entry)
        for stamp in ("installed", "ready"):
            (folder / ".venv" / stamp).touch()
        environment["PYTHONPATH"] = str(folder)
    return environment


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", metavar="PAGE", help=f"default: {', '.join(PAGES)}")
    parser.add_argument("--quick", action="store_true", help="leave out what is slow; what CI runs")
    parser.add_argument("--list", action="store_true", help="only show what would be run")
    options = parser.parse_args()
    pages = options.pages or [page for page in PAGES if (ROOT / page).exists()]
    commands = [command for page in pages for command in read((ROOT / page).read_text(encoding="utf-8"), page)]
    failed = 0
    with tempfile.TemporaryDirectory(prefix="headlight-readme-") as temporary:
        folder = Path(temporary).resolve() / "headlight"
        environment = {} if options.list else fresh_copy(folder, options.quick)
        for command in commands:
            reason = command.skip or (command.slow if options.quick and not in_short(command) else "")
            status = "skipped" if reason else "ok"
            seconds = 0.0
            said = ""
            if not reason and not options.list:
                start = time.perf_counter()
                done = subprocess.run(
                    arguments(command, folder, options.quick), cwd=folder, env=environment, timeout=SECONDS, text=True,
                    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                )  # fmt: skip
                seconds = time.perf_counter() - start
                if done.returncode:
                    failed = failed + 1
                    status = "failed"
                    said = "\n".join([*done.stdout.rstrip().splitlines()[-15:], f"exit code {done.returncode}"])
            why = f"   ({reason})" if reason else ""
            print(f"{status:8}{seconds:5.0f} s  {command.place:<19}  {command.title}{why}", flush=True)
            if said:
                print(textwrap.indent(said, "    | "), flush=True)
    print(f"{failed} failed of {len(commands)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
