"""ModelConfig: every architectural number, validated, under Hugging Face's field names.

What follows from other keys is written out here, once (`gqa` as a number, a kind for every layer), and what cannot be
is refused with what would work. Everything behind reads plain numbers.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from configs.loader import Section, Tag
from model.backends import NO_SUCH_BACKEND, AttentionImplementation
from model.rope import RopeScaling

Activation = Literal["silu", "gelu_new", "gelu", "gelu_pytorch_tanh", "relu"]  # as transformers names them
LayerType = Literal["full_attention", "sliding_attention"]
KeyValueHeads = Annotated[int, Field(ge=0)] | Literal["mha", "gqa", "mqa"]
Flag = Annotated[int, Field(ge=0, le=1)]
TokenId = Annotated[int, Field(ge=-1, lt=1 << 31)]  # -1: none, in some of Llama's configs

EXPERT_KEYS = ("num_experts_per_tok", "moe_intermediate_size", "decoder_sparse_step", "mlp_only_layers")
EXPERT_MULTIPLE = 8  # rows of matrices must begin at multiples of 16 bytes for torch.nn.functional.grouped_mm
LATENT_KEYS = ("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "rope_interleave")


class ModelConfig(Section):
    r"""The shape of a decoder-only transformer, and its parts (docs/architecture.md, Families).

    The one toggle that this project is about is `num_key_value_heads`: how many query heads share a key
    and a value (drawn for 8 query heads; `k` stands for a key head and its value head):

        mha   q q q q q q q q      gqa   q q q q q q q q      mqa   q q q q q q q q
              | | | | | | | |            \_\_/_/ \_\_/_/            \_\_\_\_/_/_/_/
              k k k k k k k k               k       k                     k

    Sources: MHA, Vaswani et al. 2017 (arXiv 1706.03762); MQA, Shazeer 2019 (1911.02150);
    GQA, Ainslie et al. 2023 (2305.13245).

    `gqa` is the divisor of the query heads that is nearest to a quarter of them, strictly between 1 and all: of two
    equally near, the larger (8 -> 2, 4 -> 2, 6 -> 2, 12 -> 3, 18 -> 6). So no two of the words are the same model.

    Raises pydantic.ValidationError (a ValueError) that names the field and the values that work.
    """

    vocab_size: Annotated[int | None, Tag.RUNTIME] = Field(
        None, ge=1, description="Number of different tokens. The tokenizer sets it."
    )
    hidden_size: int = Field(
        256, ge=1, description="Width of the network: how many numbers stand for a token inside it."
    )
    intermediate_size: int | None = Field(
        None, ge=1, description="Inner width of feed-forward layers. null = 8/3 of hidden_size, ungated 4 times."
    )
    gated_mlp: bool = Field(
        True, description="true: feed-forward layers of three matrices, one a gate (SwiGLU) | false: two, as in GPT-2."
    )
    hidden_act: Activation = Field(
        "silu", description="Function between the matrices: silu | gelu_new (GPT-2) | gelu | gelu_pytorch_tanh | relu."
    )
    mlp_bias: bool = Field(
        False, description="Add a learned vector to the output of each matrix of the feed-forward layers."
    )
    num_experts: int | None = Field(
        None, ge=1, description="Mixture of experts: feed-forward parts; a router picks a few a token. null = one."
    )
    num_experts_per_tok: int = Field(2, ge=1, description="Experts that a token goes to.")
    moe_intermediate_size: int | None = Field(
        None, ge=1, description="Inner width of an expert. null = a token costs what it costs without experts."
    )
    norm_topk_prob: bool = Field(
        True, description="true: the weights of a token's experts add up to 1. Several experts need it, one forbids it."
    )
    router_aux_loss_coef: float = Field(
        0.01, ge=0, description="How strongly the load-balancing loss makes the router use all experts. 0 = not at all."
    )
    decoder_sparse_step: int = Field(
        1, ge=1, description="Every how many layers there are experts: 1 = in all, 2 = in every second."
    )
    mlp_only_layers: list[Annotated[int, Field(ge=0)]] = Field(
        [], description="Layers without experts, counted from 0."
    )
    num_hidden_layers: int = Field(6, ge=1, le=10_000, description="Number of layers.")
    num_attention_heads: int = Field(
        8, ge=1, description="Query heads in a layer. Each one learns to look at the text in its own way."
    )
    num_key_value_heads: KeyValueHeads = Field(
        "gqa",
        description="Key/value heads, which the query heads share: mha = one per query head | gqa = about a quarter, "
        "never 1 and never all | mqa = 1 | or any divisor of num_attention_heads.",
    )
    head_dim: int | None = Field(
        None, ge=2, description="Size of one head, an even number. null = hidden_size / num_attention_heads."
    )
    attention: Literal["heads", "mla"] = Field(
        "heads", description="heads: num_key_value_heads keys and values | mla: every head makes its own from a latent."
    )
    kv_lora_rank: int | None = Field(
        None, ge=1, description="mla: size of the cached latent. null = 4 x head_dim, at most half of hidden_size."
    )
    q_lora_rank: int | None = Field(
        None, ge=1, description="mla: size of a latent for the queries as well. null = none."
    )
    qk_nope_head_dim: int | None = Field(
        None, ge=1, description="mla: numbers of a key without RoPE. null = head_dim - qk_rope_head_dim."
    )
    qk_rope_head_dim: int | None = Field(
        None, ge=2, description="mla: numbers of a key with RoPE, cached once for all heads. null = half of head_dim."
    )
    v_head_dim: int | None = Field(None, ge=1, description="mla: size of a value. null = head_dim.")
    rope_interleave: bool | None = Field(
        None, description="mla: RoPE turns neighbours together (true, null) or numbers of two halves (false)."
    )
    qk_norm: bool | Literal["whole"] = Field(
        True,
        description="Normalise every query and key, as Qwen3 does: higher learning rates stay stable. whole: all heads "
        "of a token together, as OLMo 2 does.",
    )
    attention_bias: bool = Field(
        False, description="Add a learned vector to queries, keys, values and the output of attention."
    )
    qkv_bias: bool = Field(False, description="Add a learned vector to queries, keys and values, as Qwen2 does.")
    scale_attn_weights: bool = Field(
        True, description="Divide scores by the square root of head_dim. false = not, to see what that is for."
    )
    norm_position: Literal["before", "after"] = Field(
        "before", description="Normalise what goes into a part of a layer | after: what comes out, as in OLMo 2."
    )
    position_embedding: Literal["rope", "learned", "none"] = Field(
        "rope",
        description="How the model knows where a token stands: rope = queries and keys are rotated | learned = a "
        "vector for every position is added to the token's, as in GPT-2 | none = from the causal mask alone.",
    )
    no_rope_layers: list[Flag] | None = Field(
        None,
        min_length=1,
        description="Which layers rotate: 1 = with RoPE, 0 = without, as in SmolLM3. A shorter list is repeated. "
        "null = all.",
        examples=[[1, 1, 1, 0]],
    )
    max_position_embeddings: int = Field(
        512, ge=1, description="Longest text in tokens, in training and in generation."
    )
    rope_theta: float = Field(
        10000.0, gt=1, le=1e12, description="Base of RoPE, which tells the model where a token stands."
    )
    rope_scaling: RopeScaling | None = Field(
        None,
        description="Stretch RoPE to texts longer than those of training. null = do not.",
        examples=[
            {"rope_type": "linear", "factor": 4.0},
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512},
        ],
    )
    sliding_window: int | None = Field(
        None, ge=1, description="Tokens that a sliding_attention layer sees, its own included. null = no window."
    )
    layer_types: list[LayerType] | None = Field(
        None,
        description="Kind of each layer: full_attention or sliding_attention. A shorter list is repeated. "
        "null = all sliding if sliding_window is set, else all full.",
        examples=[["sliding_attention", "full_attention"]],
    )
    norm: Literal["rmsnorm", "layernorm"] = Field(
        "rmsnorm", description="rmsnorm: scale a token to one size (Llama) | layernorm: with mean and bias (GPT-2)."
    )
    rms_norm_eps: float = Field(1e-6, ge=1e-30, le=1, description="Keeps the norm from dividing by zero.")
    tie_word_embeddings: bool = Field(
        False, description="true: embedding and head share one matrix: smaller, but it learns to copy later."
    )
    attention_dropout: float = Field(
        0.0, ge=0, lt=1, description="Share of attention weights set to zero at random in training."
    )
    hidden_dropout: float = Field(
        0.0, ge=0, lt=1, description="Share of the embedding's and the layers' output set to zero in training."
    )
    initialization: Literal["random", "mimetic"] = Field(
        "random",
        description="First weights of attention: random, and its output zero | mimetic: keys equal queries and outputs "
        "mirror values, so that heads look at like tokens and copy them. Then they learn to copy sooner.",
    )
    loadable_elsewhere: bool = Field(
        True, description="true: parts of one architecture of transformers | false: any, for Headlight alone."
    )
    attn_implementation: Annotated[AttentionImplementation, Tag.RUNTIME] = Field(
        "auto",
        description="Code that computes attention (same numbers, other speed): auto | eager (the formula) | flash | "
        "flex. docs/attention.md has the others.",
    )
    bos_token_id: Annotated[TokenId | None, Tag.RUNTIME] = Field(
        None, description="First token of every document. The tokenizer sets it."
    )
    eos_token_id: Annotated[TokenId | list[TokenId] | None, Tag.RUNTIME] = Field(
        None, description="Last token of a document, or a list: of a document and of a turn. The tokenizer sets it."
    )
    pad_token_id: Annotated[TokenId | None, Tag.RUNTIME] = Field(
        None, description="Token that fills up short rows. The tokenizer sets it."
    )

    @field_validator("attn_implementation", mode="before")
    @classmethod
    def _check_backend(cls, name: Any) -> Any:
        if name not in get_args(AttentionImplementation):
            raise PydanticCustomError("no_such_backend", NO_SUCH_BACKEND)
        return name

    @model_validator(mode="after")
    def _resolve(self) -> ModelConfig:
        """Write out what follows from other keys, so that a resolved config shows every value; refuse the rest."""
        values, hidden = self.__dict__, self.hidden_size  # the config is frozen for everybody else
        if self.attention == "mla":
            values |= self._latent_sizes()
        if self.head_dim is None:
            values["head_dim"] = self._part_of_hidden()
        if self.intermediate_size is None:
            values["intermediate_size"] = -(-hidden * 8 // (3 * 32)) * 32 if self.gated_mlp else 4 * hidden
        if self.num_experts is not None and self.moe_intermediate_size is None:  # a token costs what it costs without
            width, chosen = values["intermediate_size"], self.num_experts_per_tok
            values["moe_intermediate_size"] = -(-width // (EXPERT_MULTIPLE * chosen)) * EXPERT_MULTIPLE
        values["num_key_value_heads"] = kv_heads_of(self.num_key_value_heads, self.num_attention_heads)
        kinds = ["full_attention" if self.sliding_window is None else "sliding_attention"]
        values["layer_types"] = self._per_layer("layer_types", kinds if self.layer_types is None else self.layer_types)
        if self.no_rope_layers is not None:
            flags = self._per_layer("no_rope_layers", self.no_rope_layers)
            values["no_rope_layers"] = flags if 0 in flags else None  # all of them: as without this key
        self._check_heads()
        self._check_layers()
        self._check_experts()
        return self

    def _part_of_hidden(self) -> int:
        """The size of a head where head_dim is left open."""
        hidden, heads = self.hidden_size, self.num_attention_heads
        if hidden % heads:
            raise ValueError(f"num_attention_heads ({heads}) must divide hidden_size ({hidden}), or set head_dim")
        return hidden // heads

    def _per_layer(self, key: str, pattern: list[Any]) -> list[Any]:
        """A pattern, once for each layer."""
        count, layers = len(pattern), self.num_hidden_layers
        if not count or layers % count:
            raise ValueError(f"{key} has {count} entries for {layers} layers: give a pattern whose length divides that")
        return pattern * (layers // count)

    def _latent_sizes(self) -> dict[str, Any]:
        """The sizes of multi-head latent attention (model/latent_attention.py) that follow from the others.

            head_dim   =  qk_nope_head_dim + qk_rope_head_dim        size of a query and of a key
            v_head_dim                                               size of a value
            the cache  =  kv_lora_rank + qk_rope_head_dim            numbers per token and layer

        DeepSeek-V2 (arXiv 2405.04434) takes kv_lora_rank = 4 and qk_rope_head_dim = 1/2 of a head.
        """
        head, nope, rotary = self.head_dim, self.qk_nope_head_dim, self.qk_rope_head_dim
        if head is None:
            head = self._part_of_hidden() if nope is None or rotary is None else nope + rotary
        if rotary is None:
            rotary = max(2, head // 4 * 2) if nope is None else head - nope
        follows = {
            "head_dim": head,
            "kv_lora_rank": max(1, min(4 * head, self.hidden_size // 2)),
            "qk_nope_head_dim": head - rotary,
            "qk_rope_head_dim": rotary,
            "v_head_dim": head,
            "rope_interleave": True,
        }
        sizes = {key: value for key, value in follows.items() if getattr(self, key) is None}
        return sizes if "qk_norm" in self.model_fields_set else sizes | {"qk_norm": False}

    def _check_heads(self) -> None:
        heads, kv_heads, head_dim, rotary = self.num_attention_heads, self.kv_heads, self.head_size, self.rotary_size
        if kv_heads < 1 or heads % kv_heads:
            use = ", ".join(map(str, divisors(heads)))
            raise ValueError(f"num_key_value_heads ({kv_heads}) must divide num_attention_heads ({heads}): use {use}")
        if self.attention_bias and self.qkv_bias:
            raise ValueError("attention_bias has the biases of qkv_bias and one more: set one of them to false")
        if rotary % 2 and self.position_embedding == "rope":
            name = "head_dim" if self.attention == "heads" else "qk_rope_head_dim"
            raise ValueError(
                f"{name} ({rotary}) must be even, RoPE rotates pairs: change num_attention_heads, or use {rotary + 1}"
            )
        if self.attention == "heads":
            if unused := [key for key in LATENT_KEYS if getattr(self, key) is not None]:
                raise ValueError(f"{unused[0]} is a key of attention: mla: set attention: mla, or leave it out")
            return
        nope = self.qk_nope_head_dim or 0
        if nope < 1 or nope + rotary != head_dim:
            parts = f"qk_nope_head_dim ({nope}) + qk_rope_head_dim ({rotary})"
            raise ValueError(f"head_dim ({head_dim}) must be {parts}, both above 0: leave one of the three out")
        for key, wanted, why in (
            ("qk_norm", False, "normalises its latents instead"),
            ("scale_attn_weights", True, "always divides its scores"),
            ("qkv_bias", False, "has the biases of attention_bias only"),
            ("num_key_value_heads", heads, "makes keys and values for every head"),
            ("initialization", "random", "has no matrix of keys that could equal the queries"),
        ):
            if (value := getattr(self, key)) != wanted:
                raise ValueError(f"{key} ({value}): attention: mla {why}: set {key}: {str(wanted).lower()}")

    def _check_layers(self) -> None:
        slides, position = "sliding_attention" in (self.layer_types or []), self.position_embedding
        if slides and self.sliding_window is None:
            raise ValueError("layer_types has sliding_attention, so set sliding_window: the tokens such a layer sees")
        if self.sliding_window is not None and not slides:
            raise ValueError(f"sliding_window ({self.sliding_window}) is set, but no layer is of sliding_attention")
        for key in ("no_rope_layers", "rope_scaling"):
            if position != "rope" and getattr(self, key) is not None:
                raise ValueError(f"{key} is for position_embedding: rope, not {position}: leave it out")
        if position == "rope" and not any(self.rotates):
            raise ValueError("no_rope_layers leaves no layer with RoPE: use position_embedding: none instead")

    def _check_experts(self) -> None:
        if self.num_experts is None:
            for key in EXPERT_KEYS:
                if getattr(self, key) != type(self).model_fields[key].default:
                    raise ValueError(f"{key} is set, and there are no experts: set num_experts, or leave {key} out")
            return
        chosen, step, multiple = self.num_experts_per_tok, self.decoder_sparse_step, EXPERT_MULTIPLE
        if not self.gated_mlp or self.mlp_bias:
            raise ValueError("experts have a gate and no bias: set gated_mlp=true and mlp_bias=false")
        if chosen > self.num_experts:
            raise ValueError(f"num_experts_per_tok ({chosen}) must not be above num_experts ({self.num_experts})")
        for key in ("hidden_size", "moe_intermediate_size"):
            if (size := getattr(self, key)) % multiple:
                more = -(-size // multiple) * multiple
                raise ValueError(f"{key} ({size}) must be a multiple of {multiple} in a model with experts: use {more}")
        if (last := max(self.mlp_only_layers, default=0)) >= self.num_hidden_layers:
            raise ValueError(f"mlp_only_layers names layer {last}: the layers are 0 to {self.num_hidden_layers - 1}")
        if not any(self.has_experts):
            raise ValueError(f"decoder_sparse_step ({step}) and mlp_only_layers leave no layer with experts")

    # What may be left open in YAML and is always there in a built config.

    @property
    def kv_heads(self) -> int:
        """H_kv: `num_key_value_heads` as a number."""
        assert isinstance(self.num_key_value_heads, int)
        return self.num_key_value_heads

    @property
    def head_size(self) -> int:
        """D: `head_dim` as a number: the size of a query and of a key."""
        assert self.head_dim is not None
        return self.head_dim

    @property
    def value_size(self) -> int:
        """Size of a value, and of what a head writes: D, but for mla."""
        return self.v_head_dim or self.head_size

    @property
    def rotary_size(self) -> int:
        """How many numbers of a query and of a key RoPE turns: D, but for mla."""
        return self.qk_rope_head_dim or self.head_size

    @property
    def cache_shapes(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """What a layer's cache keeps of a token: (heads, numbers each) of keys and of values.

        mla: of the latent and of the rotary part, which all heads share.
        """
        if self.attention == "mla":
            return (1, self.kv_lora_rank or 0), (1, self.rotary_size)
        return (self.kv_heads, self.head_size), (self.kv_heads, self.head_size)

    @property
    def cache_numbers(self) -> int:
        """How many numbers a layer's cache keeps of a token."""
        return sum(heads * size for heads, size in self.cache_shapes)

    @property
    def windows(self) -> list[int | None]:
        """For every layer, how many tokens it sees, itself included; None = all."""
        return [self.sliding_window if kind == "sliding_attention" else None for kind in self.layer_types or []]

    @property
    def has_experts(self) -> list[bool]:
        """For every layer, whether its feed-forward part is a mixture of experts."""
        step, dense = self.decoder_sparse_step, self.mlp_only_layers
        layers = range(self.num_hidden_layers)
        return [self.num_experts is not None and (i + 1) % step == 0 and i not in dense for i in layers]

    @property
    def rotates(self) -> list[bool]:
        """For every layer, whether RoPE rotates its queries and keys."""
        if self.position_embedding != "rope":
            return [False] * self.num_hidden_layers
        return [flag == 1 for flag in self.no_rope_layers or [1] * self.num_hidden_layers]

    def in_words(self) -> str:
        """The shape in a line: "4 layers x 128, 4 query heads / 1 key-value heads (MQA)"."""
        if self.attention == "mla":
            latent = f"MLA, latent {self.kv_lora_rank} + rotary {self.rotary_size}"
            return f"{self.num_hidden_layers} layers x {self.hidden_size}, {self.num_attention_heads} heads ({latent})"
        toggle = {self.num_attention_heads: "MHA", 1: "MQA"}.get(self.kv_heads, "GQA")
        heads = f"{self.num_attention_heads} query heads / {self.kv_heads} key-value heads ({toggle})"
        experts = f", {self.num_experts_per_tok} of {self.num_experts} experts a token" if self.num_experts else ""
        return f"{self.num_hidden_layers} layers x {self.hidden_size}, {heads}{experts}"

    @property
    def num_key_value_groups(self) -> int:
        """How many query heads share one key/value head."""
        return self.num_attention_heads // self.kv_heads


def kv_heads_of(toggle: int | str, heads: int) -> int:
    """mha, gqa or mqa as a number of key/value heads. Raises ValueError for a word that another word is already."""
    if isinstance(toggle, int):
        return toggle
    if toggle == "mha":
        return heads
    if toggle == "mqa" and heads > 1:
        return 1
    if toggle == "gqa" and (between := divisors(heads)[1:-1]):
        return min(between, key=lambda divisor: (abs(divisor - heads / 4), -divisor))
    raise ValueError(
        f"num_key_value_heads: there is no {toggle} of {heads} query heads: gqa is a divisor between 1 and "
        f"{heads}, mqa shares 1 among several: use mha or another num_attention_heads"
    )


def divisors(number: int) -> list[int]:
    """All of them, 1 and the number included."""
    return [d for d in range(1, number + 1) if number % d == 0]
