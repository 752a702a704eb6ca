"""DecoderLayer and LanguageModel. Parameter names are Hugging Face's, so a checkpoint needs no conversion."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from model.attention import Attention
from model.backends.choice import BACKENDS, Situation, check_name, why_not
from model.config import ModelConfig
from model.decoding.kv_cache import KVCache, StaticCache
from model.feed_forward import FeedForward
from model.loss import IGNORED, cross_entropy_sum
from model.masks import MaskSpec, real_tokens
from model.norm import RMSNorm
from model.rope import RotaryEmbedding

QK_NORM_GAIN = 1.5


class DecoderLayer(nn.Module):
    """x + attention(norm(x)), then x + feed_forward(norm(x)): (B, T, hidden_size) both ways."""

    def __init__(self, config: ModelConfig, layer_index: int):
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config, layer_index)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = FeedForward(config)
        self.dropout = nn.Dropout(config.hidden_dropout)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Any, kv_cache: KVCache | None) -> Tensor:
        x = x + self.dropout(self.self_attn(self.input_layernorm(x), cos, sin, mask, kv_cache))
        return x + self.dropout(self.mlp(self.post_attention_layernorm(x)))


class Decoder(nn.Module):
    """Embedding, the layers, the last norm: token ids (B, T) -> hidden states (B, T, hidden_size)."""

    def __init__(self, config: ModelConfig, vocab_size: int):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(config, i) for i in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary_emb = RotaryEmbedding(config)
        self.dropout = nn.Dropout(config.hidden_dropout)
        self.activation_checkpointing = False

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        document_ids: Tensor | None,
        position_ids: Tensor | None,
        kv_cache: KVCache | None,
    ) -> Tensor:
        T, device = input_ids.shape[1], input_ids.device
        self.check_backend(input_ids, attention_mask, document_ids, kv_cache)
        cache = kv_cache if kv_cache is not None else KVCache()
        positions = cache.positions(T, device)  # places in the sequence, cached tokens counted
        masks = self.build_masks(positions, input_ids.shape[0], attention_mask, document_ids, cache)
        x = self.dropout(self.embed_tokens(input_ids))
        cos, sin = self.rotary_emb(positions[None] if position_ids is None else position_ids, x.dtype)
        for layer, window in zip(self.layers, self.config.windows, strict=True):
            if self.activation_checkpointing and self.training:
                x = checkpoint(layer, x, cos, sin, masks[window], None, use_reentrant=False)
            else:
                x = layer(x, cos, sin, masks[window], kv_cache)
        if kv_cache is not None:
            kv_cache.advance(T)
        return self.norm(x)

    @property
    def backend(self) -> str:
        """The attention backend of every layer."""
        first = self.layers[0]
        assert isinstance(first, DecoderLayer)
        return first.self_attn.backend

    def build_masks(
        self,
        positions: Tensor,
        batch_size: int,
        attention_mask: Tensor | None,
        document_ids: Tensor | None,
        cache: KVCache,
    ) -> dict[int | None, Any]:
        """One mask for every kind of layer, by its window, in the form that the backend wants."""
        count, plain = len(positions), attention_mask is None and document_ids is None
        to_mask = BACKENDS[self.backend].mask
        masks: dict[int | None, Any] = {}
        for layer, window in enumerate(self.config.windows):
            if window not in masks:
                keys = cache.key_positions(layer, count, positions.device)
                all_visible = plain and cache.sees_all(layer, window, count)
                real = real_tokens(attention_mask, keys)
                spec = MaskSpec(positions, keys, batch_size, real, document_ids, window, all_visible)
                masks[window] = to_mask(spec)
        return masks

    def check_backend(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        document_ids: Tensor | None,
        kv_cache: KVCache | None,
    ) -> None:
        """Raises ValueError if the backend cannot serve this, with reason and remedy, before anything is computed."""
        name = self.backend
        if BACKENDS[name].limits is None:
            return
        T, device, weights = input_ids.shape[1], input_ids.device, self.embed_tokens.weight
        autocast = torch.is_autocast_enabled(device.type)
        behind = kv_cache is not None and not isinstance(kv_cache, StaticCache) and kv_cache.length > 0 and T > 1
        here = Situation(
            device=device.type,
            dtype=torch.get_autocast_dtype(device.type) if autocast else weights.dtype,
            head_dim=self.config.head_size,
            num_key_value_groups=self.config.num_key_value_groups,
            dropout=self.config.attention_dropout if self.training else 0.0,
            gradients=torch.is_grad_enabled() and weights.requires_grad,
            documents=document_ids is not None,
            padding=attention_mask is not None,
            windows=self.config.sliding_window is not None,
            after_cached_tokens=behind,
            static_cache=isinstance(kv_cache, StaticCache) and not kv_cache.is_new,
            compiled=torch.compiler.is_compiling(),
        )
        if problem := why_not(name, here):
            raise ValueError(problem)


class LanguageModel(nn.Module):
    """A decoder-only language model: token ids -> logits, or the summed loss when labels are given."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        if config.vocab_size is None:
            raise ValueError("vocab_size is not set: use the tokenizer's, for example vocab_size=2048")
        self.config = config
        self.model = Decoder(config, config.vocab_size)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight
        self.init_weights()

    @torch.no_grad()
    def init_weights(self) -> None:
        """Random start at which every token is equally likely, so that the loss is ln(vocab_size).

        The output projections of the blocks are zero: at first the model is its embedding and its head,
        and the blocks grow into the residual stream (Zhang et al. 2019, Fixup, arXiv 1901.09321).
        A tied matrix meets its own rows in the logits: a token's logit for itself is std * hidden_size,
        so std = 1 / hidden_size keeps it at 1. An untied head only has to be small.

        All embeddings share one random direction besides their own: attention by position alone ("the token before
        me") needs something that every query and key has in common, and finds it at once (EXPERIMENTS.md). It
        adds the same number to every tied logit, which changes no probability. For the same end QK-norm starts at
        a gain of QK_NORM_GAIN, because at 1 a score cannot exceed sqrt(head_dim).
        """
        hidden = self.config.hidden_size
        for name, parameter in self.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter.zero_()
            elif name.endswith("proj.weight"):
                parameter.normal_(0.0, 1 / math.sqrt(hidden))
            elif name.endswith("norm.weight"):
                is_qk = name.endswith(("q_norm.weight", "k_norm.weight"))
                parameter.fill_(QK_NORM_GAIN if is_qk else 1.0)
        tied, embeddings = self.config.tie_word_embeddings, self.model.embed_tokens.weight
        std = min(0.02, 1 / hidden) if tied else 1.0
        embeddings.normal_(0.0, std)
        embeddings += torch.empty(hidden, device=embeddings.device).normal_(0.0, std)
        if not tied:
            self.lm_head.weight.normal_(0.0, 0.1 / math.sqrt(hidden))

    def set_attn_implementation(self, name: str) -> None:
        """Switch every layer to another backend; `auto` is sdpa here. Raises ValueError if unknown.

        Whether a backend can serve is checked at each forward pass, when device, dtype and masks are known.
        """
        check_name(name)
        for attention in self.attention_modules():
            attention.backend = "sdpa" if name == "auto" else name

    def set_activation_checkpointing(self, on: bool) -> None:
        """While training, keep only what goes into every layer and compute the rest again in the backward pass.

        Less memory, about a third more time (Chen et al. 2016, arXiv 1604.06174).
        """
        self.model.activation_checkpointing = on

    @property
    def attn_implementation(self) -> str:
        """The backend in use, `auto` resolved."""
        return self.model.backend

    def attention_modules(self) -> list[Attention]:
        """The attention of every layer, from the first to the last."""
        return [module for module in self.modules() if isinstance(module, Attention)]

    def num_parameters(self) -> int:
        """Trained numbers; a tied matrix counts once."""
        return sum(p.numel() for p in self.parameters())

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        document_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        kv_cache: KVCache | None = None,
        labels: Tensor | None = None,
        logits_to_keep: int = 0,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """input_ids (B, T) -> logits (B, T, V); with labels (B, T) -> (loss_sum, token_count), both scalars.

        attention_mask (B, S): 1 = real token, 0 = padding. document_ids (B, T): equal ids see each other.
        position_ids (B, T): default 0 … T-1, counted on from the cache. S = tokens in the cache + T.
        labels are aligned with input_ids, as in transformers: labels[:, t] is the token at position t, the
        model is asked for it at position t - 1, and -100 marks what is not trained on. loss_sum is the sum of
        -ln p over the token_count trained positions; the caller divides, by the global count.
        logits_to_keep: logits of the last positions only; 0 = of all.

        Raises ValueError for a sequence longer than max_position_embeddings (document_ids together with position_ids
        tell that it is several), masks of another shape, and a backend that cannot serve.
        """
        if not torch.compiler.is_compiling():
            self._check_inputs(input_ids, attention_mask, document_ids, position_ids, kv_cache)
        hidden = self.model(input_ids, attention_mask, document_ids, position_ids, kv_cache)
        if labels is None:
            return self.lm_head(hidden[:, -logits_to_keep:])
        next_labels = F.pad(labels[:, 1:], (0, 1), value=IGNORED)  # position t is asked for token t + 1
        loss_sum = cross_entropy_sum(hidden.flatten(0, 1), self.lm_head.weight, next_labels.flatten())
        return loss_sum, (next_labels != IGNORED).sum()

    def _check_inputs(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        document_ids: Tensor | None,
        position_ids: Tensor | None,
        kv_cache: KVCache | None,
    ) -> None:
        (B, T), longest = input_ids.shape, self.config.max_position_embeddings
        past = kv_cache.length if kv_cache is not None else 0
        packed = document_ids is not None and position_ids is not None  # then no document need be as long as the row
        if past + T > longest and not packed:
            raise ValueError(
                f"the sequence has {past + T} tokens, more than max_position_embeddings ({longest}): shorten it or "
                "raise model.max_position_embeddings"
            )
        if document_ids is not None and kv_cache is not None:
            raise ValueError("document_ids are for packed rows, a kv_cache is for one document: give one")
        if document_ids is not None and document_ids.shape != input_ids.shape:
            raise ValueError(f"document_ids has shape {tuple(document_ids.shape)}, input_ids {(B, T)}: make them equal")
        if position_ids is not None and position_ids.shape not in ((B, T), (1, T)):
            raise ValueError(f"position_ids has shape {tuple(position_ids.shape)}: give {(B, T)} or {(1, T)}")
        if attention_mask is not None:
            if attention_mask.ndim != 2 or attention_mask.is_floating_point():
                raise ValueError(
                    f"attention_mask has shape {tuple(attention_mask.shape)} and dtype {attention_mask.dtype}: give "
                    f"{(B, past + T)} of booleans or integers, 1 = real token, 0 = padding"
                )
            rows, columns = attention_mask.shape
            to_come = isinstance(kv_cache, StaticCache) and columns > past + T  # a static cache may know them already
            if rows != B or not (columns == past + T or to_come):
                raise ValueError(
                    f"attention_mask has shape {(rows, columns)}: give {(B, past + T)}, one column for every token, "
                    f"the {past} in the cache included"
                )
        if input_ids.device.type == "cpu" and T:
            low, high = (int(x) for x in input_ids.aminmax())
            if low < 0 or high >= self.model.embed_tokens.num_embeddings:
                wrong = low if low < 0 else high
                raise ValueError(f"token id {wrong} is outside the vocabulary (0 to {self.lm_head.out_features - 1})")
