"""init_from: a new run that starts from the weights of another one, all of them or beside them."""

import json
import math
import re
import shutil
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from data import load_tokenizer
from eval.load_model import open_model
from model import load, save
from model.convert_kv_heads import write_converted
from model.export import export
from tests.train.helpers import (
    check_exact_resume,
    losses,
    metrics,
    pretrain,
    pretrain_rank,
    refusal,
    run_world,
    write_config,
)
from train.pretrain import main

MHA = {"num_key_value_heads": 4}
GQA = {"num_key_value_heads": 2}


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A finished run with one key/value head per query head, converted/ beside it with half as
    many.
    """
    folder = tmp_path_factory.mktemp("trained")
    pretrain(write_config(folder, name="mha", model=MHA))
    write_converted(folder / "runs/mha", 2, folder / "converted")
    return folder


@pytest.fixture
def here(trained, tmp_path) -> Path:
    """A folder of one's own with the same text and the converted model, which a test may delete."""
    shutil.copy(trained / "text.txt", tmp_path)
    shutil.copytree(trained / "converted", tmp_path / "converted")
    return tmp_path


def test_a_converted_model_is_trained_on(trained, here):
    pretrain(write_config(here, name="gqa", model=GQA, init_from=str(here / "converted")))
    val = losses(here / "runs/gqa")
    assert val[0] < math.log(320) - 1  # no random start comes near it
    assert val[-1] < losses(trained / "runs/mha")[-1]


def test_it_is_a_new_run_in_everything_but_the_weights(trained, here):
    """Its step, its schedule and its optimizer are those of a run that starts at random."""
    pretrain(write_config(here, name="on", model=MHA, init_from=str(trained / "runs/mha")))
    on = here / "runs/on"
    mha = trained / "runs/mha"
    # the last evaluation of the run that it starts from
    assert losses(on)[0] == losses(mha, "val")[-1]
    for key in ("step", "lr"):
        assert [m.get(key) for m in metrics(on)] == [m.get(key) for m in metrics(mha)]
    directory = here / "fresh"
    save(load(mha), directory)
    # the weights alone, without the optimizer's state beside them
    load_tokenizer(mha).save(directory)
    pretrain(write_config(here, name="fresh", model=MHA, init_from=str(directory)))
    assert metrics(here / "runs/fresh") == metrics(on)


@pytest.mark.parametrize("architecture", ["qwen3", pytest.param("ministral", marks=pytest.mark.slow)])
def test_a_directory_that_transformers_saved_is_a_start_as_well(trained, here, architecture):
    windows = {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}
    model = MHA | {"qk_norm": architecture == "qwen3"} | (windows if architecture == "ministral" else {})
    config = write_config(here, name="ours", model=model, train={"max_steps": 2}, eval={"every": 2})
    pretrain(config)
    ours = here / "runs/ours/checkpoints/step_00000002"
    theirs = here / "theirs"
    AutoModelForCausalLM.from_pretrained(ours).save_pretrained(theirs)
    AutoTokenizer.from_pretrained(ours).save_pretrained(theirs)
    assert json.loads((theirs / "config.json").read_text())["model_type"] == architecture
    pretrain(config, "name=from_ours", f"init_from={ours}")
    pretrain(config, "name=from_theirs", f"init_from={theirs}")
    assert metrics(here / "runs/from_theirs") == metrics(here / "runs/from_ours")
    assert losses(here / "runs/from_theirs", "val")[0] == losses(here / "runs/ours", "val")[-1]


def test_a_name_of_the_hub_is_the_folder_in_its_cache(trained, here, monkeypatch):
    """Models in the Hub's cache, from `hf download` or transformers; no network (HF_HUB_OFFLINE)."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(here / "hub"))
    monkeypatch.chdir(here)
    place = here / "hub/models--somebody--gqa"
    shutil.copytree(here / "converted", place / "snapshots" / ("1" * 40))
    (place / "refs").mkdir()
    (place / "refs/main").write_text("1" * 40)
    config = write_config(here, name="ours", model=GQA, train={"max_steps": 2})
    pretrain(config, f"init_from={here / 'converted'}")
    pretrain(config, "name=from_hub", "init_from=somebody/gqa")
    assert metrics(here / "runs/from_hub") == metrics(here / "runs/ours")
    assert "init_from: somebody/gqa" in (here / "runs/from_hub/config.yaml").read_text()
    assert "from the Hugging Face Hub" in refusal(config, "name=other", "init_from=somebody/gqb")
    Path("mine").mkdir()  # in a folder of one's own, a name is never one of the Hub
    assert "mine/gqa: does not exist: name a run" in refusal(config, "name=other", "init_from=mine/gqa")


def test_another_tokenizer_is_refused_and_the_remedy_works(here):
    file = here / "converted/tokenizer.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    ids = content["model"]["vocab"]
    ids |= {"a": ids["b"], "b": ids["a"]}
    file.write_text(json.dumps(content), encoding="utf-8")
    config = write_config(here, model=GQA, init_from=str(here / "converted"), data={"tokenizer": {"kind": "byte"}})
    (remedy,) = re.findall(r"'(data\.tokenizer=.*)'", refusal(config))
    assert not (here / "runs/tiny").exists()
    pretrain(config, remedy)
    ours, theirs = (load_tokenizer(directory) for directory in (here / "runs/tiny", here / "converted"))
    assert ours.sha256() == theirs.sha256()


def test_longer_sequences_are_learned_on_top_of_old_weights(trained, here):
    """YaRN and windows may be added to weights that were trained without; nothing else about them
    may differ.
    """
    yarn = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32}
    model = GQA | {"rope_scaling": yarn, "sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}
    pretrain(write_config(here, name="longer", model=model, init_from=str(here / "converted")))
    longer = load(here / "runs/longer").config
    assert longer.rope_scaling is not None
    assert longer.windows == [16, None]
    back = write_config(here, name="back", model=GQA | {"rope_scaling": None}, init_from=str(here / "runs/longer"))
    assert "rope_scaling is null here and" in refusal(back)


# --------------------------------------------------------------------------------------------------
# adapters: what is saved, exact resume, every command opens them, and what cannot be is said in a
# line


LORA = {"rank": 4, "dropout": 0.1}


def config_in(folder, base, **sections):
    return write_config(folder, name="ad", init_from=str(base), lora=LORA, **sections)


def test_a_run_saves_adapters_alone_and_opens_with_its_base(tmp_path, base):
    config = config_in(tmp_path, base, train={"optimizer": {"adamw_lr": 0.003}})
    pretrain(config)
    before = {file: file.read_bytes() for file in base.rglob("*") if file.is_file()}
    run = tmp_path / "runs/ad"
    checkpoint = run / "checkpoints/step_00000012"
    assert not (checkpoint / "model.safetensors").exists()
    sizes = [file.stat().st_size for file in (*checkpoint.glob("*.safetensors"), *base.rglob("model.safetensors"))]
    assert sizes[0] < 0.5 * min(sizes[1:])
    assert losses(run)[-1] < losses(run)[0]
    lm, _ = open_model(run)
    ids = torch.arange(10)[None]
    assert not torch.allclose(lm(ids), load(base)(ids), atol=1e-3)
    named = json.loads((checkpoint / "adapter_config.json").read_text())["base_model_name_or_path"]
    peft = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(named), checkpoint).merge_and_unload()
    assert torch.equal(lm(ids), peft(ids).logits)
    export(run, "merged", tmp_path / "merged")
    assert torch.equal(AutoModelForCausalLM.from_pretrained(tmp_path / "merged")(ids).logits, lm(ids))
    # all of it, merged
    pretrain(write_config(tmp_path, name="on", init_from=str(run), train={"max_steps": 1}))
    first = losses(tmp_path / "runs/on")[0]
    # a matrix with its adapter added is rounded once more
    assert first == pytest.approx(losses(run)[-1], rel=1e-4)
    assert before == {file: file.read_bytes() for file in base.rglob("*") if file.is_file()}


@pytest.mark.parametrize("step", [0, 5])
def test_a_stopped_run_goes_on_exactly(tmp_path, base, step):
    train = {"max_steps": 8, "trace": True, "checkpoint_every": 0, "optimizer": {"name": "adamw", "lr": 0.01}}
    check_exact_resume(config_in(tmp_path, base, train=train), main, step)


def test_it_resumes_beside_the_base_it_began_with_and_no_other(tmp_path, base):
    shutil.copytree(base, tmp_path / "runs/base")
    own = tmp_path / "runs/base"
    config = config_in(tmp_path, own)
    assert run_world(1, pretrain_rank, config, [], 6) == [143]
    shutil.copy(base / "checkpoints/step_00000008/model.safetensors", own / "checkpoints/step_00000012")
    (own / "checkpoints/step_00000012/training/manifest.json").unlink()
    assert "these adapters belong to another base" in pretrain(config, code=2).stderr
    on = ["name=z", f"init_from={tmp_path / 'runs/ad'}"]
    assert "these adapters belong to another base" in refusal(config, "lora=null", *on)
    assert "merge them first" in refusal(config, *on)
