"""The network: token ids -> embedding -> layers -> norm -> head -> logits, or the summed loss.

Parameter names are Hugging Face's, so a checkpoint needs no conversion. Each module has
`reset_parameters` and may name an `optimizer_group` (train/optimizer.py) for everything inside. A
feed-forward layer may return `(output, {name: loss})`: auxiliary losses, which training adds to the
loss of every objective (train/loop.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from configs import IGNORED
from model.attention import Attention
from model.backends.choice import BACKENDS, Situation, why_not
from model.config import ModelConfig
from model.kv_cache import KVCache
from model.layer import DecoderLayer
from model.loss import compute_dtype, cross_entropy_sum
from model.masks import Mask, MaskSpec, check_inputs
from model.norm import make_norm
from model.rope import RotaryEmbedding

if TYPE_CHECKING:  # a model without it does not load it
    from model.variants.latent_attention import LatentAttention


class Output(NamedTuple):
    """The result of one forward pass; what was not asked for is None.

    hidden      (B, T, hidden_size): the input of the head, for a loss of your own (`model.loss.log_probs`)
    auxiliary   {name: loss} of the layers in training mode, each summed over the tokens that are not padding. Training
                minimises them too; they are never part of loss_sum
    logits      (B, T, V), or the last `logits_to_keep` of the T positions
    loss_sum    the sum of -ln p over the trained positions
    token_count their number; the caller divides, by that of the whole step
    """

    hidden: Tensor
    auxiliary: dict[str, Tensor]
    logits: Tensor | None = None
    loss_sum: Tensor | None = None
    token_count: Tensor | None = None


class Decoder(nn.Module):
    """Embedding, the layers, the last norm: token ids (B, T) -> hidden states (B, T, hidden_size)."""

    def __init__(self, config: ModelConfig, vocab_size: int):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(vocab_size, config.hidden_size)
        self.embed_positions: nn.Embedding | None = None
        if config.position_embedding == "learned":  # a vector for every place (GPT-2; Gehring et al. 2017, 1705.03122)
            self.embed_positions = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(config, i) for i in range(config.num_hidden_layers))
        self.norm = make_norm(config)
        self.rotary_emb = RotaryEmbedding(config.rotary_size, config.rope_theta, config.rope_scaling)
        self.dropout = nn.Dropout(config.hidden_dropout)
        self.backend = "sdpa"  # LanguageModel.set_attn_implementation sets it, here and in the layers
        # how training calls a layer: train/machine/compilation.py puts a compiled call here, one for all of them
        self.call_layer: Callable[..., Any] = DecoderLayer.__call__
        # True: while training, keep only the input of every layer and compute the rest again in the backward pass. Less
        # memory, about a third more time (Chen et al. 2016, arXiv 1604.06174)
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
        """-> the hidden states, and the sums of the layers' auxiliary losses by name, each over real tokens."""
        B, T = input_ids.shape
        # places in the sequence, cached tokens included
        if kv_cache is None:
            positions = torch.arange(T, device=input_ids.device)
        else:
            positions = kv_cache.positions(T, input_ids.device)
        if position_ids is None:
            position_ids = positions[None]
        spec = MaskSpec(positions, positions, B, attention_mask, document_ids, document_starts=document_starts)
        masks = self.masks_for(spec, kv_cache)  # one for each kind of layer, by its window
        real = self.real_tokens(input_ids, attention_mask)

        x = self.embed_tokens(input_ids)  # (B, T, hidden_size)
        if self.embed_positions is not None:
            x = x + self.embed_positions(position_ids)
        x = self.dropout(x)
        cos, sin = self.rotary_emb(position_ids, x.dtype)  # once for all layers
        call_layer = self.call_layer if self.training else DecoderLayer.__call__
        auxiliary: dict[str, Tensor] = {}
        for layer, window in zip(self.layers, self.config.windows, strict=True):
            if self.activation_checkpointing and self.training:
                x, losses = checkpoint(call_layer, layer, x, cos, sin, masks[window], None, real, use_reentrant=False)
            else:
                x, losses = call_layer(layer, x, cos, sin, masks[window], kv_cache, real)
            for name, loss in losses.items():
                auxiliary[name] = auxiliary[name] + loss if name in auxiliary else loss
        if kv_cache is not None:
            kv_cache.advance(T)

        if auxiliary:  # a loss is one number a row (B,), or one for all
            tokens = input_ids.new_full((B,), T) if real is None else real.sum(1)
            auxiliary = {name: (loss * tokens).sum() for name, loss in auxiliary.items()}
        return self.norm(x), auxiliary

    def masks_for(self, spec: MaskSpec, kv_cache: KVCache | None) -> dict[int | None, Mask]:
        """Return the mask of each kind of layer, by its window, in the form that the backend reads.

        Raises ValueError, before anything is computed, where the backend cannot serve this pass.
        """
        situation = Situation.of(
            self.config,
            spec.query_positions.device.type,
            compute_dtype(self.embed_tokens.weight),
            dropout=self.config.attention_dropout if self.training else 0.0,
            gradients=torch.is_grad_enabled() and any(p.requires_grad for p in self.parameters()),
            documents=spec.document_ids is not None,
            padding=spec.attention_mask is not None or kv_cache is not None,
            compiled=torch.compiler.is_compiling(),
        )
        problem = why_not(self.backend, situation)
        if problem is not None:
            raise ValueError(f"attn_implementation: {self.backend} {problem}: use sdpa, which serves everything")
        specs = spec.of_layers(self.config.windows, kv_cache)
        return {window: BACKENDS[self.backend].mask(each) for window, each in specs.items()}

    def real_tokens(self, input_ids: Tensor, attention_mask: Tensor | None) -> Tensor | None:
        """Return which tokens are not padding (B, T). None: nobody asks; only experts do, because they are balanced."""
        if not (self.training and self.config.num_experts):
            return None
        if attention_mask is not None:
            return attention_mask[:, -input_ids.shape[1] :]
        if self.config.pad_token_id is not None:
            return input_ids != self.config.pad_token_id
        return None


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
        self.adapters: Any = None  # an Adapters of model/variants/lora.py
        self.sum_loss = cross_entropy_sum  # while training; train/machine/compilation.py puts a compiled one here
        self.set_attn_implementation(config.attn_implementation)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Random start at which every token is equally likely, so that the loss is ln(vocab_size).

        The output projections of the layers are zero: at first the model is its embedding and its head, and the
        layers grow into the residual stream (Zhang et al. 2019, Fixup, arXiv 1901.09321). With `initialization:
        mimetic` attention writes from the start, so the loss is only near ln(vocab_size).
        """
        decoder, hidden, is_tied = self.model, self.config.hidden_size, self.config.tie_word_embeddings
        for part in (*(part for layer in decoder.layers for part in layer.children()), decoder.norm):
            if not isinstance(part, nn.Dropout):
                part.reset_parameters()  # type: ignore[operator]
        # A tied matrix meets its own rows in the logits: a token's logit for itself is std * hidden_size, so
        # std = 1 / hidden_size keeps it at 1. Learned positions are of the same size, so that neither hides the other.
        std = min(0.02, 1 / hidden) if is_tied else 1.0
        embeddings = decoder.embed_tokens.weight.normal_(0.0, std)
        # One random direction is common to all. Attention by position alone ("the token before me") needs something
        # that every query and key has in common, and finds it there at once (FINDINGS.md#sooner). It adds the same
        # number to every tied logit, which changes no probability.
        embeddings += torch.empty(hidden, device=embeddings.device).normal_(0.0, std)
        if decoder.embed_positions is not None:
            decoder.embed_positions.weight.normal_(0.0, std)
        if not is_tied:  # a small head
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
        """Compute everything that was asked for; `lm(...)` returns the logits or the loss of it alone.

        input_ids        (B, T)
        attention_mask   (B, S): 1 = real token, 0 = padding; S = tokens in the cache + T
        document_ids     (B, T): tokens with equal ids see each other
        position_ids     (B, T): default 0 … T-1, counted on from the cache
        labels           (B, T), aligned with input_ids as in transformers: labels[:, t] is the token at
                         position t, which the model is asked for at position t - 1; -100 = not trained on
        logits_to_keep   how many of the last positions get logits; 0 = all, None = none
        document_starts  (B, N): where documents begin, filled up with T, so that flash need not look on the GPU
        """
        if not torch.compiler.is_compiling():
            check_inputs(self.config, input_ids, kv_cache, attention_mask, document_ids, position_ids)
        hidden, auxiliary = self.model(input_ids, attention_mask, document_ids, position_ids, kv_cache, document_starts)
        if labels is not None:
            targets = F.pad(labels[:, 1:], (0, 1), value=IGNORED)  # position t is asked for token t + 1
            sum_loss = self.sum_loss if self.training else cross_entropy_sum
            loss_sum = sum_loss(hidden.flatten(0, 1), self.lm_head.weight, targets.flatten())
            return Output(hidden, auxiliary, loss_sum=loss_sum, token_count=(targets != IGNORED).sum())
        if logits_to_keep is None:
            return Output(hidden, auxiliary)
        return Output(hidden, auxiliary, logits=self.lm_head(hidden[:, -logits_to_keep:]))

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """Return the logits (B, T, V); with labels, (loss_sum, count). Everything else: `outputs`."""
        output = self.outputs(*inputs, **options)
        return output.logits if output.loss_sum is None else (output.loss_sum, output.token_count)

    def outputs(self, *inputs: Any, **options: Any) -> Output:
        """Return all that `forward` computes. It runs the module's hooks, in which FSDP2 gathers the weights."""
        return super().__call__(*inputs, **options)

    @property
    def attn_implementation(self) -> str:
        """The backend in use, `auto` resolved."""
        return self.model.backend

    def set_attn_implementation(self, name: str) -> None:
        """Switch every layer to another backend; `auto` is sdpa here. Whether it can serve is checked at each forward
        pass, when device, dtype and masks are known. Raises ValueError for an unknown name.
        """
        if name != "auto" and name not in BACKENDS:
            raise ValueError(f"attn_implementation: {name!r} is unknown: use auto, {', '.join(BACKENDS)}")
        self.model.backend = "sdpa" if name == "auto" else name
        for layer in self.model.layers:
            layer.self_attn.attend = BACKENDS[self.model.backend].compute  # type: ignore[union-attr]

    def attention_modules(self) -> list[Attention | LatentAttention]:
        """Return the attention of every layer, from the first to the last."""
        return [layer.self_attn for layer in self.model.layers]  # type: ignore[misc]

    def num_parameters(self, inside: str = "") -> int:
        """How many numbers the weights are; a tied matrix counts once. inside: only those with this in their name."""
        return sum(p.numel() for name, p in self.named_parameters() if inside in name)


def on_meta(config: ModelConfig) -> LanguageModel:
    """The model with shapes and no numbers, to be counted: no memory, no random number drawn."""
    with torch.device("meta"):
        return LanguageModel(config)
