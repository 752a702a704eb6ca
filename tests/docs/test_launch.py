"""docs/launch: what starts a run on several machines is valid; the SLURM file trains on a machine
that plays two.
"""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.docs.checks import ROOT
from tests.processes import run_module
from tests.train.helpers import metrics, write_config

LAUNCH = ROOT / "docs/launch"
SLURM = LAUNCH / "slurm.sh"
# docs.skypilot.co/en/latest/reference/yaml-spec.html; skypilot 0.14.1's own schema took the file,
# too
TASK = "name workdir num_nodes resources envs secrets file_mounts volumes setup run service config".split()
RESOURCES = "infra accelerators cpus memory use_spot disk_size disk_tier network_tier image_id ports autostop".split()
VARIABLES = ("NODE_IPS", "NUM_NODES", "NUM_GPUS_PER_NODE", "NODE_RANK", "TASK_ID")  # that it sets


def test_the_skypilot_file_has_documented_keys_and_its_commands_are_shell():
    task = yaml.safe_load((LAUNCH / "skypilot.yaml").read_text(encoding="utf-8"))
    assert set(task) <= set(TASK)
    assert set(task["resources"]) <= set(RESOURCES)
    for script in (task["setup"], task["run"], SLURM.read_text(encoding="utf-8")):
        assert subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False).stderr == ""
    known = {*task["envs"], "HOST", *(f"SKYPILOT_{name}" for name in VARIABLES)}
    assert {part.split('"')[0].split(":")[0] for part in task["run"].split("$")[1:] if part[0] != "("} <= known


def test_the_estimate_begins_with_the_figures_of_the_budget():
    gpu = ["--device", "cuda", "--memory-gb", "80", "--tflops", "989"]
    said = run_module("train.budget", LAUNCH / "one_billion.yaml", *gpu).stdout
    page = (ROOT / "docs/scaling.md").read_text(encoding="utf-8")
    for figure, on_page in (
        (" 1,016,421,376 ", "1.016 B parameters"), (" 6,198.90 MFLOP ", "6.2 GFLOP"), (" 28.97 GB ", " 29 GB "),
        (" 4.07 GB ", "weights 4.1"), (" 4.60 GB ", "moments 4.6"), ("all 20,132,659,200 tokens", "20.1 B tokens"),
    ):  # fmt: skip
        assert figure in said
        assert on_page in page


SRUN = """#!/usr/bin/env bash
# each of the two machines runs the command, in a process group of its own
"$@" & first=$!
"$@" & second=$!
wait $first && wait $second
"""


@pytest.mark.slow
def test_the_slurm_file_trains_on_two_machines(tmp_path):
    config = write_config(tmp_path, train={"parallel": "hsdp", "max_steps": 3}, eval={"every": 0, "hooks": []})
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name, text in (("srun", SRUN), ("scontrol", "#!/usr/bin/env bash\necho localhost; sleep 0.5; echo other\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHON": sys.executable, "PROCESSES": "1"}
    environment |= {"SLURM_NNODES": "2", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "two", "PORT": str(port)}
    done = subprocess.run(
        ["bash", SLURM, config], cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 processes, hsdp" in done.stdout
    assert len(metrics(tmp_path / "runs/tiny", "train")) == 3
    assert len(list(Path(tmp_path).glob("runs/tiny/checkpoints/step_00000003/training/shards/*"))) == 2
