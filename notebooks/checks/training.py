"""Check the exercises on tokens, sampling and training.

Each check compares with a formula in float64 or with plain Python, and then with Headlight's own
code or a library.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, partial
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
from notebooks.checks.compare import is_there, same, unchanged
from notebooks.checks.examples import generator, random, shift
from storyworld.conversations import converse, interview
from storyworld.story import tell
from train.dpo import preference_loss as headlights_preference_loss
from train.grpo import advantages
from train.methods.config import DPOConfig
from train.optimizer import Muon, orthogonalize

Pair = tuple[str, str]


normal = partial(random, dtype=torch.float64)


def sampling(mine: ModuleType) -> str:
    falling = [0.5, 0.3, 0.15, 0.05]
    rising = [0.1, 0.2, 0.3, 0.4]
    tied = [0.4, 0.2, 0.2, 0.2]
    cases: list[tuple[list[list[float]], dict[str, Any]]] = [
        ([falling], {}),
        ([falling], {"temperature": 0.5}),
        ([rising], {"temperature": 0}),
        ([rising], {"temperature": 0, "top_k": 2, "top_p": 0.6}),
        ([falling], {"top_k": 2}),
        ([falling], {"top_k": 9}),
        ([tied], {"top_k": 2}),
        ([falling], {"top_p": 0.6}),
        ([rising], {"top_p": 0.6}),
        ([falling], {"top_p": 1e-6}),
        ([falling], {"top_p": 1.0}),
        ([falling], {"top_k": 2, "top_p": 0.6}),
        ([rising], {"temperature": 2.0, "top_k": 3, "top_p": 0.6}),
        ([falling, rising, tied], {"temperature": 0.7, "top_k": 3, "top_p": 0.6}),
        ([falling, rising], {"temperature": 0}),
    ]
    for rows, settings in cases:
        options = "".join(f", {name}={value}" for name, value in settings.items())
        same_shares(mine, f"probabilities(ln {rows}{options})", torch.tensor(rows).log(), settings)
    large = torch.tensor([[1000.0, 999.0, 990.0]])
    same_shares(mine, "probabilities([[1000, 999, 990]])", large, {})
    call = "probabilities([[0.0001, 0, -0.0001]], temperature=0.0001)"
    close = torch.tensor([[1e-4, 0.0, -1e-4]])
    lesson = "Only 0 is greedy: a small temperature divides, too."
    same_shares(mine, call, close, {"temperature": 1e-4}, lesson)

    # Rows as from a model, and Headlight's own function.
    logits = 3 * normal(64, 50).float()
    settings = {"temperature": 0.8, "top_k": 20, "top_p": 0.9}
    call = "probabilities(64 rows of 50 logits, temperature=0.8, top_k=20, top_p=0.9)"
    same_shares(mine, call, logits, settings)
    seen = torch.zeros(64, 1, dtype=torch.long)
    _, weights = next_token(logits, seen, Sampling(**settings), torch.Generator())
    assert weights is not None
    expected = weights / weights.sum(1, keepdim=True)
    got = mine.probabilities(logits, **settings)
    same(f"{call} (compared with model/generation.py)", got, expected)

    # Up to chance, the drawn shares are the probabilities.
    draws = 20_000
    rows_of_two = torch.tensor([[0.5, 0.3, 0.15, 0.05, 0.0], [0.0, 0.1, 0.2, 0.3, 0.4]])

    def draw(seed: int) -> Any:
        return mine.sample(rows_of_two.repeat(draws, 1), generator(seed))

    state = torch.random.get_rng_state()
    ids = draw(0)
    call = f"sample({2 * draws} rows of 5, generator)"
    kind = type(ids).__name__
    assert isinstance(ids, Tensor), f"{call} is a {kind}, and must be a tensor of ids."
    shape = tuple(ids.shape)
    assert shape == (2 * draws,), f"{call} has the shape {shape}, and must have ({2 * draws},)."
    is_whole = not ids.is_floating_point()
    assert is_whole, f"{call} holds {ids.dtype}, and must hold ids, which are whole numbers."
    in_range = set(ids.tolist()) <= set(range(5))
    assert in_range, f"{call} has ids from {ids.min()} to {ids.max()}, of 5 tokens."
    for row, probabilities in enumerate(rows_of_two):
        drawn = ids[row::2].bincount(minlength=5) / draws
        # five standard deviations; 0 for a token of probability 0
        chance = 5 * (probabilities * (1 - probabilities) / draws).sqrt()
        is_close = bool(((drawn - probabilities).abs() <= chance).all())
        figures = f"{digits(drawn)}, and must draw them with {digits(probabilities)}"
        assert is_close, f"{call} draws the tokens with the shares {figures}."
    uses_generator = torch.equal(draw(0), ids) and not torch.equal(draw(1), ids)
    uses_generator &= torch.equal(torch.random.get_rng_state(), state)
    problem = "sample(…) draws from elsewhere, and must draw all numbers from the given generator."
    assert uses_generator, problem
    return "Code like yours chooses every token of a chat."


def same_shares(
    mine: ModuleType, call: str, logits: Tensor, settings: dict[str, Any], lesson: str = ""
) -> None:
    before = logits.clone()
    rows = [shares(row, **settings) for row in logits.double().tolist()]
    expected = torch.tensor(rows, dtype=torch.float64)
    same(call, mine.probabilities(logits, **settings), expected, lesson=lesson)
    unchanged(call, "logits", logits, before)


def shares(
    logits: Sequence[float],
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> list[float]:
    """Return the probability of each token, by the definition."""
    largest = max(logits)
    if temperature == 0:
        return [float(i == logits.index(largest)) for i in range(len(logits))]
    weights = [math.exp((logit - largest) / temperature) for logit in logits]
    kth = sorted(weights, reverse=True)[: top_k or len(weights)][-1]
    weights = [weight if weight >= kth else 0.0 for weight in weights]
    total = sum(weights)
    nucleus = [0.0] * len(weights)
    reached = 0.0
    for i in sorted(range(len(weights)), key=lambda i: -weights[i]):
        if top_p is None or reached < top_p:
            nucleus[i] = weights[i]
        reached += weights[i] / total
    return [weight / sum(nucleus) for weight in nucleus]


def digits(numbers: Tensor) -> str:
    return ", ".join(f"{number:.4g}" for number in numbers.tolist())


def bpe(mine: ModuleType) -> str:
    for tokens, pair, expected in [
        ("abcab", ("a", "b"), ["ab", "c", "ab"]),
        ("aaa", ("a", "a"), ["aa", "a"]),
        ("aaaa", ("a", "a"), ["aa", "aa"]),
        ("abc", ("b", "a"), ["a", "b", "c"]),
        (["ba", "b"], ("a", "b"), ["ba", "b"]),  # a pair joins whole tokens only
    ]:
        got = mine.joined(list(tokens), pair)
        call = f"joined({list(tokens)}, {pair})"
        assert got == expected, f"{call} is {got}, and must be {expected}."
    cases: list[tuple[dict[str, int], str, list[Pair]]] = [
        ({"abc": 3, "bc": 2, "ab": 2}, "abc", [("a", "b"), ("ab", "c")]),
        ({"ab": 1, "cd": 5, "c": 9}, "abcd", [("c", "d")]),  # as often as the word occurs
        ({"cb": 2, "ab": 2}, "abc", [("a", "b")]),  # a tie: not the first one seen
        ({"ab": 1, "ba": 1}, "ba", [("b", "a")]),  # and not the first one of the alphabet
        ({"aaa": 1, "ba": 1, "b": 3}, "ab", [("a", "a")]),  # counted twice in aaa
    ]
    for words, letters, merges in cases:
        call = f"learn_merges({words}, {list(letters)}, {len(merges)})"
        same_merges(call, mine.learn_merges(words, list(letters), len(merges)), merges)
    call = "learn_merges({'ab': 1}, ['a', 'b'], 9)"
    same_merges(call, mine.learn_merges({"ab": 1}, ["a", "b"], 9), [("a", "b")])
    for word, merges, ids in [
        ("abcb", [("a", "b"), ("ab", "c")], [4, 1]),
        ("", [("a", "b")], []),
        ("abc", [("b", "c"), ("a", "b")], [0, 3]),  # the merge that was learned first, not leftmost
        ("abcbc", [("b", "c"), ("bc", "bc"), ("a", "bc")], [0, 4]),
    ]:
        got = [*mine.encode_word(word, ["a", "b", "c"], merges)]
        call = f"encode_word({word!r}, ['a', 'b', 'c'], {merges})"
        assert got == ids, f"{call} is {got}, and must be {ids}."

    # The library learns from stories of the built-in world.
    backend, words, merges = from_stories()
    vocabulary = [*SPECIAL_TOKENS, *sorted(BYTES)]
    call = f"learn_merges({len(words)} words of stories, {len(vocabulary)} letters, {len(merges)})"
    same_merges(call, mine.learn_merges(words, vocabulary, len(merges)), merges)
    for word in words:
        got = [*mine.encode_word(word, vocabulary, merges)]
        ids = [token.id for token in backend.model.tokenize(word)]
        call = f"encode_word({word!r}) with {len(merges)} merges"
        assert got == ids, f"{call} is {got}, and must be {ids}."
    count = f"{len(merges)} merges, and the ids of {len(words)} words"
    return f"Your {count}, equal those of the library `tokenizers`."


def same_merges(call: str, got: Any, expected: list[Pair]) -> None:
    kind = type(got).__name__
    assert isinstance(got, list), f"{call} is a {kind}, and must be a list of pairs."
    for i, (learned, pair) in enumerate(zip(got, expected, strict=False)):
        message = f"{call} learns {learned} as merge {i + 1}, and must learn {pair}."
        assert learned == pair, message
    number = len(expected)
    assert len(got) == number, f"{call} learns {len(got)} merges, and must learn {number}."


@cache
def from_stories() -> tuple[Any, dict[str, int], list[Pair]]:
    """Train the library's tokenizer on stories. Return it, the counts of words, and its merges."""
    texts = [tell(0, i).text for i in range(30)]
    backend = train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=384), texts).backend
    words = Counter[str]()
    for text in texts:
        words.update(word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text))
    merges = json.loads(backend.to_str())["model"]["merges"]
    return backend, dict(words), [tuple(pair) for pair in merges]


def label_mask(mine: ModuleType) -> str:
    # The ids in the exercise's text.
    user = [1, 4, 3, 6, 2, 3]
    header = [1, 5, 3]
    end = 2
    asked = [0, *user, *header]
    again = [3, *user, *header]
    trick = [0, 1, 4, 3, 5, 3, 6, 2, 3, *header]
    # Every second part is trained.
    cases = {
        "one answer": [asked, [7, 8, 2], [3]],
        "two answers": [asked, [7, 2], again, [8, 7, 2], [3]],
        "an answer that is cut off": [asked, [7, 8]],
        "a header that is cut off": [[0, *user, 1, 5]],
        "nothing after the header": [asked],
        "an empty answer": [asked, [2], [3, *user]],
        "a user who writes `assistant` and a line end": [trick, [7, 2], [3]],
        "an assistant who writes `assistant` and a line end": [asked, [7, 5, 3, 8, 2], [3]],
        "only a user": [[0, *user]],
    }
    for name, parts in cases.items():
        ids: list[int] = []
        trained: list[bool] = []
        for number, part in enumerate(parts):
            ids += part
            trained += [number % 2 == 1] * len(part)
        same_labels(mine, name, ids, trained, header, end, str)

    # Headlight prepares conversations of the built-in world.
    seed = shift() % 1000
    records = [make(seed, i) for i in range(20) for make in (converse, interview)]
    conversations = [conversation_of(record) for record in records]
    texts = [tell(0, i).text for i in range(10)]
    tokenizer = train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=448), texts)
    header = [tokenizer.special_id("<|im_start|>"), *tokenizer.encode("assistant\n")]
    end = tokenizer.turn_end or 0

    def label(token: int) -> str:
        return repr(tokenizer.token_labels([token])[0])

    answers = 0
    for i, (encoded, flags) in enumerate(encode_conversations(tokenizer, conversations)):
        trained = [bool(flag & TRAINED) for flag in flags]
        for token, is_trained in zip(encoded, trained, strict=True):
            answers += is_trained and token == end
        name = f"conversation {i} of the built-in world"
        same_labels(mine, name, encoded, trained, header, end, label)
    count = f"In {len(records)} conversations you train the same {answers} answers"
    return f"{count} as data/chat.py, and nothing else."


def same_labels(
    mine: ModuleType, name: str, ids: list[int], trained: list[bool], header: list[int], end: int,
    label_of: Callable[[int], str],
) -> None:  # fmt: skip
    got = mine.label_mask(list(ids), list(header), end)
    case = f"{name} ({ids if len(ids) < 25 else f'{len(ids)} ids'})"
    is_there(f"label_mask of {case}", got)
    got = got.tolist() if isinstance(got, Tensor) else [*got]
    problem = f"label_mask of {case} gives {len(got)} labels, and must give {len(ids)}."
    assert len(got) == len(ids), problem
    for i, (label, token, is_trained) in enumerate(zip(got, ids, trained, strict=True)):
        expected = token if is_trained else -100
        place = f"the label at place {i}, where the token is {label_of(token)},"
        problem = f"label_mask of {case}: {place} is {label}, and must be {expected}."
        assert label == expected, problem


def lora(mine: ModuleType) -> str:
    identity = torch.eye(2, dtype=torch.float64)
    a = torch.tensor([[1.0, 1.0]]).double()
    b = torch.tensor([[1.0], [0.0]]).double()
    x = torch.tensor([[3.0, 4.0]]).double()
    example = "with W, A, B from the text and alpha=2"
    expected = torch.tensor([[17.0, 4.0]])
    same(f"adapted(x = (3, 4)) {example}", mine.adapted(x, identity, a, b, 2.0), expected)
    expected = torch.tensor([[3.0, 2.0], [0.0, 1.0]])
    same(f"merged {example}", mine.merged(identity, a, b, 2.0), expected)

    # 5 in, 7 out, rank 3
    x = normal(2, 4, 5)
    weight = normal(7, 5, seed=1)
    a = normal(3, 5, seed=2)
    b = normal(7, 3, seed=3)
    before = weight.clone()
    sizes = "with 5 in, 7 out, r=3 and alpha=8"
    whole = weight + torch.einsum("or,ri->oi", b, a) * 8 / 3
    outputs = torch.einsum("bti,oi->bto", x, whole)
    same(f"adapted {sizes}", mine.adapted(x, weight, a, b, 8.0), outputs, 1e-9)
    same(f"merged {sizes}", mine.merged(weight, a, b, 8.0), whole, 1e-9)
    got = mine.adapted(x, weight, a, 0 * b, 8.0)
    same(f"adapted {sizes} and B = 0", got, x @ weight.T, 1e-9)
    unchanged(f"merged {sizes}", "weight", weight, before)

    # Every matrix of a small model in Headlight.
    torch.manual_seed(shift())
    config = ModelConfig(vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=4)
    lm = LanguageModel(config)
    add_adapters(lm, LoraConfig(rank=4, alpha=6.0))
    layers: dict[str, tuple[LoraLinear, Tensor]] = {}
    for name, layer in adapted(lm).items():
        nn.init.normal_(layer.lora_B.weight, std=0.2)  # after training it is not 0
        factors = layer.lora_A.weight.detach(), layer.lora_B.weight.detach()
        weight = layer.weight.detach()
        x = torch.randn(2, 3, layer.in_features)
        got = mine.adapted(x, weight, *factors, 6.0)
        same(f"adapted for {name} of a model", got, layer(x).detach())
        layers[name] = layer, mine.merged(weight, *factors, 6.0)
    merge(lm)
    for name, (layer, got) in layers.items():
        same(f"merged for {name} of a model", got, layer.weight.detach())
    source = f"model/variants/lora.py in {len(layers)} matrices"
    return f"Your adapters equal those of {source}, also after the merge."


def preference_loss(mine: ModuleType) -> str:
    example = [torch.tensor([x]) for x in (-20.0, -30.0, -24.0, -24.0)]
    text = "chosen=-20, rejected=-30, reference_chosen=-24, reference_rejected=-24, beta=0.1"
    loss = mine.preference_loss(*example, 0.1)
    same(f"preference_loss({text})", loss, torch.tensor([0.31326]))
    push = torch.tensor([0.026894])
    same_all(f"gradient({text})", slopes(-push, push), mine.gradient(*example, 0.1), 1e-6)
    at_first = [torch.tensor([-20.0, -3.0]), torch.tensor([-30.0, -40.0])] * 2
    call = "preference_loss of two pairs at the first step, where the model is the reference"
    same(call, mine.preference_loss(*at_first, 0.1), torch.tensor([math.log(2)] * 2))

    # Six pairs: the definition in float64, Headlight's own, and the slope of the reader's loss.
    inputs = [20 * normal(6, seed=seed) - 40 for seed in range(4)]
    chosen, rejected, reference_chosen, reference_rejected = inputs
    beta = 0.05
    step = 1e-4
    margins = (chosen - reference_chosen) - (rejected - reference_rejected)
    losses = [math.log1p(math.exp(-beta * margin)) for margin in margins.tolist()]
    got = mine.preference_loss(*inputs, beta)
    same("preference_loss of six pairs", got, torch.tensor(losses, dtype=torch.float64), 1e-9)
    ratios = torch.cat([chosen - reference_chosen, rejected - reference_rejected])
    expected = headlights_preference_loss(ratios, torch.ones(12), DPOConfig(beta=beta))
    same("preference_loss of six pairs (compared with train/dpo.py)", got, expected, 1e-9)

    def slope(which: int) -> Tensor:
        losses = []
        for sign in (1, -1):
            moved = [x + sign * step * (i == which) for i, x in enumerate(inputs)]
            losses.append(mine.preference_loss(*moved, beta))
        return (losses[0] - losses[1]) / (2 * step)

    call = "gradient of six pairs (compared with the slope of your loss, from inputs 0.0002 apart)"
    same_all(call, slopes(slope(0), slope(1)), mine.gradient(*inputs, beta), 1e-6)

    zeros = torch.zeros(2)
    far = [torch.tensor([0.0, -2000.0]), torch.tensor([-2000.0, 0.0]), zeros, zeros]
    call = "of two float32 pairs with margins of 200 and -200"
    expected = torch.tensor([0.0, 200.0])
    same(f"preference_loss {call}", mine.preference_loss(*far, 0.1), expected)
    push = torch.tensor([0.0, 0.1])
    same_all(f"gradient {call}", slopes(-push, push), mine.gradient(*far, 0.1), 1e-6)
    return "Your loss equals that of train/dpo.py, and your gradient is its slope."


def slopes(chosen: Tensor, rejected: Tensor) -> dict[str, Tensor]:
    return {"d loss / d chosen": chosen, "d loss / d rejected": rejected}


def group_advantage(mine: ModuleType) -> str:
    right_or_wrong = torch.tensor([[1.0, 0, 0, 1], [0, 0, 0, 1]])
    tenths = (10 * normal(6, 4)).round() / 10
    tenths[2] = 0.7  # a group whose rewards are equal
    for scaled in (False, True):
        for groups in (right_or_wrong, tenths):
            size = groups.shape[1]
            expected: list[float] = []
            for group in groups.tolist():
                mean = fmean(group)
                deviation = stdev(group) if len(set(group)) > 1 else 0.0
                divisor = deviation + 1e-4 if scaled else 1
                expected += [(reward - mean) / divisor for reward in group]
            rewards = groups.flatten().clone()
            values = ", ".join(f"{reward:g}" for reward in rewards.tolist()[: 2 * size])
            if len(groups) > 2:
                values += " …"
            call = f"group_advantage(({values}), {size}, {scaled})"
            got = mine.group_advantage(rewards, size, scaled)
            same(call, got, torch.tensor(expected), 1e-6)
            own = advantages(groups.flatten(), size, scaled)
            same(f"{call} (compared with train/grpo.py)", got, own, 1e-6)
            unchanged(call, "rewards", rewards, groups.flatten())
        # float32 sums of a tensor and of its rows round differently, so test groups alone and
        # together
        for equal in ([0.1], [0.7], [1 / 3], [0.1, 0.0, 0.7, 1 / 3]):
            rewards = torch.tensor(equal).repeat_interleave(8)
            values = ", ".join(f"8 times {x:.4g}" for x in equal)
            got = mine.group_advantage(rewards, 8, scaled)
            zeros = torch.zeros(len(rewards))
            same(f"group_advantage(({values}), 8, {scaled})", got, zeros, 0.0)
    return "Your advantages equal those of train/grpo.py, also for a group of equal rewards."


def optimizer_step(mine: ModuleType) -> str:
    one = torch.tensor([1.0])
    half = torch.tensor([0.5])
    zero = torch.zeros(1)
    got = mine.sgd(one, half, zero, 0.1, 0.9)
    same_all("sgd with the numbers in the text", {"weight": 0.95 * one, "buffer": half}, got)
    got = mine.adamw(one, half, torch.zeros(1), torch.zeros(1), 1, 0.1, (0.9, 0.999), 1e-8, 0.1)
    expected = {"weight": 0.89 * one, "mean": 0.05 * one, "square": 0.00025 * one}
    same_all("adamw with the numbers in the text", expected, got, 1e-6)

    def sgd(weight: Tensor, grad: Tensor, buffer: Tensor, step: int) -> Any:
        return mine.sgd(weight, grad, buffer, 0.03, 0.9)

    def adamw(weight: Tensor, grad: Tensor, mean: Tensor, square: Tensor, step: int) -> Any:
        return mine.adamw(weight, grad, mean, square, step, 0.03, (0.9, 0.95), 0.1, 0.1)

    weights = nn.Parameter(normal(7, 5))
    theirs: torch.optim.Optimizer = torch.optim.SGD([weights], lr=0.03, momentum=0.9)
    same_steps("sgd", sgd, theirs, ["weight", "buffer"])
    settings: dict[str, Any] = {"lr": 0.03, "betas": (0.9, 0.95), "eps": 0.1, "weight_decay": 0.1}
    theirs = torch.optim.AdamW([weights], **settings)
    same_steps("adamw", adamw, theirs, ["weight", "mean", "square"])
    return "Five of your steps end at the weights of torch.optim. Training repeats such steps."


def muon(mine: ModuleType) -> str:
    example = torch.diag(torch.tensor([3.0, 4.0]))
    same("newton_schulz(diag(3, 4), steps=0)", mine.newton_schulz(example, 0), example / 5)
    expected = torch.diag(torch.tensor([1.19329, 0.97648]))
    same("newton_schulz(diag(3, 4), steps=1)", mine.newton_schulz(example, 1), expected)

    def step(weight: Tensor, grad: Tensor, buffer: Tensor, step: int) -> Any:
        return mine.muon(weight, grad, buffer, 0.02, 0.95)

    for rows, columns in ((5, 5), (4, 9), (9, 4)):
        matrix = normal(rows, columns)
        got = mine.newton_schulz(matrix)
        wide = matrix if rows <= columns else matrix.T
        own = orthogonalize(wide[None], dtype=torch.float64)[0]
        call = f"newton_schulz(a matrix of {rows} x {columns})"
        expected = own if rows <= columns else own.T
        same(f"{call} (compared with train/optimizer.py)", got, expected, 1e-9)
        optimizer = Muon([nn.Parameter(matrix)], lr=0.02, momentum=0.95, dtype=torch.float64)
        call = f"muon for a matrix of {rows} x {columns}"
        same_steps(call, step, optimizer, ["weight", "buffer"])
    return "`make story` trains its matrices with the same steps."


def same_steps(call: str, mine: Callable, theirs: torch.optim.Optimizer, names: list[str]) -> None:
    """Take five steps of both with the same gradients. names: the results of the reader's step."""
    (parameter,) = theirs.param_groups[0]["params"]
    weight = parameter.detach().clone()
    results = [weight, *(torch.zeros_like(weight) for _ in names[1:])]
    for step in range(1, 6):
        grad = normal(*weight.shape, seed=step)
        if step == 4:  # momentum and decay continue without a gradient
            grad = grad * 0
        parameter.grad = grad.clone()
        inputs = [results[0], grad, *results[1:]]
        before = [x.clone() for x in inputs]
        theirs.step()
        results = several(call, mine(*inputs, step=step), names)
        peer = type(theirs).__name__
        name = f"weight after step {step} of {call} (compared with {peer})"
        same(name, results[0], parameter.detach(), 1e-12)
        input_names = [names[0], "grad", *names[1:]]
        for input_name, now, old in zip(input_names, inputs, before, strict=True):
            unchanged(call, input_name, now, old)


def same_all(call: str, expected: dict[str, Tensor], got: Any, tolerance: float = 1e-4) -> None:
    """Assert that a function returned these tensors, in this order."""
    results = several(call, got, [*expected])
    for (name, tensor), mine in zip(expected.items(), results, strict=True):
        same(f"{name} of {call}", mine, tensor, tolerance)


def several(call: str, got: Any, names: list[str]) -> list[Any]:
    is_right = isinstance(got, tuple | list) and len(got) == len(names)
    assert is_right, f"{call} must return {len(names)} tensors: {', '.join(names)}."
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
