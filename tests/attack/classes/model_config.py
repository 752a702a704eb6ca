"""A model's config.json and generation_config.json with a wrong value in one field."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tests.attack.attack import Case
from tests.attack.mutations import WRONG, change_json
from tests.attack.victims import foreign

SIZES = """vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim
max_position_embeddings""".split()
FIELDS = """model_type rms_norm_eps rope_theta rope_parameters rope_scaling tie_word_embeddings attention_dropout
attention_bias mlp_bias hidden_act layer_types sliding_window use_sliding_window max_window_layers bos_token_id
eos_token_id pad_token_id dtype torch_dtype quantization_config is_causal partial_rotary_factor headlight""".split()
ROPE = "rope_type rope_theta factor original_max_position_embeddings attention_factor beta_fast truncate".split()
IGNORED = "architectures transformers_version use_cache initializer_range auto_map _name_or_path".split()
OF_SMOLLM3 = "no_rope_layers no_rope_layer_interval attention_bias".split()
LAYERS = [["chunked_attention", "full_attention"], ["full_attention"], ["linear_attention"] * 2, ["sliding_attention"]]
WHOLE: dict[str, dict[str, Any]] = {
    "a model of 10**12 parameters": {"hidden_size": 10**5, "intermediate_size": 10**6, "vocab_size": 10**6},
    "the largest sizes": dict.fromkeys(SIZES, 1 << 28) | {"num_hidden_layers": 2},
    "sizes whose product is beyond 64 bits": {
        "hidden_size": 1 << 28,
        "head_dim": 1 << 28,
        "num_attention_heads": 2**27,
    },
    "65,000 layers": {"num_hidden_layers": 65_000, "layer_types": None},
    "10 million layer types": {"layer_types": ["full_attention"] * 1_000_000},
    "layer types without a window": {"layer_types": ["sliding_attention"] * 2},
    "an unknown activation": {"hidden_act": "gelu"},
    "weights in 4 bits": {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}},
    "another file of weights": {"transformers_weights": "../../../etc/passwd"},
    "attention in both directions": {"is_causal": False},
    "rope by kind of layer": {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}},
}
COMMANDS = [
    ("eval.chat", "model", "--max-new-tokens", "2"),
    ("eval.samples", "model", "a", "--device", "cpu"),
    ("model.convert_kv_heads", "model", "--num-key-value-heads", "2", "--out", "out"),
    ("train.pretrain", "tiny.yaml", "name=other", "init_from=model"),
    ("train.sft", "tiny.yaml", "name=other", "init_from=model", "data.records=conversations"),
    ("eval.attention", "model", "--text", "a", "--out", "out"),
    ("eval.tasks", "model", "--text", "text.txt"),
]


def cases() -> Iterator[Case]:
    changes = {f"{field} is {what}": {field: value} for field in SIZES + FIELDS for what, value in WRONG.items()}
    changes |= {f"layer_types is {types}": {"layer_types": types} for types in LAYERS} | WHOLE
    kinds = ("default", "linear", "yarn")
    for kind, field, (what, value) in [(k, f, w) for k in kinds for f in ROPE for w in list(WRONG.items())[::3]]:
        changes[f"{kind} rope's {field} is {what}"] = {
            "rope_parameters": {"rope_type": kind, "factor": 2.0} | {field: value}
        }
    for field, (what, value) in [(field, wrong) for field in OF_SMOLLM3 for wrong in WRONG.items()]:
        changes[f"smollm3's {field} is {what}"] = {"model_type": "smollm3", "no_rope_layers": None} | {field: value}
    for number, (name, change) in enumerate(changes.items()):
        yield _case(name, change, COMMANDS[number % 2], may_work=name not in WHOLE)
    for field in (*SIZES, "model_type", "layer_types"):
        yield _case(f"{field} is left out", field, COMMANDS[0], may_work=True)
    for command in COMMANDS[2:]:
        for field in (*SIZES, "model_type", "rope_parameters", "layer_types"):
            yield _case(f"{field} is an object, for {command[0]}", {field: {"a": 1}}, command)
    for field in IGNORED:
        yield _case(f"{field} is an object", {field: {"a": 1}}, COMMANDS[0], may_work=True)
    for what, value in WRONG.items():
        ends = {"eos_token_id": value}
        yield _case(
            f"generation_config.json: eos_token_id is {what}", ends, COMMANDS[0], True, "generation_config.json"
        )


def _case(
    name: str, change: dict[str, Any] | str, command: tuple[str, ...], may_work: bool = False, file: str = "config.json"
) -> Case:
    return Case(f"{name} ({command[0]})", command, partial(damage, change=change, file=file), b"a\n", may_work)


def damage(folder: Path, change: dict[str, Any] | str, file: str) -> None:
    """Put these fields into a file of a model directory, or leave one out."""

    def changed(fields: dict[str, Any]) -> dict[str, Any]:
        if isinstance(change, str):
            return {key: value for key, value in fields.items() if key != change}
        return fields | change

    change_json(foreign(folder) / file, changed)
