"""The model of docs/train.html in PyTorch, by autograd: the same seed gives the same losses."""

import argparse
import math
from collections.abc import Iterator

import torch
from torch.nn import functional as F

from configs.command import exit_on_bad_input

WIDTH, VOCABULARY = 64, 64  # hidden size and number of tokens
ROWS, TOKENS = 16, 48  # of a training step
LENGTH, PROBE_ROWS = 17, 4  # the probe: a block of 17 tokens, twice, in four rows
RATE, WARM_UP = 0.01, 20  # learning rate, and steps in which it rises
GROUPS = {"mha": 4, "gqa": 2, "mqa": 1}  # key/value heads for four query heads


def stream(seed: int, use: int) -> Iterator[float]:
    """Return random numbers (mulberry32) for a use: 0 weights, 1 probe, k + 2 rows of step k."""
    state = (((seed + 1) * 0x9E3779B1) ^ ((use + 1) * 0x85EBCA6B)) & 0xFFFFFFFF
    while True:
        state = (state + 0x6D2B79F5) & 0xFFFFFFFF
        bits = ((state ^ (state >> 15)) * (1 | state)) & 0xFFFFFFFF
        bits ^= (bits + (bits ^ (bits >> 7)) * (61 | bits)) & 0xFFFFFFFF
        yield (bits ^ (bits >> 14)) / 2**32


def shuffled(random: Iterator[float], size: int) -> list[int]:
    """Return all tokens but 0; the first `size` of them are drawn at random."""
    symbols = list(range(1, VOCABULARY))
    for i in range(size):
        j = i + int(next(random) * (len(symbols) - i))
        symbols[i], symbols[j] = symbols[j], symbols[i]
    return symbols


def repeated(random: Iterator[float], tokens: int, shortest=2, gaps=True) -> list[int]:
    """Return a row: token 0, then one block again and again, with some other tokens between."""
    size = int(shortest * math.exp(next(random) * math.log(21 / shortest)))
    symbols = shuffled(random, size)
    row = [0]
    while len(row) < tokens:
        row += symbols[:size]
        for _ in range(int(8 * next(random)) - 4 if gaps else 0):
            row.append(symbols[size + int(next(random) * (len(symbols) - size))])
    return row[:tokens]


class Twin:
    """The page's model. heads, groups: of queries and of keys and values."""

    def __init__(self, layers: int, heads: int, groups: int, seed: int, dtype=torch.float32):
        self.layers, self.heads, self.groups, self.seed = layers, heads, groups, seed
        self.scaled = self.masked = True  # scores divided by sqrt(D); no token sees a later one
        self.on = torch.ones(layers, heads, dtype=dtype)
        random = stream(seed, 0)

        def uniform(rows: int, deviation: float) -> torch.Tensor:
            values = [2 * next(random) - 1 for _ in range(rows * WIDTH)]
            reach = math.sqrt(3) * deviation
            return torch.tensor([reach * value for value in values]).view(rows, WIDTH)

        weights = [uniform(VOCABULARY, 1) + uniform(1, 1)]  # one direction is common to all tokens
        for _ in range(layers):
            qkv = uniform(WIDTH + 2 * groups * WIDTH // heads, WIDTH**-0.5)
            weights += [qkv, torch.zeros(WIDTH, WIDTH)]
        weights.append(uniform(VOCABULARY, 0.1 * WIDTH**-0.5))
        self.weights = [matrix.to(dtype).requires_grad_() for matrix in weights]
        self.embedding, *self.matrices, self.head = self.weights

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return logits (B, T, V) for ids (B, T)."""
        B, T = ids.shape
        D = WIDTH // self.heads
        x = self.embedding[ids]
        angles = torch.arange(T)[:, None] * 10000 ** (-torch.arange(D // 2).double() / (D // 2))
        self.attention: list[torch.Tensor] = []  # (B, H, T, T) of each layer
        for layer in range(self.layers):
            weights, output = self.matrices[2 * layer : 2 * layer + 2]
            qkv = (F.rms_norm(x, (WIDTH,), eps=1e-6) @ weights.T).view(B, T, -1, D).transpose(1, 2)
            q, k, v = qkv.split([self.heads, self.groups, self.groups], dim=1)
            q, k = rotate(q, angles), rotate(k, angles)
            k, v = (shared.repeat_interleave(self.heads // self.groups, 1) for shared in (k, v))
            scores = q @ k.mT / (math.sqrt(D) if self.scaled else 1)  # (B, H, T, T)
            if self.masked:
                scores = scores.masked_fill(torch.ones(T, T).triu(1).bool(), -math.inf)
            self.attention.append(scores.softmax(-1))
            mixed = self.attention[-1] @ v * self.on[layer].view(-1, 1, 1)
            x = x + mixed.transpose(1, 2).reshape(B, T, -1) @ output.T
        return F.rms_norm(x, (WIDTH,), eps=1e-6) @ self.head.T

    def loss(self, rows: list[list[int]]) -> torch.Tensor:
        """Return the loss of every token but the first, (B, T), in nats."""
        ids = torch.tensor(rows)
        return F.cross_entropy(self.forward(ids[:, :-1]).mT, ids[:, 1:], reduction="none")


def rotate(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Turn each pair of numbers by an angle (RoPE)."""
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


def train(model: Twin, steps: int, **blocks) -> Iterator[tuple[int, float]]:
    """Train, and yield after each step its number and the loss before it. blocks: of `repeated`"""
    optimizer = torch.optim.Adam(model.weights, betas=(0.9, 0.95), eps=1e-8)
    for step in range(steps):
        random = stream(model.seed, step + 2)
        loss = model.loss([repeated(random, TOKENS + 1, **blocks) for _ in range(ROWS)]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.param_groups[0]["lr"] = RATE * min(1, (step + 1) / WARM_UP)
        optimizer.step()
        yield step + 1, loss.item()


@torch.no_grad()
def look(model: Twin) -> tuple[float, torch.Tensor]:
    """Return copy gain (nats) and the induction score of each head (layer, head)."""
    random = stream(model.seed, 1)
    blocks = [shuffled(random, LENGTH)[:LENGTH] for _ in range(PROBE_ROWS)]
    loss = model.loss([[0, *block, *block] for block in blocks])
    gain = (loss[:, 1:LENGTH].mean() - loss[:, LENGTH + 1 :].mean()).item()
    weights = torch.stack(model.attention)  # (layer, B, H, T, T)
    queries = torch.arange(LENGTH + 1, 2 * LENGTH)
    return gain, weights[..., queries, queries - LENGTH + 1].mean((1, 3))


def main() -> None:
    parser = argparse.ArgumentParser(description="Train until the induction head is born.")
    parser.add_argument("kind", choices=GROUPS)
    parser.add_argument("seed", type=int)
    parser.add_argument("--layers", type=int, default=2, choices=(1, 2))
    parser.add_argument("--shortest", type=int, default=2, help="block, in tokens (up to 20)")
    parser.add_argument("--no-gaps", action="store_true", help="no other tokens between blocks")
    args = parser.parse_args()
    model = Twin(args.layers, 4, GROUPS[args.kind], args.seed)
    for step, loss in train(model, 1000, shortest=args.shortest, gaps=not args.no_gaps):
        gain, induction = look(model)
        is_born = gain > 2 and induction.max() > 0.4
        if is_born or step % 25 == 0:
            print(f"step {step}: loss {loss:.4f}, copy gain {gain:.2f}, induction\n{induction}")
        if is_born:
            break


if __name__ == "__main__":
    exit_on_bad_input(main)
