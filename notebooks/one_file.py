"""Headlight in one file: from text to trained attention heads, in the order in which things happen.

    python notebooks/one_file.py            # on made-up words: watch heads learn to copy
    python notebooks/one_file.py my.txt     # on your own text, in about two minutes on two cores
    python notebooks/one_file.py my.txt num_key_value_heads=1 attention=eager max_steps=300

With the same seed, text and config, its losses equal those of `python -m train.pretrain` to the
last bit, and its weights fit the library's model. Shapes: B rows of T tokens, C = hidden_size,
H query heads of D numbers, H_kv key/value heads, V ids in the vocabulary.
"""

import math
import sys
import time
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)  # 1. The settings, named as in the library's YAML files.
class Config:
    seed: int = 0  # decides the first weights and the order of the text
    sequence_length: int = 128  # T: tokens that the model reads at once
    tokens_per_step: int = 2048  # 16 rows: with fewer the gradient is noise, with more it is slow
    hidden_size: int = 128  # C: numbers for a token inside the network
    intermediate_size: int = 352  # inside the feed-forward part: about 8/3 C
    num_hidden_layers: int = 2  # copying needs two: the second reads notes of the first
    num_attention_heads: int = 4  # H: each attends to the text in its own way
    num_key_value_heads: int = 4  # H_kv: 4 = MHA | 2 = GQA | 1 = MQA, one for all query heads
    attention: str = "flash"  # flash: a fast kernel | eager: the formula. Equal up to rounding
    max_steps: int = 1000
    lr: float = 0.005  # the highest learning rate, which is the size of a step
    embedding_lr: float = 0.1  # larger, because a token's row learns only if the token occurs
    weight_decay: float = 0.01  # matrices shrink a little at every step, so useless weights fade
    warmup_steps: int = 50  # steps begin small, until Adam has measured the gradients
    cooldown: float = 0.7  # share of the run in which the rate falls, to settle near a minimum
    final_lr_fraction: float = 0.05
    grad_clip: float = 1.0


PAD, BOS, EOS, IGNORED = 0, 1, 2, -100  # filling, begin and end of a text, a label not trained on


def batches(stream: np.ndarray, config: Config):
    """2. Yield (B, T) ids without end. Each epoch reads each token once, in a new order."""
    T, rows = config.sequence_length, []
    for epoch in count():
        generator = np.random.default_rng([config.seed, epoch])
        offset = generator.integers(len(stream))  # the stream is a circle
        for row in generator.permutation(-(-len(stream) // T)):
            places = np.arange(row * T, min(row * T + T, len(stream)))
            ids = stream.take(offset + places, mode="wrap")
            rows.append(np.pad(ids, (0, T - len(ids)), constant_values=PAD))
            if len(rows) == config.tokens_per_step // T:
                yield torch.from_numpy(np.stack(rows))
                rows = []


class Normalise(torch.autograd.Function):  # 3. The model. RMSNorm: x / sqrt(mean(x²)) * weight.
    @staticmethod
    def forward(ctx, x, weight):
        factor = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)  # never divides by zero
        normal = x * factor
        ctx.save_for_backward(normal, factor, weight)
        return weight * normal

    @staticmethod
    def backward(ctx, gradient):
        normal, factor, weight = ctx.saved_tensors
        product = gradient * normal
        along = (product @ weight / len(weight))[..., None]  # a longer x gives the same output
        x_gradient = torch.addcmul(gradient * weight, normal, along, value=-1).mul_(factor)
        return x_gradient, product.flatten(0, -2).sum(0)


class RMSNorm(nn.Module):
    def __init__(self, size: int, gain: float = 1.0):
        super().__init__()
        self.weight = nn.Parameter(torch.full((size,), gain))

    def forward(self, x: Tensor) -> Tensor:
        return Normalise.apply(x, self.weight)


def repeat_kv(x: Tensor, groups: int) -> Tensor:
    """Repeat key/value heads for query heads, 0 0 1 1: (B, H_kv, T, D) -> (B, H, T, D)."""
    B, H_kv, T, D = x.shape
    return x[:, :, None].expand(B, H_kv, groups, T, D).reshape(B, H_kv * groups, T, D)


class Attention(nn.Module):  # Queries (q) match earlier keys (k), and copy their values (v).
    def __init__(self, config: Config):
        super().__init__()
        C, H, H_kv = config.hidden_size, config.num_attention_heads, config.num_key_value_heads
        D, self.attention = C // H, config.attention
        self.q_proj = nn.Linear(C, H * D, bias=False)
        self.k_proj = nn.Linear(C, H_kv * D, bias=False)
        self.v_proj = nn.Linear(C, H_kv * D, bias=False)
        self.o_proj = nn.Linear(H * D, C, bias=False)
        # QK-norm makes large steps safe. With a gain of 1, no head could attend to one token alone.
        self.q_norm, self.k_norm = RMSNorm(D, gain=1.5), RMSNorm(D, gain=1.5)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        (B, T, _), D = x.shape, cos.shape[1]
        q, k, v = (p(x).view(B, T, -1, D) for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k, v = (y.transpose(1, 2) for y in (self.q_norm(q), self.k_norm(k), v))  # (B, H, T, D)
        # RoPE turns pairs (i, i + D/2) by the position, so q · k depends on the tokens' distance.
        q, k = (y * cos + y.roll(D // 2, dims=-1) * sin for y in (q, k))
        groups = q.shape[1] // k.shape[1]
        if self.attention == "eager":
            scores = (q @ repeat_kv(k, groups).transpose(2, 3)) * D**-0.5  # (B, H, T, T)
            may_see = torch.ones(T, T, dtype=torch.bool).tril()  # not the token to be predicted
            self.weights = scores.masked_fill(~may_see, -math.inf).softmax(-1)  # for the picture
            out = self.weights @ repeat_kv(v, groups)  # (B, H, T, D)
        else:  # the same, but the T x T numbers are never stored (Dao et al. 2022)
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=groups > 1)
        return self.o_proj(out.transpose(1, 2).reshape(B, T, -1))


class Layer(nn.Module):  # Attention works between tokens, the feed-forward part (SwiGLU) on each.
    def __init__(self, config: Config):
        super().__init__()
        C, inner = config.hidden_size, config.intermediate_size
        self.input_layernorm = RMSNorm(C)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(C)
        sizes = {"gate_proj": (C, inner), "up_proj": (C, inner), "down_proj": (inner, C)}
        self.mlp = nn.ModuleDict({name: nn.Linear(*sizes[name], bias=False) for name in sizes})

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)  # added to the stream (B, T, C)
        y = self.post_attention_layernorm(x)
        return x + self.mlp.down_proj(F.silu(self.mlp.gate_proj(y)) * self.mlp.up_proj(y))


class LanguageModel(nn.Module):
    def __init__(self, config: Config, vocab_size: int):
        super().__init__()
        self.config, C = config, config.hidden_size
        self.model = nn.Module()  # Hugging Face's names: model.layers.0.self_attn.q_proj.weight
        self.model.embed_tokens = nn.Embedding(vocab_size, C)
        self.model.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.model.norm = RMSNorm(C)
        self.lm_head = nn.Linear(C, vocab_size, bias=False)
        with torch.no_grad():
            for name, weight in self.model.layers.named_parameters():
                if name.endswith(("o_proj.weight", "down_proj.weight")):
                    weight.zero_()  # at first a layer adds nothing
                elif weight.ndim > 1:
                    weight.normal_(std=1 / math.sqrt(weight.shape[1]))  # outputs as large as inputs
            self.model.embed_tokens.weight.normal_()
            # All tokens share this part, so a head quickly finds "the token before me".
            self.model.embed_tokens.weight.add_(torch.empty(C).normal_())
            self.lm_head.weight.normal_(std=0.1 / math.sqrt(C))  # equally likely tokens: loss ln V

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> Tensor:
        """ids (B, T) -> logits (B, T, V) of the next token; with targets: the summed loss."""
        D = self.config.hidden_size // self.config.num_attention_heads
        turns = 1.0 / 10000.0 ** (torch.arange(0, D, 2, dtype=torch.float) / D)  # RoPE's, (D/2,)
        angles = torch.arange(ids.shape[1])[:, None].float() * turns  # (T, D/2)
        cos, sin = angles.cos().repeat(1, 2), torch.cat((-angles.sin(), angles.sin()), -1)  # (T, D)
        x = self.model.embed_tokens(ids)  # (B, T, C)
        for layer in self.model.layers:
            x = layer(x, cos, sin)
        x = self.model.norm(x)
        if targets is None:
            return self.lm_head(x)
        return CrossEntropy.apply(x.flatten(0, 1), self.lm_head.weight, targets.flatten())


# 4. The loss: the sum of -ln p of the right tokens. Its gradient is every token's p, minus 1 for
# the right one. The logits of all positions would be the largest tensor, so it takes 512 at a time.
class CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, head, targets):
        loss, hidden_gradients, head_gradient = torch.zeros(()), [], torch.zeros_like(head)
        for x, target in zip(hidden.split(512), targets.split(512), strict=True):
            trained, target = (target != IGNORED)[:, None].float(), target.clamp(min=0)[:, None]
            logits = x @ head.T  # (512, V)
            largest = logits.amax(-1, keepdim=True)
            powers = (logits - largest).exp()  # of numbers up to 0, so exp cannot overflow
            total = powers.sum(-1, keepdim=True)
            loss = loss + ((total.log() + largest - logits.gather(1, target)) * trained).sum()
            gradient = powers.mul_(trained / total).scatter_add_(1, target, -trained)
            hidden_gradients.append(gradient @ head)
            head_gradient += gradient.T @ x
        ctx.save_for_backward(torch.cat(hidden_gradients), head_gradient)
        return loss

    @staticmethod
    def backward(ctx, scale):
        hidden_gradient, head_gradient = ctx.saved_tensors
        return hidden_gradient * scale, head_gradient * scale, None


def train(text: str, config: Config) -> tuple[LanguageModel, list[str], list[float]]:
    """5. Learning. Return the model, the character of each id, and the loss of every step."""
    vocabulary = [""] * 12 + sorted(set(text))  # the first ids are special tokens in the library
    vocabulary += [""] * (-len(vocabulary) % 64)  # a multiple of 64 makes matrix products quicker
    id_of = {character: i for i, character in enumerate(vocabulary)}
    ids, T, cut = [id_of[c] for c in text], config.sequence_length, int(len(text) * 0.9)
    unseen = torch.tensor(ids[cut : cut + min(32, (len(ids) - cut) // T) * T]).view(-1, T)
    torch.manual_seed(config.seed)
    model = LanguageModel(config, len(vocabulary))
    losses, tested, began, groups = [], {}, time.perf_counter(), []
    for name, weight in model.named_parameters():
        lr, decay = config.lr, config.weight_decay * (weight.ndim > 1)
        if "embed" in name:
            lr, decay = config.embedding_lr, 0.0
        groups.append({"params": [weight], "highest": lr, "weight_decay": decay})
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-10, fused=True)
    print(f"{len(text):,} characters. Guessing costs ln V = {math.log(len(vocabulary)):.2f} each")
    stream = batches(np.array([BOS, *ids[:cut], EOS]), config)
    for step, batch in zip(range(config.max_steps), stream, strict=False):
        # Forward. The target of a token is the next one, unless another text begins there.
        targets = F.pad(batch[:, 1:], (0, 1), value=IGNORED)
        targets = targets.masked_fill((targets == BOS) | (targets == PAD), IGNORED)
        loss_sum, trained = model(batch, targets), int((targets != IGNORED).sum())
        (loss_sum * (1 / trained)).backward()  # how does the mean loss change with each parameter?
        nn.utils.clip_grad_norm_(model.parameters(), config.grad_clip)  # limits one strange batch
        # The learning rate goes up, stays, and falls in a line. It depends only on the step.
        warmup = min(1.0, (step + 1) / max(1, config.warmup_steps))
        shape = min(1.0, (1 - step / max(1, config.max_steps - 1)) / config.cooldown)
        factor = warmup * (config.final_lr_fraction + (1 - config.final_lr_fraction) * shape)
        for group in optimizer.param_groups:
            group["lr"] = factor * group["highest"]
        optimizer.step()  # every parameter moves a little against its gradient
        optimizer.zero_grad()  # otherwise the gradients would add up
        losses.append(float(loss_sum.detach() / trained))
        if step % 100 == 0 or step == config.max_steps - 1:
            with torch.no_grad():
                logits = model(unseen[:, :-1]).flatten(0, 1)
            tested[step] = float(F.cross_entropy(logits, unseen[:, 1:].flatten()))
            figures = f"loss {losses[-1]:.3f}  unseen text {tested[step]:.3f}"
            print(f"step {step:5,}  {figures}  {time.perf_counter() - began:.0f} s")
    best = min(tested, key=tested.get, default=0)  # later it only memorises
    if tested and losses[-1] < tested[best] < tested[step] - 0.1:
        print(f"Unseen text was best at step {best}: try max_steps={best}, or give it more text")
    return model, vocabulary, losses


def write(model: LanguageModel, vocabulary: list[str], length: int) -> str:
    """6. A sample. For each new token, read the last T again (the library has a cache)."""
    ids = [BOS]
    for _ in range(length):
        logits = model(torch.tensor([ids[-model.config.sequence_length :]]))[0, -1]  # (V,)
        best, which = (logits / 0.8).topk(20)  # a temperature below 1 prefers likely tokens
        ids.append(int(which[best.softmax(-1).multinomial(1)]))
    return "".join(vocabulary[i] for i in ids)


def draw(model: LanguageModel, vocabulary: list[str], text: str, path: str) -> None:
    """7. The picture: every head on a text. Rows are queries, columns the tokens they attend to."""
    from matplotlib.figure import Figure  # here, because it takes a second

    layers, H = model.model.layers, model.config.num_attention_heads
    labels = [c if c < "\u0600" else "·" for c in text.replace("\n", "¶")]
    for layer in layers:
        layer.self_attn.attention = "eager"  # flash stores no weights
    model(torch.tensor([[vocabulary.index(character) for character in text]]))
    figure = Figure((3.2 * H, 3.4 * len(layers)), layout="constrained")
    for i, axes in enumerate(figure.subplots(len(layers), H, squeeze=False).flat):
        weights = layers[i // H].self_attn.weights[0, i % H]
        axes.imshow(weights.numpy(), cmap="Blues", vmin=0, vmax=1)
        axes.set_title(f"layer {i // H}, head {i % H}")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_ticks(range(len(text)), labels, fontsize=6)
    figure.savefig(path, dpi=100)


if __name__ == "__main__":
    paths = [argument for argument in sys.argv[1:] if "=" not in argument]
    changes = dict(argument.split("=", 1) for argument in sys.argv[1:] if "=" in argument)
    quick = {} if paths else {"sequence_length": 64, "tokens_per_step": 1024, "max_steps": 300}
    syllables = [c + v for c in "bdfgklmnprstvz" for v in "aeiou"]  # two words a line, six times
    words = np.random.default_rng(0).choice(syllables, (5000, 2, 2))
    text = "\n".join(" ".join(["".join(word) for word in line] * 6) for line in words)
    try:
        config = Config(**quick | {k: type(getattr(Config, k, ""))(v) for k, v in changes.items()})
        H, T, step = config.num_attention_heads, config.sequence_length, config.tokens_per_step
        if H % config.num_key_value_heads or step % T or config.attention not in ("flash", "eager"):
            rule = f"num_key_value_heads divides {H}, {T} divides tokens_per_step"
            raise ValueError(f"{rule}, attention is flash or eager")
        text = Path(paths[0]).read_bytes().decode("utf-8-sig") if paths else text
        if len(text) <= max(10 * step // 9, 10 * T):
            raise ValueError(f"{' '.join(paths)} has {len(text):,} characters: add more text")
    except (ArithmeticError, OSError, TypeError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    model, vocabulary, _ = train(text, config)
    torch.set_grad_enabled(False)  # no training from here on
    begin = text.rfind("\n", 0, -48) + 1  # of the last line with 48 characters after it
    draw(model, vocabulary, text[begin : begin + 48], "heads.png")
    print(f"\n{write(model, vocabulary, 300)}\n\nheads.png: heads, row = query, column = key")
