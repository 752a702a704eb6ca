"""A saved model directory is a Hugging Face model directory: logits equal to the last bit, both ways."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM

from model import LanguageModel, load, save
from model.checkpoint_format import load_weights
from tests.conftest import random_model, tiny_config


@pytest.mark.parametrize("kv_heads", ["mha", "gqa", "mqa"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("qk_norm", [True, False], ids=["qk_norm", "plain"])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_transformers_gives_the_same_logits(tmp_path, kv_heads, tied, qk_norm, implementation):
    config = tiny_config(
        num_attention_heads=8,
        num_key_value_heads=kv_heads,
        tie_word_embeddings=tied,
        qk_norm=qk_norm,
        head_dim=8,
        rope_theta=5000.0,
        rms_norm_eps=1e-5,
    )
    lm = random_model(config)
    lm.set_attn_implementation(implementation)
    save(lm, tmp_path)
    theirs, info = AutoModelForCausalLM.from_pretrained(
        tmp_path, output_loading_info=True, attn_implementation=implementation
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    ids = torch.randint(0, 192, (3, 40))
    with torch.no_grad():
        assert torch.equal(lm(ids), theirs(ids).logits)
        assert torch.equal(lm(ids), load(tmp_path)(ids)) or implementation == "eager"


def test_a_directory_written_by_transformers_loads(tmp_path):
    lm = random_model(tiny_config())
    save(lm, tmp_path / "ours")
    AutoModelForCausalLM.from_pretrained(tmp_path / "ours").save_pretrained(tmp_path / "theirs")
    ids = torch.randint(0, 192, (2, 20))
    with torch.no_grad():
        assert torch.equal(load(tmp_path / "theirs")(ids), lm(ids))


def test_every_field_comes_back(tmp_path):
    config = tiny_config(qk_norm=False, hidden_dropout=0.1, attention_dropout=0.2, eos_token_id=2, rope_theta=1234.5)
    save(LanguageModel(config), tmp_path)
    assert load(tmp_path).config == config


def test_weights_of_another_architecture_are_refused_by_name(tmp_path):
    save(LanguageModel(tiny_config()), tmp_path)
    with pytest.raises(ValueError, match=r"another architecture: .*k_proj.weight has shape \[16, 32\]"):
        load_weights(LanguageModel(tiny_config(num_key_value_heads=4)), tmp_path)
    with pytest.raises(ValueError, match="q_norm.weight is not part of this model"):
        load_weights(LanguageModel(tiny_config(qk_norm=False)), tmp_path)


def test_a_missing_tensor_is_refused_by_name(tmp_path):
    lm = LanguageModel(tiny_config(qk_norm=False))
    save(lm, tmp_path)
    with pytest.raises(ValueError, match="q_norm.weight is missing"):
        load_weights(LanguageModel(tiny_config()), tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt2"}, "model_type is 'gpt2'"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rope_type is 'yarn'"),
    ],
)
def test_what_headlight_does_not_build_is_refused(tmp_path, change, message):
    save(LanguageModel(tiny_config()), tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(fields | change))
    with pytest.raises(ValueError, match=message):
        load(tmp_path)


def test_a_path_that_is_no_model_says_so(tmp_path):
    with pytest.raises(ValueError, match="is neither a run"):
        load(tmp_path)
