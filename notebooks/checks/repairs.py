"""Check the repaired notes of notebooks 10 and 10b, by computing what they must give."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from eval.load_model import open_model
from model import LanguageModel, ModelConfig
from model.kv_cache import KVCache
from notebooks.checks.compare import same, shape_of
from notebooks.checks.examples import random
from storyworld import tell

Function = Callable[..., Any]
PLACES = ((64, 128), (256, 384), (768, 1023))  # of a text: inside, and far beyond the trained 128
KERNELS = ("flash", "mem_efficient", "math", "cudnn")
SMALL = {"vocab_size": 64, "hidden_size": 96, "num_attention_heads": 6, "head_dim": 16}


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return causal attention in float64. The T queries are the last of S tokens."""
    T, S = q.shape[2], k.shape[2]
    scores = q.double() @ k.double().mT / q.shape[-1] ** 0.5
    hidden = ~torch.ones(T, S, dtype=torch.bool).tril(S - T)
    return scores.masked_fill(hidden, -torch.inf).softmax(dim=-1) @ v.double()


# --------------------------------------------------------------------------------------------------
# Notebook 10


def merge_heads(merge: Function) -> None:
    for shape in ((1, 2, 3, 2), (2, 3, 5, 4)):
        out = random(*shape)
        tokens = [torch.cat(out[:, :, t].unbind(1), dim=-1) for t in range(shape[2])]
        expected = torch.stack(tokens, dim=1)  # (B, T, H * D)
        same(f"merge_heads(out), out of the shape {shape}", merge(out), expected)


def repeat_heads(repeat: Function) -> None:
    x = random(2, 3, 5, 4)
    for groups in (2, 1, 4):
        expected = torch.stack([x[:, head // groups] for head in range(3 * groups)], dim=1)
        same(f"repeat_heads(x, {groups}), x of 3 heads", repeat(x, groups), expected)


def hide_padding(hide: Function) -> None:
    for B, H, T in ((2, 3, 5), (4, 3, 4), (4, 4, 4), (1, 4, 3)):
        scores = random(B, H, T, T)
        real = torch.ones(B, T, dtype=torch.bool)
        for text in range(B):
            real[text, : text % T] = False
        expected = scores.clone()
        for text, key in (~real).nonzero().tolist():
            expected[text, :, :, key] = -torch.inf
        call = f"hide_padding(scores, real) with {B} texts, {H} heads and {T} tokens"
        same(call, hide(scores, real), expected)


def rotate_pairs(rotate: Function) -> None:
    for B, T, H in ((2, 5, 3), (1, 4, 4), (3, 3, 2)):
        x = random(B, T, H, 6)
        angles = random(T, 3, seed=1)
        cos = angles.cos()[:, None]  # (T, 1, D / 2)
        sin = angles.sin()[:, None]
        a = x[..., 0::2]
        b = x[..., 1::2]
        expected = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
        same(f"rotate_pairs(x, angles), x of the shape {(B, T, H, 6)}", rotate(x, angles), expected)


def tiled_order(order: Function) -> None:
    for H, H_kv in ((4, 2), (6, 2), (6, 3), (8, 1), (4, 4)):
        call = f"tiled_order({H}, {H_kv})"
        new = order(H, H_kv)
        same(f"{call}, sorted", new and sorted(new), list(range(H)))
        reads = [head % H_kv for head in new]  # the key/value heads, when they are tiled
        expected = [place * H_kv // H for place in range(H)]
        same(f"what the heads of {call} read", reads, expected)


def masked_in_time(attend: Function) -> None:
    q, k, v = (random(2, 4, 5, 8, seed=seed) for seed in range(3))
    same("masked_in_time(q, k, v)", attend(q, k, v), causal(q, k, v))
    k[:, :, -1] *= 1000  # only the last token may see it
    call = "masked_in_time(q, k, v) where the scores of the last key are 1,000 times as large"
    same(call, attend(q, k, v), causal(q, k, v))


def scaled_scores(scores: Function) -> None:
    for D in (16, 4, 64):
        q = random(2, 3, 5, D)
        k = random(2, 3, 7, D, seed=1)
        same(f"scaled_scores(q, k) for heads of {D} numbers", scores(q, k), q @ k.mT / D**0.5)


def over_keys(weights: Function) -> None:
    for shape in ((2, 3, 5, 5), (2, 5, 7), (4, 6)):
        powers = random(*shape).exp()
        expected = powers / powers.sum(-1, keepdim=True)
        same(f"over_keys(scores), scores of the shape {shape}", weights(random(*shape)), expected)


# --------------------------------------------------------------------------------------------------
# Notebook 10b


def trim_cache(trim: Function) -> None:
    cache = random(2, 3, 5, 4)
    for keep in (3, 1, 0, 5, 7):
        expected = cache[:, :, 5 - min(keep, 5) :]
        same(f"trim_cache(cache, {keep}), cache of 5 tokens", trim(cache, keep), expected)


def behind_a_cache(attend: Function) -> None:
    k = random(3, 4, 6, 8, seed=1)
    v = random(3, 4, 6, 8, seed=2)
    for queries in (6, 1, 2, 3):
        q = random(3, 4, queries, 8)
        call = f"behind_a_cache(q, k, v) with {queries} queries and 6 keys"
        same(call, attend(q, k, v), causal(q, k, v))


def soft_weights(weights: Function) -> None:
    allowed = torch.ones(2, 1, 6, 6, dtype=torch.bool).tril()
    allowed[1, :, :, :2] = False  # padding on the left: rows 0 and 1 of text 1 see nothing
    dtypes = ((torch.float32, 1e-5), (torch.float16, 2e-3), (torch.bfloat16, 2e-2))
    for (dtype, tolerance), size in itertools.product(dtypes, (1, 4000)):
        scores = (size * (random(2, 4, 6, 6) - 3)).to(dtype)
        expected = scores.double().masked_fill(~allowed, -torch.inf).softmax(-1).nan_to_num(0.0)
        call = f"soft_weights(scores, allowed), scores in {dtype} around {-3 * size}"
        same(call, weights(scores, allowed), expected, tolerance)


def mix_pieces(mix: Function) -> None:
    scores = random(4, 6)
    steps = torch.arange(6) // 2  # the number of each key's piece
    hidden = scores.masked_fill(steps == 0, -torch.inf)
    cases = {
        "around 0": scores,
        "around 1,000": scores + 1000,
        "around -1,000": scores - 1000,
        "rising by 200 from piece to piece": scores + 200 * steps,
        "falling by 200 from piece to piece": scores - 200 * steps,
        "around 0 and 1,000 in different rows": scores + torch.tensor([0, 1000, 0, 1000])[:, None],
        "1,000 apart in one piece": scores + 1000 * (torch.arange(6) % 2),
        "hidden in the first piece": hidden,
        "hidden in the first piece, around -1,000 in the others": hidden - 1000,
        "hidden in the middle": scores.masked_fill(steps == 1, -torch.inf),
    }
    values = random(6, 3, seed=1)
    for name, case in cases.items():
        expected = case.double().softmax(dim=1) @ values.double()
        pieces = list(zip(case.split(2, dim=1), values.split(2), strict=True))
        same(f"mix_pieces(pieces), scores {name}", mix(pieces), expected)


def long_texts(run: Path, window: int | None = None) -> tuple[LanguageModel, Tensor]:
    """Return a run's model, which now accepts 1,024 tokens, and texts of that length (4, 1024).

    - window: every layer sees only so many tokens
    """
    lm, tokenizer = open_model(run, "cpu")
    others = {"max_position_embeddings": 1024, "sliding_window": window, "layer_types": None}
    longer = LanguageModel(ModelConfig.model_validate(lm.config.model_dump() | others))
    longer.load_state_dict(lm.state_dict())
    ids: list[int] = []
    index = 0
    while len(ids) < 4 * 1024:  # stories that were held out of training, one after the other
        ids += [tokenizer.bos_id, *tokenizer.encode(tell(0, index, "validation").text)]
        index += 1
    return longer.eval(), torch.tensor(ids[: 4 * 1024]).view(4, 1024)


def loss_by_place(lm: LanguageModel, ids: Tensor, frequencies: Tensor | None = None) -> Tensor:
    """Return the mean loss at PLACES of texts (B, 1024). frequencies: of RoPE, (D / 2,)."""
    rope = lm.model.rotary_emb
    usual = rope.inv_freq
    try:
        if frequencies is not None:
            rope.inv_freq = frequencies.to(usual)
        with torch.no_grad():
            logits = lm(ids)[:, :-1]
    finally:
        rope.inv_freq = usual
    losses = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    losses = losses.view(len(ids), -1).mean(dim=0)
    return torch.stack([losses[start:end].mean() for start, end in PLACES])


def stretched_frequencies(D: int, trained: int, longest: int) -> Tensor:
    """Return frequencies of RoPE (D / 2,) whose angles up to `longest` are those of training."""
    usual = 10_000 ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)
    turns = usual * trained / (2 * torch.pi)
    return torch.where(turns >= 1, usual, usual * trained / longest)


def stretched(function: Function, lm: LanguageModel, ids: Tensor) -> None:
    """Compare frequencies, then read long texts with them."""
    for D, trained, longest in ((32, 128, 1024), (64, 256, 1024), (32, 2048, 8192), (8, 16, 16)):
        expected = stretched_frequencies(D, trained, longest)
        call = f"stretched({D}, {trained}, {longest})"
        got = function(D, trained, longest)
        shape_of(call, got, expected.shape)
        # a slow frequency is small: compare its angle at the end
        same(f"the angles of {call} at token {longest}", got * longest, expected * longest, 1e-3)
    losses = loss_by_place(lm, ids, function(32, 128, 1024))
    before = loss_by_place(lm, ids)
    assert losses[-1] < before[-1], f"The loss at the end is {losses[-1]:.2f}, not lower."


class Operations(TorchDispatchMode):
    """Collect the names of PyTorch's operations."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(str(func))
        return func(*args, **(kwargs or {}))


def by_kernel(function: Function) -> None:
    q, k, v = (random(2, 4, 6, 8, seed=seed) for seed in range(3))
    for name in ("math", "flash", "math"):
        call = f'by_kernel(q, k, v, "{name}")'
        with warnings.catch_warnings(record=True) as caught, Operations() as operations:
            warnings.simplefilter("always")
            result = kept_free(call, partial(function, q, k, v, name))
        old = [str(one.message) for one in caught if issubclass(one.category, FutureWarning)]
        assert not old, f"{call} works, but PyTorch answers: {old[0].split('. ')[0]}."
        used = "flash" if any("flash" in each for each in operations.names) else "math"
        assert used == name, f"{call} has used the {used} kernel."
        same(call, result, causal(q, k, v))
    call = 'by_kernel(q, k, v, "math"), which stops because k does not fit q,'
    try:
        kept_free(call, partial(function, q, k[..., :4], v, "math"))
    except AssertionError:
        raise
    except Exception:  # the reader's code may raise anything here
        pass


def kept_free(call: str, function: Callable[[], Any]) -> Any:
    """Return what a call gives. Raises AssertionError if it leaves a kernel switched off."""
    switches = torch.backends.cuda
    before = {name: getattr(switches, f"{name}_sdp_enabled")() for name in KERNELS}
    try:
        return function()
    finally:
        after = {name: getattr(switches, f"{name}_sdp_enabled")() for name in KERNELS}
        for name, value in before.items():
            getattr(switches, f"enable_{name}_sdp")(value)
        off = [name for name in KERNELS if after[name] != before[name]]
        # inside `finally`, so that it also replaces the error of a call that stops
        assert not off, f"{call} leaves the switch of the {off[0]} kernel changed."


def cache_of_a_token(cache: Function) -> None:
    llama_2 = (32, 32, 32, 128), (40, 40, 40, 128), (80, 64, 8, 128)  # Touvron et al. 2023
    for sizes in (*llama_2, (32, 32, 8, 128), (32, 32, 1, 128), (2, 6, 3, 16)):
        layers, heads, kv_heads, head_dim = sizes
        numbers = torch.empty(layers, 2, kv_heads, head_dim, dtype=torch.bfloat16, device="meta")
        expected = numbers.nbytes, 100 * kv_heads / heads
        same(f"cache_of_a_token{sizes}", cache(*sizes), expected, 1e-3)


def real_cache(config: ModelConfig, tokens: int) -> int:
    """Return the bytes of a cache in bfloat16 after a model has read so many tokens."""
    model = LanguageModel(config).bfloat16().eval()
    cache = KVCache(config)
    with torch.no_grad():
        model(torch.zeros(1, tokens, dtype=torch.long), kv_cache=cache)
    return cache.nbytes


def tokens_that_fit(function: Function) -> None:
    shapes = [
        {"num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2},
        {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4},
        {"num_hidden_layers": 1, "num_attention_heads": 8, "num_key_value_heads": 1},
        {"num_hidden_layers": 2, "num_key_value_heads": 3, "head_dim": 20},
    ]
    for shape in shapes:
        config = ModelConfig.model_validate(SMALL | shape)
        size = real_cache(config, 5) // 5
        heads = f"{config.num_attention_heads} query, {config.num_key_value_heads} key/value heads"
        layers = f"{config.num_hidden_layers} layers"
        for memory in (5 * size, 5 * size - 1, size - 1, 1000 * size + 7):
            call = f"tokens_that_fit(config, {memory}) of {layers}, {heads} of {config.head_size}"
            same(call, function(config, memory), memory // size, 1e-9)


def example_layer(norm: str) -> tuple[Tensor, tuple[Any, ...], Tensor]:
    """Return x (B, T, C), the parts (attention, mlp, norm1, norm2) of a layer, and what it returns.

    - norm: "before" or "after", as norm_position in our configs; "sum" is PyTorch's own layer of
      the original transformer, with norm_first=False
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        x = 3 * torch.randn(2, 5, 96)
        if norm == "sum":
            layer: Any = nn.TransformerEncoderLayer(96, 6, 64, dropout=0.0, batch_first=True).eval()
            noise(layer)

            def attention(x: Tensor) -> Tensor:
                return layer.self_attn(x, x, x, need_weights=False)[0]

            def mlp(x: Tensor) -> Tensor:
                return layer.linear2(layer.linear1(x).relu())

            return x, (attention, mlp, layer.norm1, layer.norm2), layer(x)
        shape = {"num_hidden_layers": 1, "norm_position": norm, "qk_norm": "whole"}
        lm = LanguageModel(ModelConfig.model_validate(SMALL | shape)).eval()
        noise(lm)
        ours: Any = lm.model.layers[0]
        others: list[Any] = []
        hook = ours.register_forward_pre_hook(lambda layer, args: others.extend(args[1:5]))
        lm(torch.zeros(2, 5, dtype=torch.long))
        hook.remove()
        norms = [part for name, part in ours.named_children() if name.endswith("layernorm")]

        def our_attention(x: Tensor) -> Tensor:
            return ours.self_attn(x, *others)

        return x, (our_attention, ours.mlp, *norms), ours(x, *others)[0]


def noise(part: nn.Module) -> None:
    """Fill all weights with random numbers, so that no part and no norm is without effect."""
    for weight in part.parameters():
        weight.normal_(1.0 if weight.ndim == 1 else 0.0, 0.3)


def layer_step(step: Function) -> None:
    for norm in ("before", "after", "sum"):
        x, parts, expected = example_layer(norm)
        with torch.no_grad():
            call = f'layer_step("{norm}", x, attention, mlp, norm1, norm2)'
            same(call, step(norm, x, *parts), expected)
