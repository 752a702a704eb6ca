"""Save with the last release, resume with this one: stored_run/ holds a run that commit 71ccd5fc
stopped at step 8.

Where this is red, what you changed keeps people from continuing their runs. If that is meant, say
so in CHANGELOG.md, and store the run anew: `python -m tests.train.run.test_stored_run` (then put
your commit's name above).
"""

import json
import shutil
import sys
from contextlib import chdir
from pathlib import Path

import pytest

from tests.train.checkpoints import edit_state
from tests.train.helpers import metrics, pretrain, stopped_at, trace, write_config

STORED = Path(__file__).parent / "stored_run"  # 95 KB
BEFORE = 8
STEPS = 12
MODEL = {"hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "intermediate_size": 24}


def test_a_run_that_the_last_release_stopped_is_continued(tmp_path, monkeypatch):
    write_text(tmp_path)
    shutil.copytree(STORED / "run", tmp_path / "runs/stored")
    # as if this release had a new key, which the stored run has not
    checkpoint = tmp_path / f"runs/stored/checkpoints/step_{BEFORE:08d}"
    edit_state(checkpoint, lambda state: state["identity"].pop("model.mlp_bias"))
    monkeypatch.chdir(tmp_path)  # its config.yaml has relative paths
    said = pretrain(tmp_path / "runs/stored/config.yaml", "name=stored").stdout
    assert f"resumed from {checkpoint.relative_to(tmp_path)}" in said
    expected = json.loads((STORED / "expected.json").read_text(encoding="utf-8"))
    steps = trace(tmp_path / "runs/stored")
    assert [line["step"] for line in metrics(tmp_path / "runs/stored", "train")] == list(range(1, STEPS + 1))
    assert [line["batch"] for line in steps] == [line["batch"] for line in expected]
    for number, (ours, theirs) in enumerate(zip(steps, expected, strict=True), 1):
        # before the first update of today's: rounding alone, on whatever CPU; Muon enlarges it from
        # then on
        share = 0 if number <= BEFORE else 2e-6 if number == BEFORE + 1 else 2e-5
        for key in ("loss", "grad_norm", "lr"):
            wanted = pytest.approx(float.fromhex(theirs[key]), rel=share * (10 if key == "grad_norm" else 1), abs=0)
            assert float.fromhex(ours[key]) == wanted, (number, key)


def write_text(folder: Path) -> None:
    lines = [f"{i} die Füße der Katze 猫 sat on mat number {i * 7 % 13}.\n" for i in range(100)]
    (folder / "text.txt").write_text("<|endoftext|>".join(lines), encoding="utf-8")


def store() -> None:
    shutil.rmtree(STORED, ignore_errors=True)
    STORED.mkdir()
    write_text(STORED)
    with chdir(STORED):
        config = write_config(
            Path(),
            name="stored",
            output_dir="runs",
            model=MODEL,
            data={"source": {"kind": "files", "path": "text.txt"}, "isolate_documents": True},
            train={"max_steps": STEPS, "trace": True, "checkpoint_every": 0, "device": "cpu", "processes": 1},
            eval={"every": 0, "hooks": []},
        )
        pretrain(config, "name=whole")
        Path("expected.json").write_text(json.dumps(trace(Path("runs/whole")), indent=0), encoding="utf-8")
        with stopped_at(BEFORE - 1):
            pretrain(config, code=143)
        shutil.move("runs/stored", "run")
        shutil.rmtree("runs")
        for file in (config, Path("text.txt")):
            file.unlink()


if __name__ == "__main__":
    sys.exit(store())
