"""Check the parts of the whole model: from the tokenizer to the loop.

The reference is notebooks/one_file.py, or the formula in float64.
"""

from __future__ import annotations

import math
from itertools import islice
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from configs import IGNORED
from notebooks import one_file
from notebooks.checks.compare import same, shape_of, unchanged
from notebooks.checks.examples import generator, random, shift


def tokenizer(mine: ModuleType) -> str:
    # 52 characters and 12 special tokens are a multiple of 64 already
    alphabet = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    for text in ("banana", "one line\nand a second, with 你好 and é", alphabet, alphabet + "!"):
        vocabulary = [""] * 12 + sorted(set(text))
        vocabulary += [""] * (-len(vocabulary) % 64)
        name = repr(text if len(text) < 20 else f"{text[:12]}…")
        got = mine.vocabulary_of(text)
        problem = f"vocabulary_of({name}) has {len(got)} places, and must have {len(vocabulary)}."
        assert len(got) == len(vocabulary), problem
        same(f"vocabulary_of({name})", got, vocabulary)
        ids = [vocabulary.index(character) for character in text]
        same(f"encode({name}, its vocabulary)", mine.encode(text, vocabulary), ids)
        call = f"decode(the ids of {name}, its vocabulary)"
        same(call, mine.decode([1, *ids, 2, 0], vocabulary), text, lesson="BOS, EOS, PAD: no text.")
    vocabulary = mine.vocabulary_of("banana")
    for text, character in (("bandana", "d"), ("你", "你")):
        problem = f"encode({text!r}, …) must raise a ValueError that names {character!r}"
        message = None
        try:
            got = mine.encode(text, vocabulary)
        except ValueError as error:
            message = str(error)
        assert message is not None, f"{problem}, which has no id; it returns {got!r}."
        assert character in message, f"{problem}; its message is {message!r}."
    return "Text goes in and the same text comes out. This is all that a model ever reads."


def embedding(mine: ModuleType) -> str:
    table = mine.Embedding(9, 3)
    shape_of("Embedding(9, 3).weight", table.weight, (9, 3))
    weight = random(9, 3)
    table.weight.data.copy_(weight)
    ids = torch.tensor([[2, 0, 2], [6, 2, 1]])
    expected = F.embedding(ids, weight)
    out = table(ids)
    same("Embedding(9, 3)(ids)", out, expected)
    same("by_product(ids, table)", mine.by_product(ids, weight), expected)
    same("by_product(ids, table)", mine.by_product(ids, weight.double()), expected.double())
    problem = "Embedding(9, 3)(ids) has no gradient, and must have one"
    assert out.requires_grad, f"{problem}: the table would never learn."
    (gradient,) = torch.autograd.grad(out.sum(), table.weight)
    times = torch.bincount(ids.flatten(), minlength=9)  # row 2 occurs three times
    lesson = "A row gets the sum of the gradients of all places where its id occurs."
    same("the gradient of the table", gradient, times[:, None].expand(9, 3).float(), lesson=lesson)
    return "A word's meaning is a row of numbers, and the row is learned."


def rmsnorm(mine: ModuleType) -> str:
    x = torch.tensor([[3.0, 4.0]])
    normal, factor = two(mine.normalise(x, 0.0), "normalise(x, eps)")
    same("normal of normalise(x, 0) for x = (3, 4)", normal, torch.tensor([[0.84853, 1.13137]]))
    same("factor of normalise(x, 0) for x = (3, 4)", factor, torch.tensor([[0.28284]]))
    lesson = "eps is added to the mean of squares, under the root."
    for name, x in (("random x", random(2, 3, 8)), ("x of zeros", torch.zeros(2, 3, 8))):
        normal, factor = two(mine.normalise(x, 0.1), "normalise(x, eps)")
        right = torch.rsqrt(x.double().square().mean(-1, keepdim=True) + 0.1)
        same(f"factor of normalise(x, 0.1) for {name}", factor, right, lesson=lesson)
        same(f"normal of normalise(x, 0.1) for {name}", normal, x.double() * right)
    x = random(2, 3, 8).double().requires_grad_()
    weight = random(8, seed=1).double().requires_grad_()
    g = random(2, 3, 8, seed=2)
    factor = torch.rsqrt(x.square().mean(-1, keepdim=True) + 0.1)
    out = weight * (x * factor)
    gradients = torch.autograd.grad(out, [x, weight], g.double())
    inputs = [tensor.detach().float() for tensor in (x * factor, factor, weight)]
    got = two(mine.norm_backward(g, *inputs), "norm_backward(g, normal, factor, weight)")
    for name, mine_of, right in zip(("x", "weight"), got, gradients, strict=True):
        same(f"norm_backward's gradient of {name}", mine_of, right)
    norm = mine.RMSNorm(8, 0.1)
    norm.weight.data.copy_(weight.detach())
    same("RMSNorm(8)(x)", norm(x.detach().float()), out.detach())
    return "You wrote a backward pass by hand, and it equals autograd's."


def two(got: Any, call: str) -> tuple[Tensor, Tensor]:
    is_pair = isinstance(got, tuple) and len(got) == 2
    assert is_pair, f"{call} must return two tensors, as in `return a, b`."
    return got


def mlp(mine: ModuleType) -> str:
    part = mine.MLP(6, 10)
    shapes = {name: tuple(weight.shape) for name, weight in part.named_parameters()}
    right = {"gate_proj.weight": (10, 6), "up_proj.weight": (10, 6), "down_proj.weight": (6, 10)}
    assert shapes == right, f"The parameters are {shapes}, and must be {right}."
    x = random(2, 3, 6).requires_grad_()
    out = part(x)
    gate, up, down = (weight.double() for weight in part.parameters())
    z = x.double() @ gate.T
    expected = (z * torch.sigmoid(z) * (x.double() @ up.T)) @ down.T
    same("MLP(6, 10)(x)", out, expected, lesson="silu acts on the gate alone.")
    (gradient,) = torch.autograd.grad(out.square().sum(), x)
    (right_one,) = torch.autograd.grad(expected.square().sum(), x)
    same("the gradient of MLP(6, 10)(x) for x", gradient, right_one, 1e-3)
    return "Two thirds of a layer's weights are in these three matrices."


def block(mine: ModuleType) -> str:
    for kv_heads, name in ((4, "MHA"), (2, "GQA"), (1, "MQA")):
        config = mine.Config(64, 32, 48, 1, 4, kv_heads, 8)
        ours = one_file.Layer(one_file_config(config))
        draw_weights(ours)
        layer = mine.Block(config)
        load(layer, ours.state_dict(), "Block")
        x = random(2, 6, 32)
        cos, sin, angle = turns(6, 8, config.rope_theta)
        mask = torch.ones(6, 6, dtype=torch.bool).tril()[None, None]
        call = f"SelfAttention(x) with {name}"
        right = ours.self_attn(x, cos, sin)
        same(call, layer.self_attn(x, angle, mask), right, lesson="Is something in another order?")
        right = ours(x, cos, sin)
        same(f"Block(x) with {name}", layer(x, angle, mask), right)
        cache = mine.KVCache()
        parts = [
            layer(x[:, begin:end], angle[begin:end], mask[:, :, begin:end, :end], cache)
            for begin, end in ((0, 3), (3, 4), (4, 6))
        ]
        lesson = "The cache keeps k and v after RoPE, and attention reads what `append` returns."
        same(f"Block(x) with {name} and a cache", torch.cat(parts, 1), right, lesson=lesson)
        assert cache.seen == 6, f"The cache has seen {cache.seen} tokens, and must have seen 6."
    config = mine.Config(64, 32, 48, 1, 4, 2, 8, qk_norm=False)
    attention = mine.SelfAttention(config)
    out = attention(x, angle, mask)
    ours.self_attn = one_file.Attention(one_file_config(config))
    ours.self_attn.q_norm = nn.Identity()
    ours.self_attn.k_norm = nn.Identity()
    ours.self_attn.load_state_dict(attention.state_dict())
    lesson = "Without QK-norm, q_norm and k_norm are None."
    same("SelfAttention(x) without QK-norm", out, ours.self_attn(x, cos, sin), lesson=lesson)
    return "This is a layer of Llama and of Qwen. A large model has more of them, not other ones."


def one_file_config(config: Any) -> one_file.Config:
    return one_file.Config(
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        attention="eager",
    )


def draw_weights(part: nn.Module) -> None:
    for i, weight in enumerate(part.parameters()):
        weight.data.copy_(random(*weight.shape, seed=i) / 4)


def load(part: nn.Module, weights: dict[str, Tensor], name: str) -> None:
    try:
        part.load_state_dict(weights)
    except RuntimeError as error:
        problem = " ".join(str(error).split())
        raise AssertionError(f"{name} has other weights than one_file.py: {problem}") from None


def turns(length: int, size: int, theta: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return cos and sin as one_file.py uses them, (T, D), and the angles, (T, D/2)."""
    frequencies = 1.0 / theta ** (torch.arange(0, size, 2, dtype=torch.float) / size)
    angle = torch.arange(length)[:, None].float() * frequencies
    sin = torch.cat((-angle.sin(), angle.sin()), -1)
    return angle.cos().repeat(1, 2), sin, angle


def loss(mine: ModuleType) -> str:
    call = "cross_entropy(logits, targets)"
    logits = torch.tensor([[2.0, 0, 1]])
    value, gradient = two(mine.cross_entropy(logits, torch.tensor([0])), call)
    same(f"the loss of {call} for the example", value, 0.40761)
    slope = torch.tensor([[-0.33476, 0.09003, 0.24473]])
    same(f"the gradient of {call} for the example", gradient, slope)
    logits = random(6, 5)
    targets = torch.tensor([0, 4, IGNORED, 2, 2, IGNORED])
    cases = {
        "random logits": (logits, targets),
        "logits around 1000": (logits + 1000, targets),
        "logits around -1000": (logits - 1000, targets),
        "rows around 0 and around 1000": (logits + torch.arange(6)[:, None] * 200, targets),
        "no place trained": (logits, torch.full((6,), IGNORED)),
    }
    for name, (x, labels) in cases.items():
        before = x.clone()
        value, gradient = two(mine.cross_entropy(x, labels), call)
        exact = x.double().requires_grad_()
        right = F.cross_entropy(exact, labels, reduction="sum", ignore_index=IGNORED)
        same(f"the loss of {call} for {name}", value, right.detach())
        problem = f"the loss of {call} is {value!r}, and must be a tensor of one number."
        assert isinstance(value, Tensor), problem
        (right_gradient,) = torch.autograd.grad(right, exact)
        same(f"the gradient of {call} for {name}", gradient, right_gradient)
        unchanged(call, "logits", x, before)
    hidden = random(700, 4).requires_grad_()
    head = random(5, 4, seed=1).requires_grad_()
    labels = torch.arange(700) % 5
    pair = [hidden, head]
    got = torch.autograd.grad(3 * mine.HeadLoss.apply(hidden, head, labels), pair)
    expected = 3 * F.cross_entropy(hidden @ head.T, labels, reduction="sum")
    for name, mine_of, right in zip(
        ("hidden", "head"), got, torch.autograd.grad(expected, pair), strict=True
    ):
        same(f"HeadLoss's gradient of {name}", mine_of, right, 1e-3)
    return "p - 1 at the right token, p elsewhere: this moves every weight of a language model."


def model(mine: ModuleType) -> str:
    config = mine.Config(64, 32, 48, 2, 4, 2, 8)
    lm = mine.MyModel(config)
    torch.manual_seed(shift())
    lm.initialise()
    check_first_weights(lm)
    ours = one_file.LanguageModel(one_file_config(config), 64)
    draw_weights(ours)
    load(lm, ours.state_dict(), "MyModel")
    ids = torch.randint(64, (2, 7), generator=generator(0))
    right = ours(ids)
    same("MyModel(ids)", lm(ids), right)
    targets = ids.roll(-1, 1)
    targets[:, -1] = IGNORED
    same("MyModel(ids, targets)", lm(ids, targets), ours(ids, targets).detach())
    caches = [mine.KVCache() for _ in range(2)]
    parts = [lm(ids[:, begin:end], caches=caches) for begin, end in ((0, 4), (4, 5), (5, 7))]
    lesson = "New tokens have the positions after the old ones, in the angles and in the mask."
    same("MyModel(ids, caches=caches) in pieces", torch.cat(parts, 1), right, lesson=lesson)
    tied = mine.MyModel(mine.Config(64, 32, 48, 1, 4, 2, 8, tie_word_embeddings=True))
    tied.initialise()
    is_tied = tied.lm_head.weight is tied.model.embed_tokens.weight
    problem = "With tie_word_embeddings, lm_head.weight is a matrix of its own"
    assert is_tied, f"{problem}, and must stay the table itself."
    spread = tied.lm_head.weight.std().item()
    problem = f"With tie_word_embeddings, the table has the spread {spread:.3f} after initialise"
    assert spread > 0.8, f"{problem}, and must keep its own: do not draw it a second time."
    return "Ids go in, logits come out. All that is left is to train it."


def check_first_weights(lm: Any) -> None:
    """Assert the spread of each initial weight. Chance moves the spread of 1,000 numbers by 5 %."""
    C = lm.config.hidden_size
    shared = lm.model.embed_tokens.weight.mean(0)
    for name, weight in lm.named_parameters():
        spread = weight.std(correction=0).item()
        if weight.ndim == 1:
            expected = 0.0
        elif name.endswith(("o_proj.weight", "down_proj.weight")):
            expected = 0.0
            assert weight.abs().max() == 0, f"After initialise, {name} must be 0 everywhere."
        elif "embed" in name:
            expected = 1.0
            spread = (weight - shared).std().item()
        elif name == "lm_head.weight":
            expected = 0.1 / math.sqrt(C)
        else:
            expected = 1 / math.sqrt(weight.shape[1])
        problem = (
            f"After initialise, {name} has the spread {spread:.3f}, and must have {expected:.3f}."
        )
        assert math.isclose(spread, expected, rel_tol=0.15, abs_tol=1e-6), problem
    size = shared.std().item()  # 64 rows of their own leave 1/8 of it
    problem = f"After initialise, the rows of the table share nothing (a mean of {size:.2f})"
    assert size > 0.5, f"{problem}, and must share one vector (C,): add it to all of them."


def batches(mine: ModuleType) -> str:
    cases = ((5, 2, 1), (40, 8, 2), (41, 8, 3), (6, 8, 2))
    for size, length, rows in cases:
        stream = np.arange(5, 5 + size)
        for seed in (0, 7 + shift()):
            call = f"batches(a stream of {size} ids, length={length}, rows={rows}, seed={seed})"
            config = one_file.Config(seed, length, tokens_per_step=length * rows)
            right = one_file.batches(stream, config)
            mine_of = islice(mine.batches(stream, length, rows, seed), 12)
            count = 0
            for count, (got, expected) in enumerate(zip(mine_of, right, strict=False), start=1):
                same(f"batch {count} of {call}", got, expected)
                kind = got.dtype
                assert kind == torch.int64, f"ids must be int64 (torch.long), not {kind}."
            assert count == 12, f"{call} ends after {count} batches, and must go on without end."
    pad, bos, eos = 0, 1, 2
    ids = torch.tensor([[5, 6, eos, bos, 7, pad], [bos, 8, 9, 10, 11, eos]])
    before = ids.clone()
    none = IGNORED
    expected = torch.tensor([[6, eos, none, 7, none, none], [8, 9, 10, 11, eos, none]])
    same("targets_of(ids)", mine.targets_of(ids), expected)
    unchanged("targets_of(ids)", "ids", ids, before)
    return "Every token is read once an epoch, and every run can be repeated."


class Tiny(nn.Module):
    """A model of two matrices, large enough to train."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Parameter(random(16, 8))
        self.head = nn.Parameter(random(16, 8, seed=1))
        self.bias = nn.Parameter(torch.zeros(16))
        self.targets: list[Tensor] = []

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        self.targets.append(targets)
        logits = self.embed[ids] @ self.head.T + self.bias
        return F.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), reduction="sum", ignore_index=IGNORED
        )


def loop(mine: ModuleType) -> str:
    training = mine.Training()
    for step, rate in ((0, 0.02), (49, 1.0), (299, 1.0), (500, 0.728), (999, 0.05)):
        got = mine.rate_at(step, training)
        same(f"rate_at({step}, Training())", got, rate, 1e-3)
    lesson = "max_steps 1 and warmup_steps 0 are allowed: divide by at least 1."
    one_step = mine.Training(max_steps=1)
    same("rate_at(0, Training(max_steps=1))", mine.rate_at(0, one_step), 0.02, 1e-6, lesson)
    no_warmup = mine.Training(warmup_steps=0)
    same("rate_at(0, Training(warmup_steps=0))", mine.rate_at(0, no_warmup), 1.0, 1e-6, lesson)
    both = mine.Training(max_steps=101, warmup_steps=100, cooldown=1.0, final_lr_fraction=0.0)
    lesson = "warmup and the rest are multiplied: (50 + 1) / 100 · (1 - 50 / 100)."
    call = "rate_at(50, a training that warms up and cools down at once)"
    same(call, mine.rate_at(50, both), 0.255, 1e-6, lesson)
    numbers = generator(1)
    stream = [torch.randint(1, 16, (4, 6), generator=numbers) for _ in range(9)]
    for i, ids in enumerate(stream):
        ids[i % 3 :, 2:] = 0  # padding, so that batches have different numbers of targets
    # AdamW forgets the size of all gradients. Where none is clipped, only a mean is right.
    for grad_clip in (1e3, 1.0, 0.05):
        training = mine.Training(max_steps=6, warmup_steps=2, grad_clip=grad_clip)
        lm = Tiny()
        given = iter(stream)
        losses = mine.train(lm, given, training)
        expected_lm = Tiny()
        right = reference_losses(mine, expected_lm, stream, training)
        call = f"train(…, Training(max_steps=6, grad_clip={grad_clip}))"
        assert isinstance(losses, list), f"{call} must return a list."
        assert len(losses) == 6, f"{call} returns {len(losses)} losses, and must return 6."
        is_number = all(isinstance(loss, float) for loss in losses)
        assert is_number, f"{call} must return numbers: float(…) of each loss."
        for step, (got, value) in enumerate(zip(losses, right, strict=True)):
            same(f"the loss of step {step} of {call}", got, value, 1e-5)
        for key, weight in expected_lm.named_parameters():
            got_one = dict(lm.named_parameters())[key].detach()
            same(f"{key} after {call}", got_one, weight.detach(), 1e-5)
        left = len(list(given))
        assert left == 3, f"{call} takes {9 - left} batches, and must take 6."
    return "Forward, backward, clip, step: you have seen all of it."


def reference_losses(
    mine: ModuleType, lm: Tiny, stream: list[Tensor], training: Any
) -> list[float]:
    optimizer = mine.optimizer_of(lm, training)
    losses = []
    for step in range(training.max_steps):
        targets = F.pad(stream[step][:, 1:], (0, 1), value=IGNORED)
        targets = targets.masked_fill(targets <= 1, IGNORED)
        trained = int((targets != IGNORED).sum())
        mean = lm(stream[step], targets) / trained
        optimizer.zero_grad()
        mean.backward()
        nn.utils.clip_grad_norm_(lm.parameters(), training.grad_clip)
        warmup = min(1.0, (step + 1) / max(1, training.warmup_steps))
        shape = min(1.0, (1 - step / max(1, training.max_steps - 1)) / training.cooldown)
        final = training.final_lr_fraction
        for group in optimizer.param_groups:
            group["lr"] = warmup * (final + (1 - final) * shape) * group["highest"]
        optimizer.step()
        losses.append(mean.item())
    return losses


CHECKS = {
    "tokenizer": tokenizer,
    "embedding": embedding,
    "rmsnorm": rmsnorm,
    "mlp": mlp,
    "block": block,
    "loss": loss,
    "model": model,
    "batches": batches,
    "loop": loop,
}
