"""A model directory that others wrote gives transformers' logits, to the last bit, or is refused in
a line.
"""

import json
import random
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from model import load, save
from tests.conftest import random_model, tiny_config

# config.json as it stands on the Hub, with other sizes
COMMON = {  # of those that are no GPT-2
    "hidden_act": "silu", "hidden_size": 32, "initializer_range": 0.02, "intermediate_size": 48,
    "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 2, "rms_norm_eps": 1e-05,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": 192,
}  # fmt: skip
REAL = {
    "Qwen3": COMMON | {
        "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 16, "max_position_embeddings": 40960,
        "max_window_layers": 28, "model_type": "qwen3", "rms_norm_eps": 1e-06, "rope_scaling": None,
        "rope_theta": 1000000, "sliding_window": None, "tie_word_embeddings": True, "transformers_version": "4.51.0",
        "use_sliding_window": False,
    },
    "SmolLM2": COMMON | {
        "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 1,
        "eos_token_id": 2, "hidden_size": 36, "initializer_range": 0.041666666666666664, "intermediate_size": 96,
        "is_llama_config": True, "max_position_embeddings": 8192, "mlp_bias": False, "model_type": "llama",
        "num_attention_heads": 9, "num_key_value_heads": 3, "pad_token_id": 2, "pretraining_tp": 1,
        "rope_interleaved": False, "rope_scaling": None, "rope_theta": 100000, "tie_word_embeddings": True,
        "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}}, "transformers_version": "4.42.3",
    },
    "Llama 3.1": COMMON | {
        "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009], "max_position_embeddings": 131072,
        "mlp_bias": False, "model_type": "llama", "pretraining_tp": 1,
        "rope_scaling": {"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                         "original_max_position_embeddings": 64, "rope_type": "llama3"},
        "rope_theta": 500000.0, "transformers_version": "4.42.3",
    },
    "Mistral 7B": COMMON | {
        "architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
        "max_position_embeddings": 32768, "model_type": "mistral", "rope_theta": 10000.0, "sliding_window": 6,
        "transformers_version": "4.34.0.dev0",
    },
    "Ministral": COMMON | {
        "architectures": ["MinistralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
        "head_dim": 8, "layer_types": ["sliding_attention", "full_attention"], "max_position_embeddings": 32768,
        "model_type": "ministral", "rope_theta": 100000000.0, "sliding_window": 6, "transformers_version": "4.57.0",
    },
    "GPT-2": {
        "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
        "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 64, "n_embd": 32, "n_head": 4, "n_layer": 2,
        "n_positions": 64, "resid_pdrop": 0.1, "summary_activation": None, "summary_first_dropout": 0.1,
        "summary_proj_to_labels": True, "summary_type": "cls_index", "summary_use_proj": True,
        "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}}, "vocab_size": 192,
    },
    "DeepSeek-V3, dense": COMMON | {
        "architectures": ["DeepseekV3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "aux_loss_alpha": 0.001, "bos_token_id": 0, "eos_token_id": 1, "ep_size": 1, "first_k_dense_replace": 2,
        "kv_lora_rank": 12, "max_position_embeddings": 163840, "model_type": "deepseek_v3",
        "moe_intermediate_size": 16, "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 256,
        "n_shared_experts": 1, "norm_topk_prob": True, "num_experts_per_tok": 8, "num_key_value_heads": 4,
        "num_nextn_predict_layers": 1, "pretraining_tp": 1, "q_lora_rank": 10, "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 10000,
        "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "topk_group": 4, "topk_method": "noaux_tc",
        "transformers_version": "4.33.1", "v_head_dim": 6,
    },
    "Qwen2.5": COMMON | {
        "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
        "eos_token_id": 151645, "max_position_embeddings": 32768, "max_window_layers": 21, "model_type": "qwen2",
        "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": True,
        "transformers_version": "4.43.1", "use_sliding_window": False,
    },
    "OLMo 2": COMMON | {
        "architectures": ["Olmo2ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "eos_token_id": 100257, "max_position_embeddings": 4096, "model_type": "olmo2", "num_key_value_heads": 4,
        "pad_token_id": 177, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 500000,
        "transformers_version": "4.47.0.dev0",
    },
    "SmolLM3": COMMON | {
        "architectures": ["SmolLM3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": 128000, "eos_token_id": 128012, "layer_types": ["full_attention", "full_attention"],
        "max_position_embeddings": 65536, "max_window_layers": 28, "mlp_bias": False, "model_type": "smollm3",
        "no_rope_layer_interval": 4, "no_rope_layers": [1, 0], "pad_token_id": 104, "pretraining_tp": 2,
        "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 5000000.0, "sliding_window": None,
        "tie_word_embeddings": True, "transformers_version": "4.54.0.dev0", "use_sliding_window": False,
    },
}  # fmt: skip
# what may stand in a field instead; None means that the field is left out
OTHERWISE = {
    "num_attention_heads": [2, 8], "num_key_value_heads": [1, None], "head_dim": [8, None],
    "hidden_act": ["gelu", "relu", None], "rms_norm_eps": [1e-2, None], "tie_word_embeddings": [True, False, None],
    "attention_bias": [True, None], "mlp_bias": [True, None], "attention_dropout": [0.5, None],
    "rope_theta": [777.0, 50, None], "max_position_embeddings": [64, 5],
    "rope_scaling": [
        {"type": "linear", "factor": 3.0}, {"rope_type": "yarn", "factor": 4.0}, {"type": "dynamic", "factor": 2.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 16, "mscale": 0.7},
        {"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": 16, "rope_theta": 100.0},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 16},
        {"type": "llama3", "factor": 2, "low_freq_factor": 1, "high_freq_factor": 2},
        {"rope_type": "llama3", "factor": 2.0, "high_freq_factor": 2.0, "original_max_position_embeddings": 16},
        {"rope_type": "default"}, {"rope_type": "longrope", "factor": 2.0}, {},
    ],
    "rope_parameters": [
        {"rope_type": "linear", "factor": 2.0, "rope_theta": 99.0}, {"rope_type": "default", "rope_theta": 3000.0},
        {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
        {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1e4, "attention_factor": 1.5},
        {"full_attention": {"rope_type": "default", "rope_theta": 10.0}},
    ],
    "partial_rotary_factor": [0.5, 1.0], "original_max_position_embeddings": [24], "is_causal": [False, True],
    "layer_types": [
        ["full_attention"] * 2, ["sliding_attention"] * 2, ["sliding_attention", "full_attention"],
        ["full_attention", "chunked_attention"], ["linear_attention", "full_attention"], ["full_attention"], None,
    ],
    "sliding_window": [4, 1000, None], "use_sliding_window": [True, False], "max_window_layers": [0, 1, None],
    "quantization_config": [{"quant_method": "fp8"}], "per_layer_config": [{"0": {"rms_norm_eps": 0.5}}],
    "initializer_range": [0.5], "pretraining_tp": [2], "use_cache": [False], "torch_dtype": ["float16"],
    "is_llama_config": [False], "rope_interleaved": [True], "pad_token_id": [0, None], "vocab_size": [128],
    "kv_lora_rank": [None], "q_lora_rank": [6, None], "qk_nope_head_dim": [4], "qk_rope_head_dim": [6, 5],
    "v_head_dim": [4, None], "rope_interleave": [False, None], "first_k_dense_replace": [1, 3, None],
    "n_routed_experts": [4], "num_nextn_predict_layers": [0],
    "qk_norm": [False], "logits_scaling": [8.0], "attention_multiplier": [0.1],
    "no_rope_layers": [[0, 1], [1, 1], [0, 0], [0], [1, 0, 0], None], "no_rope_layer_interval": [2, 1, 0, None],
}  # fmt: skip
OF_GPT2 = {
    "n_head": [2, 1, 3, None], "n_inner": [128, 40, None], "n_positions": [64, 5, None], "n_ctx": [5, None],
    "activation_function": ["gelu", "relu", "silu", "gelu_pytorch_tanh", "tanh", None, 3],
    "layer_norm_epsilon": [1e-2, 0.0, None], "resid_pdrop": [0.0, 1.5, None], "embd_pdrop": [0.0], "attn_pdrop": [0.5],
    "scale_attn_weights": [False, True], "scale_attn_by_inverse_layer_idx": [True, False],
    "reorder_and_upcast_attn": [True, False], "add_cross_attention": [True, False], "tie_word_embeddings": [False],
    "hidden_size": [32, 64], "num_attention_heads": [4, 8], "num_hidden_layers": [2], "max_position_embeddings": [9],
    "sliding_window": [4], "layer_types": [["full_attention"] * 2], "is_causal": [False], "vocab_size": [128],
    "num_key_value_heads": [1], "head_dim": [4], "hidden_act": ["relu"], "intermediate_size": [40], "rope_theta": [50],
    "qk_norm": [True], "norm_position": ["after"], "quantization_config": [{"quant_method": "fp8"}],
    "eos_token_id": [None, 3, [3, 4]], "torch_dtype": ["float16"],
}  # fmt: skip
VALUES = {name: OF_GPT2 if name == "GPT-2" else OTHERWISE for name in REAL}


def directory_of(folder, fields):
    """A directory as transformers would have written it: random weights of the shapes that these
    fields ask for.
    """
    folder.mkdir(exist_ok=True)
    theirs = AutoModelForCausalLM.from_config(AutoConfig.for_model(**fields)).eval()
    theirs.save_pretrained(folder)
    weights = {name: torch.randn_like(value) * 0.2 for name, value in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(fields))
    (folder / "generation_config.json").unlink(missing_ok=True)
    return folder


def logits_of(model):
    with torch.no_grad():
        logits = model(torch.arange(60).reshape(2, 30) % 128)
    return logits if isinstance(logits, torch.Tensor) else logits.logits


def theirs_from(folder):
    """transformers' logits; None if it refuses or has to invent weights."""
    try:
        model, found = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, dtype=torch.float32)
        return None if found["missing_keys"] or found["unexpected_keys"] else logits_of(model)
    except Exception:  # each of its checks has an exception of its own
        return None


@pytest.mark.parametrize("name", REAL)
def test_a_real_config_gives_the_logits_of_transformers(tmp_path, name):
    folder = directory_of(tmp_path / "a", REAL[name])
    expected = theirs_from(folder)
    assert expected is not None
    assert_same(logits_of(load(folder)), expected, REAL[name])


def with_tied_head(weights):
    """As programs write them that save every parameter, also a tied one."""
    return weights | {"lm_head.weight": weights[next(name for name in weights if name.endswith(EMBEDDING))].clone()}


def with_tied_head_alone(weights):
    """As safetensors' own `save_model` leaves a tied matrix: under the first of its names."""
    return {name: x for name, x in with_tied_head(weights).items() if not name.endswith(EMBEDDING)}


EMBEDDING = ("embed_tokens.weight", "wte.weight")
SPELLINGS = {
    "tied, and the head too": (with_tied_head, ("SmolLM2", "GPT-2")),
    "tied, the head alone": (with_tied_head_alone, ("SmolLM2", "GPT-2")),
    "frequencies of RoPE in every layer": (
        lambda weights: weights | {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": torch.ones(4) for i in (0, 1)},
        ("SmolLM2", "Llama 3.1"),
    ),
    "without `model.`": (
        lambda weights: {name.removeprefix("model."): tensor for name, tensor in weights.items()},
        ("SmolLM2", "Qwen3"),
    ),
}


@pytest.mark.parametrize(("spelling", "name"), [(key, name) for key, (_, names) in SPELLINGS.items() for name in names])
def test_weights_in_other_spellings_are_read_as_transformers_reads_them(tmp_path, spelling, name):
    folder = directory_of(tmp_path / "a", REAL[name])
    expected = theirs_from(folder)
    weights = load_file(folder / "model.safetensors")
    save_file(SPELLINGS[spelling][0](weights), folder / "model.safetensors", metadata={"format": "pt"})
    assert torch.equal(theirs_from(folder), expected)
    assert_same(logits_of(load(folder)), expected, REAL[name])


def test_a_head_that_is_called_tied_and_differs_is_refused(tmp_path):
    """transformers 4 takes the embedding in its place, 5 takes it as it is."""
    folder = directory_of(tmp_path / "a", REAL["SmolLM2"])
    weights = with_tied_head(load_file(folder / "model.safetensors"))
    save_file(weights | {"lm_head.weight": 2 * weights["lm_head.weight"]}, folder / "model.safetensors")
    with pytest.raises(ValueError, match="tie_word_embeddings"):
        load(folder)
    (folder / "config.json").write_text(json.dumps(REAL["SmolLM2"] | {"tie_word_embeddings": False}))
    assert_same(logits_of(load(folder)), theirs_from(folder), REAL["SmolLM2"])


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model-00001-of-00002.bin"])
def test_weights_that_are_pickled_come_with_a_remedy(tmp_path, name):
    folder = directory_of(tmp_path / "a", REAL["SmolLM2"])
    torch.save(load_file(folder / "model.safetensors"), folder / name)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="save_pretrained"):
        load(folder)


def assert_same(ours, theirs, fields):
    """To the last bit; within 1e-5 for GPT-2, whose products are added up in another order than
    ours.
    """
    tolerance = 1e-5 if fields["model_type"] == "gpt2" else 0
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


def check(folder, changes):
    """Change fields of a directory: either the logits of transformers or a refusal.

    Returns whether it loaded.
    """
    fields = json.loads((folder / "config.json").read_text())
    changed = {key: value for key, value in (fields | changes).items() if value is not None or key not in changes}
    (folder / "config.json").write_text(json.dumps(changed))
    try:
        try:
            ours = logits_of(load(folder))
        except ValueError:
            return False
        expected = theirs_from(folder)
        if expected is None:
            # its Ministral crashes without a head_dim, its SmolLM3 at its own padding token and a
            # small vocabulary
            assert changes in ({"head_dim": None}, {"pad_token_id": None}), f"transformers refuses {changes}"
            return True
        assert_same(ours, expected, fields)
        return True
    finally:
        (folder / "config.json").write_text(json.dumps(fields))


@pytest.mark.parametrize(
    "name",
    [name if name in ("Qwen3", "Ministral", "GPT-2") else pytest.param(name, marks=pytest.mark.slow) for name in REAL],
)
def test_each_field_is_understood_or_refused(tmp_path, name):
    """One field at a time; every value of every field that could change what is computed."""
    folder = directory_of(tmp_path / "a", REAL[name])
    loaded = [check(folder, {field: value}) for field, values in VALUES[name].items() for value in values]
    assert 15 < sum(loaded) < len(loaded) - 15  # neither everything is refused, nor nothing


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_fields_are_understood_together_or_refused(tmp_path, name):
    """Several fields at a time, drawn at random; the weights fit what transformers builds from
    them, if it does.
    """
    draw = random.Random(name)
    loaded = 0
    for number in range(60):
        chosen = draw.sample(sorted(VALUES[name]), draw.randint(2, 4))
        changes = {field: draw.choice(VALUES[name][field]) for field in chosen}
        fields = {key: value for key, value in (REAL[name] | changes).items() if value is not None}
        try:
            folder = directory_of(tmp_path / str(number), fields)
        except Exception:  # transformers does not build it
            continue
        loaded += check(folder, {})
    assert loaded > 5


def test_the_end_tokens_of_generation_config_win_as_in_transformers(tmp_path):
    save(random_model(tiny_config(eos_token_id=2)), tmp_path)
    assert load(tmp_path).config.eos_token_id == 2
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 5], "temperature": 0.6}')
    assert load(tmp_path).config.eos_token_id == [2, 5]
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": "two"}')
    with pytest.raises(ValueError, match="config.json: `eos_token_id"):
        load(tmp_path)


def test_a_model_that_does_not_fit_into_memory_is_refused_before_it_is_built(tmp_path, monkeypatch):
    save(random_model(tiny_config()), tmp_path)
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=1e5))
    monkeypatch.setattr("model.files.checkpoint.LanguageModel", lambda *_: pytest.fail("built"))
    with pytest.raises(ValueError, match="of RAM are free"):
        load(tmp_path)


def test_openais_own_file_of_gpt2_loads(tmp_path):
    """Without the prefix of today's names, and with the causal mask of every layer as a tensor."""
    folder = directory_of(tmp_path / "a", REAL["GPT-2"])
    expected = theirs_from(folder)
    file = folder / "model.safetensors"
    theirs = {name.removeprefix("transformer."): value for name, value in load_file(file).items()}
    masks = {f"h.{layer}.attn.bias": torch.ones(1, 1, 64, 64).tril() for layer in range(2)}
    save_file(theirs | masks, file, metadata={"format": "pt"})
    torch.testing.assert_close(logits_of(load(folder)), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(theirs_from(folder), expected)
