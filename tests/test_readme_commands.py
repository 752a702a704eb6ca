"""The commands of README and of some guides: how they are read, and that each is accounted for."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import readme_commands
from tests.docs.tree import is_module
from tests.readme_commands import PAGES, ROOT, TRAINING, Command, ReadmeError, parse, plan, read

pytestmark = pytest.mark.slow

SCRIPT = ROOT / "tests" / "readme_commands.py"
PYTHON = ".venv/bin/python"


def commands_of_pages() -> list[Command]:
    return [command for page in PAGES for command in read(ROOT / page)]


def fenced(lines: str, tags: str = "", language: str = "") -> str:
    above = f"{tags}\n" if tags else ""
    return f"Some words.\n\n{above}```{language}\n{lines}\n```\n"


# ---------------------------------------------------------------------------------------------------------
# reading


def test_every_line_of_a_shell_block_is_a_command_with_its_line_and_its_tags():
    text = fenced(
        f"make demo   # it takes a while\n\n# a word\n{PYTHON} -m train.budget \\\n  configs/base.yaml\nmake test",
        "<!-- slow: ten minutes `make test` -->\n<!-- needs: data my.txt `budget` -->",
        "bash",
    )
    assert parse(text) == [
        Command(6, "shell", "make demo   # it takes a while"),
        Command(9, "shell", f"{PYTHON} -m train.budget \\\n  configs/base.yaml", needs="data my.txt"),
        Command(11, "shell", "make test", slow="ten minutes"),
    ]
    assert [command.title for command in parse(text)][:2] == [
        "make demo",
        f"{PYTHON} -m train.budget configs/base.yaml",
    ]


def test_python_and_yaml_blocks_are_one_command_each_and_keep_their_text():
    text = fenced("if 1:\n    print(2)", language="python") + fenced("a:\n  b: 1", "<!-- needs: gpu -->", "yaml")
    assert [(c.kind, c.text, c.needs) for c in parse(text)] == [
        ("python", "if 1:\n    print(2)", ""),
        ("yaml", "a:\n  b: 1", "gpu"),
    ]


def test_a_block_in_a_list_is_read_without_its_indentation():
    (command,) = parse("- a point:\n\n  ```python\n  if 1:\n      print(2)\n  ```\n")
    assert command.text == "if 1:\n    print(2)"


def test_the_lower_one_of_two_tags_counts_and_a_block_inside_a_longer_fence_is_text():
    lower = fenced("make demo\nmake test", "<!-- slow: minutes -->\n<!-- slow: ten minutes `test` -->")
    assert [command.slow for command in parse(lower)] == ["minutes", "ten minutes"]
    (text,) = parse("<!-- not a command: Markdown -->\n````\n```\nrm -rf /\n```\n````\n")
    assert (text.kind, text.shows) == ("text", "Markdown")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (fenced("sl --fast"), "README.md:4: not recognised as a command, and not tagged: sl --fast"),
        (fenced("Once upon a time"), "not recognised"),
        (fenced("$ make demo"), "not recognised"),
        (fenced("makefile"), "not recognised"),
        (fenced("make demo", "<!-- needs: gpu -->\n"), "README.md:3: a tag must stand directly above a code block"),
        (fenced("make demo") + "\n<!-- slow: minutes -->\n", "directly above"),
        (fenced("make demo", "<!-- need: gpu -->"), "<!-- need: gpu --> is no tag"),
        (fenced("make demo", "<!-- a remark -->"), "is no tag"),
        (fenced("make demo", "<!-- needs: luck -->"), "must begin with one of network, gpu"),
        (fenced("make demo", "<!-- needs: data -->"), "must name the file"),
        (fenced("make demo", "<!-- slow: -->"), "gives no reason"),
        (fenced("make demo", "<!-- slow: `make demo` -->"), "gives no reason"),
        (fenced("make demo", "<!-- slow: minutes `make tset` -->"), "no command of this block contains `make tset`"),
        (fenced("make demo", "<!-- not a command: x -->\n<!-- slow: minutes -->"), "needs no other tag"),
        (fenced("make demo", "<!-- not a command: x `make` -->"), "speaks of the whole block"),
        (fenced("puts 1", language="ruby"), "'ruby'"),
        (fenced("# nothing but a remark"), "holds no command"),
        ("```\nmake demo\n", "README.md:1: this code block is not closed"),
        (fenced(f"{PYTHON} -m pip install torch"), "changes .venv"),
        (fenced("python -m venv .venv"), "changes .venv"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_line(text, complaint):
    with pytest.raises(ReadmeError, match=re.escape(complaint)):
        parse(text)


@pytest.mark.parametrize(
    ("text", "run"),
    [
        ("make demo", "small"),
        ("make story", "demo"),
        (f"{PYTHON} -m train.pretrain configs/mha.yaml seed=1", "mha"),
        (f"{PYTHON} -m train.sft configs/sft_demo.yaml init_from=runs/demo  # name=x", "sft_demo"),
        (f"{PYTHON} -m train.pretrain configs/demo.yaml name=four", "four"),
        ("torchrun --nproc_per_node=2 -m train.pretrain configs/124m.yaml", "124m"),
        (f"{PYTHON} -m train.budget configs/mha.yaml", ""),
        (f"{PYTHON} -m eval.attention runs/demo", ""),
    ],
)
def test_a_training_command_says_which_run_it_trains(text, run):
    assert Command(1, "shell", text).run == run


# ---------------------------------------------------------------------------------------------------------
# planning


def actions(text: str, **options) -> list[str]:
    return [item.action for item in plan(parse(text), **({"quick": True} | options))]


SLOW_DEMO = fenced("make story", "<!-- slow: 7 minutes -->")


def test_a_slow_training_is_done_in_short_only_where_a_quick_command_looks_at_its_run():
    assert actions(SLOW_DEMO + fenced(f"{PYTHON} -m eval.attention runs/demo")) == ["short", "run"]
    assert actions(SLOW_DEMO + fenced('load("runs/demo")', language="python")) == ["short", "run"]
    assert actions(SLOW_DEMO + fenced(f"{PYTHON} -m eval.attention runs/demo_two")) == ["skip", "run"]
    assert actions(SLOW_DEMO + fenced("runs/demo/", "<!-- not a command: files -->")) == ["skip", "skip"]
    needs_gpu = fenced(f"{PYTHON} -m eval.attention runs/demo", "<!-- needs: gpu -->")
    assert actions(SLOW_DEMO + needs_gpu) == ["skip", "skip"]
    assert actions(SLOW_DEMO + needs_gpu, available=("gpu",)) == ["short", "run"]
    also_slow = fenced(f"{PYTHON} -m eval.compare runs/demo", "<!-- slow: hours -->")
    assert actions(SLOW_DEMO + also_slow) == ["skip", "skip"]


def test_a_chain_of_trainings_is_done_in_short_and_what_continues_with_one_is_too():
    tuned = fenced(f"{PYTHON} -m train.sft configs/sft_demo.yaml init_from=runs/demo", "<!-- slow: 6 minutes -->")
    asked = fenced(f"{PYTHON} -m eval.questions runs/sft_demo")
    assert actions(SLOW_DEMO + tuned + asked) == ["short", "short", "run"]
    assert actions(SLOW_DEMO + tuned) == ["skip", "skip"]
    again = fenced(f"{PYTHON} -m train.pretrain configs/demo.yaml")  # quick after the whole run: it only prints
    assert actions(SLOW_DEMO + again + fenced(f"{PYTHON} -m eval.samples runs/demo")) == ["short", "short", "run"]


def test_everything_but_what_is_not_there_is_run_where_it_need_not_be_quick():
    text = SLOW_DEMO + fenced("make test\nmake bench", "<!-- needs: network `bench` -->")
    assert actions(text, quick=False) == ["run", "run", "skip"]
    assert actions(text, quick=False, available=("network",)) == ["run", "run", "run"]


def test_in_short_is_the_same_command_with_more_overrides_that_are_valid():
    from train.config import load_run_config

    for text in ("make demo", "make story", f"{PYTHON} -m train.sft configs/sft_demo.yaml init_from=runs/demo"):
        words = shlex.split(readme_commands.in_short(Command(1, "shell", text)))
        assert words[0] == PYTHON
        assert load_run_config(ROOT / words[3], words[4:]).max_steps == 3
    own = readme_commands.in_short(
        Command(1, "shell", f'{PYTHON} -m train.pretrain configs/base.yaml "data.source={{kind: files, path: docs}}"')
    )
    words = shlex.split(own)
    assert load_run_config(ROOT / words[3], words[4:]).data.source.kind == "files"


@pytest.mark.parametrize("command", TRAINING)
def test_what_make_trains_is_what_the_makefile_says(command):
    recipe = subprocess.run(
        ["make", "-n", "--no-print-directory", command.split()[1]], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    trained = [line for line in recipe.splitlines() if "-m train." in line]
    assert trained == [TRAINING[command]]


def test_make_demo_ends_with_what_to_do_next_and_its_minutes():
    """The Makefile is the one place of these minutes."""
    (minutes,) = re.findall(r"^STORY_MINUTES := (\d+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    done = subprocess.run(
        ["make", "--no-print-directory", "demo", "RUN=true", "VENV=nowhere", "-o", "nowhere/installed"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    last = done.stdout.splitlines()[-1]
    assert "`make story` trains one that does" in last
    assert f"{minutes} minutes" in last


REQUIREMENTS = ("requirements.txt", "requirements-dev.txt")


def test_make_demo_installs_only_what_running_needs(tmp_path):
    def would_install(target: str) -> list[str]:
        command = ["make", "-n", "--no-print-directory", target]
        recipe = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        return [line.partition("--disable-pip-version-check ")[2] for line in recipe.splitlines() if " pip " in line]

    for name in ("Makefile", "pyproject.toml", *REQUIREMENTS):
        shutil.copy2(ROOT / name, tmp_path)
    assert would_install("demo") == ["-e ."]
    for target in ("install", "lint", "notebooks", "bench", "readme-quick"):
        assert would_install(target) == ["-e .", "-r requirements-dev.txt"]
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/installed").touch()
    assert would_install("demo") == []
    assert would_install("lint") == ["-r requirements-dev.txt"]
    (tmp_path / ".venv/installed").unlink()
    command = ["make", "-n", "--no-print-directory", "demo", "TORCH=--index-url somewhere"]
    recipe = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    first, second = [line for line in recipe.splitlines() if " pip " in line]
    assert first.endswith(
        """install --disable-pip-version-check "$(grep '^torch' requirements.txt)" --index-url somewhere"""
    )
    assert second.endswith("-e .")


# ---------------------------------------------------------------------------------------------------------
# running, in a small repository


MAKEFILE = """
hello:
	@echo hello > made.txt
fails:
	@echo broken at last; exit 3
.venv/ready: requirements.txt
	@echo must not install; exit 9
ready: .venv/ready
"""


@pytest.fixture
def repository(tmp_path):
    """A repository with the script in it, files of every state that git knows, and a run that must not be touched."""
    root = tmp_path / "repository"
    (root / "tests").mkdir(parents=True)
    shutil.copy2(SCRIPT, root / "tests")
    files = {"Makefile": MAKEFILE, ".gitignore": "runs/\n.venv/\n", "requirements.txt": "torch\n", "gone.txt": "x"}
    for name, text in files.items():
        (root / name).write_text(text, encoding="utf-8")
    git = ["git", "-C", str(root), "-c", "user.name=n", "-c", "user.email=e@example.com"]
    for arguments in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "-m", "all"]):
        subprocess.run([*git, *arguments], check=True)
    (root / "gone.txt").unlink()
    (root / "new.txt").write_text("not committed yet", encoding="utf-8")
    (root / "runs" / "mine").mkdir(parents=True)
    return root


def run_script(root: Path, readme: str, *options: str) -> subprocess.CompletedProcess[str]:
    for page in PAGES:
        (root / page).parent.mkdir(exist_ok=True)
        (root / page).write_text(readme if page == "README.md" else "Nothing to run.\n", encoding="utf-8")
    command = [sys.executable, str(root / "tests" / "readme_commands.py"), *options]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)


def test_commands_run_in_their_order_in_a_fresh_copy_of_the_tree(repository):
    looks = (
        'import os, pathlib\nassert pathlib.Path("made.txt").read_text() == "hello\\n"\nprint(sorted(os.listdir()))\n'
    )
    asserts = "".join(f"assert os.path.exists({n!r}) == {there}\n" for n, there in
                      {"new.txt": True, "gone.txt": False, "runs": False, ".git": True}.items())  # fmt: skip
    result = run_script(
        repository, fenced("make hello\nmake ready") + fenced(looks + asserts, language="python"), "--quick"
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["ok", "ok", "ok", "3"]
    assert not (repository / "made.txt").exists()
    assert not list((repository / ".git").glob("worktrees/*"))


def test_a_command_that_fails_is_shown_with_its_last_lines_and_the_others_are_run(repository):
    result = run_script(repository, fenced("make fails\nmake hello") + fenced("1/0", language="python"), "--quick")
    assert result.returncode == 1
    assert [line.split()[0] for line in result.stdout.splitlines() if line[0] != " "] == ["failed", "ok", "failed", "2"]
    assert "    | broken at last" in result.stdout
    assert "ZeroDivisionError" in result.stdout
    assert "2 failed, 1 ok" in result.stdout


def test_nothing_is_skipped_without_its_reason_and_list_runs_nothing(repository):
    text = fenced("make fails\nmake hello", "<!-- needs: gpu `fails` -->\n<!-- slow: an hour `hello` -->")
    text += fenced("words", "<!-- not a command: a story -->")
    result = run_script(repository, text, "--quick")
    assert result.returncode == 0
    assert "make fails   (needs: gpu)" in result.stdout
    assert "make hello   (slow: an hour)" in result.stdout
    assert "(not a command: a story)" in result.stdout
    listed = run_script(repository, text, "--list", "--with", "gpu")
    assert [line.split()[0] for line in listed.stdout.splitlines()] == ["run", "run", "skipped"]


def test_a_readme_that_cannot_be_read_is_one_line_and_code_2(repository):
    result = run_script(repository, fenced("sl"), "--quick")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "error: README.md:4: not recognised as a command, and not tagged: sl\n"


def test_pages_are_run_one_after_the_other_and_named(repository):
    (repository / "docs").mkdir()
    (repository / "docs/more.md").write_text(fenced("make hello", "<!-- needs: gpu -->"), encoding="utf-8")
    result = run_script(repository, fenced("make fails"), "--list", "README.md", "docs/more.md")
    assert [line.split()[:3] for line in result.stdout.splitlines()] == [
        ["run", "README.md:4", "make"],
        ["skipped", "docs/more.md:5", "make"],
    ]


def test_data_that_one_has_is_brought_where_the_command_looks_for_it(repository):
    (repository / "runs" / "my.txt").write_text("mine", encoding="utf-8")  # ignored by git: not in the copy
    text = fenced('assert open("runs/my.txt").read() == "mine"', "<!-- needs: data runs/my.txt -->", "python")
    assert run_script(repository, text, "--quick", "--with", "data").returncode == 0
    (repository / "runs" / "my.txt").unlink()
    assert run_script(repository, text, "--quick", "--with", "data").returncode == 1


def test_a_newcomer_has_no_environment_that_is_active(tmp_path, monkeypatch):
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "pyvenv.cfg").touch()
    monkeypatch.setenv("PATH", os.pathsep.join([str(venv / "bin"), "/usr/bin"]))
    monkeypatch.setenv("VIRTUAL_ENV", str(venv))
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    environment = readme_commands.newcomers_environment(tmp_path, quick=False)
    assert environment["PATH"] == "/usr/bin"
    assert not {"VIRTUAL_ENV", "PYTHONPATH"} & environment.keys()


def test_the_children_of_a_command_that_hangs_end_with_it(tmp_path, monkeypatch):
    monkeypatch.setattr(readme_commands, "SECONDS", 1)
    script = f"{sys.executable} -c 'import os, time; print(os.getpid(), flush=True); time.sleep(600)' & wait"
    code, said = readme_commands.execute(["sh", "-c", script], tmp_path, dict(os.environ))
    assert code == 124
    for _ in range(200):
        try:
            os.kill(int(said), 0)
        except ProcessLookupError:
            return
        status = Path(f"/proc/{int(said)}/stat")  # a container without an init leaves it as a zombie
        if status.exists() and status.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.1)
    pytest.fail("the grandchild still runs")


# ---------------------------------------------------------------------------------------------------------
# README and the guides


def test_every_block_of_the_pages_is_a_command_or_says_what_it_is():
    kinds = {command.kind for command in commands_of_pages()}
    assert {"shell", "python", "yaml"} <= kinds


def test_the_chinese_readme_has_the_same_commands():
    def core(command: Command) -> str:
        return command.title if command.kind == "shell" else re.sub(r"\s*#.*", "", command.text)

    said = [[core(c) for c in parse((ROOT / name).read_text(encoding="utf-8"), name) if c.kind != "text"]
            for name in ("README.md", "README.zh-CN.md")]  # fmt: skip
    assert said[0] == said[1]


def test_what_is_skipped_names_modules_and_configs_that_exist():
    """CI runs no command that needs a network or a GPU; the names in it are checked all the same."""
    from train.config import load_run_config

    for command in commands_of_pages():
        words = shlex.split(command.title) if command.kind == "shell" else []
        if "-m" not in words or command.needs.startswith("windows"):
            continue
        at = words.index("-m")
        module, arguments = words[at + 1], words[at + 2 :]
        assert is_module(module), f"{command.page}:{command.line}: there is no module {module}"
        for name in [word for word in arguments if word.startswith("configs/") and word.endswith(".yaml")]:
            overrides = [word for word in arguments if re.match(r"[a-z_]+(\.[a-z_]+)*=", word)]
            if module != "train.sweep":  # whose overrides may be lists
                load_run_config(ROOT / name, overrides)
