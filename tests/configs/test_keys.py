"""No key does nothing: each one of `model:` changes the network, each one of `train:` and `eval:`
the run.
"""

import json
import zlib
from functools import cache
from pathlib import Path

import pytest
import torch

from configs.loader import fields
from model import LanguageModel
from tests.train.helpers import metrics, pretrain, write_config
from train.config import RunConfig, load_run_config

LINEAR = 'model.rope_scaling={"rope_type":"linear","factor":4.0}'
YARN = 'model.rope_scaling={"rope_type":"yarn","factor":4.0,"original_max_position_embeddings":4096}'
LLAMA3 = """model.rope_scaling={"rope_type":"llama3","factor":4.0,"original_max_position_embeddings":64,\
"low_freq_factor":1.0,"high_freq_factor":4.0}"""
PLAIN = "model.qk_norm=false"
LATENT = f"model.attention=mla {PLAIN} model.num_key_value_heads=mha"
ELSEWHERE = "model.loadable_elsewhere=false"
# what both sides have | the keys, each with another value
MODEL = f"""
| vocab_size=256 hidden_size=64 intermediate_size=64 num_hidden_layers=3 num_attention_heads=2 num_key_value_heads=mqa
| head_dim=16 qk_norm=false attention_bias=true num_experts=4 rope_theta=100.0 sliding_window=4 rms_norm_eps=0.1
| tie_word_embeddings=false attention_dropout=0.5 hidden_dropout=0.5 initialization=mimetic
{PLAIN} model.num_key_value_heads=mha | attention=mla
{LATENT} | kv_lora_rank=12 q_lora_rank=12 qk_nope_head_dim=2 qk_rope_head_dim=2 v_head_dim=12 rope_interleave=false
{PLAIN} | qkv_bias=true position_embedding=none no_rope_layers=[1,0] hidden_act=gelu mlp_bias=true
{ELSEWHERE} | scale_attn_weights=false gated_mlp=false norm=layernorm
{ELSEWHERE} model.tie_word_embeddings=false | norm=none position_embedding=sinusoidal
{ELSEWHERE} model.num_key_value_heads=mqa | kv_sharing=keys
{ELSEWHERE} | smear_keys=true
model.qk_norm=whole {ELSEWHERE} | norm_position=after
model.num_experts=4 model.moe_intermediate_size=16 | num_experts_per_tok=3 moe_intermediate_size=24 \
norm_topk_prob=false router_aux_loss_coef=0.5 decoder_sparse_step=2 mlp_only_layers=[0]
{LINEAR} | rope_scaling.factor=2.0
{YARN} | rope_scaling.original_max_position_embeddings=24 rope_scaling.beta_fast=4.0 rope_scaling.beta_slow=0.1 \
rope_scaling.attention_factor=2.0
{LLAMA3} | rope_scaling.low_freq_factor=2.0 rope_scaling.high_freq_factor=16.0
model.sliding_window=4 | layer_types=[full_attention,sliding_attention]
model.layer_types=[linear_attention] {ELSEWHERE} | linear_key_head_dim=12 linear_value_head_dim=12 \
linear_conv_kernel_dim=2
"""
RUN = """
| seed=1 train.max_steps=10 train.tokens_per_step=128 train.final_lr_fraction=0.5 train.schedule=cosine
| train.checkpoint_every=3 train.warmup_steps=6 train.precision=bf16 train.cooldown=0.2 train.log_every=3
| train.keep_best=false train.trace=true train.grad_clip=0.05 train.optimizer.name=adamw train.optimizer.lr=0.03
| train.optimizer.adamw_lr=0.03 train.optimizer.weight_decay=0.5 train.optimizer.momentum=0.5 train.optimizer.eps=1.0
| train.optimizer.betas=[0.5,0.5] data.sequence_length=16 data.shuffle=false data.isolate_documents=false
| data.restart_positions=true data.validation_fraction=0.5 eval.hooks=[validation] eval.every=2 eval.max_tokens=256
| eval.prompts=[mat] eval.sample_tokens=20 eval.temperature=0.01 eval.top_p=0.05
train.max_steps=null train.max_tokens=1536 | train.max_tokens=1024
train.checkpoint_every=3 | train.keep_last=3
model.tie_word_embeddings=false | train.optimizer.embedding_lr=0.03
eval.attention.every=4 | eval.attention.every=2 eval.attention.early=[1] eval.attention.texts=[sat] \
eval.attention.max_tokens=9 eval.attention.layers=[1] eval.attention.heads=[0,2] eval.attention.metrics=[sink]
"""
# shown by tests of their own: what each does is not a figure of a short run on one device
SHOWN_ELSEWHERE = """
name output_dir resume allow_mismatch rungs outcome tracking init_from lora dpo grpo distill sft data.chat_fields
forked_from changes
model.attn_implementation model.my_attention model.bos_token_id model.eos_token_id model.loadable_elsewhere
model.max_position_embeddings model.pad_token_id model.rope_scaling model.rope_scaling.rope_type
train.activation_checkpointing train.compile
train.device train.max_minutes train.micro_batch_size train.parallel train.processes train.skip_non_finite
data.drop_duplicates data.on_bad_record data.records data.rows_joined data.source data.tokenizer data.too_long
eval.attention.probe_file eval.attention.page
eval.hooks eval.final_max_tokens eval.floor_documents eval.questions
""".split()


def cases(text: str, prefix: str = "") -> dict[str, tuple[str, ...]]:
    """A key with another value -> what both sides have besides."""
    lines = [line.split("| ") for line in text.strip().splitlines()]
    return {prefix + change: tuple(given.split()) for given, changes in lines for change in changes.split()}


MODEL_CASES = cases(MODEL, "model.")
RUN_CASES = cases(RUN)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("keys")


@cache
def network(config: Path, overrides: tuple[str, ...]) -> list:
    """Shapes, logits with and without dropout, and the load-balancing loss, of a model whose
    weights are all random.
    """
    torch.manual_seed(0)
    lm = LanguageModel(load_run_config(config, ["model.vocab_size=192", *overrides]).model)
    if not any("mimetic" in one for one in overrides):
        with torch.no_grad():
            for name, parameter in lm.named_parameters():
                generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
    ids = torch.randint(0, 192, (2, 32), generator=torch.Generator().manual_seed(1))
    shapes = [(name, tuple(parameter.shape)) for name, parameter in lm.named_parameters()]
    plain = lm.eval()(ids).tolist()
    torch.manual_seed(2)
    output = lm.train().outputs(ids, labels=ids)
    auxiliary = {name: float(value) for name, value in output.auxiliary.items()}
    return [shapes, plain, float(output.loss_sum), auxiliary]


@pytest.mark.parametrize("change", MODEL_CASES)
def test_a_key_of_the_model_changes_the_network(folder, change):
    config = write_config(folder)
    given = MODEL_CASES[change]
    assert network(config, (*given, change)) != network(config, given)


@cache
def outcome(config: Path, overrides: tuple[str, ...]) -> list:
    """All figures of a short run, the files that it leaves, and what it said about its samples and
    heads.
    """
    run = config.parent / f"run{zlib.crc32(' '.join(overrides).encode())}"
    pretrain(config, f"name={run.name}", f"output_dir={config.parent}", *overrides)
    samples = run / "samples.jsonl"
    index = run / "attention/index.jsonl"
    heads = [json.loads(line) | {"time_s": 0} for line in index.read_text().splitlines()] if index.exists() else []
    maps = sorted((file.name, file.stat().st_size) for file in run.glob("attention/*.npz"))
    files = sorted(str(path.relative_to(run)) for path in run.rglob("*") if "png" not in path.suffix)
    return [metrics(run), samples.exists() and samples.read_text(), heads, maps, files]


@pytest.mark.slow
@pytest.mark.parametrize("change", RUN_CASES)
def test_a_key_of_the_run_changes_the_run(folder, no_pictures, change):
    train = {"checkpoint_every": 0, "keep_last": 9, "compile": False, "processes": 1}
    evaluation = {"every": 4, "sample_tokens": 6, "attention": {"every": 0, "max_tokens": 12}}
    config = write_config(folder, train=train, eval=evaluation)
    given = RUN_CASES[change]
    assert outcome(config, (*given, change)) != outcome(config, given)


def test_every_key_is_shown_by_a_test():
    shown = [case.partition("=")[0] for case in MODEL_CASES | RUN_CASES]
    keys = [".".join(path) for path, _ in fields(RunConfig)]
    assert [key for key in keys if not (
        # a section is shown by what is in it
        any(f"{other}.".startswith(f"{key}.") for other in shown)
        or any(f"{key}.".startswith(f"{one}.") for one in SHOWN_ELSEWHERE)
    )] == []  # fmt: skip


def test_base_yaml_shows_the_defaults_and_adds_none(tmp_path):
    for name, begin in (("alone", ""), ("extending", "extends: base.yaml\n")):
        (tmp_path / f"{name}.yaml").write_text(f"{begin}name: same\n")
    assert load_run_config(tmp_path / "alone.yaml") == load_run_config(tmp_path / "extending.yaml")
