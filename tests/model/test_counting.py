"""Parameters and FLOPs, counted on the modules, against real models and against the formula by hand."""

import pytest
import torch

from model import LanguageModel
from model.masks import causal, mean_keys, within_window
from model.norm import LayerNorm, RMSNorm
from model.transformer import on_meta
from tests.conftest import tiny_config

CHANGES = [
    {},
    {"tie_word_embeddings": False, "qk_norm": False},
    {"head_dim": 12, "num_key_value_heads": "mqa"},
    {"qk_norm": "whole", "norm_position": "after", "attention_bias": True},
    {
        "position_embedding": "learned",
        "norm": "layernorm",
        "gated_mlp": False,
        "attention_bias": True,
        "mlp_bias": True,
        "qk_norm": False,
        "num_key_value_heads": "mha",
    },
    {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]},
]


@pytest.mark.parametrize("changes", CHANGES)
def test_the_counts_are_those_of_a_real_model(changes):
    config = tiny_config(**changes)
    lm, counts, state = LanguageModel(config), on_meta(config).parameter_counts(), torch.get_rng_state()
    assert counts["total"] == lm.num_parameters() == sum(v for k, v in counts.items() if k != "total")
    layers = [(layer.self_attn, layer.mlp) for layer in lm.model.layers]
    projections = [p for a, _ in layers for p in (a.q_proj, a.k_proj, a.v_proj, a.o_proj)]
    biases = sum(p.bias.numel() for p in projections if p.bias is not None)
    assert counts["attention"] == sum(p.weight.numel() for p in projections) + biases
    assert counts["feed_forward"] == sum(p.numel() for _, mlp in layers for p in mlp.parameters())
    norms = [module for module in lm.modules() if isinstance(module, RMSNorm | LayerNorm)]
    assert counts["norm"] == sum(p.numel() for norm in norms for p in norm.parameters())
    tables = [table for table in lm.modules() if isinstance(table, torch.nn.Embedding)]
    assert counts["embedding"] == sum(table.weight.numel() for table in tables)
    assert counts["head"] == (0 if config.tie_word_embeddings else lm.lm_head.weight.numel())
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("changes", CHANGES)
def test_flops_are_matrix_products_and_the_keys_that_are_seen(changes):
    config, length = tiny_config(**changes), 9
    counts = on_meta(config).parameter_counts()
    lm = LanguageModel(config)
    biases = sum(m.bias.numel() for m in lm.modules() if isinstance(m, torch.nn.Linear) and m.bias is not None)
    matrices = counts["attention"] + counts["feed_forward"] - biases + lm.lm_head.weight.numel()
    keys = 0.0
    for window in config.windows:
        query, key = torch.arange(length)[:, None], torch.arange(length)
        seen = causal(query, key) & within_window(query, key, window or length)
        assert mean_keys(length, window) == pytest.approx(seen.sum().item() / length)
        keys += seen.sum().item() / length
    forward = 2 * matrices + 4 * config.num_attention_heads * config.head_size * keys
    assert on_meta(config).flops_per_token(length, training=False) == pytest.approx(forward)
    assert on_meta(config).flops_per_token(length) == pytest.approx(3 * forward)
