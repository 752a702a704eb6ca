"""The network: token ids -> embedding -> layers -> norm -> head -> logits, or the summed loss.

Parameter names are Hugging Face's, so a checkpoint needs no conversion. A module has
`reset_parameters`, and may name an `optimizer_group` (train/optimizer.py) for its parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from configs import IGNORED
from model.attention import Attention
from model.backends.choice import BACKENDS, masks_for
from model.config import ModelConfig
from model.kv_cache import KVCache
from model.layer import DecoderLayer
from model.loss import cross_entropy_sum
from model.masks import MaskSpec, check_inputs, real_tokens
from model.norm import make_norm
from model.rope import RotaryEmbedding, sinusoidal_positions

if TYPE_CHECKING:  # loaded only by a model that needs it
    from model.variants.latent_attention import LatentAttention
    from model.variants.linear_attention import LinearAttention


class Output(NamedTuple):
    """The result of one forward pass."""

    # (B, T, hidden_size): input of the head, for other losses (`model.loss.log_probs`)
    hidden: Tensor
    # losses of the layers by name, each summed over all real tokens; training adds them to any
    # objective (train/loop.py), and they are never part of loss_sum
    auxiliary: dict[str, Tensor]
    # (B, T, V), or the last `logits_to_keep` of the T positions
    logits: Tensor | None = None
    # the sum of -ln p over the trained positions
    loss_sum: Tensor | None = None
    # their number; the caller divides by that of the whole step
    token_count: Tensor | None = None


class Decoder(nn.Module):
    """Embedding, layers and norm: token ids (B, T) -> hidden states (B, T, hidden_size)."""

    def __init__(self, config: ModelConfig, vocab_size: int):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(vocab_size, config.hidden_size)
        self.embed_positions: nn.Embedding | None = None
        if config.position_embedding == "learned":  # as in GPT-2 (Gehring et al., arXiv 1705.03122)
            self.embed_positions = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        layers = [DecoderLayer(config, i) for i in range(config.num_hidden_layers)]
        self.layers = nn.ModuleList(layers)
        self.norm = make_norm(config)
        self.rotary_emb = RotaryEmbedding(
            config.rotary_size, config.rope_theta, config.rope_scaling
        )
        self.dropout = nn.Dropout(config.hidden_dropout)
        # LanguageModel.set_attn_implementation changes it here and in the layers
        self.backend = "sdpa"
        # training calls layers by this; train/machine/compilation.py puts a compiled call here
        self.call_layer: Callable[..., Any] = DecoderLayer.__call__
        # True: training keeps only the input of every layer, and computes the rest again in the
        # backward pass: less memory, about a third more time (Chen et al., arXiv 1604.06174)
        self.activation_checkpointing = False

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        document_ids: Tensor | None,
        position_ids: Tensor | None,
        kv_cache: KVCache | None,
        document_starts: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the hidden states, and the summed auxiliary losses of the layers by name."""
        B, T = input_ids.shape
        if kv_cache is None:
            positions = torch.arange(T, device=input_ids.device)
        else:
            positions = kv_cache.positions(T, input_ids.device)  # behind the cached tokens
        if position_ids is None:
            position_ids = positions[None]  # (1, T)
        spec = MaskSpec(
            positions, positions, B, attention_mask, document_ids, document_starts=document_starts
        )
        masks = masks_for(self, spec, kv_cache)  # window -> mask, in the backend's form
        # (B, T): the tokens that are not padding, among which training balances experts
        real = real_tokens(self.config, input_ids, attention_mask) if self.training else None

        x = self.embed_tokens(input_ids)  # (B, T, hidden_size)
        if self.embed_positions is not None:
            x = x + self.embed_positions(position_ids)
        elif self.config.position_embedding == "sinusoidal":
            x = x + sinusoidal_positions(position_ids, x.shape[-1]).to(x.dtype)
        x = self.dropout(x)
        cos, sin = self.rotary_emb(position_ids, x.dtype)  # once for all layers
        call_layer = self.call_layer if self.training else DecoderLayer.__call__
        auxiliary: dict[str, Tensor] = {}
        kinds = zip(self.layers, self.config.windows, self.config.is_linear, strict=True)
        for layer, window, is_linear in kinds:
            # linear attention has no scores to hide: it reads the predicates themselves
            inputs = (layer, x, cos, sin, spec if is_linear else masks[window])
            if self.activation_checkpointing and self.training:
                x, losses = checkpoint(call_layer, *inputs, None, real, use_reentrant=False)
            else:
                x, losses = call_layer(*inputs, kv_cache, real)
            for name, loss in losses.items():
                auxiliary[name] = auxiliary[name] + loss if name in auxiliary else loss
        if kv_cache is not None:
            kv_cache.advance(T)

        if auxiliary:  # each is one number per row (B,), or one for all
            tokens = input_ids.new_full((B,), T) if real is None else real.sum(1)
            auxiliary = {name: (loss * tokens).sum() for name, loss in auxiliary.items()}
        return self.norm(x), auxiliary


class LanguageModel(nn.Module):
    """A decoder-only language model: token ids -> logits, or with labels the summed loss."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        if config.vocab_size is None:
            raise ValueError("vocab_size is not set: use the tokenizer's, for example 2048")
        self.config = config
        self.model = Decoder(config, config.vocab_size)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight
        self.adapters: Any = None  # an Adapters of model/variants/lora.py
        self.sum_loss = cross_entropy_sum  # in training; compilation.py puts a compiled one here
        self.set_attn_implementation(config.attn_implementation)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw weights with which every token is equally likely, so the loss is ln(vocab_size).

        Output projections are zero: at first the model is embedding and head, and the layers grow
        into the residual stream (Fixup, arXiv 1901.09321). Not so with `initialization: mimetic`.
        """
        decoder = self.model
        hidden = self.config.hidden_size
        is_tied = self.config.tie_word_embeddings
        for layer in decoder.layers:
            for part in layer.children():
                if not isinstance(part, nn.Dropout):
                    part.reset_parameters()  # type: ignore[operator]
        decoder.norm.reset_parameters()
        # With a tied matrix, a token's logit for itself is std * hidden_size: std = 1 / hidden_size
        # keeps it at 1. Learned positions have the same size, so that neither hides the other.
        std = min(0.02, 1 / hidden) if is_tied else 1.0
        embeddings = decoder.embed_tokens.weight.normal_(0.0, std)
        # All embeddings share one random direction. Attention by position alone ("the token before
        # me") needs something that every query and key has in common, and finds it here at once
        # (FINDINGS.md#sooner). It adds one number to all tied logits: no probability changes.
        embeddings += torch.empty(hidden, device=embeddings.device).normal_(0.0, std)
        if decoder.embed_positions is not None:
            decoder.embed_positions.weight.normal_(0.0, std)
        if not is_tied:
            self.lm_head.weight.normal_(std=0.1 / math.sqrt(hidden))

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        document_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        kv_cache: KVCache | None = None,
        labels: Tensor | None = None,
        logits_to_keep: int | None = 0,
        document_starts: Tensor | None = None,
    ) -> Output:
        """Return an Output; `lm(...)` returns its logits or its loss alone.

        input_ids        (B, T)
        attention_mask   (B, S): 1 = real token, 0 = padding; S = tokens in the cache + T
        document_ids     (B, T): tokens with equal ids see each other
        position_ids     (B, T): default 0 … T-1, counted on from the cache
        labels           (B, T), aligned with input_ids as in transformers: labels[:, t] is the
                         target of position t - 1; -100 = not trained
        logits_to_keep   number of last positions with logits; 0 = all, None = none
        document_starts  (B, N): beginnings of documents, filled up with T; saves flash a search
        """
        inputs = (input_ids, attention_mask, document_ids, position_ids, kv_cache)
        if not torch.compiler.is_compiling():  # a check of numbers would break the graph
            check_inputs(self.config, *inputs)
        hidden, auxiliary = self.model(*inputs, document_starts)
        if labels is not None:
            targets = F.pad(labels[:, 1:], (0, 1), value=IGNORED)  # position t predicts token t + 1
            # the loss contains the head, so that all logits (B, T, V) never exist at once
            sum_loss = self.sum_loss if self.training else cross_entropy_sum
            loss_sum = sum_loss(hidden.flatten(0, 1), self.lm_head.weight, targets.flatten())
            return Output(
                hidden, auxiliary, loss_sum=loss_sum, token_count=(targets != IGNORED).sum()
            )
        if logits_to_keep is None:
            return Output(hidden, auxiliary)
        return Output(hidden, auxiliary, logits=self.lm_head(hidden[:, -logits_to_keep:]))

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """Return the logits (B, T, V); with labels, (loss_sum, token_count)."""
        output = self.outputs(*inputs, **options)
        return output.logits if output.loss_sum is None else (output.loss_sum, output.token_count)

    def outputs(self, *inputs: Any, **options: Any) -> Output:
        """Return the whole Output."""
        # nn.Module's own call runs the hooks, in which FSDP2 gathers the weights
        return super().__call__(*inputs, **options)

    @property
    def device(self) -> torch.device:
        # of the first weight: a model is never spread over several devices
        return next(self.parameters()).device

    @property
    def attn_implementation(self) -> str:
        return self.model.backend

    def set_attn_implementation(self, name: str) -> None:
        """Switch all layers to another backend, whose limits each forward pass checks."""
        if name != "auto" and name not in BACKENDS:
            names = ", ".join(BACKENDS)
            raise ValueError(f"attn_implementation: {name!r} is unknown: use auto, {names}")
        self.model.backend = "sdpa" if name == "auto" else name
        for layer in self.model.layers:
            layer.self_attn.attend = BACKENDS[self.model.backend].compute  # type: ignore[union-attr]

    def attention_modules(self) -> list[Attention | LatentAttention | LinearAttention]:
        return [layer.self_attn for layer in self.model.layers]  # type: ignore[misc]

    def num_parameters(self, inside: str = "") -> int:
        """Count the weights with `inside` in their name; a tied matrix counts once."""
        return sum(p.numel() for name, p in self.named_parameters() if inside in name)


def on_meta(config: ModelConfig) -> LanguageModel:
    """Return a model of shapes without numbers: no memory, no random number is drawn."""
    with torch.device("meta"), _NothingDrawn():
        return LanguageModel(config)


class _NothingDrawn(TorchFunctionMode):
    """Draw no numbers, and count on the CPU: for meta tensors both import sympy, which is slow."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function.__name__.endswith(("normal_", "uniform_", "__iadd__")):
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        if function is torch.arange:
            kwargs["device"] = "cpu"
        return function(*args, **kwargs)
