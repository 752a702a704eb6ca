"""ModelConfig: every architectural number, validated, under Hugging Face's field names.

A value that follows from other keys is computed here, once, and an impossible shape is refused. All
other code reads plain numbers.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from configs.loader import PathText, Section, Tag
from model.backends.names import AttentionImplementation
from model.variants.config import (
    EXPERT_KEYS,
    LATENT_KEYS,
    LINEAR_KEYS,
    RopeScaling,
    resolve_experts,
    resolve_latent,
    resolve_layers,
)

Activation = Literal["silu", "gelu_new", "gelu", "gelu_pytorch_tanh", "relu"]  # transformers' names
LayerType = Literal["full_attention", "sliding_attention", "linear_attention"]
KeyValueHeads = Annotated[int, Field(ge=0)] | Literal["mha", "gqa", "mqa"]
Flag = Annotated[int, Field(ge=0, le=1)]
TokenId = Annotated[int, Field(ge=-1, lt=1 << 31)]  # -1 means none in some of Llama's configs


class ModelConfig(Section):
    """The shape of a decoder-only transformer, and its parts (docs/families.md).

    This project is about `num_key_value_heads`, drawn in model/attention.py: `kv_heads_of` turns
    its words into a number.
    """

    # Sizes, and the feed-forward part
    vocab_size: Annotated[int | None, Tag.RUNTIME] = Field(None, ge=1)
    """Number of different tokens. The tokenizer sets it."""
    hidden_size: int = Field(256, ge=1)
    """Width of the network: the size of a token's vector."""
    intermediate_size: int | None = Field(None, ge=1)
    """Inner width of feed-forward layers. null = 8/3 of hidden_size, ungated 4 times."""
    gated_mlp: bool = True
    """true: feed-forward layers with a gate, three matrices (SwiGLU) | false: two, as in GPT-2."""
    hidden_act: Activation = "silu"
    """Activation function: silu | gelu_new (GPT-2) | gelu | gelu_pytorch_tanh | relu."""
    mlp_bias: bool = False
    """Add a learned vector to the output of each matrix of the feed-forward layers."""
    # Mixture of experts (model/variants/experts.py)
    num_experts: int | None = Field(None, ge=1)
    """Mixture of experts: feed-forward networks in a layer. null = one, without a router."""
    num_experts_per_tok: int = Field(2, ge=1)
    """Experts that the router chooses for each token."""
    moe_intermediate_size: int | None = Field(None, ge=1)
    """Inner width of an expert. null = a token costs as much as without experts."""
    norm_topk_prob: bool = True
    """true: the weights of a token's experts add up to 1. With one expert per token: false."""
    router_aux_loss_coef: float = Field(0.01, ge=0)
    """Weight of the load-balancing loss, which makes the router use all experts. 0 = off."""
    decoder_sparse_step: int = Field(1, ge=1)
    """Every n-th layer has experts: 1 = all, 2 = every second."""
    mlp_only_layers: list[Annotated[int, Field(ge=0)]] = Field([])
    """Layers without experts, counted from 0."""
    # Attention
    num_hidden_layers: int = Field(6, ge=1, le=10_000)
    """Number of layers."""
    num_attention_heads: int = Field(8, ge=1, le=10_000)
    """Query heads in a layer. Each one learns to look at the text in its own way."""
    num_key_value_heads: KeyValueHeads = "gqa"
    """Key/value heads: mha = one per query head | gqa = a quarter | mqa = 1 | or any divisor."""
    kv_sharing: Literal["both", "keys", "values"] = "both"
    """Which have only num_key_value_heads: both (GQA, MQA) | keys alone | values alone."""
    head_dim: int | None = Field(None, ge=2)
    """Size of one head, an even number. null = hidden_size / num_attention_heads."""
    attention: Literal["heads", "mla"] = "heads"
    """heads: num_key_value_heads keys and values | mla: every head makes its own from a latent."""
    # Latent attention (model/variants/latent_attention.py)
    kv_lora_rank: int | None = Field(None, ge=1)
    """mla: size of the cached latent. null = 4 x head_dim, at most half of hidden_size."""
    q_lora_rank: int | None = Field(None, ge=1)
    """mla: size of a latent for the queries as well. null = none."""
    qk_nope_head_dim: int | None = Field(None, ge=1)
    """mla: numbers of a key without RoPE. null = head_dim - qk_rope_head_dim."""
    qk_rope_head_dim: int | None = Field(None, ge=2)
    """mla: numbers of a key with RoPE, cached once for all heads. null = half of head_dim."""
    v_head_dim: int | None = Field(None, ge=1)
    """mla: size of a value. null = head_dim."""
    rope_interleave: bool | None = None
    """mla: RoPE rotates neighbours together (true, null) or numbers of two halves (false)."""
    # The scores of attention, and where the norms are
    qk_norm: bool | Literal["whole"] = True
    """Normalise queries and keys, for stable training: true = each head | whole = all as one."""
    attention_bias: bool = False
    """Add a learned vector to queries, keys, values and the output of attention."""
    qkv_bias: bool = False
    """Add a learned vector to queries, keys and values, as Qwen2 does."""
    scale_attn_weights: bool = True
    """Divide scores by the square root of head_dim. false shows what that is for."""
    smear_keys: bool = False
    """true: heads learn to mix each key with the one before, so that one layer can copy."""
    norm_position: Literal["before", "after"] = "before"
    """Normalise before attention and feed-forward | after: their outputs, as in OLMo 2."""
    # Positions, and how far back a token sees
    position_embedding: Literal["rope", "learned", "sinusoidal", "none"] = "rope"
    """Positions: rope = rotate queries and keys | learned, sinusoidal = add a vector | none."""
    no_rope_layers: list[Flag] | None = Field(None, min_length=1, examples=[[1, 1, 1, 0]])
    """Layers with RoPE (1) and without (0), as in SmolLM3. A short list is repeated. null = all."""
    max_position_embeddings: int = Field(512, ge=1)
    """Longest text in tokens, in training and in generation."""
    rope_theta: float = Field(10000.0, gt=1, le=1e12)
    """Base of RoPE. A larger one turns queries and keys more slowly."""
    rope_scaling: RopeScaling | None = Field(
        None,
        examples=[
            {"rope_type": "linear", "factor": 4.0},
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512},
        ],
    )
    """Scale RoPE for longer texts than in training. null = off."""
    sliding_window: int | None = Field(None, ge=1)
    """Tokens that a sliding_attention layer sees, its own included. null = no window."""
    layer_types: list[LayerType] | None = Field(
        None, examples=[["sliding_attention", "full_attention"], ["linear_attention"]]
    )
    """full_, sliding_ or linear_attention. A short list repeats. null: sliding_window decides."""
    # Linear attention (model/variants/linear_attention.py)
    linear_key_head_dim: int | None = Field(None, ge=1)
    """linear_attention: numbers of a key, in each of num_attention_heads. null = head_dim."""
    linear_value_head_dim: int | None = Field(None, ge=1)
    """linear_attention: numbers of a value. null = head_dim."""
    linear_conv_kernel_dim: int = Field(4, ge=1)
    """linear_attention: tokens that are mixed first, each one's own included. 1 = none."""
    # The rest of the network
    norm: Literal["rmsnorm", "layernorm", "none"] = "rmsnorm"
    """rmsnorm: scale a token to one size (Llama) | layernorm: with mean and bias (GPT-2) | none."""
    rms_norm_eps: float = Field(1e-06, ge=1e-30, le=1)
    """Keeps the norm from dividing by zero."""
    tie_word_embeddings: bool = False
    """true: embedding and head share one matrix. Smaller, but the model learns to copy later."""
    attention_dropout: float = Field(0.0, ge=0, lt=1)
    """Share of attention weights set to zero at random in training."""
    hidden_dropout: float = Field(0.0, ge=0, lt=1)
    """Share of the embedding's and the layers' output set to zero at random in training."""
    initialization: Literal["random", "mimetic"] = "random"
    """First attention weights: random | mimetic: keys equal queries; heads copy similar tokens."""
    loadable_elsewhere: bool = True
    """true: parts of one architecture of transformers | false: any, for Headlight alone."""
    # These do not change the model: how it computes, and the ids of its tokenizer
    attn_implementation: Annotated[AttentionImplementation, Tag.RUNTIME] = "auto"
    """Code of attention, same numbers: auto | eager (formula) | flash | … (docs/attention.md)."""
    my_attention: Annotated[PathText | None, Tag.RUNTIME] = Field(
        None, examples=["notebooks/build/attention.py"]
    )
    """attn_implementation mine: your Python file with a function attention(q, k, v, mask)."""
    bos_token_id: Annotated[TokenId | None, Tag.RUNTIME] = None
    """First token of every document. The tokenizer sets it."""
    eos_token_id: Annotated[TokenId | list[TokenId] | None, Tag.RUNTIME] = None
    """Last token of a document, or a list: of a document and of a turn. The tokenizer sets it."""
    pad_token_id: Annotated[TokenId | None, Tag.RUNTIME] = None
    """Token that fills up short rows. The tokenizer sets it."""

    @model_validator(mode="after")
    def _resolve(self) -> ModelConfig:
        """Fill in every value that follows from others, and refuse impossible shapes."""
        # pydantic has checked each key alone; the config is frozen, so write here
        values = self.__dict__
        heads = self.num_attention_heads
        is_mla = self.attention == "mla"
        has_rope = self.position_embedding == "rope"
        self._refuse_keys_without(LATENT_KEYS, "attention: mla", is_mla)
        self._refuse_keys_without(EXPERT_KEYS, "num_experts", self.num_experts is not None)
        is_linear = "linear_attention" in (self.layer_types or [])
        self._refuse_keys_without(LINEAR_KEYS, "layer_types: [linear_attention]", is_linear)
        rope_keys = ("no_rope_layers", "rope_scaling")
        self._refuse_keys_without(rope_keys, "position_embedding: rope", has_rope)

        # 1. attention: head sizes, and the number of key/value heads
        if (self.attn_implementation == "mine") != (self.my_attention is not None):
            raise ValueError("attn_implementation: mine and my_attention, your file, go together")
        if self.head_dim is None:
            if self.qk_nope_head_dim is not None and self.qk_rope_head_dim is not None:  # mla
                values["head_dim"] = self.qk_nope_head_dim + self.qk_rope_head_dim
            elif self.hidden_size % heads:
                problem = f"must divide hidden_size ({self.hidden_size}), or set head_dim"
                raise ValueError(f"num_attention_heads ({heads}) {problem}")
            else:
                values["head_dim"] = self.hidden_size // heads
        # a number from here on, whatever word the YAML has
        values["num_key_value_heads"] = kv_heads_of(self.num_key_value_heads, heads)
        if self.kv_sharing != "both" and self.kv_heads == heads:
            remedy = "set num_key_value_heads: mqa, or kv_sharing: both"
            raise ValueError(f"kv_sharing ({self.kv_sharing}): nothing is shared: {remedy}")
        if is_mla:
            resolve_latent(values, is_set=self.model_fields_set)
        if self.position_embedding == "sinusoidal" and self.tie_word_embeddings:
            remedy = "set tie_word_embeddings: false"
            raise ValueError(f"position_embedding: sinusoidal hides tied embeddings: {remedy}")
        size = self.rotary_size
        if has_rope and size % 2:
            key = "qk_rope_head_dim" if is_mla else "head_dim"  # the error shows this key's line
            remedy = f"change num_attention_heads, or use {size + 1}"
            raise ValueError(f"{key} ({size}) must be even, RoPE rotates pairs: {remedy}")

        # 2. kinds of layers: a short pattern is repeated
        resolve_layers(values)
        if self.smear_keys and set(self.layer_types or []) != {"full_attention"}:
            # the cache of a window drops the key before the first one that it keeps
            raise ValueError("smear_keys needs full_attention in all layers: set smear_keys: false")

        # 3. the feed-forward part
        if self.intermediate_size is None:
            width = 4 * self.hidden_size
            if self.gated_mlp:  # 8/3, so that three matrices are as large as two; rounded up to 32
                width = -(-self.hidden_size * 8 // (3 * 32)) * 32
            values["intermediate_size"] = width
        if self.num_experts is not None:
            resolve_experts(values)
            if not any(self.has_experts):
                raise ValueError("decoder_sparse_step, mlp_only_layers leave no layer with experts")
        return self

    def _refuse_keys_without(self, keys: tuple[str, ...], switch: str, is_on: bool) -> None:
        for key in keys:
            if not is_on and getattr(self, key) != type(self).model_fields[key].default:
                raise ValueError(f"{key} is for {switch}: set that, or leave {key} out")

    # Values that YAML may leave open and a built config always has.

    @property
    def kv_heads(self) -> int:
        """H_kv: `num_key_value_heads` as a number."""
        return int(self.num_key_value_heads)

    @property
    def head_size(self) -> int:
        """D: the size of a query and of a key."""
        return self.head_dim or 0

    @property
    def value_size(self) -> int:
        """The size of a value: D, or v_head_dim with mla."""
        return self.v_head_dim or self.head_size

    @property
    def rotary_size(self) -> int:
        """The part of a query and of a key that RoPE turns: D, or qk_rope_head_dim with mla."""
        return self.qk_rope_head_dim or self.head_size

    @property
    def cache_shapes(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """(heads, size) of a layer's cached keys and values; with mla, of its two latent parts."""
        if self.attention == "mla":
            return (1, self.kv_lora_rank or 0), (1, self.rotary_size)
        key_heads = self.num_attention_heads if self.kv_sharing == "values" else self.kv_heads
        value_heads = self.num_attention_heads if self.kv_sharing == "keys" else self.kv_heads
        return (key_heads, self.head_size), (value_heads, self.head_size)

    @property
    def cache_numbers(self) -> int:
        """Numbers that a layer's cache keeps for a token."""
        return sum(heads * size for heads, size in self.cache_shapes)

    @property
    def windows(self) -> list[int | None]:
        """The window of every layer, in tokens; None = all tokens."""
        types = self.layer_types or []
        return [self.sliding_window if kind == "sliding_attention" else None for kind in types]

    @property
    def is_linear(self) -> list[bool]:
        """True for every layer of linear attention, which has no weights and caches no keys."""
        return [kind == "linear_attention" for kind in self.layer_types or []]

    @property
    def has_experts(self) -> list[bool]:
        """True for every layer whose feed-forward part is a mixture of experts."""
        layers = self.num_hidden_layers
        if self.num_experts is None:
            return [False] * layers
        every = self.decoder_sparse_step
        return [(i + 1) % every == 0 and i not in self.mlp_only_layers for i in range(layers)]

    @property
    def rotates(self) -> list[bool]:
        """True for every layer with RoPE."""
        flags = self.no_rope_layers or [1] * self.num_hidden_layers
        return [flag == 1 and self.position_embedding == "rope" for flag in flags]

    @property
    def end_ids(self) -> list[int]:
        """The tokens that end a text: of a document, then of a turn."""
        if self.eos_token_id is None:
            return []
        return self.eos_token_id if isinstance(self.eos_token_id, list) else [self.eos_token_id]

    def in_words(self) -> str:
        """Return a line such as "4 layers x 128, 4 query heads / 1 key-value heads (MQA)"."""
        layers = f"{self.num_hidden_layers} layers x {self.hidden_size}"
        query = self.num_attention_heads
        name = {query: "MHA", 1: "MQA"}.get(self.kv_heads, "GQA")
        heads = f"{query} query heads / {self.kv_heads} key-value heads ({name})"
        if self.attention == "mla":
            heads = f"{query} heads (MLA, latent {self.kv_lora_rank} + rotary {self.rotary_size})"
        experts = ""
        if self.num_experts is not None:
            experts = f", {self.num_experts_per_tok} of {self.num_experts} experts a token"
        return f"{layers}, {heads}{experts}"


def kv_heads_of(toggle: int | str, heads: int) -> int:
    """Return mha, gqa, mqa or a divisor as a number. Raises ValueError, also if a word has none."""
    # each key/value head serves equally many query heads
    divisors = [divisor for divisor in range(1, heads + 1) if heads % divisor == 0]
    between = divisors[1:-1]
    number = toggle
    if toggle == "gqa" and between:
        # nearest to a quarter; of two equally near, the larger: 4 -> 2, 6 -> 2, 8 -> 2, 18 -> 6
        number = min(between, key=lambda divisor: (abs(divisor - heads / 4), -divisor))
    elif toggle == "mha":
        number = heads
    elif toggle == "mqa" and heads > 1:
        number = 1
    if isinstance(number, int) and number in divisors:
        return number
    raise ValueError(
        f"num_key_value_heads ({toggle}) must divide num_attention_heads ({heads}): use "
        f"{', '.join(map(str, divisors))}. gqa is a divisor between 1 and all, mqa shares 1 "
        "among several"
    )
