"""Every key of `model:` changes the network that is built, or is refused."""

from __future__ import annotations

import json
import zlib
from functools import cache
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from configs.command import InputError
from model import LanguageModel, save
from tests.configs.every_key import Change, differing, each, keys_of, shows
from tests.train.helpers import pretrain, write_config
from train.config import RunConfig, load_run_config
from train.machine.device import resolve_device
from train.machine.distributed import World
from train.pretrain import build_model

YARN = "model.rope_scaling={rope_type: yarn, factor: 4.0, original_max_position_embeddings: 4096}"
LLAMA3 = (
    "model.rope_scaling={rope_type: llama3, factor: 4.0, original_max_position_embeddings: 64, "
    "low_freq_factor: 1.0, high_freq_factor: 4.0}"
)
LINEAR = "model.rope_scaling={rope_type: linear, factor: 4.0}"
PLAIN_HEADS = "model.qk_norm=false"
LATENT = ("model.attention=mla", PLAIN_HEADS, "model.num_key_value_heads=mha")
ONLY_HERE = "model.loadable_elsewhere=false"
SPARSE = ("model.num_experts=4", "model.moe_intermediate_size=16")
VOCABULARY = "model.vocab_size=192"
ALL = "shapes, logits, logits in training"
LOGITS = "logits, logits in training"
IN_TRAINING = "logits in training"

CHANGES = each(
    [
        Change("model.vocab_size", 256, ALL),
        Change("model.hidden_size", 64, ALL),
        Change("model.intermediate_size", 64, ALL),
        Change("model.num_hidden_layers", 3, ALL),
        Change("model.num_attention_heads", 2, ALL),
        Change("model.num_key_value_heads", "mqa", ALL),
        Change("model.head_dim", 16, ALL),
        Change("model.attention", "mla", ALL, LATENT[1:]),
        Change("model.kv_lora_rank", 12, ALL, LATENT),
        Change("model.q_lora_rank", 12, ALL, LATENT),
        Change("model.qk_nope_head_dim", 2, ALL, LATENT),
        Change("model.qk_rope_head_dim", 2, ALL, LATENT),
        Change("model.v_head_dim", 12, ALL, LATENT),
        Change("model.rope_interleave", False, LOGITS, LATENT),
        Change("model.qk_norm", False, ALL),
        Change("model.attention_bias", True, ALL),
        Change("model.qkv_bias", True, ALL, (PLAIN_HEADS,)),
        Change("model.scale_attn_weights", False, LOGITS, (ONLY_HERE,)),
        Change("model.norm_position", "after", ALL, ("model.qk_norm=whole", ONLY_HERE)),
        Change("model.position_embedding", "none", LOGITS, (PLAIN_HEADS,)),
        Change("model.no_rope_layers", [1, 0], LOGITS, (PLAIN_HEADS,)),
        Change("model.num_experts", 4, f"{ALL}, balance"),
        Change("model.num_experts_per_tok", 3, f"{LOGITS}, balance", SPARSE),
        Change("model.moe_intermediate_size", 24, f"{ALL}, balance", SPARSE),
        Change("model.norm_topk_prob", False, f"{LOGITS}, balance", SPARSE),
        Change("model.router_aux_loss_coef", 0.5, "balance", SPARSE),
        Change("model.decoder_sparse_step", 2, f"{ALL}, balance", SPARSE),
        Change("model.mlp_only_layers", [0], f"{ALL}, balance", SPARSE),
        Change("model.gated_mlp", False, ALL, (ONLY_HERE,)),
        Change("model.hidden_act", "gelu", LOGITS, (PLAIN_HEADS,)),
        Change("model.mlp_bias", True, ALL, (PLAIN_HEADS,)),
        Change("model.norm", "layernorm", ALL, (ONLY_HERE,)),
        Change("model.max_position_embeddings", 40, "longest"),
        Change("model.rope_theta", 100.0, LOGITS),
        Change("model.rope_scaling", {"rope_type": "linear", "factor": 4.0}, LOGITS),
        Change("model.rope_scaling.factor", 2.0, LOGITS, (LINEAR,)),
        Change("model.rope_scaling.original_max_position_embeddings", 24, LOGITS, (YARN,)),
        Change("model.rope_scaling.beta_fast", 4.0, LOGITS, (YARN,)),
        Change("model.rope_scaling.beta_slow", 0.1, LOGITS, (YARN,)),
        Change("model.rope_scaling.attention_factor", 2.0, LOGITS, (YARN,)),
        Change("model.rope_scaling.low_freq_factor", 2.0, LOGITS, (LLAMA3,)),
        Change("model.rope_scaling.high_freq_factor", 16.0, LOGITS, (LLAMA3,)),
        Change("model.sliding_window", 4, LOGITS),
        Change("model.layer_types", ["full_attention", "sliding_attention"], LOGITS, ("model.sliding_window=4",)),
        Change("model.rms_norm_eps", 0.1, LOGITS),
        Change("model.tie_word_embeddings", False, f"{ALL}, tied"),
        Change("model.attention_dropout", 0.5, IN_TRAINING),
        Change("model.hidden_dropout", 0.5, IN_TRAINING),
        Change("model.initialization", "mimetic", LOGITS),
        Change("model.attn_implementation", "eager", "kernel"),
    ]
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_config(tmp_path_factory.mktemp("model"), data={"sequence_length": 16})


class Called(TorchFunctionMode):
    """The names of the torch functions that were called inside."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.names.add(getattr(function, "__name__", ""))
        return function(*args, **(kwargs or {}))


def built(config: RunConfig) -> LanguageModel:
    """The model as training builds it; then every weight is random, because a new block adds nothing."""
    lm = build_model(config, resolve_device(config), World(), None, None)  # type: ignore[arg-type]
    with torch.no_grad():
        for name, parameter in lm.named_parameters():
            generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return lm


def longest(lm: LanguageModel) -> str:
    """What is said about 50 tokens."""
    try:
        lm(torch.zeros(1, 50, dtype=torch.long))
    except ValueError as error:
        return str(error)
    return "accepted"


def balance(lm: LanguageModel, ids: torch.Tensor) -> float:
    """The load-balancing loss; 0 for a model without experts."""
    _, auxiliary = lm.train()(ids, with_auxiliary=True)
    return float(sum(auxiliary.values()))


@torch.no_grad()
def observed(config: RunConfig) -> dict[str, Any]:
    lm = built(config)
    ids = torch.randint(0, 192, (2, 32), generator=torch.Generator().manual_seed(1))
    with Called() as called:
        logits = lm.eval()(ids)
    torch.manual_seed(2)
    return {
        "shapes": sorted((name, tuple(parameter.shape)) for name, parameter in lm.named_parameters()),
        "tied": lm.lm_head.weight is lm.model.embed_tokens.weight,
        "logits": logits[..., :192],
        "longest": longest(lm),
        "kernel": "scaled_dot_product_attention" in called.names,
        "logits in training": lm.train()(ids)[..., :192],
        "balance": balance(lm, ids),
    }


@cache
def baseline(config_file, given: tuple[str, ...]) -> dict[str, Any]:
    return observed(load_run_config(config_file, [VOCABULARY, *given]))


@shows(*keys_of(CHANGES))
@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_it_changes_the_model(tiny, change):
    after = observed(load_run_config(tiny, [VOCABULARY, *change.overrides]))
    change.check(baseline(tiny, change.given), after)


@shows("model.rope_scaling.rope_type")
def test_the_type_of_rope_scaling(tiny):
    """Each type has keys of its own, so they change together."""
    assert differing(baseline(tiny, (LINEAR,)), baseline(tiny, (YARN,))) == {"logits", "logits in training"}


@shows("model.loadable_elsewhere")
def test_who_can_load_it(tiny, tmp_path):
    given = [VOCABULARY, "model.norm_position=after"]
    with pytest.raises(InputError, match="model.norm_position=after`: no architecture of transformers is this model"):
        load_run_config(tiny, given)
    assert baseline(tiny, (ONLY_HERE,))["logits"].equal(baseline(tiny, ())["logits"])
    save(built(load_run_config(tiny, [*given, ONLY_HERE])), tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "headlight"


IDS = "bos_token_id eos_token_id pad_token_id".split()


@shows(*(f"model.{name}" for name in IDS))
def test_what_the_tokenizer_sets_may_not_be_set_otherwise(tmp_path):
    config = write_config(tmp_path, train={"max_steps": 1})
    for name in ("vocab_size", *IDS):
        done = pretrain(config, f"model.{name}=77", code=2)
        assert f"model.{name} is 77, but the tokenizer has " in done.stderr
        assert ": leave that key out" in done.stderr
    pretrain(config)
    pretrain(tmp_path / "runs/tiny/config.yaml", "name=again")  # the resolved config has them all, and they are right
