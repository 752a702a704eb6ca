"""Every family is transformers' model of its name, to the last bit, on configs drawn at random; in
both directions.

A new family adds its name to PARTS, with what its configs may have besides what every one has.
"""

import json
import re
from random import Random

import pytest
import torch
import yaml
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.integrations import sdpa_attention

from eval.attention.capture import capture
from eval.attention.controls import ablated
from model import LanguageModel, ModelConfig, load, save
from model.convert_kv_heads import convert_kv_heads
from model.files.families import FAMILIES, NoFamily, family_of
from model.variants.caches import CACHES, make_cache
from tests.conftest import random_model, tiny_config
from tests.model.files.export_models import YARN

TOKENS = 24
HELD_BACK = 5  # read in all; read one by one, after the others, with a cache

LINEAR = {"rope_type": "linear", "factor": 4.0}
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "original_max_position_embeddings": 16, "low_freq_factor": 0.5,
          "high_freq_factor": 2.0}  # fmt: skip
BIAS = {"attention_bias": [False, True]}
WINDOWS = {"sliding_window": [None, 3, 11, 24, 40]}
# family -> field -> what it may be; the first values together are a model of this family
PARTS = {
    "llama": {"qk_norm": [False], **BIAS, "mlp_bias": [False, True], "hidden_act": ["silu", "gelu_new", "gelu"]},
    "qwen3": {**BIAS, **WINDOWS},
    "ministral": {"qk_norm": [False], "sliding_window": [7, 3, 24, 40]},
    "qwen2": {"qk_norm": [False], "qkv_bias": [True], **WINDOWS},
    "olmo2": {"qk_norm": ["whole"], "norm_position": ["after"], **BIAS},
    "smollm3": {
        "qk_norm": [False], "no_rope_layers": [[0, 1], [1, 0], [1, 1, 1, 0], [0, 0, 1, 1]], **BIAS, **WINDOWS,
    },
    "qwen3_moe": {
        "num_experts": [4, 8, 2], "num_experts_per_tok": [2, 1], "moe_intermediate_size": [None, 16, 40],
        "norm_topk_prob": [True, False], "decoder_sparse_step": [1, 2], "mlp_only_layers": [[], [0], [2, 1]],
        "router_aux_loss_coef": [0.01, 0.5], **BIAS, **WINDOWS,
    },
    "deepseek_v3": {
        "attention": ["mla"], "qk_norm": [False], "num_key_value_heads": ["mha"], "num_attention_heads": [4, 8, 5, 1],
        "head_dim": [None], "kv_lora_rank": [12, 5, 24, 48], "q_lora_rank": [None, 7, 16],
        "qk_nope_head_dim": [6, 9, 16], "qk_rope_head_dim": [4, 2, 8], "v_head_dim": [14, 8, None],
        "rope_interleave": [None, False], **BIAS,
    },
    "gpt2": {
        "qk_norm": [False], "position_embedding": ["learned"], "norm": ["layernorm"], "gated_mlp": [False],
        "attention_bias": [True], "mlp_bias": [True], "num_key_value_heads": ["mha"], "head_dim": [None],
        "rope_theta": [1e4], "rope_scaling": [None], "hidden_size": [32, 48, 80], "intermediate_size": [None, 50],
        "hidden_act": ["gelu_new", "gelu_pytorch_tanh", "gelu", "relu", "silu"],
    },
}  # fmt: skip
ONE_KEY_PER_HEAD = ("gpt2", "deepseek_v3")
SAME_WINDOWS = ("qwen3_moe",)  # in all layers, or in none
EVERYWHERE = {
    "num_attention_heads": [4, 8, 2], "num_key_value_heads": ["mha", "mqa", 2], "head_dim": [8, 16, None],
    "intermediate_size": [None, 48], "rope_theta": [1e4, 5e5, 100.0],
    "rope_scaling": [None, LINEAR, YARN, YARN | {"beta_fast": 8.0, "attention_factor": 1.3}, LLAMA3],
    "rms_norm_eps": [1e-6, 1e-5, 1e-2], "tie_word_embeddings": [True, False],
}  # fmt: skip


def first_of(family: str) -> ModelConfig:
    return tiny_config(num_hidden_layers=4, **{key: values[0] for key, values in PARTS[family].items()})


def drawn(family: str, number: int) -> ModelConfig:
    """The first takes the first value of everything; of the others each value is drawn."""
    draw = Random(f"{family} {number}")
    parts = EVERYWHERE | PARTS[family]
    chosen = {key: values[0] if number == 0 else draw.choice(values) for key, values in parts.items()}
    if chosen.get("sliding_window") and family not in SAME_WINDOWS:
        mixed = ["sliding_attention", "full_attention"]
        chosen["layer_types"] = draw.choice([None, mixed, mixed[::-1], ["full_attention", *mixed[:1] * 3]])
    return tiny_config(num_hidden_layers=4, hidden_dropout=0.1, attention_dropout=0.2, **chosen)


def same(ours: LanguageModel, theirs, ids: torch.Tensor) -> None:
    """Equal logits, read at once and read with a cache, by both kernels that both have.

    Within 1e-5 of the largest logit where GPT-2's products, and its tanh, are added up in another
    order than ours.
    """
    exact = ours.config.position_embedding != "learned" and ours.config.hidden_act != "gelu_new"
    for attention in ours.attention_modules():
        attention.absorbs = False  # of latent attention: one token is read as transformers does
    for implementation in ("sdpa", "eager"):
        ours.set_attn_implementation(implementation)
        theirs.set_attn_implementation(implementation)
        with torch.no_grad():
            expected = theirs(ids).logits
            torch.testing.assert_close(
                ours(ids), expected, rtol=0, atol=0 if exact else 1e-5 * float(expected.abs().max())
            )
            same_with_a_cache(ours, theirs, ids)


def same_with_a_cache(ours: LanguageModel, theirs, ids: torch.Tensor) -> None:
    """Decoding with grouped heads, transformers has two ways: with a mask, the queries of a group
    are rows of one head; without, the kernel groups them. The sums are the same, in another order.
    Headlight always takes the first way, which is up to twice as fast; here transformers takes it
    too.
    """
    cache = make_cache("dynamic", ours.config, len(ids), TOKENS, ours.lm_head.weight)
    theirs_cache = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sdpa_attention, "use_gqa_in_sdpa", lambda *_: False)
        for start, end in [(0, TOKENS - HELD_BACK), *((i, i + 1) for i in range(TOKENS - HELD_BACK, TOKENS))]:
            given = theirs(ids[:, start:end], past_key_values=theirs_cache, use_cache=True)
            theirs_cache = given.past_key_values
            # some CPUs sum the product with one row in another order
            logits = ours(ids[:, start:end], kv_cache=cache)
            atol = 1e-5 * float(given.logits.abs().max())
            torch.testing.assert_close(logits, given.logits, rtol=1e-5, atol=atol, msg=str(start))


def read_by_transformers(directory):
    theirs, found = AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True)
    assert not found["missing_keys"]
    assert not found["unexpected_keys"]
    return theirs


@pytest.mark.parametrize(
    "number", [number if number < 4 else pytest.param(number, marks=pytest.mark.slow) for number in range(24)]
)
@pytest.mark.parametrize("family", PARTS)
def test_it_is_the_model_of_transformers_in_both_directions(tmp_path, family, number):
    config = drawn(family, number)
    lm = random_model(config)
    assert family_of(config).model_type == family
    save(lm, tmp_path / "ours")
    theirs = read_by_transformers(tmp_path / "ours")
    assert theirs.config.model_type == family
    ids = torch.randint(0, 192, (2, TOKENS))
    same(lm, theirs, ids)
    theirs.save_pretrained(tmp_path / "theirs")
    again = load(tmp_path / "theirs")
    assert again.config == config
    same(again, theirs, ids)


def test_every_family_has_its_parts_here():
    assert {*PARTS, "headlight"} == {family.model_type for family in FAMILIES}


# what stops transformers itself at its own defaults: no head_dim, a padding token outside of a
# small vocabulary, and 128 experts in each layer, which would take minutes. deepseek_v3: every head
# has keys and values of its own, and every layer is dense
OF_ITS_OWN = {
    "ministral": {"head_dim": 16},
    "smollm3": {"pad_token_id": 0},
    "qwen3_moe": {"num_experts": 12, "moe_intermediate_size": 24},
    "deepseek_v3": {"num_key_value_heads": 8, "first_k_dense_replace": 5, "kv_lora_rank": 24, "q_lora_rank": 16},
}


@pytest.mark.parametrize("family", PARTS)
def test_a_directory_of_transformers_alone_loads(tmp_path, family):
    """From its own config class: its own defaults, and its own names for what they are."""
    sizes = {"vocab_size": 192, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 5,
             "num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 64}  # fmt: skip
    theirs = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **sizes | OF_ITS_OWN.get(family, {}))).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    theirs.save_pretrained(tmp_path)
    ours = load(tmp_path)
    assert family_of(ours.config).model_type == family
    same(ours, theirs, torch.randint(0, 192, (2, TOKENS)))


# --------------------------------------------------------------------------------------------------
# everything else that a model can do


@pytest.mark.parametrize("family", PARTS)
def test_a_picture_shows_the_weights_that_were_used_and_an_ablated_head_adds_nothing(family):
    lm = random_model(first_of(family))
    ids = torch.randint(0, 192, (2, TOKENS))
    for implementation in ("sdpa", "eager"):
        lm.set_attn_implementation(implementation)
        maps = capture(lm, ids)  # raises unless weights @ v is what the kernel gave
        assert maps.weights.shape == (4, 2, 4, TOKENS, TOKENS)
        assert torch.allclose(maps.weights.sum(-1), torch.ones(1))
    D = lm.config.value_size
    with torch.no_grad():
        with ablated(lm, [(1, 2)]):
            without = lm(ids)
        before = lm(ids)
        lm.attention_modules()[1].o_proj.weight[:, 2 * D : 3 * D] = 0
        torch.testing.assert_close(without, lm(ids))
    assert not torch.allclose(without, before)


@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("family", PARTS)
def test_every_cache_gives_what_reading_at_once_gives(family, kind):
    """Also with padding on the left, and one by one, where latent attention takes its absorbed
    form.
    """
    lm = random_model(first_of(family))
    ids = torch.randint(0, 192, (2, TOKENS))
    for real in (None, torch.arange(TOKENS) >= torch.tensor([[0], [3]])):
        cache = make_cache(kind, lm.config, 2, TOKENS, lm.lm_head.weight)
        parts = []
        with torch.no_grad():
            for start, end in [(0, 9), *((i, i + 1) for i in range(9, TOKENS))]:
                mask = None if real is None else real[:, :end]
                parts.append(lm(ids[:, start:end], attention_mask=mask, kv_cache=cache))
            found = torch.cat(parts, dim=1)
            expected = lm(ids, attention_mask=real)
        seen = torch.ones(2, TOKENS).bool() if real is None else real
        torch.testing.assert_close(found[seen], expected[seen], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", [family for family in PARTS if family not in ONE_KEY_PER_HEAD])
def test_repeated_key_value_heads_compute_the_same(family):
    config = first_of(family)
    lm = random_model(config)
    ids = torch.randint(0, 192, (2, TOKENS))
    wider = convert_kv_heads(lm, 4)
    with torch.no_grad():
        torch.testing.assert_close(wider(ids), lm(ids), rtol=1e-4, atol=1e-4)
        back = convert_kv_heads(wider, 2)  # each mean is of two equal heads
        torch.testing.assert_close(back(ids), lm(ids), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", PARTS)
def test_a_new_model_is_its_embedding_and_its_head(family):
    """Every layer adds nothing at first, and every one learns: each parameter gets a gradient
    within two steps.
    """
    lm = LanguageModel(first_of(family))
    ids = torch.randint(0, 192, (2, TOKENS))
    with torch.no_grad():
        tables = lm.model.embed_tokens, lm.model.embed_positions
        stream = lm.model.norm(tables[0](ids) + (0 if tables[1] is None else tables[1](torch.arange(TOKENS))))
        torch.testing.assert_close(lm(ids), lm.lm_head(stream), rtol=1e-4, atol=1e-5)
    optimizer = torch.optim.SGD(lm.parameters(), lr=0.1)
    moved = {name: torch.zeros(()) for name, _ in lm.named_parameters()}
    for _ in range(3):
        loss_sum, count = lm(ids, labels=ids)
        optimizer.zero_grad()
        (loss_sum / count).backward()
        optimizer.step()
        moved = {name: moved[name] + p.grad.abs().sum() for name, p in lm.named_parameters()}
    assert [name for name, amount in moved.items() if not 0 < amount < float("inf")] == []


def test_a_norm_behind_a_layer_makes_the_first_gradient_no_longer():
    ids = torch.randint(0, 192, (2, TOKENS))
    found = {}
    for position in ("before", "after"):
        torch.manual_seed(1)
        lm = LanguageModel(tiny_config(norm_position=position, loadable_elsewhere=False))
        loss_sum, count = lm(ids, labels=ids)
        (loss_sum / count).backward()
        found[position] = torch.stack([layer.mlp.down_proj.weight.grad.norm() for layer in lm.model.layers])
    assert (found["after"] < 2 * found["before"]).all()
    assert (found["after"] > 0).all()


# --------------------------------------------------------------------------------------------------
# what no family has

GPT2 = {key: values[0] for key, values in PARTS["gpt2"].items()}
MIXED = ["sliding_attention", "full_attention"]


@pytest.mark.parametrize(
    ("changes", "nearest", "remedy"),
    [
        ({"norm_position": "after"}, "olmo2", "qk_norm=whole"),
        ({"qk_norm": "whole"}, "olmo2", "norm_position=after"),
        ({"qkv_bias": True}, "qwen2", "qk_norm=false"),
        ({"position_embedding": "none"}, "smollm3", "qk_norm=false"),
        ({"no_rope_layers": [1, 0]}, "smollm3", "qk_norm=false"),
        ({"norm_position": "after", "qk_norm": "whole", "sliding_window": 8}, "olmo2", "sliding_window=null"),
        ({"qk_norm": False, "no_rope_layers": [1, 0], "qkv_bias": True}, "qwen2", "no_rope_layers=null"),
        ({"qk_norm": False, "norm_position": "after"}, "llama", "norm_position=before"),
        ({"num_experts": 4, "qk_norm": False}, "llama", "num_experts=null"),
        ({**GPT2, "num_key_value_heads": "gqa"}, "gpt2", "num_key_value_heads=4"),
        ({**GPT2, "head_dim": 16}, "gpt2", "head_dim=8"),
        ({**GPT2, "norm": "rmsnorm"}, "gpt2", "norm=layernorm"),
        ({**GPT2, "qk_norm": True}, "gpt2", "qk_norm=false"),
        ({"num_experts": 4, "sliding_window": 4, "layer_types": MIXED}, "qwen3_moe", "layer_types=[sliding_attention]"),
    ],
)
def test_what_no_family_has_is_refused_with_the_nearest_and_both_remedies(changes, nearest, remedy):
    with pytest.raises(
        NoFamily, match=rf"nearest, {nearest}, has .* set model\.{re.escape(remedy)}, or model\.loadable_elsewhere"
    ):
        family_of(tiny_config(**changes))
    key, _, value = remedy.partition("=")
    repaired = tiny_config(**changes | {key: yaml.safe_load(value)})
    assert family_of(repaired).model_type == nearest


ONLY_HERE = {"norm_position": "after", "qkv_bias": True, "no_rope_layers": [0, 1], "loadable_elsewhere": False}
EXPERTS_OF_LLAMA = {"num_experts": 4, "qk_norm": False, "loadable_elsewhere": False}
SMEARED = {"smear_keys": True, "loadable_elsewhere": False}


@pytest.mark.parametrize("parts", [ONLY_HERE | {"sliding_window": 9, "rope_scaling": YARN}, EXPERTS_OF_LLAMA, SMEARED])
def test_with_loadable_elsewhere_false_it_is_saved_for_headlight_alone(tmp_path, parts):
    lm = random_model(tiny_config(**parts))
    ids = torch.arange(24)[None]
    save(lm, tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    assert fields["model_type"] == "headlight"
    assert "load it with Headlight" in fields["note"]
    again = load(tmp_path)
    assert again.config == lm.config
    with torch.no_grad():
        assert torch.equal(again(ids), lm(ids))
    with pytest.raises(ValueError, match="headlight"):
        AutoModelForCausalLM.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("family", "change", "message"),
    [
        ("smollm3", {"no_rope_layers": [1, 0]}, "no_rope_layers has 2 entries for 4 layers"),
        ("smollm3", {"no_rope_layers": "1010"}, "no_rope_layers"),
        ("olmo2", {"sliding_window": 4}, "this model_type has none"),
        ("olmo2", {"attention_bias": "yes"}, "attention_bias"),
        ("qwen2", {"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ("deepseek_v3", {"first_k_dense_replace": 1}, "first_k_dense_replace is 1; Headlight builds"),
        ("deepseek_v3", {"num_key_value_heads": 2}, r"num_key_value_heads \(2\): attention: mla makes keys and values"),
        ("deepseek_v3", {"head_dim": 10}, r"head_dim is 10; in a deepseek_v3 it is qk_rope_head_dim \(4\)"),
        ("deepseek_v3", {"rope_parameters": YARN | {"rope_theta": 1e4, "mscale_all_dim": 1.0}}, "mscale_all_dim"),
        ("qwen3", {"model_type": "bert"}, "model_type is 'bert'; Headlight builds llama, .*mistral"),
        ("qwen3", {"attention_bias": True}, "_proj.bias is missing"),
        ("qwen3", {"rope_parameters": YARN | {"rope_theta": 1e4, "truncate": False}}, "truncate"),
        ("qwen3", {"rope_parameters": "yarn"}, "rope_parameters"),
        ("qwen3_moe", {"num_experts_per_tok": 9}, r"num_experts_per_tok \(9\) must not be above num_experts"),
        ("qwen3_moe", {"num_experts": 5}, "experts.4.down_proj.weight is missing"),
        ("qwen3_moe", {"decoder_sparse_step": 0}, "decoder_sparse_step"),
    ],
)
def test_a_config_json_that_it_cannot_be_is_refused(tmp_path, family, change, message):
    """Configs beyond those of test_foreign_models.py, which changes one field at a time."""
    save(random_model(first_of(family)), tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(fields | change))
    with pytest.raises(ValueError, match=message):
        load(tmp_path)
