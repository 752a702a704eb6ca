"""Adapters on the disk: peft reads ours, we read peft's, and they fit one base only."""

import json
import shutil

import pytest
import torch
from peft import LoraConfig as PeftConfig
from peft import PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from configs.files import DamagedFile
from model import load, save
from model.files.checkpoint import base_of
from model.variants.config import LoraConfig
from model.variants.lora import adapted, add_adapters, load_adapters, merge, weights_hash
from tests.conftest import GPT2, LATENT, random_model, tiny_config

IDS = torch.arange(24).view(2, 12)
FAMILIES = {"qwen3": {}, "llama": {"qk_norm": False}, "experts": {"num_experts": 4}, "mla": LATENT}


def base_in(folder, **changes):
    save(random_model(tiny_config(**changes)), folder / "base")
    return folder / "base"


def trained(base, **config):
    """Our model with adapters whose B is not zero, as if it were trained."""
    lm = load(base)
    add_adapters(lm, LoraConfig(**{"rank": 4, **config}), str(base), weights_hash(lm))
    for layer in adapted(lm).values():
        torch.nn.init.normal_(layer.lora_B.weight, std=0.2)
    return lm.eval()


@pytest.mark.parametrize("family", FAMILIES)
def test_peft_loads_ours_with_equal_logits(tmp_path, family):
    """==: the same products in the same order, once base and transformers agree to the last bit, as
    they do.
    """
    base = base_in(tmp_path, **FAMILIES[family])
    lm = trained(base, alpha=12.0)
    save(lm, tmp_path / "ours")
    assert not (tmp_path / "ours/model.safetensors").exists()
    theirs = AutoModelForCausalLM.from_pretrained(base)
    alone = theirs(IDS).logits
    peft = PeftModel.from_pretrained(theirs, tmp_path / "ours").eval()
    assert torch.equal(peft(IDS).logits, lm(IDS))
    assert not torch.allclose(alone, lm(IDS), atol=0.1)
    merge(lm)
    assert torch.equal(load(tmp_path / "ours")(IDS), lm(IDS))  # merged on opening
    assert torch.equal(peft.merge_and_unload()(IDS).logits, lm(IDS))


@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "v_proj"], r".*layers\.1\.mlp\.(up|down)_proj"])
def test_we_load_what_peft_wrote(tmp_path, targets):
    base = base_in(tmp_path)
    config = PeftConfig(r=3, lora_alpha=5, target_modules=targets, task_type="CAUSAL_LM")
    peft = get_peft_model(AutoModelForCausalLM.from_pretrained(base), config).eval()
    for name, parameter in peft.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    peft.save_pretrained(tmp_path / "theirs")
    lm = load(base)
    load_adapters(lm, tmp_path / "theirs")
    assert torch.equal(lm(IDS), peft(IDS).logits)
    merge(lm)
    assert torch.equal(load(tmp_path / "theirs")(IDS), lm(IDS))


def test_adapters_of_gpt2_come_back(tmp_path):
    """peft would put one adapter beside the matrix in which GPT-2 has queries, keys and values:
    only ours load here.
    """
    lm = trained(base_in(tmp_path, **GPT2))
    save(lm, tmp_path / "ours")
    merge(lm)
    assert torch.equal(load(tmp_path / "ours")(IDS), lm(IDS))


def edited(folder, **values):
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def test_another_base_is_refused_and_a_copy_of_the_same_is_not(tmp_path):
    base = base_in(tmp_path)
    save(trained(base), tmp_path / "ours")
    expected = load(tmp_path / "ours")(IDS)
    # another file, the same numbers
    AutoModelForCausalLM.from_pretrained(base).save_pretrained(tmp_path / "copy")
    edited(tmp_path / "ours", base_model_name_or_path=str(tmp_path / "copy"))
    assert torch.equal(load(tmp_path / "ours")(IDS), expected)
    torch.manual_seed(1)
    save(random_model(tiny_config()), tmp_path / "other")
    edited(tmp_path / "ours", base_model_name_or_path=str(tmp_path / "other"))
    with pytest.raises(DamagedFile, match=r"ours: these adapters belong to another base: .* have the hash \w{12}, and"):
        load(tmp_path / "ours")


def test_the_base_is_looked_for_from_here_and_from_the_folders_around(tmp_path, monkeypatch):
    base = base_in(tmp_path)
    save(trained(base), tmp_path / "runs/x")
    edited(tmp_path / "runs/x", base_model_name_or_path="base")
    assert base_of(tmp_path / "runs/x") == tmp_path / "base"
    shutil.copytree(base, tmp_path / "here/base")
    monkeypatch.chdir(tmp_path / "here")
    assert base_of(tmp_path / "runs/x").resolve() == tmp_path / "here/base"
    for name, message in (("gone", "put that model back"), (str(tmp_path / "runs/x"), "name a whole model")):
        edited(tmp_path / "runs/x", base_model_name_or_path=name)
        with pytest.raises(DamagedFile, match=message):
            load(tmp_path / "runs/x")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"use_dora": True}, "use_dora is True, and Headlight computes plain LoRA only"),
        ({"rank_pattern": {"q_proj": 2}}, "rank_pattern is "),
        ({"bias": "all"}, "bias is 'all'"),
        ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
        ({"r": 2}, r"has shape \[4, \d+\], and the model \[2, \d+\]"),
        ({"lora_alpha": -1}, "`alpha`"),
    ],
)
def test_other_kinds_and_damage_are_named(tmp_path, values, message):
    save(trained(base_in(tmp_path)), tmp_path / "ours")
    edited(tmp_path / "ours", **values)
    with pytest.raises(DamagedFile, match=message):
        load(tmp_path / "ours")


def test_adapters_as_peft_writes_them_and_broken_ones(tmp_path):
    base = base_in(tmp_path)
    save(trained(base), tmp_path / "ours")
    for name in ("config.json", "generation_config.json"):
        (tmp_path / "ours" / name).unlink()  # peft writes none
    load(tmp_path / "ours")
    # another architecture, and layers that it has not
    save(random_model(tiny_config(num_hidden_layers=1)), base)
    with pytest.raises(DamagedFile, match="another base"):
        load(tmp_path / "ours")
    (tmp_path / "ours/adapter_model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(DamagedFile, match=r"adapter_model.safetensors: cannot be read"):
        load(tmp_path / "ours")
