"""ModelConfig: every architectural number, validated, under Hugging Face's field names."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

AttentionImplementation = Literal["auto", "eager", "flash", "sdpa"]


class ModelConfig(BaseModel):
    """The shape of a decoder-only transformer (Llama / Qwen3 family).

    The one toggle that this project is about is `num_key_value_heads`, how many query heads share a key
    and a value (drawn for 8 query heads; `k` stands for a key head and its value head):

        mha   q q q q q q q q      gqa   q q q q q q q q      mqa   q q q q q q q q
              | | | | | | | |            \\_\\_/_/ \\_\\_/_/            \\_\\_\\_\\_/_/_/_/
              k k k k k k k k               k       k                     k

    Sources: MHA, Vaswani et al. 2017 (arXiv 1706.03762); MQA, Shazeer 2019 (1911.02150);
    GQA, Ainslie et al. 2023 (2305.13245).

    Raises pydantic.ValidationError (a ValueError) that names the field and the values that would do.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    vocab_size: int | None = Field(None, ge=1, description="Number of token ids; the tokenizer sets it.")
    hidden_size: int = Field(256, ge=1, description="Width of the residual stream.")
    intermediate_size: int | None = Field(
        None, ge=1, description="Inner width of SwiGLU; default 8/3 of hidden_size, rounded up to 32."
    )
    num_hidden_layers: int = Field(6, ge=1, description="Number of decoder layers.")
    num_attention_heads: int = Field(8, ge=1, description="Number of query heads.")
    num_key_value_heads: int | Literal["mha", "gqa", "mqa"] = Field(
        "mha",
        description="Key/value heads: mha = one per query head, gqa = a quarter, mqa = 1, or any divisor.",
    )
    head_dim: int | None = Field(
        None, ge=2, description="Size of one head, even; default hidden_size / num_attention_heads."
    )
    qk_norm: bool = Field(True, description="RMSNorm on every query and key head, as in Qwen3.")
    max_position_embeddings: int = Field(512, ge=1, description="Longest sequence, in tokens.")
    rope_theta: float = Field(10000.0, gt=0, description="Base of the rotary position embedding.")
    rms_norm_eps: float = Field(1e-6, gt=0, description="Added to the mean square before its root.")
    tie_word_embeddings: bool = Field(True, description="Share one matrix between embedding and head.")
    attention_dropout: float = Field(0.0, ge=0, lt=1, description="Dropout on attention weights.")
    hidden_dropout: float = Field(
        0.0, ge=0, lt=1, description="Dropout on the embedding and on what each block adds to the stream."
    )
    attn_implementation: AttentionImplementation = Field(
        "auto", description="auto | eager | flash | sdpa: which code computes attention (same numbers)."
    )
    bos_token_id: int | None = Field(None, description="First token of a document; the tokenizer sets it.")
    eos_token_id: int | None = Field(None, description="Last token of a document; the tokenizer sets it.")
    pad_token_id: int | None = Field(None, description="Padding token; the tokenizer sets it.")

    @model_validator(mode="before")
    @classmethod
    def _resolve_defaults(cls, values: Any) -> Any:
        """Write out what follows from other fields, so that a resolved config has no hidden rule."""
        if not isinstance(values, dict):
            return values
        values = dict(values)
        hidden = values.get("hidden_size", cls.model_fields["hidden_size"].default)
        heads = values.get("num_attention_heads", cls.model_fields["num_attention_heads"].default)
        if not (_is_positive_int(hidden) and _is_positive_int(heads)):
            return values  # the fields' own checks will say so
        if values.get("head_dim") is None:
            if hidden % heads:
                near = [h for h in range(1, min(hidden, 4 * heads) + 1) if hidden % h == 0]
                best = sorted(near, key=lambda h: abs(h - heads))[:3]
                raise ValueError(
                    f"num_attention_heads ({heads}) must divide hidden_size ({hidden}): "
                    f"use {_or(sorted(best))}, or set head_dim"
                )
            values["head_dim"] = hidden // heads
        if values.get("intermediate_size") is None:
            values["intermediate_size"] = -(-hidden * 8 // (3 * 32)) * 32
        kv_heads = values.get("num_key_value_heads", cls.model_fields["num_key_value_heads"].default)
        if kv_heads == "gqa" and heads % 4:
            raise ValueError(
                f"num_key_value_heads: gqa means a quarter of the {heads} query heads, which is not a whole "
                f"number: use {_or(_divisors(heads))}"
            )
        if isinstance(kv_heads, str):
            values["num_key_value_heads"] = {"mha": heads, "gqa": heads // 4, "mqa": 1}.get(kv_heads, kv_heads)
        elif "num_key_value_heads" not in values:
            values["num_key_value_heads"] = heads
        return values

    @model_validator(mode="after")
    def _check_heads(self) -> ModelConfig:
        heads, kv_heads, head_dim = self.num_attention_heads, self.kv_heads, self.head_size
        if kv_heads < 1 or heads % kv_heads:
            raise ValueError(
                f"num_attention_heads ({heads}) must be a multiple of num_key_value_heads ({kv_heads}): "
                f"use {_or(_divisors(heads))}"
            )
        if head_dim % 2:
            raise ValueError(
                f"head_dim ({head_dim}) must be even, because RoPE rotates pairs: change hidden_size "
                f"({self.hidden_size}) or num_attention_heads ({heads}), or set head_dim to {head_dim + 1}"
            )
        return self

    # The three numbers that may be left open in YAML and are always whole numbers in a built config.

    @property
    def kv_heads(self) -> int:
        assert isinstance(self.num_key_value_heads, int)
        return self.num_key_value_heads

    @property
    def head_size(self) -> int:
        assert self.head_dim is not None
        return self.head_dim

    @property
    def num_key_value_groups(self) -> int:
        """How many query heads share one key/value head."""
        return self.num_attention_heads // self.kv_heads


def _is_positive_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


def _or(numbers: list[int]) -> str:
    *first, last = [str(n) for n in numbers]
    return f"{', '.join(first)} or {last}" if first else last
