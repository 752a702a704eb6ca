"""The whole model: from ids to logits. 25 minutes.

    ids (B, T) -> embed_tokens (B, T, C) -> layers, one after the other -> norm -> lm_head (B, T, V)

`forward` has three uses, and your parts serve all of them:

    training       targets are given: return the summed loss (`HeadLoss`)
    reading        return the logits of all places
    writing        caches are given, one for each layer: ids holds only the new tokens. Their
                   positions begin at `caches[0].seen`; keys and mask cover the old tokens as well

    T new tokens after `past` old ones      angles of positions past … past + T - 1, (T, D/2)
                                            mask causal_mask(T, past + T), as (1, 1, T, S)

`initialise` sets the first weights. They decide whether a model learns at all:

    o_proj, down_proj     0: at first a layer adds nothing, and the stream is the token itself
    other matrices        normal numbers with the spread 1/sqrt(inputs), so that outputs are as
                          large as inputs. Norms (vectors) stay as they are.
    embed_tokens          normal numbers with the spread 1, and then one more vector (C,) of such
                          numbers, the same for all rows: heads quickly find "the token before me"
    lm_head               spread 0.1/sqrt(C): all tokens are equally likely, so the loss is ln V

Draw in this order: the layers' matrices in the order of `self.model.layers.named_parameters()`, the
table, the shared vector, lm_head. Then one seed gives the weights of one_file.py.
With `tie_word_embeddings` lm_head is the table itself, and is not drawn.

The same in Headlight: `LanguageModel` in model/transformer.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from notebooks.solutions.block import Block, Config
from notebooks.solutions.causal_mask import causal_mask
from notebooks.solutions.embedding import Embedding
from notebooks.solutions.kv_cache import KVCache
from notebooks.solutions.loss import HeadLoss
from notebooks.solutions.rmsnorm import RMSNorm
from notebooks.solutions.rope import angles


class Decoder(nn.Module):
    """All parts below the last one. Hugging Face's files call it `model`: model.layers.0.mlp…"""

    def __init__(self, config: Config):
        super().__init__()
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class MyModel(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        self.model = Decoder(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    @torch.no_grad()
    def initialise(self) -> None:
        """Set the first weights in place. Chance comes from torch.manual_seed."""
        # <solution>
        C = self.config.hidden_size
        for name, weight in self.model.layers.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.zero_()
            elif weight.ndim > 1:
                weight.normal_(std=1 / math.sqrt(weight.shape[1]))
        self.model.embed_tokens.weight.normal_()
        self.model.embed_tokens.weight.add_(torch.empty(C).normal_())
        if not self.config.tie_word_embeddings:
            self.lm_head.weight.normal_(std=0.1 / math.sqrt(C))
        # </solution>

    def forward(
        self, ids: Tensor, targets: Tensor | None = None, caches: Sequence[KVCache] | None = None
    ) -> Tensor:
        """ids (B, T) -> logits (B, T, V); with targets (B, T): the summed loss, a scalar."""
        # <solution>
        T = ids.shape[1]
        past = caches[0].seen if caches else 0
        angle = angles(past + T, self.config.head_dim, self.config.rope_theta)[past:]
        mask = causal_mask(T, past + T)[None, None]
        x = self.model.embed_tokens(ids)
        for i, layer in enumerate(self.model.layers):
            x = layer(x, angle, mask, caches[i] if caches else None)
        x = self.model.norm(x)
        if targets is None:
            return self.lm_head(x)
        return HeadLoss.apply(x.flatten(0, 1), self.lm_head.weight, targets.flatten())
        # </solution>
