"""Runs with adapters: what is saved, exact resume, every command opens them, and what cannot be is said in a line."""

import json
import shutil

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from eval.load_model import open_model
from model import load
from model.export import export
from tests.train.exactly import check_that_a_stopped_run_goes_on_exactly
from tests.train.helpers import metrics, pretrain, refusal, write_config
from tests.train.worlds import pretrain_rank, run_world
from train.pretrain import main

LORA = {"rank": 4, "dropout": 0.1}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    pretrain(write_config(folder, name="base", eval={"every": 0}))
    return folder / "runs/base"


def config_in(folder, base, **sections):
    return write_config(folder, name="ad", init_from=str(base), lora=LORA, **sections)


def test_a_run_saves_adapters_alone_and_opens_with_its_base(tmp_path, base):
    config = config_in(tmp_path, base, train={"optimizer": {"adamw_lr": 0.003}})
    pretrain(config)
    before = {file: file.read_bytes() for file in base.rglob("*") if file.is_file()}
    run = tmp_path / "runs/ad"
    checkpoint = run / "checkpoints/step_00000012"
    assert not (checkpoint / "model.safetensors").exists()
    assert (checkpoint / "adapter_model.safetensors").stat().st_size < 0.5 * (
        base / "checkpoints/step_00000012/model.safetensors"
    ).stat().st_size
    losses = [m["loss"] for m in metrics(run) if m["split"] == "val"]
    assert losses[-1] < losses[0]
    lm, _ = open_model(run)
    ids = torch.arange(10)[None]
    assert not torch.allclose(lm(ids), load(base)(ids), atol=1e-3)
    named = json.loads((checkpoint / "adapter_config.json").read_text())["base_model_name_or_path"]
    peft = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(named), checkpoint).merge_and_unload()
    assert torch.equal(lm(ids), peft(ids).logits)
    export(run, "merged", tmp_path / "merged")
    assert torch.equal(AutoModelForCausalLM.from_pretrained(tmp_path / "merged")(ids).logits, lm(ids))
    pretrain(write_config(tmp_path, name="on", init_from=str(run), train={"max_steps": 1}))  # all of it, merged
    first = next(m["loss"] for m in metrics(tmp_path / "runs/on") if m["split"] == "val")
    assert first == pytest.approx(losses[-1], rel=1e-4)  # a matrix with its adapter added is rounded once more
    assert before == {file: file.read_bytes() for file in base.rglob("*") if file.is_file()}


@pytest.mark.parametrize("step", [0, 5])
def test_a_stopped_run_goes_on_exactly(tmp_path, base, step):
    train = {"max_steps": 8, "trace": True, "checkpoint_every": 0, "optimizer": {"name": "adamw", "lr": 0.01}}
    check_that_a_stopped_run_goes_on_exactly(config_in(tmp_path, base, train=train), main, step)


def test_it_resumes_beside_the_base_it_began_with_and_no_other(tmp_path, base):
    shutil.copytree(base, tmp_path / "runs/base")
    own = tmp_path / "runs/base"
    config = config_in(tmp_path, own)
    assert run_world(1, pretrain_rank, config, [], 6) == [143]
    shutil.copy(base / "checkpoints/step_00000008/model.safetensors", own / "checkpoints/step_00000012")
    (own / "checkpoints/step_00000012/training/manifest.json").unlink()
    assert "these adapters belong to another base" in pretrain(config, code=2).stderr
    assert (
        "these adapters belong to another base"
        in pretrain(config, "name=z", "lora=null", f"init_from={tmp_path / 'runs/ad'}", code=2).stderr
    )


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["init_from=null"], "lora trains beside the matrices of a trained model: set init_from"),
        (["lora.target_modules=[query]"], "lora: target_modules: no layer of the blocks is named 'query': use"),
        (["train.parallel=fsdp2"], "lora: train.parallel is fsdp2"),
        (["model.rope_scaling={rope_type: linear, factor: 2.0}"], "init_from: rope_scaling is "),
        (["init_from=ADAPTERS"], "holds adapters, and adapters need a whole model: merge them first with"),
    ],
)
def test_what_cannot_be_is_said_in_a_line_before_anything_is_written(tmp_path, base, overrides, message):
    config = config_in(tmp_path, base, train={"max_steps": 1}, eval={"every": 0})
    if overrides == ["init_from=ADAPTERS"]:
        pretrain(config, "name=first")
        overrides = [f"init_from={tmp_path / 'runs/first'}"]
    assert message in refusal(config, *overrides)
    assert not (tmp_path / "runs/ad/config.yaml").exists()
    assert not (tmp_path / "runs/ad/checkpoints").exists()
