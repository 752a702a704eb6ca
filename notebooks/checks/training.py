"""The checks of the exercises on tokens, sampling and training. Each compares with a formula in float64 or with plain
Python, and then with Headlight's own code or a library."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from statistics import fmean, stdev
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from data.chat import TRAINED, encode_conversations
from data.config import TokenizerConfig
from data.reading.records import conversation_of
from data.tokenizer import BYTES, SPECIAL_TOKENS, train_tokenizer
from model import LanguageModel, ModelConfig
from model.generation import Sampling, next_token
from model.variants.config import LoraConfig
from model.variants.lora import LoraLinear, adapted, add_adapters, merge
from notebooks.checks.compare import same
from storyworld.conversations import converse, interview
from storyworld.story import tell
from train.dpo import preference_loss as headlights_preference_loss
from train.grpo import advantages
from train.methods.config import DPOConfig
from train.optimizer import Muon, orthogonalize

Pair = tuple[str, str]


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Random numbers, the same ones for the same seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# ---------------------------------------------------------------------------------------------------------
# sampling


def sampling(mine: ModuleType) -> str:
    example, other, tied = [0.5, 0.3, 0.15, 0.05], [0.1, 0.2, 0.3, 0.4], [0.4, 0.2, 0.2, 0.2]
    cases: list[tuple[list[list[float]], dict[str, Any]]] = [
        ([example], {}),
        ([example], {"temperature": 0.5}),
        ([other], {"temperature": 0}),
        ([other], {"temperature": 0, "top_k": 2, "top_p": 0.6}),
        ([example], {"top_k": 2}),
        ([example], {"top_k": 9}),
        ([tied], {"top_k": 2}),
        ([example], {"top_p": 0.6}),
        ([other], {"top_p": 0.6}),
        ([example], {"top_p": 1e-6}),
        ([example], {"top_p": 1.0}),
        ([example], {"top_k": 2, "top_p": 0.6}),
        ([other], {"temperature": 2.0, "top_k": 3, "top_p": 0.6}),
        ([example, other, tied], {"temperature": 0.7, "top_k": 3, "top_p": 0.6}),
        ([example, other], {"temperature": 0}),
    ]
    for rows, settings in cases:
        named = "".join(f", {name}={value}" for name, value in settings.items())
        same_shares(mine, f"probabilities(ln {rows}{named})", torch.tensor(rows).log(), settings)
    same_shares(mine, "probabilities([[1000, 999, 990]])", torch.tensor([[1000.0, 999.0, 990.0]]), {})
    close, lesson = torch.tensor([[1e-4, 0.0, -1e-4]]), "Only 0 is greedy: a small temperature divides, too."
    cold = {"temperature": 1e-4}
    same_shares(mine, "probabilities([[0.0001, 0, -0.0001]], temperature=0.0001)", close, cold, lesson)

    # rows as a model writes them, and Headlight's own function
    logits, settings = 3 * normal(64, 50).float(), {"temperature": 0.8, "top_k": 20, "top_p": 0.9}
    what = "probabilities(64 rows of 50 logits, temperature=0.8, top_k=20, top_p=0.9)"
    same_shares(mine, what, logits, settings)
    _, own = next_token(logits, torch.zeros(64, 1, dtype=torch.long), Sampling(**settings), torch.Generator())
    assert own is not None
    same(f"{what} (beside model/generation.py)", mine.probabilities(logits, **settings), own / own.sum(1, keepdim=True))

    # drawing: up to chance, the shares are the probabilities
    draws, rows_of_two = 20_000, torch.tensor([[0.5, 0.3, 0.15, 0.05, 0.0], [0.0, 0.1, 0.2, 0.3, 0.4]])

    def drawn(seed: int) -> Any:
        return mine.sample(rows_of_two.repeat(draws, 1), torch.Generator().manual_seed(seed))

    before, ids, what = torch.random.get_rng_state(), drawn(0), f"sample({2 * draws} rows of 5, generator)"
    assert isinstance(ids, Tensor), f"{what} is a {type(ids).__name__}, and must be a tensor of ids."
    assert ids.shape == (2 * draws,), f"{what} has the shape {tuple(ids.shape)}, and must have ({2 * draws},)."
    assert not ids.is_floating_point(), f"{what} holds {ids.dtype}, and must hold ids, which are whole numbers."
    assert set(ids.tolist()) <= set(range(5)), f"{what} has ids from {ids.min()} to {ids.max()}, of 5 tokens."
    for row, wanted in enumerate(rows_of_two):
        found = ids[row::2].bincount(minlength=5) / draws
        chance = 5 * (wanted * (1 - wanted) / draws).sqrt()  # five standard deviations; 0 for what is never drawn
        sentence = f"draws the tokens with the shares {shown(found)} where their probabilities are {shown(wanted)}."
        assert bool(((found - wanted).abs() <= chance).all()), f"{what} {sentence}"
    is_given = torch.equal(drawn(0), ids) and not torch.equal(drawn(1), ids)
    is_given &= torch.equal(torch.random.get_rng_state(), before)
    assert is_given, "sample takes its chance from elsewhere: the generator that is given must decide all draws."
    return "These lines choose every token of a chat: greedily, with a temperature, from the top of the list."


def same_shares(mine: ModuleType, what: str, logits: Tensor, settings: dict[str, Any], lesson: str = "") -> None:
    before = logits.clone()
    wanted = torch.tensor([shares(row, **settings) for row in logits.double().tolist()], dtype=torch.float64)
    same(what, mine.probabilities(logits, **settings), wanted, lesson=lesson)
    assert torch.equal(logits, before), f"{what} changes the logits themselves: compute a new tensor."


def shares(
    logits: Sequence[float], temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
) -> list[float]:
    """What each token is drawn with, by the definition."""
    if temperature == 0:
        return [float(i == logits.index(max(logits))) for i in range(len(logits))]
    weights = [math.exp((logit - max(logits)) / temperature) for logit in logits]
    kth = sorted(weights, reverse=True)[: top_k or len(weights)][-1]
    weights = [weight if weight >= kth else 0.0 for weight in weights]
    kept, reached = set[int](), 0.0
    for i in sorted(range(len(weights)), key=lambda i: -weights[i]):
        if top_p is None or reached < top_p:
            kept.add(i)
        reached += weights[i] / sum(weights)
    return [weight / sum(weights[j] for j in kept) if i in kept else 0.0 for i, weight in enumerate(weights)]


def shown(numbers: Tensor) -> str:
    return ", ".join(f"{number:.4g}" for number in numbers.tolist())


# ---------------------------------------------------------------------------------------------------------
# bpe


def bpe(mine: ModuleType) -> str:
    for tokens, pair, joined in [
        ("abcab", ("a", "b"), ["ab", "c", "ab"]),
        ("aaa", ("a", "a"), ["aa", "a"]),
        ("aaaa", ("a", "a"), ["aa", "aa"]),
        ("abc", ("b", "a"), ["a", "b", "c"]),
        (["ba", "b"], ("a", "b"), ["ba", "b"]),  # whole tokens, not parts of them
    ]:
        got = mine.joined(list(tokens), pair)
        assert got == joined, f"joined({list(tokens)}, {pair}) is {got}, and must be {joined}."
    cases: list[tuple[dict[str, int], str, list[Pair]]] = [
        ({"abc": 3, "bc": 2, "ab": 2}, "abc", [("a", "b"), ("ab", "c")]),
        ({"ab": 1, "cd": 5, "c": 9}, "abcd", [("c", "d")]),  # as often as the word occurs
        ({"cb": 2, "ab": 2}, "abc", [("a", "b")]),  # a tie: neither the first one seen
        ({"ab": 1, "ba": 1}, "ba", [("b", "a")]),  # nor the first one of the alphabet
        ({"aaa": 1, "ba": 1, "b": 3}, "ab", [("a", "a")]),  # counted twice in aaa
    ]
    for words, letters, merges in cases:
        call = f"train({words}, {list(letters)}, {len(merges)})"
        same_merges(call, mine.train(words, list(letters), len(merges)), merges)
    same_merges("train({'ab': 1}, ['a', 'b'], 9)", mine.train({"ab": 1}, ["a", "b"], 9), [("a", "b")])
    for word, merges, ids in [
        ("abcb", [("a", "b"), ("ab", "c")], [4, 1]),
        ("", [("a", "b")], []),
        ("abc", [("b", "c"), ("a", "b")], [0, 3]),  # not from left to right: the merge that was learned first
        ("abcbc", [("b", "c"), ("bc", "bc"), ("a", "bc")], [0, 4]),
    ]:
        got = [*mine.encode(word, ["a", "b", "c"], merges)]
        assert got == ids, f"encode({word!r}, ['a', 'b', 'c'], {merges}) is {got}, and must be {ids}."

    # as the library learns from stories of the built-in world
    backend, words, merges = from_stories()
    vocabulary = [*SPECIAL_TOKENS, *sorted(BYTES)]
    learned = mine.train(words, vocabulary, len(merges))
    same_merges(f"train({len(words)} words of stories, {len(vocabulary)} letters, {len(merges)})", learned, merges)
    for word in words:
        got, ids = [*mine.encode(word, vocabulary, merges)], [token.id for token in backend.model.tokenize(word)]
        assert got == ids, f"encode({word!r}) with {len(merges)} merges is {got}, and must be {ids}."
    return f"Your {len(merges)} merges, and the ids of {len(words)} words, are those of the library `tokenizers`."


def same_merges(what: str, got: Any, wanted: list[Pair]) -> None:
    assert isinstance(got, list), f"{what} is a {type(got).__name__}, and must be a list of pairs."
    for i, (learned, pair) in enumerate(zip(got, wanted, strict=False)):
        assert learned == pair, f"{what} learns {learned} as merge {i + 1}, and must learn {pair}."
    assert len(got) == len(wanted), f"{what} learns {len(got)} merges, and must learn {len(wanted)}."


@cache
def from_stories() -> tuple[Any, dict[str, int], list[Pair]]:
    """The library's tokenizer, trained on stories; how often each word occurs in them; the merges that it learned."""
    texts = [tell(0, i).text for i in range(30)]
    backend = train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=384), texts).backend
    words = Counter(word for text in texts for word, _ in backend.pre_tokenizer.pre_tokenize_str(text))
    return backend, dict(words), [tuple(pair) for pair in json.loads(backend.to_str())["model"]["merges"]]


# ---------------------------------------------------------------------------------------------------------
# label_mask


def label_mask(mine: ModuleType) -> str:
    user, header, end = [1, 4, 3, 6, 2, 3], [1, 5, 3], 2  # the ids of the exercise's text
    for what, parts in {
        "one answer": [[0, *user, *header], [7, 8, 2], [3]],
        "two answers": [[0, *user, *header], [7, 2], [3, *user, *header], [8, 7, 2], [3]],
        "an answer that is cut off": [[0, *user, *header], [7, 8]],
        "a header that is cut off": [[0, *user, 1, 5]],
        "nothing behind the header": [[0, *user, *header]],
        "an empty answer": [[0, *user, *header], [2], [3, *user]],
        "a user who writes `assistant` and a line end": [[0, 1, 4, 3, 5, 3, 6, 2, 3, *header], [7, 2], [3]],
        "an assistant who writes `assistant` and a line end": [[0, *user, *header], [7, 5, 3, 8, 2], [3]],
        "nobody but a user": [[0, *user]],
    }.items():  # what is trained is every second part
        trained = [place % 2 == 1 for place, part in enumerate(parts) for _ in part]
        same_labels(mine, what, [token for part in parts for token in part], trained, header, end, str)

    # as Headlight prepares conversations of the built-in world
    records = [make(0, i) for i in range(20) for make in (converse, interview)]
    tokenizer = train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=448), [tell(0, i).text for i in range(10)])
    header, end = [tokenizer.special_id("<|im_start|>"), *tokenizer.encode("assistant\n")], tokenizer.turn_end or 0
    answers = 0
    for i, (ids, flags) in enumerate(encode_conversations(tokenizer, [conversation_of(record) for record in records])):
        trained = [bool(flag & TRAINED) for flag in flags]
        answers += sum(ids[place] == end for place in range(len(ids)) if trained[place])
        what, name = f"conversation {i} of the built-in world", lambda token: repr(tokenizer.token_labels([token])[0])
        same_labels(mine, what, ids, trained, header, end, name)
    return (
        f"In {len(records)} conversations you train the {answers} answers that data/chat.py trains, and nothing else."
    )


def same_labels(
    mine: ModuleType, what: str, ids: list[int], trained: list[bool], header: list[int], end: int, name: Callable
) -> None:
    got = mine.label_mask(list(ids), list(header), end)
    what += f" ({ids if len(ids) < 25 else f'{len(ids)} ids'})"
    assert got is not None, f"{what}: label_mask returns None: is there a `return`?"
    got = got.tolist() if isinstance(got, Tensor) else [*got]
    assert len(got) == len(ids), f"{what}: there are {len(got)} labels, and must be {len(ids)}."
    for place, (label, token, keep) in enumerate(zip(got, ids, trained, strict=True)):
        wanted = token if keep else -100
        where = f"the label at place {place}, where the token is {name(token)},"
        assert label == wanted, f"{what}: {where} is {label}, and must be {wanted}."


# ---------------------------------------------------------------------------------------------------------
# lora


def lora(mine: ModuleType) -> str:
    identity = torch.eye(2, dtype=torch.float64)
    a, b, x = torch.tensor([[1.0, 1.0]]).double(), torch.tensor([[1.0], [0.0]]).double(), torch.tensor([3.0, 4.0])
    example = "with the W, A, B of the text and alpha=2"
    wanted = torch.tensor([17.0, 4.0])
    same(f"adapted(x = (3, 4)) {example}", mine.adapted(x.double()[None], identity, a, b, 2.0), wanted[None])
    wanted = torch.tensor([[3.0, 2.0], [0.0, 1.0]])
    same(f"merged {example}", mine.merged(identity, a, b, 2.0), wanted)

    # 5 in, 7 out, rank 3
    x, weight, a, b = normal(2, 4, 5), normal(7, 5, seed=1), normal(3, 5, seed=2), normal(7, 3, seed=3)
    sizes, before = "with 5 in, 7 out, r=3 and alpha=8", weight.clone()
    whole = weight + torch.einsum("or,ri->oi", b, a) * 8 / 3
    outputs = torch.einsum("bti,oi->bto", x, whole)
    same(f"adapted {sizes}", mine.adapted(x, weight, a, b, 8.0), outputs, 1e-9)
    same(f"merged {sizes}", mine.merged(weight, a, b, 8.0), whole, 1e-9)
    same(f"adapted {sizes} and B = 0", mine.adapted(x, weight, a, 0 * b, 8.0), x @ weight.T, 1e-9)
    assert torch.equal(weight, before), "the frozen weight has changed: compute a new tensor (not weight += …)."

    # every matrix of a small model of Headlight's
    torch.manual_seed(0)
    config = ModelConfig(vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=4)
    lm, layers = LanguageModel(config), dict[str, tuple[LoraLinear, Tensor]]()
    add_adapters(lm, LoraConfig(rank=4, alpha=6.0))
    for name, layer in adapted(lm).items():
        nn.init.normal_(layer.lora_B.weight, std=0.2)  # a trained one is not 0
        own = layer.weight.detach(), layer.lora_A.weight.detach(), layer.lora_B.weight.detach(), 6.0
        x = torch.randn(2, 3, layer.in_features)
        same(f"adapted for {name} of a model", mine.adapted(x, *own), layer(x).detach())
        layers[name] = layer, mine.merged(*own)
    merge(lm)
    for name, (layer, got) in layers.items():
        same(f"merged for {name} of a model", got, layer.weight.detach())
    return (
        f"Your adapters compute what model/variants/lora.py computes in {len(layers)} matrices, and merge as it merges."
    )


# ---------------------------------------------------------------------------------------------------------
# preference_loss


def preference_loss(mine: ModuleType) -> str:
    example = [torch.tensor([x]) for x in (-20.0, -30.0, -24.0, -24.0)]
    text = "chosen=-20, rejected=-30, reference_chosen=-24, reference_rejected=-24, beta=0.1"
    same(f"preference_loss({text})", mine.preference_loss(*example, 0.1), torch.tensor([0.31326]))
    push = torch.tensor([0.026894])
    same_all(f"gradient({text})", slopes(-push, push), mine.gradient(*example, 0.1), 1e-6)
    at_first = [torch.tensor([-20.0, -3.0]), torch.tensor([-30.0, -40.0])] * 2
    call = "preference_loss of two pairs at the first step, where the model is the reference"
    same(call, mine.preference_loss(*at_first, 0.1), torch.tensor([math.log(2)] * 2))

    # six pairs: the definition in float64, Headlight's own, and the slope of the reader's loss
    four, beta, step = [20 * normal(6, seed=seed) - 40 for seed in range(4)], 0.05, 1e-4
    chosen, rejected, reference_chosen, reference_rejected = four
    margins = [beta * m for m in ((chosen - reference_chosen) - (rejected - reference_rejected)).tolist()]
    losses = torch.tensor([math.log1p(math.exp(-margin)) for margin in margins], dtype=torch.float64)
    got = mine.preference_loss(*four, beta)
    same("preference_loss of six pairs", got, losses, 1e-9)
    ratios = torch.cat([chosen - reference_chosen, rejected - reference_rejected])
    own = headlights_preference_loss(ratios, torch.ones(12), DPOConfig(beta=beta))
    same("preference_loss of six pairs (beside train/dpo.py)", got, own, 1e-9)

    def slope(which: int) -> Tensor:
        up, down = ([x + sign * step * (i == which) for i, x in enumerate(four)] for sign in (1, -1))
        return (mine.preference_loss(*up, beta) - mine.preference_loss(*down, beta)) / (2 * step)

    call = "gradient of six pairs (beside the slope of your loss: two losses 0.0002 apart)"
    same_all(call, slopes(slope(0), slope(1)), mine.gradient(*four, beta), 1e-6)

    far = [torch.tensor([0.0, -2000.0]), torch.tensor([-2000.0, 0.0]), torch.zeros(2), torch.zeros(2)]
    call = "of two float32 pairs with margins of 200 and -200"
    same(f"preference_loss {call}", mine.preference_loss(*far, 0.1), torch.tensor([0.0, 200.0]))
    push = torch.tensor([0.0, 0.1])
    same_all(f"gradient {call}", slopes(-push, push), mine.gradient(*far, 0.1), 1e-6)
    return "Your loss is that of train/dpo.py, and its slope is your gradient."


def slopes(chosen: Tensor, rejected: Tensor) -> dict[str, Tensor]:
    return {"d loss / d chosen": chosen, "d loss / d rejected": rejected}


# ---------------------------------------------------------------------------------------------------------
# group_advantage


def group_advantage(mine: ModuleType) -> str:
    right_or_wrong, tenths = torch.tensor([[1.0, 0, 0, 1], [0, 0, 0, 1]]), (10 * normal(6, 4)).round() / 10
    tenths[2] = 0.7  # a group whose rewards are equal
    for scaled in (False, True):
        for groups in (right_or_wrong, tenths):
            size, wanted = groups.shape[1], list[float]()
            for group in groups.tolist():
                mean, deviation = fmean(group), stdev(group) if len(set(group)) > 1 else 0.0
                wanted += [(reward - mean) / (deviation + 1e-4 if scaled else 1) for reward in group]
            rewards = groups.flatten()
            values = ", ".join(f"{reward:g}" for reward in rewards.tolist()[: 2 * size]) + " …" * (len(groups) > 2)
            call, got = f"group_advantage(({values}), {size}, {scaled})", mine.group_advantage(rewards, size, scaled)
            same(call, got, torch.tensor(wanted), 1e-6)
            same(f"{call} (beside train/grpo.py)", got, advantages(groups.flatten(), size, scaled), 1e-6)
            assert torch.equal(rewards, groups.flatten()), f"{call} changes the rewards: compute a new tensor."
        # float32 sums of a whole tensor and of its rows err in different places, so groups come alone and together
        for equal in ([0.1], [0.7], [1 / 3], [0.1, 0.0, 0.7, 1 / 3]):
            rewards, call = torch.tensor(equal).repeat_interleave(8), ", ".join(f"8 times {x:.4g}" for x in equal)
            got = mine.group_advantage(rewards, 8, scaled)
            same(f"group_advantage(({call}), 8, {scaled})", got, torch.zeros(len(rewards)), 0.0)
    return "Your advantages are those of train/grpo.py, also where a whole group earns the same."


# ---------------------------------------------------------------------------------------------------------
# optimizer_step, muon


def optimizer_step(mine: ModuleType) -> str:
    one, half = torch.tensor([1.0]), torch.tensor([0.5])
    got, call = mine.sgd(one, half, torch.zeros(1), 0.1, 0.9), "sgd with the numbers of the text"
    same_all(call, {"weight": 0.95 * one, "buffer": half}, got)
    got = mine.adamw(one, half, torch.zeros(1), torch.zeros(1), 1, 0.1, (0.9, 0.999), 1e-8, 0.1)
    call = "adamw with the numbers of the text"
    same_all(call, {"weight": 0.89 * one, "mean": 0.05 * one, "square": 0.00025 * one}, got, 1e-6)

    def sgd(weight: Tensor, grad: Tensor, buffer: Tensor, step: int) -> Any:
        return mine.sgd(weight, grad, buffer, 0.03, 0.9)

    def adamw(weight: Tensor, grad: Tensor, mean: Tensor, square: Tensor, step: int) -> Any:
        return mine.adamw(weight, grad, mean, square, step, 0.03, (0.9, 0.95), 0.1, 0.1)

    theirs = nn.Parameter(normal(7, 5))
    same_steps("sgd", sgd, torch.optim.SGD([theirs], lr=0.03, momentum=0.9), ["weight", "buffer"])
    settings: dict[str, Any] = {"lr": 0.03, "betas": (0.9, 0.95), "eps": 0.1, "weight_decay": 0.1}
    same_steps("adamw", adamw, torch.optim.AdamW([theirs], **settings), ["weight", "mean", "square"])
    return "Five steps of yours end where those of torch.optim end. Training is a gradient, and this."


def muon(mine: ModuleType) -> str:
    example = torch.diag(torch.tensor([3.0, 4.0]))
    same("newton_schulz(diag(3, 4), steps=0)", mine.newton_schulz(example, 0), example / 5)
    wanted = torch.diag(torch.tensor([1.19329, 0.97648]))
    same("newton_schulz(diag(3, 4), steps=1)", mine.newton_schulz(example, 1), wanted)
    for rows, columns in ((5, 5), (4, 9), (9, 4)):
        matrix, call = normal(rows, columns), f"newton_schulz(a matrix of {rows} x {columns})"
        wide = matrix if rows <= columns else matrix.T
        own, got = orthogonalize(wide[None], dtype=torch.float64)[0], mine.newton_schulz(matrix)
        same(f"{call} (beside train/optimizer.py)", got, own if rows <= columns else own.T, 1e-9)
        values = torch.linalg.svdvals(got)
        assert 0.68 < values.min() <= values.max() < 1.21, f"{call} has the singular values {shown(values)}."

        def step(weight: Tensor, grad: Tensor, buffer: Tensor, step: int) -> Any:
            return mine.muon(weight, grad, buffer, 0.02, 0.95)

        optimizer = Muon([nn.Parameter(matrix)], lr=0.02, momentum=0.95, dtype=torch.float64)
        same_steps(f"muon for a matrix of {rows} x {columns}", step, optimizer, ["weight", "buffer"])
    return "Your steps are those with which `make story` trains its matrices."


def same_steps(what: str, mine: Callable, theirs: torch.optim.Optimizer, names: list[str]) -> None:
    """Five steps of both with the same gradients. names: of what the reader's step returns."""
    (parameter,) = theirs.param_groups[0]["params"]
    weight = parameter.detach().clone()
    results = [weight, *(torch.zeros_like(weight) for _ in names[1:])]
    for step in range(1, 6):
        grad = normal(*weight.shape, seed=step) * (step != 4)  # momentum and decay go on without a gradient
        parameter.grad, given = grad.clone(), [results[0], grad, *results[1:]]
        before = [x.clone() for x in given]
        theirs.step()
        results = several(what, mine(*given, step=step), names)
        name = type(theirs).__name__
        same(f"weight after step {step} of {what} (beside {name})", results[0], parameter.detach(), 1e-12)
        is_same = all(map(torch.equal, given, before))
        assert is_same, f"{what} changes a tensor that it is given: compute new ones (buffer = …, not buffer += …)."


def same_all(what: str, wanted: dict[str, Tensor], got: Any, tolerance: float = 1e-4) -> None:
    """Assert that a function returned these, in this order."""
    for (name, right), mine in zip(wanted.items(), several(what, got, [*wanted]), strict=True):
        same(f"{name} of {what}", mine, right, tolerance)


def several(what: str, got: Any, names: list[str]) -> list[Any]:
    is_right = isinstance(got, tuple | list) and len(got) == len(names)
    assert is_right, f"{what} must return {len(names)} tensors: {', '.join(names)}."
    return [*got]


CHECKS: dict[str, Callable[[ModuleType], str]] = {
    "sampling": sampling,
    "bpe": bpe,
    "label_mask": label_mask,
    "lora": lora,
    "preference_loss": preference_loss,
    "group_advantage": group_advantage,
    "optimizer_step": optimizer_step,
    "muon": muon,
}
