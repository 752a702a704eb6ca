"""What every key means. If a key moves from one set to another, a test here fails, so it never happens by accident."""

from typing import Annotated

from pydantic import Field

from configs.meaning import Meaning, Section, keys_that, meanings
from data.storyworld.drills import DRILLS
from data.storyworld.questions import KINDS
from model.config import ModelConfig
from model.positions.scaling import RopeScaling
from train.config import RunConfig, load_run_config

# of every run, then of each kind of source
IDENTITY = {
    "": "seed init_from distill dpo grpo lora",
    "data": "drop_duplicates isolate_documents on_bad_record records restart_positions rows_joined sequence_length "
    "shuffle too_long validation_fraction source.kind tokenizer.kind tokenizer.train_bytes tokenizer.vocab_size",
    "model": "attention attention_bias attention_dropout gated_mlp head_dim hidden_act hidden_dropout hidden_size "
    "initialization intermediate_size kv_lora_rank layer_types loadable_elsewhere max_position_embeddings mlp_bias "
    "no_rope_layers norm norm_position num_attention_heads num_hidden_layers num_key_value_heads position_embedding "
    "q_lora_rank "
    "qk_nope_head_dim qk_norm qk_rope_head_dim qkv_bias rms_norm_eps rope_interleave rope_scaling rope_theta "
    "sliding_window tie_word_embeddings v_head_dim num_experts num_experts_per_tok moe_intermediate_size "
    "norm_topk_prob router_aux_loss_coef decoder_sparse_step mlp_only_layers scale_attn_weights",
    "train": "cooldown final_lr_fraction grad_clip precision schedule tokens_per_step warmup_steps",
    "train.optimizer": "adamw_lr betas embedding_lr eps lr momentum name weight_decay",
}
OF_A_SOURCE = {
    "demo": "chats checked course documents level other_names questions recall repeats seed told "
    "told_weight echoed validation_documents "
    + " ".join([*(f"class_weights.{kind}" for kind in KINDS), *(f"drills.{drill}" for drill in DRILLS)]),
    "shakespeare_char": "document_start max_records separator text_field",
    "124m": "data_files document_start max_records name revision split streaming subset text_field validation_split",
}
TENSORS = {
    "model": "hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim qk_norm "
    "attention kv_lora_rank q_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim rope_interleave attention_bias "
    "qkv_bias norm_position position_embedding gated_mlp hidden_act mlp_bias norm tie_word_embeddings "
    "num_experts num_experts_per_tok moe_intermediate_size norm_topk_prob decoder_sparse_step mlp_only_layers "
    "scale_attn_weights",
    "train.optimizer": "name",
    "lora": "rank target_modules",
}
FREE_AT_START = (
    "attn_implementation attention_dropout hidden_dropout initialization loadable_elsewhere max_position_embeddings "
    "router_aux_loss_coef"
)
TOKENIZER = "vocab_size bos_token_id eos_token_id pad_token_id"
ADDED_AT_START = "sliding_window layer_types rope_scaling"
SAME_NAME = (
    "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim "
    "max_position_embeddings rms_norm_eps tie_word_embeddings attention_dropout bos_token_id eos_token_id pad_token_id"
)
STRUCTURE = (
    "attention gated_mlp hidden_act mlp_bias norm qk_norm attention_bias qkv_bias norm_position position_embedding "
    "no_rope_layers sliding_window loadable_elsewhere num_experts scale_attn_weights"
)
BOOKKEEPING = (
    "name output_dir resume allow_mismatch rungs tracking tracking.wandb tracking.project tracking.tensorboard"
)
ROWS = (
    "tokenizer tokenizer.kind tokenizer.vocab_size tokenizer.train_bytes tokenizer.path sequence_length "
    "isolate_documents restart_positions rows_joined shuffle too_long"
)


def dotted(names: dict[str, str]) -> set[str]:
    return {f"{prefix}.{name}".lstrip(".") for prefix, words in names.items() for name in words.split()}


def test_what_makes_a_run_itself():
    for config, source in OF_A_SOURCE.items():
        expected = dotted(IDENTITY | {"data.source": source})
        assert load_run_config(f"configs/{config}.yaml").identity().keys() == expected


def test_stretched_positions_are_part_of_it_key_by_key():
    config = load_run_config("configs/demo.yaml", ["model.rope_scaling={rope_type: linear, factor: 4.0}"])
    keys = {key.removeprefix("model.rope_scaling.") for key in config.identity() if "rope_scaling" in key}
    assert keys == RopeScaling.model_fields.keys()


def test_what_the_tensors_of_a_checkpoint_are():
    assert set(keys_that(RunConfig, Meaning.TENSORS)) == dotted(TENSORS)


def test_what_may_differ_from_the_model_of_init_from():
    assert set(keys_that(ModelConfig, Meaning.FREE_AT_START)) == set(FREE_AT_START.split())
    assert set(keys_that(ModelConfig, Meaning.TOKENIZER)) == set(TOKENIZER.split())
    found = keys_that(ModelConfig, Meaning.ADDED_AT_START)
    assert {key for key in found if not key.startswith("rope_scaling.")} == set(ADDED_AT_START.split())


def test_what_config_json_calls_the_same():
    assert keys_that(ModelConfig, Meaning.SAME_NAME) == [
        key for key in ModelConfig.model_fields if key in SAME_NAME.split()
    ]
    assert len(SAME_NAME.split()) == len(keys_that(ModelConfig, Meaning.SAME_NAME))


def test_what_not_every_architecture_has():
    assert set(keys_that(ModelConfig, Meaning.STRUCTURE)) == set(STRUCTURE.split())


def test_what_is_neither_swept_nor_compared():
    assert keys_that(RunConfig, Meaning.BOOKKEEPING) == BOOKKEEPING.split()
    assert keys_that(RunConfig, Meaning.REPETITION) == ["seed"]


def test_what_says_how_text_becomes_rows():
    assert set(keys_that(RunConfig, Meaning.ROWS)) == {f"data.{key}" for key in ROWS.split()}


def test_a_meaning_holds_for_a_whole_section_and_beside_other_constraints():
    class Inner(Section):
        plain: int = 1
        own: Annotated[int | None, Meaning.TENSORS] = Field(None, ge=1)

    class Outer(Section):
        inner: Annotated[Inner | None, Meaning.ROWS] = None
        several: list[Inner] = Field([])

    found = meanings(Outer)
    assert found["inner"] == found["inner.plain"] == {Meaning.ROWS}
    assert found["inner.own"] == {Meaning.ROWS, Meaning.TENSORS}
    assert found["several.own"] == {Meaning.TENSORS}
