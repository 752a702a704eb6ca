"""What may stand in the config.json of a model, and what of it would make Headlight compute something else?

A field that transformers reads has its type here, and transformers' own default where it is left out. A field that
transformers ignores is ignored here too. Whatever Headlight would compute wrongly is refused by name.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, model_validator

from model.config import LayerType

Size = Annotated[int, Field(ge=1, le=1 << 28)]  # of a tensor, in one direction
TokenId = Annotated[int, Field(ge=-(1 << 31), lt=1 << 31)]
Positive = Annotated[FiniteFloat, Field(gt=0)]
Share = Annotated[FiniteFloat, Field(ge=0, lt=1)]  # of numbers that dropout sets to zero


class Headlight(BaseModel):
    """What Headlight writes for itself."""

    model_config = ConfigDict(extra="forbid")

    hidden_dropout: float = 0.0


class Rope(BaseModel):
    """`rope_parameters` of transformers 5, `rope_scaling` of 4."""

    model_config = ConfigDict(extra="forbid")

    rope_type: Literal["default", "linear", "yarn", "llama3"] = "default"
    rope_theta: Positive | None = None
    factor: FiniteFloat | None = None
    original_max_position_embeddings: Size | None = None
    beta_fast: FiniteFloat | None = None
    beta_slow: FiniteFloat | None = None
    attention_factor: FiniteFloat | None = None
    low_freq_factor: FiniteFloat | None = None
    high_freq_factor: FiniteFloat | None = None
    truncate: Literal[True] = True
    partial_rotary_factor: Annotated[FiniteFloat, Field(ge=1, le=1)] = 1.0

    @model_validator(mode="before")
    @classmethod
    def _old_name(cls, values: Any) -> Any:
        """transformers 4 said `type`."""
        if isinstance(values, dict) and "type" in values:
            values = {key: value for key, value in values.items() if key != "type"} | {
                "rope_type": values.get("rope_type", values["type"])
            }
        return values


class EveryConfigJson(BaseModel):
    """The fields that every architecture has."""

    vocab_size: Size
    tie_word_embeddings: bool = False
    bos_token_id: TokenId | None = None
    eos_token_id: TokenId | list[TokenId] | None = None
    pad_token_id: TokenId | None = None
    # transformers reads these too; with any other value it computes what Headlight does not build
    is_causal: Literal[True] = True
    is_encoder_decoder: Literal[False] = False
    quantization_config: None = None
    compression_config: None = None
    per_layer_config: None = None
    fusion_config: None = None
    transformers_weights: None = None
    dtype: Literal["float32", "float16", "bfloat16", "auto"] | None = None
    torch_dtype: Literal["float32", "float16", "bfloat16", "auto"] | None = None


class ConfigJson(EveryConfigJson):
    """The fields that decide what is computed."""

    hidden_size: Size
    intermediate_size: Size
    num_hidden_layers: Annotated[int, Field(ge=1)]
    num_attention_heads: Size
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    max_position_embeddings: Annotated[int, Field(ge=1, lt=1 << 31)]
    rms_norm_eps: Positive = 1e-6
    attention_dropout: FiniteFloat | None = None
    rope_theta: Positive | None = None
    rope_parameters: Rope | None = None
    rope_scaling: Rope | None = None
    layer_types: list[LayerType] | None = None
    sliding_window: Size | None = None
    use_sliding_window: bool = False
    max_window_layers: int = 28
    num_experts: Annotated[int, Field(ge=0)] | None = None
    num_local_experts: Annotated[int, Field(ge=0)] | None = None
    num_experts_per_tok: Annotated[int, Field(ge=1)] | None = None
    moe_intermediate_size: Size | None = None
    norm_topk_prob: bool = False
    router_aux_loss_coef: Annotated[FiniteFloat, Field(ge=0)] | None = None
    decoder_sparse_step: Annotated[int, Field(ge=1)] = 1
    mlp_only_layers: list[Annotated[int, Field(ge=0)]] | None = None
    attention_bias: bool = False
    mlp_bias: bool = False
    hidden_act: str = "silu"
    no_rope_layers: list[int] | None = None
    no_rope_layer_interval: Annotated[int, Field(ge=1)] = 4
    kv_lora_rank: Size | None = None
    q_lora_rank: Size | None = None
    qk_nope_head_dim: Size | None = None
    qk_rope_head_dim: Size | None = None
    v_head_dim: Size | None = None
    rope_interleave: bool | None = None
    first_k_dense_replace: Annotated[int, Field(ge=0)] | None = None
    headlight: Headlight = Headlight()
    # with any other value transformers computes what Headlight does not build
    partial_rotary_factor: Annotated[FiniteFloat, Field(ge=1, le=1)] | None = None
    original_max_position_embeddings: Size | None = None

    @model_validator(mode="after")
    def _check_layers(self) -> ConfigJson:
        if self.layer_types is not None and len(self.layer_types) != self.num_hidden_layers:
            raise ValueError(f"layer_types has {len(self.layer_types)} entries for {self.num_hidden_layers} layers")
        return self
