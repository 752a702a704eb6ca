"""ModelConfig: every architectural number, validated, under Hugging Face's field names.

What follows from other keys is written out here, once (`gqa` as a number, a kind for every layer), and what cannot be
is refused with what would work. Everything behind reads plain numbers.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from configs.loader import PathText, Section, Tag
from model.backends.names import AttentionImplementation
from model.variants.config import RopeScaling, resolve_experts, resolve_latent

Activation = Literal["silu", "gelu_new", "gelu", "gelu_pytorch_tanh", "relu"]  # as transformers names them
LayerType = Literal["full_attention", "sliding_attention"]
KeyValueHeads = Annotated[int, Field(ge=0)] | Literal["mha", "gqa", "mqa"]
Flag = Annotated[int, Field(ge=0, le=1)]
TokenId = Annotated[int, Field(ge=-1, lt=1 << 31)]  # -1: none, in some of Llama's configs

EXPERT_KEYS = ("num_experts_per_tok", "moe_intermediate_size", "decoder_sparse_step", "mlp_only_layers")
LATENT_KEYS = ("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "rope_interleave")


class ModelConfig(Section):
    """The shape of a decoder-only transformer, and its parts (docs/families.md).

    The one toggle that this project is about is `num_key_value_heads`: how many query heads share a key and a value
    (drawn in model/attention.py).

    `gqa` is the divisor of the query heads that is nearest to a quarter of them, strictly between 1 and all: of two
    equally near, the larger (8 -> 2, 4 -> 2, 6 -> 2, 12 -> 3, 18 -> 6). So no two of the words are the same model.
    """

    vocab_size: Annotated[int | None, Tag.RUNTIME] = Field(None, ge=1)
    """Number of different tokens. The tokenizer sets it."""
    hidden_size: int = Field(256, ge=1)
    """Width of the network: how many numbers stand for a token inside it."""
    intermediate_size: int | None = Field(None, ge=1)
    """Inner width of feed-forward layers. null = 8/3 of hidden_size, ungated 4 times."""
    gated_mlp: bool = True
    """true: feed-forward layers of three matrices, one a gate (SwiGLU) | false: two, as in GPT-2."""
    hidden_act: Activation = "silu"
    """Function between the matrices: silu | gelu_new (GPT-2) | gelu | gelu_pytorch_tanh | relu."""
    mlp_bias: bool = False
    """Add a learned vector to the output of each matrix of the feed-forward layers."""
    num_experts: int | None = Field(None, ge=1)
    """Mixture of experts: feed-forward parts; a router picks a few a token. null = one."""
    num_experts_per_tok: int = Field(2, ge=1)
    """Experts that a token goes to."""
    moe_intermediate_size: int | None = Field(None, ge=1)
    """Inner width of an expert. null = a token costs what it costs without experts."""
    norm_topk_prob: bool = True
    """true: the weights of a token's experts add up to 1. Several experts need it, one forbids it."""
    router_aux_loss_coef: float = Field(0.01, ge=0)
    """How strongly the load-balancing loss makes the router use all experts. 0 = not at all."""
    decoder_sparse_step: int = Field(1, ge=1)
    """Every how many layers there are experts: 1 = in all, 2 = in every second."""
    mlp_only_layers: list[Annotated[int, Field(ge=0)]] = Field([])
    """Layers without experts, counted from 0."""
    num_hidden_layers: int = Field(6, ge=1, le=10_000)
    """Number of layers."""
    num_attention_heads: int = Field(8, ge=1, le=10_000)
    """Query heads in a layer. Each one learns to look at the text in its own way."""
    num_key_value_heads: KeyValueHeads = "gqa"
    """Key/value heads, shared by query heads: mha = one each | gqa = about a quarter (≥ 2) | mqa = 1 | or a divisor."""
    head_dim: int | None = Field(None, ge=2)
    """Size of one head, an even number. null = hidden_size / num_attention_heads."""
    attention: Literal["heads", "mla"] = "heads"
    """heads: num_key_value_heads keys and values | mla: every head makes its own from a latent."""
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
    """mla: RoPE turns neighbours together (true, null) or numbers of two halves (false)."""
    qk_norm: bool | Literal["whole"] = True
    """Normalise each query and key, as Qwen3: higher learning rates stay stable. whole: all heads as one, as OLMo 2."""
    attention_bias: bool = False
    """Add a learned vector to queries, keys, values and the output of attention."""
    qkv_bias: bool = False
    """Add a learned vector to queries, keys and values, as Qwen2 does."""
    scale_attn_weights: bool = True
    """Divide scores by the square root of head_dim. false = not, to see what that is for."""
    norm_position: Literal["before", "after"] = "before"
    """Normalise what goes into a part of a layer | after: what comes out, as in OLMo 2."""
    position_embedding: Literal["rope", "learned", "none"] = "rope"
    """What a place is: rope = queries and keys rotate | learned = a vector, as GPT-2 | none = the causal mask alone."""
    no_rope_layers: list[Flag] | None = Field(None, min_length=1, examples=[[1, 1, 1, 0]])
    """Which layers rotate: 1 = with RoPE, 0 = without, as in SmolLM3. A shorter list is repeated. null = all."""
    max_position_embeddings: int = Field(512, ge=1)
    """Longest text in tokens, in training and in generation."""
    rope_theta: float = Field(10000.0, gt=1, le=1e12)
    """Base of RoPE, which tells the model where a token stands."""
    rope_scaling: RopeScaling | None = Field(
        None,
        examples=[
            {"rope_type": "linear", "factor": 4.0},
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512},
        ],
    )
    """Stretch RoPE to texts longer than those of training. null = do not."""
    sliding_window: int | None = Field(None, ge=1)
    """Tokens that a sliding_attention layer sees, its own included. null = no window."""
    layer_types: list[LayerType] | None = Field(None, examples=[["sliding_attention", "full_attention"]])
    """full_attention or sliding_attention. A shorter list is repeated. null = sliding if sliding_window is set."""
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    """rmsnorm: scale a token to one size (Llama) | layernorm: with mean and bias (GPT-2)."""
    rms_norm_eps: float = Field(1e-06, ge=1e-30, le=1)
    """Keeps the norm from dividing by zero."""
    tie_word_embeddings: bool = False
    """true: embedding and head share one matrix: smaller, but it learns to copy later."""
    attention_dropout: float = Field(0.0, ge=0, lt=1)
    """Share of attention weights set to zero at random in training."""
    hidden_dropout: float = Field(0.0, ge=0, lt=1)
    """Share of the embedding's and the layers' output set to zero in training."""
    initialization: Literal["random", "mimetic"] = "random"
    """First weights of attention: random | mimetic: keys are queries, so that heads copy tokens like theirs sooner."""
    loadable_elsewhere: bool = True
    """true: parts of one architecture of transformers | false: any, for Headlight alone."""
    attn_implementation: Annotated[AttentionImplementation, Tag.RUNTIME] = "auto"
    """Code of attention, same numbers: auto | eager (the formula) | flash | flex | others in docs/attention.md."""
    my_attention: Annotated[PathText | None, Tag.RUNTIME] = Field(None, examples=["notebooks/build/attention.py"])
    """attn_implementation mine: a Python file of your own with a function attention(q, k, v, mask)."""
    bos_token_id: Annotated[TokenId | None, Tag.RUNTIME] = None
    """First token of every document. The tokenizer sets it."""
    eos_token_id: Annotated[TokenId | list[TokenId] | None, Tag.RUNTIME] = None
    """Last token of a document, or a list: of a document and of a turn. The tokenizer sets it."""
    pad_token_id: Annotated[TokenId | None, Tag.RUNTIME] = None
    """Token that fills up short rows. The tokenizer sets it."""

    @model_validator(mode="after")
    def _resolve(self) -> ModelConfig:
        """Write out what follows from other keys, so that a resolved config shows every value; refuse the rest."""
        values = self.__dict__  # the config is frozen for everybody else
        hidden, heads, layers = self.hidden_size, self.num_attention_heads, self.num_hidden_layers
        is_mla, position = self.attention == "mla", self.position_embedding
        for keys, switch, is_on in (
            (LATENT_KEYS, "attention: mla", is_mla),
            (EXPERT_KEYS, "num_experts", self.num_experts is not None),
            (("no_rope_layers", "rope_scaling"), "position_embedding: rope", position == "rope"),
        ):
            for key in keys:
                if not is_on and getattr(self, key) != type(self).model_fields[key].default:
                    raise ValueError(f"{key} is for {switch}: set that, or leave {key} out")

        # attention
        if (self.attn_implementation == "mine") != (self.my_attention is not None):
            raise ValueError("attn_implementation mine and my_attention, the file with your code, go together")
        nope, rotary = self.qk_nope_head_dim, self.qk_rope_head_dim  # None but for mla
        if self.head_dim is None and nope is not None and rotary is not None:
            values["head_dim"] = nope + rotary
        elif self.head_dim is None:
            if hidden % heads:
                raise ValueError(f"num_attention_heads ({heads}) must divide hidden_size ({hidden}), or set head_dim")
            values["head_dim"] = hidden // heads
        values["num_key_value_heads"] = kv_heads_of(self.num_key_value_heads, heads)
        if is_mla:
            resolve_latent(values, is_set=self.model_fields_set)
        if position == "rope" and (size := self.rotary_size) % 2:
            key = "qk_rope_head_dim" if is_mla else "head_dim"  # a key that is named shows its line in the YAML
            use = f"change num_attention_heads, or use {size + 1}"
            raise ValueError(f"{key} ({size}) must be even, RoPE rotates pairs: {use}")

        # kinds of layers: a pattern is repeated
        if self.layer_types is None:
            values["layer_types"] = ["full_attention" if self.sliding_window is None else "sliding_attention"]
        for key in ("layer_types", "no_rope_layers"):
            if (pattern := values[key]) is not None:
                if not pattern or layers % len(pattern):
                    wanted = "give a pattern whose length divides that"
                    raise ValueError(f"{key} has {len(pattern)} entries for {layers} layers: {wanted}")
                values[key] = pattern * (layers // len(pattern))
        if 0 not in (self.no_rope_layers or []):
            values["no_rope_layers"] = None  # all of them: as without this key
        elif not any(self.rotates):
            raise ValueError("no_rope_layers leaves no layer with RoPE: use position_embedding: none instead")
        slides = "sliding_attention" in (self.layer_types or [])
        if slides and self.sliding_window is None:
            raise ValueError("layer_types has sliding_attention, so set sliding_window: the tokens such a layer sees")
        if self.sliding_window is not None and not slides:
            raise ValueError(f"sliding_window ({self.sliding_window}) is set, but no layer is of sliding_attention")

        # the feed-forward part
        if self.intermediate_size is None:
            values["intermediate_size"] = -(-hidden * 8 // (3 * 32)) * 32 if self.gated_mlp else 4 * hidden
        if self.num_experts is not None:
            resolve_experts(values)
            if not any(self.has_experts):
                raise ValueError("decoder_sparse_step and mlp_only_layers leave no layer with experts")
        return self

    # What may be left open in YAML and is always there in a built config.

    @property
    def kv_heads(self) -> int:
        """H_kv: `num_key_value_heads` as a number."""
        return int(self.num_key_value_heads)

    @property
    def head_size(self) -> int:
        """D: `head_dim` as a number: the size of a query and of a key."""
        return self.head_dim or 0

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
        step, dense, layers = self.decoder_sparse_step, self.mlp_only_layers, range(self.num_hidden_layers)
        return [self.num_experts is not None and (i + 1) % step == 0 and i not in dense for i in layers]

    @property
    def rotates(self) -> list[bool]:
        """For every layer, whether RoPE rotates its queries and keys."""
        flags = self.no_rope_layers or [1] * self.num_hidden_layers
        return [flag == 1 and self.position_embedding == "rope" for flag in flags]

    @property
    def end_ids(self) -> list[int]:
        """The tokens that end a text: of a document, then of a turn."""
        ends = self.eos_token_id
        return ends if isinstance(ends, list) else [] if ends is None else [ends]

    def in_words(self) -> str:
        """The shape in a line: "4 layers x 128, 4 query heads / 1 key-value heads (MQA)"."""
        toggle = {self.num_attention_heads: "MHA", 1: "MQA"}.get(self.kv_heads, "GQA")
        heads = f"{self.num_attention_heads} query heads / {self.kv_heads} key-value heads ({toggle})"
        if self.attention == "mla":
            heads = f"{self.num_attention_heads} heads (MLA, latent {self.kv_lora_rank} + rotary {self.rotary_size})"
        experts = f", {self.num_experts_per_tok} of {self.num_experts} experts a token" if self.num_experts else ""
        return f"{self.num_hidden_layers} layers x {self.hidden_size}, {heads}{experts}"


def kv_heads_of(toggle: int | str, heads: int) -> int:
    """mha, gqa, mqa or a number as a number of key/value heads. Raises ValueError for a number that does not divide the
    query heads, and for a word that another word is already."""
    divisors = [d for d in range(1, heads + 1) if heads % d == 0]
    if toggle == "gqa" and (between := divisors[1:-1]):
        return min(between, key=lambda divisor: (abs(divisor - heads / 4), -divisor))
    number = heads if toggle == "mha" else 1 if toggle == "mqa" and heads > 1 else toggle
    if isinstance(number, int) and number in divisors:
        return number
    use = f"use {', '.join(map(str, divisors))}. gqa is a divisor between 1 and all, mqa shares 1 among several"
    raise ValueError(f"num_key_value_heads ({toggle}) must divide num_attention_heads ({heads}): {use}")
