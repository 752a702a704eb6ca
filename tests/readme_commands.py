"""Run what README.md and the guides of PAGES show, in their order and word for word:
`python tests/readme_commands.py [--quick] [--list] [PAGE ...]`.

Every fenced code block counts; its language says what becomes of it:

    none, sh, bash   every line is a command, run by `sh` in the repository's root; a line that ends in \\ continues in
                     the next; `# comments` may follow. A line is a process of its own: no `cd`, no variables
    python           the block is run as it stands by .venv/bin/python, in the repository's root
    yaml             the block is checked as a config; without `extends` of its own it extends base.yaml

What cannot be run like that is tagged by HTML comments (a reader does not see them on the page), each on its own line
directly above the fence, one below the other if there are several:

    <!-- needs: network -->           or gpu, windows, person (somebody must type or look), or `data FILE`, a file that
                                      one must bring. Skipped with that reason, unless --with says that it is there
    <!-- slow: 7 minutes -->          takes more than a minute, or makes or changes .venv: --quick leaves it out
    <!-- not a command: a story -->   what a run prints, a folder, … : nothing to run
    <!-- slow: 7 minutes `make demo` -->   text in backticks at the end: for those commands alone that contain it
                                      (of two tags of a kind that fit, the lower one counts)

A command that is neither tagged nor recognised (PROGRAMS below) is an error, and so is a tag that fits nothing.

All runs in a fresh copy of the working tree in a temporary folder: your runs/ are neither used nor touched.
Without --quick the copy makes its own .venv, as a newcomer would: packages are downloaded, and it takes long
(`make readme`). With --quick (`make readme-quick`, a part of CI) it borrows the .venv that this script runs in; a slow
training whose run a later command looks at is done in short, which is the same command with the overrides SHORT.

One line per command: ok, short, skipped or failed, seconds, page and line, command, reason. The exit code is 1 if one
failed, 2 if a page cannot be read like that. It needs git and a POSIX shell.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "docs/install.md", "docs/runs.md", "docs/faq.md")
SHELL = ("", "sh", "bash")
NEEDS = ("network", "gpu", "windows", "person", "data")
PROGRAMS = r"([A-Z_]+=\S+ )*(make|\.venv/bin/\w+|python3? -m venv|torchrun|git|bash) "  # with a space after each
CHANGES_VENV = r"-m venv|pip install|make (clean|install)|\brm "
STAMPS = ("installed", "ready")  # of the Makefile, the older one first
TAG = re.compile(r"<!--\s*(needs|slow|not a command):\s*(.*?)\s*(?:`([^`]+)`)?\s*-->")
TRAINING = {
    "make demo": ".venv/bin/python -m train.pretrain configs/small.yaml",
    "make story": ".venv/bin/python -m train.pretrain configs/demo.yaml",
}
SHORT = (
    "train.max_steps=3 train.max_tokens=null train.max_minutes=null train.compile=false "
    "eval.final_max_tokens=2048 eval.floor_documents=2 eval.questions=4 eval.sample_tokens=8 eval.attention.early=[0]"
)
SHORT_STORIES = "data.source.documents=400 data.source.validation_documents=40"
CHECK_CONFIG = "import sys; from train.config import load_run_config; load_run_config(sys.argv[1])"
SECONDS = 2 * 3600  # a command that hangs ends here
LAST_LINES = 15  # of a command that failed


class ReadmeError(Exception):
    """A page cannot be read as commands; the message says where and why."""


@dataclass
class Command:
    """One thing to run. kind: shell, python, yaml, or text, which is nothing to run.

    needs, slow, shows: what its tags say, "" if they say nothing. shows: what a text is.
    """

    line: int
    kind: str
    text: str
    needs: str = ""
    slow: str = ""
    shows: str = ""
    page: str = field(default="README.md", compare=False)

    @property
    def title(self) -> str:
        """Its first line, without the comment that follows."""
        if self.kind != "shell":
            return f"({self.kind})"
        return re.sub(r"\s+", " ", re.sub(r"\s#\s.*", "", self.text.replace("\\\n", " "))).strip()

    @property
    def run(self) -> str:
        """Name of the run that it trains, "" if it trains none."""
        title = TRAINING.get(self.title, self.title)
        found = re.search(r"-m train\.(?:pretrain|sft) \S*?(\w+)\.yaml", title)
        named = re.search(r"\bname=(\S+)", title)
        return (named or found)[1] if found else ""


@dataclass
class Plan:
    """What becomes of a command: run, short or skip, and why."""

    command: Command
    action: str = "run"
    reason: str = ""


# ---------------------------------------------------------------------------------------------------------
# pages -> commands


@dataclass
class Block:
    line: int  # of the fence, from 1
    language: str
    lines: list[str] = field(default_factory=list)
    tags: list[tuple[str, str, str]] = field(default_factory=list)  # (kind, reason, text that a command must hold)


def parse(text: str, name: str = "README.md") -> list[Command]:
    """Every command of a Markdown text, in its order. Raises ReadmeError with file and line."""
    commands = [command for block in _blocks(text, name) for command in _commands(block, name)]
    for command in commands:
        command.page = name
    return commands


def read(page: Path) -> list[Command]:
    """The commands of a file, under its path from the root. Raises ReadmeError, OSError."""
    inside = page.resolve().is_relative_to(ROOT)
    return parse(page.read_text(encoding="utf-8"), page.resolve().relative_to(ROOT).as_posix() if inside else page.name)


def _blocks(text: str, name: str) -> list[Block]:
    blocks: list[Block] = []
    fence, tags = "", []
    for number, line in enumerate(text.splitlines(), start=1):
        stripped, start = line.strip(), re.match(r"\s*(`{3,}|~{3,})\s*([\w-]*)", line)
        if fence:
            if stripped == fence:
                blocks[-1].lines = textwrap.dedent("\n".join(blocks[-1].lines)).splitlines()
                fence = ""
            else:
                blocks[-1].lines.append(line)
        elif start:
            fence = start[1]
            blocks.append(Block(number, start[2], tags=[_tag(comment, f"{name}:{n}") for n, comment in tags]))
            tags = []
        elif stripped.startswith("<!--"):
            tags.append((number, stripped))
        else:
            _refuse_lost_tags(tags, name)
            tags = []
    _refuse_lost_tags(tags, name)
    if fence:
        raise ReadmeError(f"{name}:{blocks[-1].line}: this code block is not closed")
    return blocks


def _refuse_lost_tags(tags: list[tuple[int, str]], name: str) -> None:
    for number, comment in tags:
        if TAG.fullmatch(comment):
            raise ReadmeError(f"{name}:{number}: a tag must stand directly above a code block: {comment}")


def _tag(comment: str, place: str) -> tuple[str, str, str]:
    found = TAG.fullmatch(comment)
    if found is None:
        raise ReadmeError(f"{place}: {comment} is no tag: needs, slow, not a command (see tests/readme_commands.py)")
    kind, reason, only = found[1], found[2].rstrip(" ,:"), found[3] or ""
    if not reason:
        raise ReadmeError(f"{place}: {comment} gives no reason")
    if kind == "needs" and reason.split()[0] not in NEEDS:
        raise ReadmeError(f"{place}: `needs: {reason}`: must begin with one of {', '.join(NEEDS)}")
    if kind == "needs" and reason == "data":
        raise ReadmeError(f"{place}: `needs: data` must name the file")
    return kind, reason, only


def _commands(block: Block, name: str) -> list[Command]:
    place = f"{name}:{block.line}"
    whole = "\n".join(block.lines)
    shown = [tag for tag in block.tags if tag[0] == "not a command"]
    if shown:
        if len(block.tags) > 1 or shown[0][2]:
            raise ReadmeError(f"{place}: `not a command` speaks of the whole block and needs no other tag")
        return [Command(block.line, "text", whole, shows=shown[0][1])]
    if block.language in SHELL:
        commands = _shell_lines(block)
    elif block.language in ("python", "yaml"):
        commands = [Command(block.line, block.language, whole)]
    else:
        raise ReadmeError(f"{place}: nothing is known to do with {block.language!r}: sh, python, yaml, or tag it")
    if not commands:
        raise ReadmeError(f"{place}: this code block holds no command")
    for kind, reason, only in block.tags:
        fitting = [command for command in commands if only in command.text]
        if not fitting:
            raise ReadmeError(f"{place}: no command of this block contains `{only}`, of which a tag speaks")
        for command in fitting:
            setattr(command, kind, reason)
    for command in commands:
        _check(command, f"{name}:{command.line}")
    return commands


def _shell_lines(block: Block) -> list[Command]:
    commands: list[Command] = []
    goes_on = False
    for number, line in enumerate(block.lines, start=block.line + 1):
        if goes_on:
            commands[-1].text += "\n" + line
        elif line.strip() and not line.strip().startswith("#"):
            commands.append(Command(number, "shell", line))
        else:
            continue
        goes_on = line.endswith("\\")
    return commands


def _check(command: Command, place: str) -> None:
    if command.kind != "shell" or command.needs:
        return
    if not re.match(PROGRAMS, command.title + " "):
        raise ReadmeError(f"{place}: not recognised as a command, and not tagged: {command.title}")
    if re.search(CHANGES_VENV, command.title) and not command.slow:
        raise ReadmeError(f"{place}: this changes .venv, which --quick only borrows: tag it slow: {command.title}")


# ---------------------------------------------------------------------------------------------------------
# commands -> plan


def plan(commands: list[Command], *, quick: bool, available: tuple[str, ...] = ()) -> list[Plan]:
    """What becomes of each command. available: of NEEDS, what this machine has, so that it need not be skipped."""
    in_short: set[str] = set()  # names of runs that a quick command looks at, and that only a slow one trains
    used = ""  # texts of the later commands that are run
    for command in reversed(commands if quick else []):
        is_run = command.kind != "text" and _can_run(command, available)
        if is_run and command.slow and command.run and re.search(rf"\bruns/{command.run}(?![\w-])", used):
            in_short.add(command.run)
        elif command.slow:
            is_run = False
        used += command.text if is_run else ""
    return [_plan_of(command, quick, available, in_short) for command in commands]


def _plan_of(command: Command, quick: bool, available: tuple[str, ...], in_short: set[str]) -> Plan:
    if command.kind == "text":
        return Plan(command, "skip", f"not a command: {command.shows}")
    if not _can_run(command, available):
        return Plan(command, "skip", f"needs: {command.needs}")
    if quick and command.run in in_short:  # also where it is not slow: the run is no longer what it would resume from
        return Plan(command, "short", f"slow: {command.slow}" if command.slow else "its run is one in short")
    if quick and command.slow:
        return Plan(command, "skip", f"slow: {command.slow}")
    return Plan(command)


def _can_run(command: Command, available: tuple[str, ...]) -> bool:
    return not command.needs or command.needs.split()[0] in available


def in_short(command: Command) -> str:
    """A training command with overrides that end it after three steps."""
    title = TRAINING.get(command.title, command.title)
    own_text = "kind: files" in title or "source.path=" in title
    return f"{title} {SHORT}" + ("" if own_text else f" {SHORT_STORIES}")


# ---------------------------------------------------------------------------------------------------------
# plan -> a fresh copy in which it is run


def fresh_copy(folder: Path) -> None:
    """The working tree as it is, committed or not, but for what git ignores: what a fresh clone would hold."""
    git = ["git", "-C", str(ROOT)]
    subprocess.run([*git, "clone", "--quiet", "--no-checkout", "--shared", str(ROOT), str(folder)], check=True)
    listed = subprocess.run(
        [*git, "ls-files", "-z", "--cached", "--others", "--exclude-standard"], check=True, capture_output=True
    )
    for name in filter(None, os.fsdecode(listed.stdout).split("\0")):
        if os.path.lexists(ROOT / name):  # else deleted, and not committed yet
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    subprocess.run(["git", "-C", str(folder), "reset", "--quiet"], check=True)


def borrow_venv(folder: Path) -> None:
    """A .venv whose contents are those of the environment that runs this, and which make takes for ready."""
    own = folder / ".venv"
    own.mkdir()
    for entry in Path(sys.prefix).iterdir():
        if entry.name not in STAMPS:
            (own / entry.name).symlink_to(entry)
    for stamp in STAMPS:
        (own / stamp).touch()


def newcomers_environment(folder: Path, *, quick: bool) -> dict[str, str]:
    """No environment is active, neither on the PATH nor as PYTHONPATH; nor is a service of wandb that we may run in."""
    ours = ("VIRTUAL_ENV", "PYTHONPATH", "WANDB_SERVICE", "_WANDB_SERVICE")
    environment = {key: value for key, value in os.environ.items() if key not in ours}
    paths = os.environ.get("PATH", "").split(os.pathsep)
    environment["PATH"] = os.pathsep.join(path for path in paths if not (Path(path).parent / "pyvenv.cfg").exists())
    if quick:  # the borrowed .venv knows the tree that it was made for: the copy comes before it
        environment["PYTHONPATH"] = str(folder)
    return environment


def arguments_of(item: Plan, folder: Path) -> list[str]:
    """The process that does what is planned, in `folder`."""
    command, python = item.command, ".venv/bin/python"
    if command.kind == "shell":
        return ["sh", "-c", in_short(command) if item.action == "short" else command.text]
    if command.kind == "python":
        return [python, "-c", command.text]
    config = folder.parent / "README.yaml"
    extends = "" if re.search(r"^extends:", command.text, re.MULTILINE) else f"extends: {folder}/configs/base.yaml\n"
    config.write_text(extends + command.text, encoding="utf-8")
    return [python, "-c", CHECK_CONFIG, str(config)]


def execute(arguments: list[str], folder: Path, environment: dict[str, str]) -> tuple[int, str]:
    """Exit code and what it said last. Its children end with it, also where this script is stopped."""
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            arguments, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=said, stderr=said,
            start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            code = 124
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        said.seek(0)
        return code, "\n".join(said.read().decode("utf-8", "replace").rstrip().splitlines()[-LAST_LINES:])


def describe(status: str, seconds: float | None, item: Plan) -> str:
    """The one line of a command."""
    duration = "" if seconds is None else f"{seconds:.0f} s"
    why = f"   ({item.reason})" if item.reason else ""
    place = f"{item.command.page}:{item.command.line}"
    return f"{status:8}{duration:>6}  {place:<19}  {item.command.title}{why}"


def run_all(plans: list[Plan], *, quick: bool) -> int:
    """Run what is planned in a fresh copy; the exit code."""
    counts: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix="headlight-readme-") as temporary:
        folder = Path(temporary).resolve() / "headlight"
        fresh_copy(folder)
        if quick:
            borrow_venv(folder)
        environment = newcomers_environment(folder, quick=quick)
        for item in plans:
            status, seconds, said = "skipped", None, ""
            if item.action != "skip":
                bring_data(item.command.needs, folder)
                before = time.perf_counter()
                code, said = execute(arguments_of(item, folder), folder, environment)
                seconds = time.perf_counter() - before
                status = "failed" if code else {"run": "ok", "short": "short"}[item.action]
            counts[status] = counts.get(status, 0) + 1
            print(describe(status, seconds, item), flush=True)
            if status == "failed":
                print(textwrap.indent(f"{said}\nexit code {code}", "    | "), flush=True)
    if "short" in counts:
        print(f"short: with {SHORT}, and for stories {SHORT_STORIES}")
    print(", ".join(f"{number} {status}" for status, number in counts.items()))
    return 1 if "failed" in counts else 0


def bring_data(needs: str, folder: Path) -> None:
    """`data FILE` that is there (--with data): put where the command expects it."""
    kind, _, name = needs.partition(" ")
    if kind == "data" and (ROOT / name).is_file():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE", help=f"default: {', '.join(PAGES)}")
    parser.add_argument("--quick", action="store_true", help="leave out what is slow; what CI runs")
    parser.add_argument("--list", action="store_true", help="only show what would be run")
    parser.add_argument("--with", dest="available", action="append", default=[], choices=NEEDS, help="what is there")
    options = parser.parse_args()
    try:
        commands = [command for page in options.pages or map(ROOT.joinpath, PAGES) for command in read(page)]
    except (ReadmeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    plans = plan(commands, quick=options.quick, available=tuple(options.available))
    if not options.list:
        return run_all(plans, quick=options.quick)
    for item in plans:
        print(describe({"skip": "skipped"}.get(item.action, item.action), None, item))
    return 0


if __name__ == "__main__":
    sys.exit(main())
