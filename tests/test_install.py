"""The command `headlight`, and a wheel beside a project that has a `data` and a `train` of its own."""

import json
import os
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path
from unicodedata import east_asian_width

import pytest
import yaml

from configs import commands
from tests.processes import run_main

ROOT = Path(__file__).parents[1]


def test_the_help_is_one_screen_in_both_languages(monkeypatch):
    shown = {}
    for language in ("en", "zh"):
        monkeypatch.setenv("HEADLIGHT_LANG", language)
        shown[language] = run_main(commands.main).stdout
        # a terminal of 80 by 24; the last line is the next prompt
        assert len(shown[language].splitlines()) <= 23
        for line in shown[language].splitlines():
            assert sum(2 if east_asian_width(sign) in "WF" else 1 for sign in line) <= 80
    names = [re.findall(r"(?m)^  (\w+)", text) for text in shown.values()]
    assert names[0] == names[1] == list(commands.COMMANDS)
    translated = zip(*(text.splitlines() for text in shown.values()), strict=True)
    assert [lines for lines in translated if lines[0] and not re.search("[一-鿿]", lines[1])] == []


def test_every_name_is_a_command_and_other_modules_are_not():
    modules = [module.split()[0] for module, _, _ in commands.COMMANDS.values()]
    assert [module for module in modules if not commands.is_command(module)] == []
    assert commands.is_command("eval.tasks")
    for module in ("", "json.tool", "model.attention", "../eval", "configs"):
        assert not commands.is_command(module)


def test_an_unknown_name_is_one_sentence():
    done = run_main(commands.main, "chatt")
    assert done.returncode == 2
    assert done.stderr == "error: there is no command chatt, did you mean chat?: headlight --help lists them\n"


@pytest.mark.slow
def test_a_wheel_meets_no_package_of_the_user(tmp_path):
    """Installed into a new environment, it trains, chats and resumes in a folder that has its own
    data/ and train/, and puts one name into site-packages.
    """
    pytest.importorskip("hatchling", reason="pip install -r requirements-dev.txt")
    build = f"import hatchling.build; print(hatchling.build.build_wheel({str(tmp_path)!r}))"
    done = subprocess.run([sys.executable, "-c", build], cwd=ROOT, capture_output=True, encoding="utf-8", check=True)
    wheel = tmp_path / done.stdout.split()[-1]
    names = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert names == {"headlight", f"{wheel.name.split('-py3')[0]}.dist-info"}

    environment = tmp_path / "an environment"
    venv.create(environment)
    bin_ = environment / ("Scripts" if os.name == "nt" else "bin")
    python = str(bin_ / "python")
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    # what a wheel requires is here already: torch and the others, but not this repository
    packages = [path for path in sys.path if path.endswith("site-packages")]
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    purelib = subprocess.run([python, "-c", where], capture_output=True, encoding="utf-8", check=True).stdout.strip()
    Path(purelib, "torch_and_others.pth").write_text("\n".join(packages))

    project = tmp_path / "my project"
    for name in ("data", "train", "configs"):
        (project / name).mkdir(parents=True)
        (project / name / "__init__.py").write_text("raise SystemExit('this one is mine')\n")
    (project / "my_hook.py").write_text("def seen(event):\n    print('my hook at', event.step)\n")
    variables = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "HEADLIGHT_LANG")}

    def headlight(*arguments: str, stdin: str = "") -> str:
        command = [str(bin_ / "headlight"), *arguments]
        result = subprocess.run(
            command, cwd=project, env=variables, input=stdin, capture_output=True, encoding="utf-8", timeout=600
        )
        assert result.returncode == 0, result.stderr
        return result.stdout

    own = subprocess.run([python, "-c", "import data"], cwd=project, capture_output=True, encoding="utf-8")
    assert own.stderr == "this one is mine\n"
    assert "headlight NAME" in headlight()
    assert headlight("chat", "--help").startswith("usage: headlight eval.chat ")
    # two processes, which are spawned, and a hook of the project
    options = ["train.max_steps=2", "train.processes=2", "eval.attention.every=0", "eval.hooks=[my_hook:seen]"]
    output = headlight("demo", *options)
    assert "my hook at 2" in output
    assert "finished at step 2" in output
    assert (project / "runs/small/result.json").is_file()
    assert headlight("chat", "reader_sft", stdin="Where was the fox?\n").strip()


def test_the_workflow_and_the_containers_name_files_and_targets_that_exist():
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    steps = [step.get("run", "") for job in workflow["jobs"].values() for step in job["steps"]]
    files = re.findall(r"(?<!\S)(?:tests|\.ci)/[\w./]+", " ".join(steps))
    assert len(files) > 5
    assert [file for file in files if not (ROOT / file).exists()] == []
    names = re.findall(r"headlight (\w+)", " ".join(steps))
    assert names
    assert set(names) <= set(commands.COMMANDS)
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text(encoding="utf-8"))
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert f" AS {container['build']['target']}\n" in dockerfile
    targets = re.findall(
        r"(?m)^([^#\s:]+):", (ROOT / "Makefile").read_text(encoding="utf-8").replace("$(VENV)", ".venv")
    )
    wanted = re.findall(r"make (\S+)", f"{dockerfile.split('AS headlight')[1]} {container['postCreateCommand']}")
    assert len(wanted) == 2
    assert set(wanted) <= set(targets)
