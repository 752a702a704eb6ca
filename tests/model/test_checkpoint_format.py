"""A saved model directory is a Hugging Face model directory: logits equal to the last bit, both ways."""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig, MinistralConfig, Qwen3Config

from model import LanguageModel, families, load, save
from model.checkpoint import load_weights
from model.families import FAMILIES, Family
from tests.conftest import random_model, tiny_config

LINEAR = {"rope_type": "linear", "factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
WINDOWS = [None, 5, 40, 60]  # 40 is the length that is read: there, transformers' rule for the mask changes


@pytest.mark.parametrize("rope_scaling", [None, LINEAR, YARN, YARN | {"beta_fast": 8.0, "attention_factor": 1.3}])
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("kv_heads", ["mha", "gqa", "mqa"])
@pytest.mark.parametrize("qk_norm", [True, False], ids=["qk_norm", "plain"])
def test_transformers_gives_the_same_logits(tmp_path, kv_heads, qk_norm, window, rope_scaling):
    config = tiny_config(
        num_attention_heads=8,
        num_key_value_heads=kv_heads,
        tie_word_embeddings=kv_heads == "gqa",
        qk_norm=qk_norm,
        head_dim=8,
        rope_theta=5000.0,
        rms_norm_eps=1e-5,
        sliding_window=window,
        layer_types=["sliding_attention", "full_attention"] if window else None,
        rope_scaling=rope_scaling,
    )
    lm = random_model(config)
    save(lm, tmp_path)
    theirs, info = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert type(theirs).__name__ == ("Qwen3ForCausalLM" if qk_norm else "MinistralForCausalLM" if window
                                     else "LlamaForCausalLM")  # fmt: skip
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    ids = torch.randint(0, 192, (3, 40))
    for implementation in ("sdpa", "eager"):
        lm.set_attn_implementation(implementation)
        theirs.set_attn_implementation(implementation)
        with torch.no_grad():
            assert torch.equal(lm(ids), theirs(ids).logits)


OTHERS = {
    "qwen3": (Qwen3Config, {"head_dim": 8}),
    "qwen3 windows": (
        Qwen3Config,
        {"head_dim": 8, "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1},
    ),
    "llama": (LlamaConfig, {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}}),
    "llama yarn": (LlamaConfig, {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "rope_theta": 500.0}}),
    "ministral": (MinistralConfig, {"head_dim": 16, "sliding_window": 9}),
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_a_model_that_transformers_made_loads(tmp_path, name, tied):
    """From its own config class and its own defaults, not from a directory that Headlight wrote first."""
    make, special = OTHERS[name]
    config = make(vocab_size=192, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=8,
                  num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=tied, **special)  # fmt: skip
    theirs = AutoModelForCausalLM.from_config(config).eval()
    theirs.save_pretrained(tmp_path)
    ids = torch.randint(0, 192, (2, 40))
    with torch.no_grad():
        assert torch.equal(load(tmp_path)(ids), theirs(ids).logits)


def test_a_directory_that_went_through_transformers_loads(tmp_path):
    for number, changes in enumerate([{}, {"qk_norm": False}, {"sliding_window": 6}, {"rope_scaling": YARN}]):
        lm, ours, theirs = random_model(tiny_config(**changes)), tmp_path / f"a{number}", tmp_path / f"b{number}"
        save(lm, ours)
        AutoModelForCausalLM.from_pretrained(ours).save_pretrained(theirs)
        ids = torch.randint(0, 192, (2, 20))
        with torch.no_grad():
            assert torch.equal(load(theirs)(ids), lm(ids))
        assert load(theirs).config == lm.config


@pytest.mark.parametrize("family", [{}, {"qk_norm": False, "qkv_bias": True}], ids=["qwen3", "qwen2"])
@pytest.mark.parametrize(
    ("types", "is_refused"),
    [(None, False), (["sliding_attention"] * 2, False), (["sliding_attention", "full_attention"], True),
     (["full_attention", "sliding_attention"], True)],
)  # fmt: skip
def test_vllm_refuses_mixed_windows(tmp_path, family, types, is_refused):
    """vLLM computes with one window for all layers. Its check: `if is_interleaved(config): assert
    config.max_window_layers == config.num_hidden_layers` … (qwen2.py and qwen3.py in vllm/model_executor/models)."""
    save(random_model(tiny_config(**family, sliding_window=types and 5, layer_types=types)), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    is_interleaved = len(set(config["layer_types"])) > 1
    assert (is_interleaved and config["max_window_layers"] != config["num_hidden_layers"]) is is_refused


def test_every_field_comes_back(tmp_path):
    config = tiny_config(
        qk_norm=False,
        hidden_dropout=0.1,
        attention_dropout=0.2,
        eos_token_id=2,
        rope_theta=1234.5,
        rope_scaling=YARN | {"beta_slow": 2.0},
        sliding_window=3,
        layer_types=["full_attention", "sliding_attention"],
    )
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
        ({"model_type": "bert"}, "model_type is 'bert'; Headlight builds llama, .*smollm3"),
        ({"attention_bias": True}, "q_proj.bias is missing"),
        ({"mlp_bias": True}, "mlp_bias is True"),
        ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, "rope_type`: must be .* is 'longrope'"),
        ({"rope_parameters": YARN | {"rope_theta": 1e4, "mscale": 0.7}}, "mscale"),
        ({"rope_parameters": YARN | {"rope_theta": 1e4, "truncate": False}}, "truncate"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 5.0}}}, "rope_parameters.full_attention`: Extra inputs"),
        ({"rope_parameters": "yarn"}, "rope_parameters`: must be a valid dictionary"),
    ],
)
def test_what_headlight_does_not_build_is_refused(tmp_path, change, message):
    save(LanguageModel(tiny_config()), tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(fields | change))
    with pytest.raises(ValueError, match=message):
        load(tmp_path)


def test_a_path_that_is_not_a_model_says_so(tmp_path):
    with pytest.raises(ValueError, match="is neither a run"):
        load(tmp_path)


def test_a_rope_scaling_written_into_the_config_by_hand_wins_as_it_does_in_transformers(tmp_path):
    save(random_model(tiny_config()), tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(fields | {"rope_scaling": LINEAR}))
    ids = torch.randint(0, 192, (1, 30))
    with torch.no_grad():
        assert torch.equal(load(tmp_path)(ids), AutoModelForCausalLM.from_pretrained(tmp_path)(ids).logits)


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


def renamed(tensors):
    """Another name for one tensor, and another one the other way round."""
    names = {name: name.replace("self_attn.q_proj", "attn.query") for name in tensors}
    return {now: tensors[name].T if "down_proj" in name else tensors[name] for name, now in names.items()}


def named_back(tensors):
    names = {name: name.replace("attn.query", "self_attn.q_proj") for name in tensors}
    return {now: tensors[name].T if "down_proj" in name else tensors[name] for name, now in names.items()}


NEW_FAMILIES = {
    "qwen3 under another name": Family("toy", "ToyForCausalLM", needs={"qk_norm": True}),
    "llama with other fields": Family(
        "toy",
        "ToyForCausalLM",
        needs={"qk_norm": True, "tie_word_embeddings": True},
        fixed={"hidden_act": "swish", "attention_bias": False},
        to_files=renamed,
        from_files=named_back,
    ),
}


@pytest.mark.parametrize("name", NEW_FAMILIES)
def test_a_family_is_one_object_and_a_line_in_the_dictionary(tmp_path, monkeypatch, name):
    family = NEW_FAMILIES[name]
    monkeypatch.setattr(families, "FAMILIES", {"toy": family} | FAMILIES)
    lm = random_model(tiny_config())
    save(lm, tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    assert (fields["model_type"], fields["architectures"]) == ("toy", ["ToyForCausalLM"])
    assert fields.items() >= family.fixed.items()
    assert set(load_file(tmp_path / "model.safetensors")) == set(family.to_files(dict(lm.named_parameters())))
    loaded = load(tmp_path)
    assert loaded.config == lm.config
    ids = torch.randint(0, 192, (1, 12))
    with torch.no_grad():
        assert torch.equal(loaded(ids), lm(ids))
    save(random_model(tiny_config(qk_norm=False)), tmp_path)  # what it cannot express is another one
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "llama"


def test_what_no_family_can_express_is_refused_with_the_nearest(monkeypatch):
    only = {"toy": Family("toy", "ToyForCausalLM", needs={"qk_norm": False})}
    monkeypatch.setattr(families, "FAMILIES", only)
    with pytest.raises(ValueError, match=r"nearest, toy, has qk_norm: false only: set model.qk_norm=false, or model."):
        families.family_of(tiny_config())


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
