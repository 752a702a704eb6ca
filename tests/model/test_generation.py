"""Decoding: greedy equals argmax of full forwards, whatever the cache, the batch or the way of
asking.
"""

import math

import pytest
import torch

from model import Sampling, generate, left_pad, stream
from model.generation import next_token
from model.kv_cache import KVCache
from model.variants.caches import CACHES, StaticCache
from tests.conftest import random_model, tiny_config


@pytest.fixture
def lm():
    return random_model(tiny_config())


@pytest.fixture
def prompt():
    return torch.randint(0, 192, (2, 6))


def test_greedy_decoding_equals_argmax_without_a_cache(lm, prompt):
    expected = prompt
    with torch.no_grad():
        for _ in range(20):
            expected = torch.cat((expected, lm(expected)[:, -1].argmax(-1, keepdim=True)), 1)
    assert torch.equal(generate(lm, prompt, 20, temperature=0), expected)


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("cache", [*CACHES, None])
def test_every_cache_gives_the_same_tokens(cache, window, prompt):
    config = tiny_config(sliding_window=window, layer_types=["sliding_attention", "full_attention"] if window else None)
    lm = random_model(config)
    assert torch.equal(generate(lm, prompt, 20, seed=3, kv_cache=cache), generate(lm, prompt, 20, seed=3))


@pytest.mark.parametrize("cache", CACHES)
def test_prompts_of_different_lengths_are_continued_as_if_alone(lm, cache):
    prompts = [[5, 6, 7, 8, 9, 10, 11], [20], [30, 31, 32]]
    settings = {"temperature": 0, "repetition_penalty": 1.5}
    # padded with the very id that comes next: a penalty that saw the padding would choose another
    # one
    pad = int(generate(lm, torch.tensor([[20]]), 1, **settings)[0, -1])
    assert pad not in [token for prompt in prompts for token in prompt]
    ids, real = left_pad(prompts, pad_id=pad)
    assert ids.tolist()[1] == [pad] * 6 + [20]
    output = generate(lm, ids, 15, attention_mask=real, kv_cache=cache, **settings)
    for row, prompt in zip(output, prompts, strict=True):
        alone = generate(lm, torch.tensor([prompt]), 15, **settings)
        assert row[7:].tolist() == alone[0, len(prompt) :].tolist()


def test_two_streams_at_once_give_the_same_tokens_and_leave_the_mode_alone(lm, prompt):
    lm.train()
    first, second = (stream(lm, prompt, 10, Sampling(temperature=0.9), seed=4) for _ in range(2))
    tokens = [next(first), next(second)]
    assert tokens[0].shape == (2,)
    assert lm.training
    rest = list(first)
    assert torch.equal(torch.stack(rest), torch.stack(list(second)))
    assert lm.training
    whole = generate(lm, prompt, 10, temperature=0.9, seed=4)
    assert torch.equal(torch.stack([tokens[0], *rest], 1), whole[:, 6:])


def test_a_number_for_each_token_draws_it_with_its_probability():
    """A thousand numbers, evenly spaced, fall on a token as often as it is likely; on an impossible
    one, not even the first and the last number do.
    """
    logits = torch.tensor([-math.inf, 0.1, -math.inf, 0.4, 0.4, 0.1, -math.inf]).log().nan_to_num(-math.inf)
    uniform = torch.cat([(torch.arange(1000) + 0.5) / 1000, torch.tensor([0.0, 1 - 2**-24])])
    rows = logits.expand(len(uniform), -1)
    ids, _ = next_token(rows, rows[:, :0].long(), Sampling(), torch.Generator(), uniform)
    assert ids[:-2].bincount(minlength=7).tolist() == pytest.approx([0, 100, 0, 400, 400, 100, 0], abs=1)
    assert ids[-2:].tolist() == [1, 5]


@pytest.mark.parametrize("cache", CACHES)
def test_several_continuations_of_a_prompt_stand_next_to_each_other(lm, prompt, cache):
    output = generate(lm, prompt, 8, seed=0, num_return_sequences=3, kv_cache=cache)
    assert output.shape == (6, 14)
    assert torch.equal(output[:, :6], prompt.repeat_interleave(3, dim=0))
    assert len({tuple(row.tolist()) for row in output}) == 6
    greedy = generate(lm, prompt, 8, temperature=0, num_return_sequences=2, kv_cache=cache)
    assert torch.equal(greedy, generate(lm, prompt, 8, temperature=0).repeat_interleave(2, dim=0))


@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_a_prompt_that_was_read_is_not_read_again(lm, prompt, kind):
    cache = KVCache(lm.config) if kind == "dynamic" else StaticCache(lm.config, 2, 64, "cpu", torch.float32)
    first = generate(lm, prompt, 10, temperature=0, kv_cache=cache)
    longer = torch.cat((first, torch.randint(0, 192, (2, 3))), dim=1)
    read = []
    hook = lm.model.register_forward_pre_hook(lambda _, given: read.append(given[0].shape[1]))
    again = generate(lm, longer, 5, temperature=0, kv_cache=cache)
    assert read == [4, 1, 1, 1, 1]  # the last token of the first answer was never read
    read.clear()
    other = prompt.clone()
    other[:, 2] = (other[:, 2] + 1) % 192  # the same again behind it, which must not be used
    changed = generate(lm, other, 5, temperature=0, kv_cache=cache)
    hook.remove()
    assert read[0] == 4
    assert torch.equal(again, generate(lm, longer, 5, temperature=0))
    assert torch.equal(changed, generate(lm, other, 5, temperature=0))


def test_a_window_that_has_forgotten_the_prompt_reads_it_anew(prompt):
    lm = random_model(tiny_config(sliding_window=3))
    cache = KVCache(lm.config, block_size=1)
    generate(lm, prompt, 20, temperature=0, kv_cache=cache)
    assert torch.equal(generate(lm, prompt, 20, temperature=0, kv_cache=cache), generate(lm, prompt, 20, temperature=0))


def test_a_seed_decides_everything_and_nothing_else_changes(lm, prompt):
    before = torch.get_rng_state()
    first = generate(lm.train(), prompt, 20, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert lm.training
    assert torch.equal(first, generate(lm, prompt, 20, seed=1))
    assert not torch.equal(first, generate(lm, prompt, 20, seed=2))


def test_stopped_rows_are_filled_and_generation_ends_early(lm, prompt):
    free = generate(lm, prompt, 20, temperature=0)
    stop = free[0, 8].item()  # the third new token of the first row
    first = free[0, 6:].tolist().index(stop) + 6
    output = generate(lm, prompt, 20, temperature=0, stop_ids=[stop])
    assert (output[0, first:] == stop).all()
    assert torch.equal(output[0, : first + 1], free[0, : first + 1])
    alone = generate(lm, prompt[:1], 20, temperature=0, stop_ids=[stop])
    assert alone.shape[1] == first + 1


@pytest.mark.parametrize("several", [False, True])
def test_without_stop_ids_it_stops_at_the_end_tokens_of_the_config(lm, prompt, several):
    prompt = prompt[:1]
    free = generate(lm, prompt, 20, temperature=0)
    end = free[0, 8].item()
    with_end = random_model(tiny_config(eos_token_id=[191, end] if several else end))
    with_end.load_state_dict(lm.state_dict())
    expected = generate(lm, prompt, 20, temperature=0, stop_ids=[end])
    assert expected.shape[1] < free.shape[1]
    assert torch.equal(generate(with_end, prompt, 20, temperature=0), expected)
    assert torch.equal(generate(with_end, prompt, 20, temperature=0, stop_ids=()), free)


def with_log_probs(*given, **settings):
    """The ids, and ln of the probability of each new one: (rows, T + new), (rows, new)."""
    log_probs = []
    return generate(*given, **settings, log_probs=log_probs), torch.stack(log_probs, dim=1)


@pytest.mark.parametrize("cache", ["dynamic", None])
def test_log_probabilities_are_those_of_the_distribution_that_was_drawn_from(lm, prompt, cache):
    settings = {"temperature": 0.7, "seed": 1, "num_return_sequences": 2}
    output, log_probs = with_log_probs(lm, prompt, 12, **settings, kv_cache=cache)
    assert torch.equal(output, generate(lm, prompt, 12, **settings))
    with torch.no_grad():
        expected = (lm(output)[:, 5:-1] / 0.7).log_softmax(-1).gather(2, output[:, 6:, None])[..., 0]
    assert log_probs.shape == (4, 12)
    assert torch.allclose(log_probs, expected, atol=1e-4)


def test_log_probabilities_count_the_filters(lm, prompt):
    """With top_k 2, each token is drawn from two at most: the probabilities of both add up to 1."""
    output, log_probs = with_log_probs(lm, prompt, 12, top_k=2, seed=1)
    with torch.no_grad():
        two = lm(output)[:, 5:-1].topk(2).values.log_softmax(-1)  # (2, 12, 2)
    assert ((two - log_probs[..., None]).abs().amin(-1) < 1e-4).all()


@pytest.mark.parametrize("settings", [{"temperature": 0}, {"min_p": 1.0}], ids=["greedy", "only the likeliest"])
def test_where_nothing_is_drawn_the_log_probability_is_zero(lm, prompt, settings):
    assert torch.equal(with_log_probs(lm, prompt, 5, seed=2, **settings)[1], torch.zeros(2, 5))


def test_after_the_end_of_a_row_log_probabilities_are_zero(lm, prompt):
    free, log_probs = with_log_probs(lm, prompt, 20, seed=2)
    stop = free[0, 8].item()
    output, stopped = with_log_probs(lm, prompt, 20, seed=2, stop_ids=[stop])
    first = output[0, 6:].tolist().index(stop)
    assert torch.equal(stopped[0, : first + 1], log_probs[0, : first + 1])
    assert (stopped[0, first + 1 :] == 0).all()


def test_generation_ends_where_the_context_does(lm, prompt):
    assert generate(lm, prompt, 1000, seed=0).shape[1] == 64


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_k": 0}, "top_k"),
        ({"min_p": 2.0}, "min_p"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"kv_cache": "paged"}, r"cache \('paged'\) is unknown: use dynamic, static, offloaded"),
        ({"compile": True}, 'compile needs kv_cache="static"'),
        ({"attention_mask": torch.eye(6)[:2].long()}, "pad on the left"),
        (
            {"kv_cache": StaticCache(tiny_config(), 2, 20, "cpu", torch.float32)},
            "room for 20 tokens, and 64 are needed",
        ),
        ({"input_ids": torch.zeros(1, 0).long()}, "at least one token"),
        ({"input_ids": torch.tensor([[1, -1, 2]])}, r"token id -1 is outside the vocabulary \(0 to 191\)"),
        ({"input_ids": torch.tensor([[1, 192, 2]])}, "outside the vocabulary"),
        ({"input_ids": torch.zeros(1, 65).long()}, r"65 tokens, more than max_position_embeddings \(64\)"),
    ],
)
def test_what_cannot_be_served_is_named(lm, prompt, settings, message):
    with pytest.raises(ValueError, match=message):
        generate(lm, **({"input_ids": prompt} | settings))


def test_empty_prompts_are_not_padded_nor_experts_compiled():
    with pytest.raises(ValueError, match="none may be empty"):
        left_pad([[1], []])
    with pytest.raises(ValueError, match="a mixture of experts is not compiled: leave compile out"):
        generate(random_model(tiny_config(num_experts=4)), torch.zeros(1, 4).long(), kv_cache="static", compile=True)


def test_non_finite_logits_are_an_error_and_no_token(lm, prompt):
    with torch.no_grad():
        lm.model.norm.weight[0] = torch.nan
    with pytest.raises(ValueError, match="non-finite"):
        generate(lm, prompt, 3)


# one draw: filters keep exactly what they promise, and the draw follows the probabilities


def draws(probabilities, **filters):
    rows = torch.tensor(probabilities).log().expand(4000, -1)
    ids, _ = next_token(rows, torch.zeros(len(rows), 0).long(), Sampling(**filters), torch.Generator().manual_seed(0))
    return torch.bincount(ids, minlength=len(probabilities)) / 4000


def test_sampling_follows_the_probabilities():
    hot = torch.tensor([0.5, 0.3, 0.2]) ** 0.5
    assert torch.allclose(draws([0.5, 0.3, 0.2]), torch.tensor([0.5, 0.3, 0.2]), atol=0.03)
    assert torch.allclose(draws([0.5, 0.3, 0.2], temperature=2.0), hot / hot.sum(), atol=0.03)


@pytest.mark.parametrize(
    ("filters", "kept"),
    [
        ({"top_k": 2}, [False, True, True]),
        ({"top_p": 0.6}, [False, True, True]),  # .5 alone does not reach .6
        ({"top_p": 0.4}, [False, True, False]),
        ({"min_p": 0.5}, [False, True, True]),
    ],
)
def test_filters_keep_exactly_what_they_promise(filters, kept):
    assert (draws([0.2, 0.5, 0.3], **filters) > 0).tolist() == kept


def test_repetition_penalty_lowers_what_was_seen_whatever_its_sign():
    logits = torch.tensor([[2.0, -2.0, 1.0]])
    seen = torch.tensor([[0, 1]])
    _, drawn_from = next_token(logits, seen, Sampling(repetition_penalty=2.0), torch.Generator())
    assert torch.allclose(drawn_from, torch.tensor([[1.0, -4.0, 1.0]]).softmax(-1))
