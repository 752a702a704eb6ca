"""A translator of one layer: its encoder reads a word, its decoder writes the word backwards.

    source    C A T           encoder: every letter may look at all letters
    written   ↦ T A           decoder: a letter may look at what is written so far,
    target    T A C ■         and, by cross-attention, at the whole source

It is the encoder-decoder of Vaswani et al. 2017 (arXiv 1706.03762) with one head and learned
positions. Left out: dropout, a cache, beam search.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from configs import IGNORED
from model.attention import attention_weights

LETTERS = 26
BEGIN = 26  # The decoder reads it first.
END = 27  # The decoder writes it last.
PADDING = 28  # It fills up the source of a short word.
SHORTEST = 3  # letters
LONGEST = 8
WIDTH = 64  # numbers a token


class Masks(NamedTuple):
    """True = may look. Each fits scores of (B, 1, queries, keys)."""

    encoder: Tensor  # source × source
    decoder: Tensor  # target × target
    cross: Tensor  # target × source


def masks_of(source: Tensor, length: int) -> Masks:
    """Return the masks for a source (B, S) and `length` tokens of the target."""
    real = (source != PADDING)[:, None, None, :]  # (B, 1, 1, S): the same for every query
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    return Masks(encoder=real, decoder=causal, cross=real)


MakesMasks = Callable[[Tensor, int], Masks]


class Attention(nn.Module):
    """One head. Queries come from x, keys and values from `source`: x itself, or the encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.k_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.v_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.o_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.weights = torch.empty(0)  # (B, T, S): the last call's, for pictures

    def forward(self, x: Tensor, source: Tensor, mask: Tensor) -> Tensor:
        """Return (B, T, WIDTH) for x (B, T, WIDTH) and source (B, S, WIDTH)."""
        q = self.q_proj(x)[:, None]  # (B, 1, T, WIDTH)
        k = self.k_proj(source)[:, None]  # (B, 1, S, WIDTH)
        weights = attention_weights(q, k, mask)[:, 0]
        self.weights = weights.detach()
        return self.o_proj(weights @ self.v_proj(source))


def feed_forward() -> nn.Module:
    up = nn.Linear(WIDTH, 4 * WIDTH)
    down = nn.Linear(4 * WIDTH, WIDTH)
    return nn.Sequential(nn.RMSNorm(WIDTH), up, nn.GELU(), down)


class Translator(nn.Module):
    """Source (B, S) and what is written (B, T) -> logits of the next letter (B, T, 28)."""

    def __init__(self) -> None:
        super().__init__()
        self.letter = nn.Embedding(PADDING + 1, WIDTH)
        self.place = nn.Embedding(LONGEST + 1, WIDTH)
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(4))
        self.encoder = Attention()
        self.encoder_mlp = feed_forward()
        self.decoder = Attention()
        self.cross = Attention()
        self.decoder_mlp = feed_forward()
        self.head = nn.Linear(WIDTH, END + 1)

    def embed(self, ids: Tensor) -> Tensor:
        return self.letter(ids) + self.place.weight[: ids.shape[1]]

    def forward(self, source: Tensor, written: Tensor, masks: Masks) -> Tensor:
        # the encoder: all letters at once, in both directions
        x = self.embed(source)  # (B, S, WIDTH)
        normed = self.norms[0](x)
        x = x + self.encoder(normed, normed, masks.encoder)
        encoded = x + self.encoder_mlp(x)
        # the decoder
        x = self.embed(written)  # (B, T, WIDTH)
        normed = self.norms[1](x)
        x = x + self.decoder(normed, normed, masks.decoder)
        x = x + self.cross(self.norms[2](x), encoded, masks.cross)
        x = x + self.decoder_mlp(x)
        return self.head(self.norms[3](x))


def words(count: int) -> tuple[Tensor, Tensor]:
    """Return random words (count, 8), and each backwards with END (count, 9), padded with -100."""
    lengths = torch.randint(SHORTEST, LONGEST + 1, (count, 1))
    letters = torch.randint(LETTERS, (count, LONGEST))
    source = letters.masked_fill(torch.arange(LONGEST) >= lengths, PADDING)
    backwards = lengths - 1 - torch.arange(LONGEST + 1)  # 2 1 0 -1 -2 … for three letters
    target = letters.gather(1, backwards.clamp(min=0))
    target = target.masked_fill(backwards == -1, END).masked_fill(backwards < -1, IGNORED)
    return source, target


def train(makes_masks: MakesMasks = masks_of, steps: int = 800) -> tuple[Translator, list[float]]:
    """Train a translator on random words. Return it and its loss at every step."""
    torch.manual_seed(0)
    translator = Translator()
    optimizer = torch.optim.AdamW(translator.parameters(), lr=0.005)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.005, steps, pct_start=0.1)
    losses = []
    for _ in range(steps):
        source, target = words(64)
        # teacher forcing: the decoder reads the right answer, one place later
        written = F.pad(target[:, :-1], (1, 0), value=BEGIN).clamp(min=0)
        logits = translator(source, written, makes_masks(source, written.shape[1]))
        loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=IGNORED)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        losses.append(loss.item())
    return translator, losses


@torch.no_grad()
def generate(translator: Translator, source: Tensor, makes_masks: MakesMasks = masks_of) -> Tensor:
    """Write letter by letter: source (B, S) -> (B, S + 1). Letters after END mean nothing."""
    written = torch.full((len(source), 1), BEGIN)
    for _ in range(LONGEST + 1):
        logits = translator(source, written, makes_masks(source, written.shape[1]))
        letter = logits[:, -1].argmax(-1, keepdim=True)  # (B, 1)
        written = torch.cat((written, letter), dim=1)
    return written[:, 1:]


def spelled(ids: Tensor) -> str:
    """Write letters as text, up to END or PADDING."""
    is_letter = (ids >= 0) & (ids < LETTERS)
    length = int(is_letter.int().cumprod(0).sum())
    return "".join(chr(ord("A") + letter) for letter in ids[:length].tolist())


def exact(translator: Translator, makes_masks: MakesMasks = masks_of, count: int = 1000) -> float:
    """Return the share of new words that are written backwards without a mistake."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        source, target = words(count)
    is_right = (generate(translator, source, makes_masks) == target) | (target == IGNORED)
    return is_right.all(dim=1).float().mean().item()
