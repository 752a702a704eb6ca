"""Headlight in one file: from text to trained attention heads, in the order in which things happen.

    python notebooks/one_file.py                      # on words that it makes up: watch heads learn to copy
    python notebooks/one_file.py my.txt               # on your own text, in about two minutes on two cores
    python notebooks/one_file.py my.txt num_key_value_heads=1 attention=eager max_steps=300

It needs torch, numpy and matplotlib (`source .venv/bin/activate`). It prints losses and a sample, and draws every head
into heads.png. With the same seed, text and config its losses equal those of `python -m train.pretrain` to the last
bit, and its weights fit the library's model. The library adds choices, speed and safety, not other mathematics.
Shapes: B rows of T tokens, C = hidden_size, H query heads of D numbers, H_kv key/value heads, V ids in the vocabulary.
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
from matplotlib.figure import Figure
from torch import Tensor, nn


# 1. Every number that somebody chose. The names are those of the library's YAML files.
@dataclass(frozen=True)
class Config:
    seed: int = 0  # decides the first weights and the order of the text: same seed, same losses
    sequence_length: int = 128  # T: how many tokens the model reads at once
    tokens_per_step: int = 2048  # 16 rows: with fewer the gradient is noise, with more a step is slow
    hidden_size: int = 128  # C: how many numbers stand for a token inside the network
    intermediate_size: int = 352  # inside the feed-forward part: about 8/3 C
    num_hidden_layers: int = 2  # finding what to copy needs two: the second reads what the first has noted
    num_attention_heads: int = 4  # H: each looks at the text in its own way
    num_key_value_heads: int = 4  # H_kv: 4 = MHA | 2 = GQA | 1 = MQA, where all query heads share one
    attention: str = "flash"  # flash: a fast kernel | eager: the formula, line by line. Equal up to rounding
    max_steps: int = 1000
    lr: float = 0.005  # the highest learning rate: how far a step goes
    embedding_lr: float = 0.1  # a token's row learns only when the token occurs, so its steps are larger
    weight_decay: float = 0.01  # matrices shrink a little at every step, so that nothing useless stays large
    warmup_steps: int = 50  # at first Adam does not know how large gradients are, so steps begin small
    cooldown: float = 0.7  # share of the run in which the rate falls: large steps explore, small ones settle
    final_lr_fraction: float = 0.05
    grad_clip: float = 1.0


PAD, BOS, EOS, IGNORED = 0, 1, 2, -100  # no characters: filling, begin and end of a text, nothing is asked for


def batches(stream: np.ndarray, config: Config):
    """2. (B, T) ids without end. Every epoch reads each token once, in other rows and in another order."""
    T, rows = config.sequence_length, []
    for epoch in count():
        chance = np.random.default_rng([config.seed, epoch])
        offset = chance.integers(len(stream))  # the stream is a circle
        for row in chance.permutation(-(-len(stream) // T)):
            places = np.arange(row * T, min(row * T + T, len(stream)))
            rows.append(np.pad(stream.take(offset + places, mode="wrap"), (0, T - len(places)), constant_values=PAD))
            if len(rows) == config.tokens_per_step // T:
                yield torch.from_numpy(np.stack(rows))
                rows = []


# 3. The model. RMSNorm, x / sqrt(mean(x²)) * weight, keeps numbers at one size. Its backward pass is by hand: speed.
class Normalise(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        factor = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)  # nobody divides by zero
        normal = x * factor
        ctx.save_for_backward(normal, factor, weight)
        return weight * normal

    @staticmethod
    def backward(ctx, gradient):
        normal, factor, weight = ctx.saved_tensors
        product = gradient * normal
        along = product @ weight / len(weight)  # a longer x gives the same output: no gradient along x
        x_gradient = torch.addcmul(gradient * weight, normal, along[..., None], value=-1).mul_(factor)
        return x_gradient, product.flatten(0, -2).sum(0)


class RMSNorm(nn.Module):
    def __init__(self, size: int, gain: float = 1.0):
        super().__init__()
        self.weight = nn.Parameter(torch.full((size,), gain))

    def forward(self, x: Tensor) -> Tensor:
        return Normalise.apply(x, self.weight)


def repeat_kv(x: Tensor, groups: int) -> Tensor:
    """Give every query head its key/value head, neighbours the same one: 0 0 1 1. (B, H_kv, T, D) -> (B, H, T, D)."""
    B, H_kv, T, D = x.shape
    return x if groups == 1 else x[:, :, None].expand(B, H_kv, groups, T, D).reshape(B, H_kv * groups, T, D)


# Every token asks (q), every token up to it answers (k), and what fits is copied (v).
class Attention(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        C, H, H_kv = config.hidden_size, config.num_attention_heads, config.num_key_value_heads
        D, self.attention = C // H, config.attention
        self.q_proj = nn.Linear(C, H * D, bias=False)
        self.k_proj = nn.Linear(C, H_kv * D, bias=False)
        self.v_proj = nn.Linear(C, H_kv * D, bias=False)
        self.o_proj = nn.Linear(H * D, C, bias=False)
        # QK-norm keeps scores at one size, so large steps are safe. A gain of 1 could not look at one token alone.
        self.q_norm, self.k_norm = RMSNorm(D, gain=1.5), RMSNorm(D, gain=1.5)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        (B, T, _), D = x.shape, cos.shape[1]
        q, k, v = (projected.view(B, T, -1, D) for projected in (self.q_proj(x), self.k_proj(x), self.v_proj(x)))
        q, k, v = (y.transpose(1, 2) for y in (self.q_norm(q), self.k_norm(k), v))  # (B, H, T, D), (B, H_kv, T, D)
        # RoPE: turn pairs (number i, number i + D/2) by the position. Then q · k depends on the distance of two tokens.
        q, k = (y * cos + y.roll(D // 2, dims=-1) * sin for y in (q, k))
        groups = q.shape[1] // k.shape[1]
        if self.attention == "eager":
            scores = (q @ repeat_kv(k, groups).transpose(2, 3)) * D**-0.5  # (B, H, T, T): a row asks, a column answers
            may_see = torch.ones(T, T, dtype=torch.bool).tril()  # not what it is about to predict
            self.weights = scores.masked_fill(~may_see, -math.inf).softmax(-1)  # shares of 1; kept for the picture
            out = self.weights @ repeat_kv(v, groups)  # (B, H, T, D)
        else:  # the same, but the T x T numbers are never written down (Dao et al. 2022)
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=groups > 1)
        return self.o_proj(out.transpose(1, 2).reshape(B, T, -1))


# Attention moves things between tokens. Then the feed-forward part (SwiGLU) works on every token by itself.
class Layer(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        C, inner = config.hidden_size, config.intermediate_size
        self.input_layernorm = RMSNorm(C)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(C)
        sizes = {"gate_proj": (C, inner), "up_proj": (C, inner), "down_proj": (inner, C)}
        self.mlp = nn.ModuleDict({name: nn.Linear(*size, bias=False) for name, size in sizes.items()})

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)  # a part only adds to the stream (B, T, C),
        y = self.post_attention_layernorm(x)  # so gradients have a straight way back
        return x + self.mlp.down_proj(F.silu(self.mlp.gate_proj(y)) * self.mlp.up_proj(y))


class LanguageModel(nn.Module):
    def __init__(self, config: Config, vocab_size: int):
        super().__init__()
        self.config, C = config, config.hidden_size
        self.model = nn.Module()  # parameters have Hugging Face's names: model.layers.0.self_attn.q_proj.weight
        self.model.embed_tokens = nn.Embedding(vocab_size, C)
        self.model.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.model.norm = RMSNorm(C)
        self.lm_head = nn.Linear(C, vocab_size, bias=False)
        with torch.no_grad():
            for name, weight in self.model.layers.named_parameters():
                if name.endswith(("o_proj.weight", "down_proj.weight")):
                    weight.zero_()  # at first a layer adds nothing
                elif weight.ndim > 1:
                    weight.normal_(std=1 / math.sqrt(weight.shape[1]))  # what comes out is as large as what goes in
            self.model.embed_tokens.weight.normal_()
            # Something that all tokens have in common: a head that looks for "the token before me" finds it at once.
            self.model.embed_tokens.weight.add_(torch.empty(C).normal_())
            self.lm_head.weight.normal_(std=0.1 / math.sqrt(C))  # every token is about equally likely: the loss is ln V

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> Tensor:
        """ids (B, T) -> logits (B, T, V), a score for each token that may come next; with targets: the summed loss."""
        x, D = self.model.embed_tokens(ids), self.config.hidden_size // self.config.num_attention_heads  # (B, T, C)
        turns = 1.0 / 10000.0 ** (torch.arange(0, D, 2, dtype=torch.float) / D)  # (D/2,) of RoPE: 1 radian a token, …
        angles = torch.arange(ids.shape[1])[:, None].float() * turns  # (T, D/2)
        cos, sin = torch.cat((angles.cos(),) * 2, -1), torch.cat((-angles.sin(), angles.sin()), -1)  # (T, D)
        for layer in self.model.layers:
            x = layer(x, cos, sin)
        x = self.model.norm(x)
        if targets is None:
            return self.lm_head(x)
        return CrossEntropy.apply(x.flatten(0, 1), self.lm_head.weight, targets.flatten())


# 4. The loss: -ln of the probability of the token that came, summed. Its gradient is every token's probability, minus 1
# for the one that came. 512 positions at a time go there and back: the logits of all would be the largest tensor.
class CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, head, targets):
        loss, hidden_gradients, head_gradient = torch.zeros(()), [], torch.zeros_like(head)
        for x, target in zip(hidden.split(512), targets.split(512), strict=True):
            asked, target = (target != IGNORED)[:, None].float(), target.clamp(min=0)[:, None]
            logits = x @ head.T  # (512, V)
            largest, of_target = logits.amax(-1, keepdim=True), logits.gather(1, target)
            powers = (logits - largest).exp()  # of numbers up to 0: exp cannot overflow
            total = powers.sum(-1, keepdim=True)
            loss = loss + ((total.log() + largest - of_target) * asked).sum()  # -ln(exp(of_target) / total)
            gradient = powers.mul_(asked / total).scatter_add_(1, target, -asked)
            hidden_gradients.append(gradient @ head)
            head_gradient += gradient.T @ x
        ctx.save_for_backward(torch.cat(hidden_gradients), head_gradient)
        return loss

    @staticmethod
    def backward(ctx, scale):
        hidden_gradient, head_gradient = ctx.saved_tensors
        return hidden_gradient * scale, head_gradient * scale, None


def train(text: str, config: Config) -> tuple[LanguageModel, list[str], list[float]]:
    """5. Learning. Returns the model, what each id stands for, and the loss of every step."""
    vocabulary = [""] * 12 + sorted(set(text))  # the first ids are for PAD, BOS, EOS, and for chats in the library
    vocabulary += [""] * (-len(vocabulary) % 64)  # matrix products are quicker with a multiple of 64
    id_of = {character: i for i, character in enumerate(vocabulary)}
    ids, T, cut = [id_of[character] for character in text], config.sequence_length, int(len(text) * 0.9)
    unseen = torch.tensor(ids[cut : cut + min(32, (len(ids) - cut) // T) * T]).view(-1, T)  # never learned from
    torch.manual_seed(config.seed)
    model, losses, tested, began = LanguageModel(config, len(vocabulary)), [], {}, time.perf_counter()
    groups = []
    for name, weight in model.named_parameters():
        lr, decay = (config.embedding_lr, 0.0) if "embed" in name else (config.lr, config.weight_decay)
        groups.append({"params": [weight], "highest": lr, "weight_decay": decay if weight.ndim > 1 else 0.0})
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-10, fused=True)
    print(f"{len(text):,} characters. Guessing costs ln {len(vocabulary)} = {math.log(len(vocabulary)):.2f} each")
    for step, batch in zip(range(config.max_steps), batches(np.array([BOS, *ids[:cut], EOS]), config), strict=False):
        # Forward. The target of a token is the token after it; nothing can tell where another text begins.
        targets = F.pad(batch[:, 1:], (0, 1), value=IGNORED)
        targets = targets.masked_fill((targets == BOS) | (targets == PAD), IGNORED)
        loss_sum, asked = model(batch, targets), int((targets != IGNORED).sum())
        # Backward: the gradient of a parameter says how the mean loss changes when the parameter grows.
        (loss_sum * (1 / asked)).backward()
        # Clip: one strange batch must not throw the weights far away. A longer gradient keeps its direction.
        nn.utils.clip_grad_norm_(model.parameters(), config.grad_clip)
        # The learning rate: up, constant, then straight down. It depends on the step alone.
        warmup = min(1.0, (step + 1) / max(1, config.warmup_steps))
        shape = min(1.0, (1 - step / max(1, config.max_steps - 1)) / config.cooldown)
        factor = warmup * (config.final_lr_fraction + (1 - config.final_lr_fraction) * shape)
        for group in optimizer.param_groups:
            group["lr"] = factor * group["highest"]
        # The step: every parameter moves a little against its gradient. Then forget the gradients, or they add up.
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss_sum.detach() / asked))
        if step % 100 == 0 or step == config.max_steps - 1:
            with torch.no_grad():
                loss = F.cross_entropy(model(unseen[:, :-1]).flatten(0, 1), unseen[:, 1:].flatten())
            tested[step] = float(loss)
            print(f"step {step:5,}  loss {losses[-1]:.3f}  unseen text {loss:.3f}  {time.perf_counter() - began:.0f} s")
    best = min(tested, key=tested.get, default=0)  # after it the text was learned by heart
    if tested and losses[-1] < tested[best] < tested[step] - 0.1:
        print(f"Unseen text was best at step {best} ({tested[best]:.3f}): try max_steps={best}, or give it more text")
    return model, vocabulary, losses


def write(model: LanguageModel, vocabulary: list[str], length: int, temperature: float = 0.8, top_k: int = 20) -> str:
    """6. A sample. For every new token the model reads its last T tokens again (the library keeps keys and values)."""
    ids = [BOS]
    for _ in range(length):
        logits = model(torch.tensor([ids[-model.config.sequence_length :]]))[0, -1]  # (V,)
        best, which = (logits / temperature).topk(top_k)  # below 1 prefers the likely; nothing beyond the 20 best
        ids.append(int(which[best.softmax(-1).multinomial(1)]))
    return "".join(vocabulary[i] for i in ids)


def draw(model: LanguageModel, vocabulary: list[str], text: str, path: str) -> None:
    """7. The picture: every head on a piece of text. A row is a token that looks, a column is what it looks at."""
    layers, H = model.model.layers, model.config.num_attention_heads
    labels = ["↵" if c == "\n" else c if c < "\u0600" else "·" for c in text]  # · where the font lacks a character
    for layer in layers:
        layer.self_attn.attention = "eager"  # flash writes no weights down
    model(torch.tensor([[vocabulary.index(character) for character in text]]))
    figure = Figure((3.2 * H, 3.4 * len(layers)), layout="constrained")
    for i, axes in enumerate(figure.subplots(len(layers), H, squeeze=False).flat):
        axes.imshow(layers[i // H].self_attn.weights[0, i % H].numpy(), cmap="Blues", vmin=0, vmax=1)
        axes.set_title(f"layer {i // H}, head {i % H}")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_ticks(range(len(text)), labels, fontsize=6)
    figure.savefig(path, dpi=100)


def made_up_text() -> str:
    """Lines of two nonsense words, said six times: whoever looks 10 characters back can copy most of them."""
    lines = np.random.default_rng(0).choice([c + v for c in "bdfgklmnprstvz" for v in "aeiou"], (5000, 2, 2))
    return "\n".join(" ".join(["".join(word) for word in line] * 6) for line in lines)


if __name__ == "__main__":
    paths, changes = [a for a in sys.argv[1:] if "=" not in a], [a.partition("=") for a in sys.argv[1:] if "=" in a]
    quick = {} if paths else {"sequence_length": 64, "tokens_per_step": 1024, "max_steps": 300}  # under a minute
    try:
        config = Config(**quick | {key: type(getattr(Config, key, ""))(value) for key, _, value in changes})
        H, T = config.num_attention_heads, config.sequence_length
        if H % config.num_key_value_heads or config.tokens_per_step % T or config.attention not in ("flash", "eager"):
            raise ValueError(f"num_key_value_heads divides {H}, {T} divides tokens_per_step; attention: flash or eager")
        text = Path(paths[0]).read_bytes().decode("utf-8-sig") if paths else made_up_text()
        if len(text) < (least := 1 + max(10 * config.tokens_per_step // 9, 10 * config.sequence_length)):
            raise ValueError(f"{' '.join(paths)} has {len(text):,} characters: give a text of at least {least:,}")
    except (ArithmeticError, OSError, TypeError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    model, vocabulary, _ = train(text, config)
    torch.set_grad_enabled(False)  # nothing is learned from here on
    begin = text.rfind("\n", 0, -48) + 1  # of the last line with so much text from there on
    draw(model, vocabulary, text[begin : begin + 48], "heads.png")
    print(f"\n{write(model, vocabulary, 300)}\n\nheads.png shows what every head looks at: row = reader, column = read")
