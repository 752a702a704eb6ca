"""Every command answers `--help` and a bad config without importing what takes seconds, and ends in one line when it is
stopped while it imports."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# torch is not among them: it takes two seconds, and `--help` may take three
HEAVY = (
    "fastapi",
    "transformers",
    "datasets",
    "matplotlib",
    "wandb",
    "pyarrow",
    "nbformat",
)
CONFIGS = ["train.pretrain", "train.sft", "train.sweep", "train.budget", "train.doctor", "data.prepare", "data.inspect"]
CONFIGS += ["data.tokenizer_report", "benchmarks.throughput", "benchmarks.busy", "train.grpo", "train.distill"]
CONFIGS += ["train.dpo"]
RUNS = ["eval.attention", "eval.chat", "eval.compare", "eval.tasks", "eval.samples", "eval.questions"]
RUNS += ["eval.long_context", "eval.quantised", "eval.tools"]
OTHERS = [
    "model.convert_kv_heads",
    "model.export",
    "train.documentation",
    "notebooks.execute",
]
OTHERS += [
    "eval.tools.sums",
    "benchmarks.preparing",
    "benchmarks.long_words",
    "benchmarks.rollouts",
    "benchmarks.serving",
    "benchmarks.decode",
    "serve",
]
COMMANDS = [*CONFIGS, *RUNS, *OTHERS]


def heavy_imports(*command: str) -> tuple[int, list[str]]:
    """Of `python -m command`: its exit code, and which heavy modules it imported."""
    asked = [sys.executable, "-X", "importtime", "-m", *command]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, encoding="utf-8", timeout=300)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "configs.command" in imported
    assert done.stdout.startswith("usage: python -m ") or "--help" not in command
    return done.returncode, [name for name in HEAVY if name in imported]


def test_the_commands_are_all_that_there_are():
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")
        for room in ("model", "data", "eval", "train", "serve", "benchmarks", "notebooks")
        for path in (ROOT / room).rglob("*.py")
        if 'if __name__ == "__main__":' in path.read_text(encoding="utf-8")
    }
    assert set(COMMANDS) == modules


# train.sweep trains: it imports torch at once, and its help takes the three seconds that a help may take
@pytest.mark.parametrize("module", [module for module in COMMANDS if module != "train.sweep"])
def test_help_imports_nothing_heavy(module):
    assert heavy_imports(module, "--help") == (0, [])


@pytest.mark.parametrize("module", [module for module in CONFIGS if module != "train.sweep"])
def test_a_bad_config_imports_nothing_heavy(module, tmp_path):
    config = tmp_path / "bad.yaml"
    config.write_text("data: {sequence_lenght: 3}\n", encoding="utf-8")
    assert heavy_imports(module, str(config)) == (2, [])


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT for one process alone")
@pytest.mark.parametrize("module", ["train.pretrain", "eval.compare", "data.prepare", "model.convert_kv_heads"])
@pytest.mark.parametrize("half", [0, 1])
def test_ctrl_c_while_libraries_are_imported_is_one_line(module, half, tmp_path):
    """SIGINT at a random moment after the first import of Headlight, in either half of what the command takes."""
    arguments = {"model.convert_kv_heads": ["x", "--num-key-value-heads", "1", "--out", "y"], "eval.compare": ["x"]}
    command = [sys.executable, "-X", "importtime", "-m", module, *arguments.get(module, ["configs/demo.yaml"])]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    if module in ("train.pretrain", "data.prepare"):
        command.append(f"output_dir={tmp_path}")
    with subprocess.Popen(command, cwd=ROOT, stdout=-3, stderr=-1, env=environment, encoding="utf-8") as process:
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "configs.command" in line:
                break
        time.sleep(random.uniform(half * 0.1, half * 1.0 + 0.1))
        process.send_signal(signal.SIGINT)
        said = [line for line in process.stderr if not line.startswith("import time:")]
    if process.returncode == 2:  # it was quicker
        return
    assert process.returncode == 130, said
    assert [line.strip() for line in said] == ["stopped; run the same command again to continue"]
