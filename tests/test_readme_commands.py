"""The commands of README and of some guides: how they are read and run, and what the Makefile's own
ones do.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.readme_commands import MAKE_TRAINS, PAGES, ROOT, Command, read

pytestmark = pytest.mark.slow

MAKEFILE = """
hello:
	@echo hello > made.txt
fails:
	@echo broken at last; exit 3
.venv/ready: requirements.txt
	@echo must not install; exit 9
ready: .venv/ready
"""


def fenced(lines: str, tags: str = "", language: str = "") -> str:
    return f"Some words.\n\n{tags}```{language}\n{lines}\n```\n"


def test_every_line_of_a_shell_block_is_a_command_with_its_line_and_its_tags():
    lines = "make demo   # it takes a while\n\n# a word\n.venv/bin/python -m a \\\n  b.yaml\nmake test"
    tags = "<!-- slow: ten minutes `make test` -->\n<!-- needs: data my.txt `-m a` -->\n"
    commands = read(
        fenced(lines, tags, "bash") + fenced("1", language="python") + fenced("sl", "<!-- not a command: x -->\n"), "p"
    )
    assert commands == [
        Command("shell", "make demo   # it takes a while", "p:6"),
        Command("shell", ".venv/bin/python -m a \\\n  b.yaml", "p:9", skip="needs: data my.txt"),
        Command("shell", "make test", "p:11", slow="slow: ten minutes"),
        Command("python", "1\n", "p:15"),
    ]
    assert [command.title for command in commands[:2]] == ["make demo", ".venv/bin/python -m a b.yaml"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (fenced("sl --fast"), "p:4: not recognised as a command, and not tagged: sl --fast"),
        (fenced("make demo", "<!-- a remark -->\n"), "must be a tag"),
        (fenced("make demo", "<!-- slow: -->\n"), "gives no reason"),
        (fenced("make demo", "<!-- slow: minutes `make tset` -->\n"), "fits no command"),
        (fenced("puts 1", language="ruby"), "'ruby'"),
        ("```\nmake demo\n", "not closed"),
        (fenced("python -m venv .venv"), "changes .venv"),
    ],
)
def test_what_cannot_be_read_is_refused(text, complaint):
    with pytest.raises(ValueError, match=re.escape(complaint)):
        read(text, "p")


def test_commands_run_in_their_order_in_a_fresh_copy_of_the_tree(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "runs/mine").mkdir(parents=True)  # ignored by git: not in the copy
    shutil.copy2(ROOT / "tests/readme_commands.py", tmp_path / "tests")
    (tmp_path / "Makefile").write_text(MAKEFILE)
    (tmp_path / "requirements.txt").touch()
    (tmp_path / ".gitignore").write_text("runs/\n.venv/\n")
    looks = 'import os\nassert open("made.txt").read() == "hello\\n"\nassert not os.path.exists("runs")'
    slow = fenced("make fails", "<!-- slow: an hour -->\n")
    (tmp_path / "README.md").write_text(
        fenced("make fails\nmake hello\nmake ready") + fenced(looks, language="python") + slow
    )
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    command = [sys.executable, "tests/readme_commands.py", "--quick"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    shown = [line.split()[0] for line in done.stdout.splitlines() if line[0] != " "]
    assert shown == ["failed", "ok", "ok", "ok", "skipped", "1"]
    assert "    | broken at last" in done.stdout
    assert "(slow: an hour)" in done.stdout
    assert not (tmp_path / "made.txt").exists()


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_the_pages_is_a_command_or_says_what_it_is(page):
    assert read((ROOT / page).read_text(encoding="utf-8"), page)


def make(target: str, *words: str, folder=ROOT) -> list[str]:
    command = ["make", "--no-print-directory", target, *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.parametrize("command", MAKE_TRAINS)
def test_what_make_trains_is_what_the_makefile_says(command):
    assert [line for line in make(command.split()[1], "-n") if "-m train." in line] == [MAKE_TRAINS[command]]


def test_make_demo_ends_with_what_to_do_next_and_its_minutes():
    """The Makefile is the one place of these minutes."""
    (minutes,) = re.findall(r"^STORY_MINUTES := (.+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    last = make("demo", "RUN=true", "VENV=nowhere", "-o", "nowhere/installed")[-1]
    assert "`make story` trains one that does" in last
    assert f"{minutes} minutes" in last


def test_every_requirement_has_a_tested_version():
    names = [
        {Requirement(line.partition("#")[0]).name.lower() for line in text.splitlines() if line and line[0] not in "#-"}
        for text in map(Path.read_text, [ROOT / "requirements.txt", ROOT / "requirements-dev.txt"])
    ]
    pins = [Requirement(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if line[0] != "#"]
    assert {pin.name for pin in pins} == names[0] | names[1]
    assert all(str(pin.specifier).startswith("==") for pin in pins)


def test_make_demo_installs_only_what_running_needs(tmp_path):
    def would_install(target: str, *words: str) -> list[str]:
        recipe = make(target, "-n", *words, folder=tmp_path)
        return [line.partition("--disable-pip-version-check ")[2] for line in recipe if " pip " in line]

    for name in ("Makefile", "pyproject.toml", "requirements.txt", "requirements-dev.txt", "constraints.txt"):
        shutil.copy2(ROOT / name, tmp_path)
    for words, is_tested in (("CONSTRAINTS=constraints.txt", True), ("CONSTRAINTS=", False)):
        assert ("pip install -c constraints.txt " in "".join(make("demo", "-n", words, folder=tmp_path))) == is_tested
    assert would_install("demo") == ["-e ."]
    for target in ("install", "lint", "notebooks", "bench", "readme-quick"):
        assert would_install(target) == ["-e .", "-r requirements-dev.txt"]
    assert would_install("demo", "TORCH=--index-url somewhere") == [
        """"$(grep '^torch' requirements.txt)" --index-url somewhere""", "-e ."
    ]  # fmt: skip
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/installed").touch()
    assert would_install("demo") == []
    assert would_install("lint") == ["-r requirements-dev.txt"]
