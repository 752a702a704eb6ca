"""A saved model directory is a Hugging Face model directory, and what is wrong in one is said in a line.

test_families.py compares every family with transformers; test_foreign_models.py has what others wrote.
"""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from model import LanguageModel, load, save
from model.files import families
from model.files.checkpoint import load_weights
from model.files.family import Family
from tests.conftest import random_model, tiny_config


@pytest.mark.parametrize("types", [["sliding_attention"] * 2, ["sliding_attention", "full_attention"]])
def test_vllm_refuses_mixed_windows(tmp_path, types):
    """vLLM computes with one window for all layers. Its check: `if is_interleaved(config): assert
    config.max_window_layers == config.num_hidden_layers` … (qwen2.py and qwen3.py in vllm/model_executor/models)."""
    save(random_model(tiny_config(sliding_window=5, layer_types=types)), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    is_interleaved = len(set(config["layer_types"])) > 1
    assert (is_interleaved and config["max_window_layers"] != config["num_hidden_layers"]) == (types[0] != types[1])


@pytest.mark.parametrize(
    ("saved", "opened", "message"),
    [
        ({}, {"num_key_value_heads": 4}, r"k_proj.weight has shape \[16, 32\], and the model \[32, 32\]"),
        ({}, {"qk_norm": False}, "k_norm.weight is not part of this model"),
        ({"qk_norm": False}, {}, "k_norm.weight is missing"),
    ],
)
def test_weights_of_another_architecture_are_refused_by_name(tmp_path, saved, opened, message):
    save(LanguageModel(tiny_config(**saved)), tmp_path)
    with pytest.raises(ValueError, match=f"model.safetensors: is of another architecture: .*{message}"):
        load_weights(LanguageModel(tiny_config(**opened)), tmp_path)


def test_a_model_in_bfloat16_stays_one_and_keeps_its_angles(tmp_path):
    """Rounded frequencies would turn position 900 by the wrong angle; transformers keeps them in float32."""
    lm = random_model(tiny_config(max_position_embeddings=1024, head_dim=32), scale=0.1)
    ids = torch.randint(0, 192, (1, 900))
    with torch.no_grad():
        exact = lm(ids)
        lm.to(torch.bfloat16)
        save(lm, tmp_path)
        theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto")
        assert theirs.dtype == torch.bfloat16
        ours, others = ((logits.float() - exact).abs().mean() for logits in (lm(ids), theirs(ids).logits))
    assert ours < 1.2 * others


def turned(tensors):
    """Another name for one tensor, and another one the other way round; twice it is as before."""
    found = {}
    for name, tensor in tensors.items():
        old, new = ("self_attn.q_proj", "attn.query")[:: 1 if "q_proj" in name else -1]
        found[name.replace(old, new)] = tensor.T if "down_proj" in name else tensor
    return found


def test_a_family_is_one_object_and_a_line_in_the_table(tmp_path, monkeypatch):
    needs = {"qk_norm": True, "tie_word_embeddings": True}
    fixed = {"hidden_act": "swish", "attention_bias": False}
    toy = Family("toy", "ToyForCausalLM", needs=needs, fixed=fixed, to_files=turned, from_files=turned)
    monkeypatch.setattr(families, "FAMILIES", (toy, *families.FAMILIES))
    lm, ids = random_model(tiny_config()), torch.randint(0, 192, (1, 12))
    save(lm, tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    assert (fields["model_type"], fields["architectures"]) == ("toy", ["ToyForCausalLM"])
    assert fields.items() >= fixed.items()
    assert "model.layers.0.attn.query.weight" in load_file(tmp_path / "model.safetensors")
    loaded = load(tmp_path)
    assert loaded.config == lm.config
    with torch.no_grad():
        assert torch.equal(loaded(ids), lm(ids))
    save(random_model(tiny_config(qk_norm=False)), tmp_path)  # what it cannot express is another one
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "llama"


def test_weights_in_several_files_are_read(tmp_path):
    lm = random_model(tiny_config())
    save(lm, tmp_path / "ours")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size="20KB")
    assert not (tmp_path / "theirs/model.safetensors").exists()
    ids = torch.randint(0, 192, (1, 12))
    with torch.no_grad():
        assert torch.equal(load(tmp_path / "theirs")(ids), lm(ids))
    next((tmp_path / "theirs").glob("model-00002*")).unlink()
    with pytest.raises(ValueError, match=r"model-00002\S*: cannot be read: there is no such file"):
        load(tmp_path / "theirs")
