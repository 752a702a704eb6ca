"""ModelConfig: the toggle means what it says, and every impossible shape is named with its remedy."""

from contextlib import suppress

import pytest
from pydantic import ValidationError

from model import LanguageModel, ModelConfig
from model.backends.choice import BACKENDS
from tests.conftest import LATENT, tiny_config

LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "original_max_position_embeddings": 512, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0}  # fmt: skip


@pytest.mark.parametrize(("word", "expected"), [("mha", 8), ("gqa", 2), ("mqa", 1), (4, 4), (8, 8)])
def test_the_toggle_gives_the_shapes_it_promises(word, expected):
    config = tiny_config(num_attention_heads=8, num_key_value_heads=word)
    assert config.num_key_value_heads == expected
    attention = LanguageModel(config).model.layers[0].self_attn
    assert attention.k_proj.weight.shape == attention.v_proj.weight.shape == (expected * 4, 32)


def test_gqa_is_the_divisor_nearest_to_a_quarter_and_neither_of_the_others():
    """A word that is refused is no model; no two words are the same one."""
    gqa = {}
    for heads in range(1, 41):
        numbers = {}
        for word in ("mha", "gqa", "mqa"):
            with suppress(ValidationError):
                numbers[word] = tiny_config(num_attention_heads=heads, head_dim=2, num_key_value_heads=word).kv_heads
        assert numbers["mha"] == heads
        assert len(set(numbers.values())) == len(numbers)
        gqa[heads] = numbers.get("gqa")
    nearest = {4: 2, 6: 2, 8: 2, 9: 3, 10: 2, 12: 3, 15: 3, 16: 4, 18: 6, 20: 5, 25: 5, 30: 6, 32: 8, 40: 10}
    assert {heads: gqa[heads] for heads in nearest} == nearest
    assert [heads for heads, number in gqa.items() if number is None] == [1, 2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37]


MLA = LATENT | {"kv_lora_rank": 12, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 14}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_attention_heads": 8, "num_key_value_heads": 3}, r"\(3\) must divide .* \(8\): use 1, 2, 4, 8"),
        ({"hidden_size": 128, "num_attention_heads": 3}, r"\(3\) must divide hidden_size \(128\)"),
        ({"hidden_size": 6, "num_attention_heads": 2, "num_key_value_heads": 2}, r"head_dim \(3\) must be even"),
        ({"num_attention_heads": 7, "hidden_size": 56, "num_key_value_heads": "gqa"}, "gqa. must divide .*: use 1, 7"),
        ({"layer_types": ["sliding_attention"]}, "set sliding_window"),
        ({"sliding_window": 4, "layer_types": ["full_attention"]}, "no layer is of sliding_attention"),
        ({"sliding_window": 4, "layer_types": ["full_attention"] * 4}, "4 entries for 6 layers"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "yarn needs original_max_position_embeddings"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0, "beta_fast": 8.0}}, "linear has no beta_fast"),
        ({"rope_scaling": LLAMA3 | {"low_freq_factor": None}}, "llama3 needs low_freq_factor"),
        ({"rope_scaling": LLAMA3 | {"low_freq_factor": 5.0}}, r"high_freq_factor \(4.0\) must be above"),
        ({"no_rope_layers": [1, 0, 1, 1]}, "no_rope_layers has 4 entries for 6 layers"),
        ({"no_rope_layers": [0]}, "no_rope_layers leaves no layer with RoPE"),
        ({"position_embedding": "none", "no_rope_layers": [1, 0]}, "no_rope_layers is for position_embedding: rope"),
        ({"position_embedding": "none", "rope_scaling": LLAMA3}, "rope_scaling is for position_embedding: rope"),
        ({"position_embedding": "sinusoidal", "tie_word_embeddings": True}, "set tie_word_embeddings: false"),
        (MLA | {"qk_norm": True}, "set qk_norm: false"),
        ({"num_key_value_heads": "mha", "kv_sharing": "keys"}, "nothing is shared: set num_key_value_heads: mqa"),
        ({"smear_keys": True, "sliding_window": 4}, "smear_keys needs full_attention in all layers"),
        (MLA | {"smear_keys": True}, "set smear_keys: false"),
        (MLA | {"num_key_value_heads": 2}, r"num_key_value_heads \(2\): .* every head"),
        (MLA | {"head_dim": 12}, r"head_dim \(12\) must be qk_nope_head_dim \(6\) \+ qk_rope_head_dim \(4\)"),
        (MLA | {"qk_rope_head_dim": 5}, r"qk_rope_head_dim \(5\) must be even"),
        (MLA | {"qk_rope_head_dim": None, "qk_nope_head_dim": 32}, r"must be qk_nope_head_dim \(32\)"),
        (MLA | {"attention": "heads"}, "kv_lora_rank is for attention: mla"),
        (MLA | {"qkv_bias": True}, "set qkv_bias: false"),
        (MLA | {"scale_attn_weights": False}, "set scale_attn_weights: true"),
        (MLA | {"initialization": "mimetic"}, "set initialization: random"),
        ({"num_experts": 2, "num_experts_per_tok": 3}, r"num_experts_per_tok \(3\) must not be above"),
        ({"moe_intermediate_size": 24}, "moe_intermediate_size is for num_experts"),
        ({"num_experts": 4, "moe_intermediate_size": 20}, "multiple of 8 .*: use 24"),
        ({"num_experts": 4, "mlp_bias": True}, "mlp_bias=false"),
        ({"num_experts": 4, "gated_mlp": False}, "gated_mlp=true"),
        ({"num_experts": 4, "decoder_sparse_step": 7}, "leave no layer with experts"),
    ],
)
def test_impossible_shapes_are_refused_by_name(fields, message):
    with pytest.raises(ValidationError, match=message):
        ModelConfig(**fields)


def test_every_backend_can_be_asked_for_and_nothing_else():
    for name in {"auto", *BACKENDS} - {"mine"}:  # which needs a file
        assert ModelConfig(attn_implementation=name).attn_implementation == name
    for name in ("flashy", "", "Auto", None, 1):
        with pytest.raises(ValidationError, match="attn_implementation"):
            ModelConfig(attn_implementation=name)


def test_a_model_without_a_vocabulary_is_refused():
    with pytest.raises(ValueError, match="vocab_size is not set"):
        LanguageModel(ModelConfig())


def test_a_pattern_of_layer_types_is_repeated_and_written_out():
    config = tiny_config(
        num_hidden_layers=6, sliding_window=8, layer_types=["sliding_attention"] * 2 + ["full_attention"]
    )
    assert config.windows == [8, 8, None, 8, 8, None]
    assert tiny_config(sliding_window=8).windows == [8, 8]
    assert tiny_config().layer_types == ["full_attention"] * 2


def test_which_layers_rotate():
    assert tiny_config(num_hidden_layers=6, no_rope_layers=[1, 1, 0]).rotates == [True, True, False] * 2
    assert tiny_config().rotates == tiny_config(no_rope_layers=[1]).rotates == [True, True]
    assert tiny_config(no_rope_layers=[1]) == tiny_config()  # one way to say it
    assert tiny_config(position_embedding="none").rotates == [False, False]
