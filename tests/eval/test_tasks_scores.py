"""Multiple choice and texts as a second scorer sees them, and what all scores rest on."""

import math

import pytest
import tokenizers
import torch

from data.tokenizer import SPECIAL_TOKENS, Tokenizer
from eval.tasks import likelihood
from eval.tasks import text as tasks_text
from eval.tasks.likelihood import accuracy_error, mean_error, token_log_probs
from eval.tasks.multiple_choice import MultipleChoice, credit, joined, per_byte, score_multiple_choice
from eval.tasks.text import text_log_probs, windows
from tests.conftest import random_model, tiny_config
from tests.eval.scoring import CLOSE, TEXTS, answer, write_lines

CHOICES = [
    {"ctx": "The dog", "endings": ["sat by the door.", "sat by the door of the house of a fox.", "flew"], "label": 0},
    {"ctx": "Once there was", "endings": ["a fox.", "the fox the."], "label": "1", "ind": 24},
    {"ctx": "Who had the kite?", "endings": ["Nobody.", "They", "It was red", "a small fox, I think"], "label": 3},
    {"ctx": "They went to ", "endings": ["sleep", " the door"], "label": 0},
]


# Multiple choice


def test_multiple_choice_is_that_of_the_reference(checkpoint, reference, capsys, tmp_path):
    file = write_lines(tmp_path / "choices.jsonl", CHOICES)
    told, records = answer(capsys, tmp_path, checkpoint, "--multiple-choice", file)
    right = {"acc": 0, "acc_norm": 0}
    for record, choice in zip(records, CHOICES, strict=True):
        context, endings = choice["ctx"], choice["endings"]
        joint = ["" if context.endswith(" ") or ending.startswith(" ") else " " for ending in endings]
        expected = [
            reference.ending(context, context + space + ending) for space, ending in zip(joint, endings, strict=True)
        ]
        assert record["log_likelihoods"] == pytest.approx(expected, abs=CLOSE)
        norm = [value / len(ending.encode()) for value, ending in zip(expected, endings, strict=True)]
        right["acc"] += expected.index(max(expected)) == int(choice["label"])
        right["acc_norm"] += norm.index(max(norm)) == int(choice["label"])
    values = told["results"]["choices.jsonl"]
    for name in ("acc", "acc_norm"):
        share = right[name] / 4
        assert values[name] == share
        assert values[f"{name}_stderr"] == pytest.approx(math.sqrt(share * (1 - share) / 4))
    assert values["questions"] == 4
    assert values["ties"] == 0
    assert values["chance"] == pytest.approx((1 / 3 + 1 / 2 + 1 / 4 + 1 / 2) / 4)
    assert record["label"] == 0


def test_length_is_counted_in_bytes_and_ties_are_shared(checkpoints, capsys, tmp_path):
    """A long ending always costs more than its beginning; by the byte it need not."""
    records = [
        {"ctx": "The dog", "endings": ["x", "sat by the door"], "label": 1},
        {"ctx": "The dog", "endings": ["x", "x", "sat by the door"], "label": 0},
    ]
    file = write_lines(tmp_path / "choices.jsonl", records)
    told, lines = answer(capsys, tmp_path, checkpoints["bpe"], "--multiple-choice", file)
    short, long = lines[0]["log_likelihoods"]
    assert lines[1]["log_likelihoods"][:2] == [short, short]  # exactly
    assert short > long
    by_byte = [short, long / 15]
    values = told["results"]["choices.jsonl"]
    assert (values["acc"], values["ties"]) == (0.25, 1)
    assert by_byte[1] > by_byte[0]
    assert values["acc_norm"] == 0.5  # the first question; in the second one the last ending has most

    # é takes two bytes: a third of a nat a byte against half of one
    accents = MultipleChoice("here", "", ("ééé", "abc"), 0)
    assert per_byte(accents, [-3.0, -2.0]) == [-0.5, -2 / 3]
    assert credit(accents, [-3.0, -2.0]) == 0
    assert credit(accents, per_byte(accents, [-3.0, -2.0])) == 1


def test_a_token_that_reaches_over_the_boundary_belongs_to_the_ending():
    """`ab` + `c` may be one token: then everything after the shared beginning is scored, for all endings alike."""
    vocabulary = {token: n for n, token in enumerate(["x", "a", "b", "c", "d", "ab", "bc", "abc"])}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [("b", "c"), ("a", "b"), ("a", "bc")]))
    backend.add_special_tokens(SPECIAL_TOKENS)
    tokenizer = Tokenizer(backend)
    assert [len(tokenizer.encode(text)) for text in ("xab", "xabc", "xabd")] == [2, 2, 3]
    lm = random_model(tiny_config())
    question = MultipleChoice("here", "xab", ("c", "d"), 0)
    ((with_c, with_d),) = score_multiple_choice(lm, tokenizer, [question], delimiter="")
    both = [[tokenizer.bos_id, *tokenizer.encode(text)] for text in ("xabc", "xabd")]
    of_c, of_d = token_log_probs(lm, both)
    assert with_c == pytest.approx(float(of_c[1:].sum()))  # after x
    assert with_d == pytest.approx(float(of_d[1:].sum()))  # after x as well, though its context has tokens of its own


def test_context_and_ending_are_joined_by_one_space_at_most():
    assert joined("The dog", "sat", " ") == "The dog sat"
    assert joined("The dog ", "sat", " ") == joined("The dog", " sat", " ") == "The dog sat"
    assert joined("Q\n", "sat", " ") == "Q\nsat"
    assert joined("", "sat", " ") == "sat"
    assert joined("他去了", "学校", "") == "他去了学校"


# A text


@pytest.mark.parametrize(("window", "stride"), [(None, None), (16, 5), (24, 23), (7, 1)])
def test_a_text_is_scored_as_by_the_reference(checkpoint, reference, capsys, tmp_path, window, stride):
    text = " ".join(TEXTS) + "\r\n" + TEXTS[1]
    file = tmp_path / "text.md"
    file.write_bytes(b"\xef\xbb\xbf" + text.encode())
    given = [] if window is None else ["--window", window, "--stride", stride]
    told, records = answer(capsys, tmp_path, checkpoint, "--text", file, *given)
    expected = torch.tensor(reference.text(text, window or 96, stride or 48), dtype=torch.float64)
    assert len(expected) > 16  # several windows
    assert [record["log_likelihood"] for record in records] == pytest.approx(expected.tolist(), abs=CLOSE)
    values, loss = told["results"]["text.md"], float(-expected.mean())
    vocab_size = reference.lm.config.vocab_size
    per_byte = len(expected) / len(text.encode()) / math.log(2)
    assert values["tokens"] == len(expected)
    assert values["bytes"] == len(text.encode())
    assert values["loss"] == pytest.approx(loss, abs=CLOSE)
    assert values["perplexity"] == pytest.approx(math.exp(loss), rel=CLOSE)
    assert values["bits_per_byte"] == pytest.approx(loss * per_byte, abs=CLOSE)
    assert values["loss_chance"] == pytest.approx(math.log(vocab_size))
    assert values["perplexity_chance"] == vocab_size
    assert values["bits_per_byte_chance"] == pytest.approx(math.log(vocab_size) * per_byte)
    blocks = expected.split(max(1, min(64, len(expected) // 20)))
    squares = sum(float((block - expected.mean()).sum()) ** 2 for block in blocks)
    error = math.sqrt(squares * len(blocks) / (len(blocks) - 1)) / len(expected)
    assert values["loss_stderr"] == pytest.approx(error, rel=1e-3)
    assert values["perplexity_stderr"] == pytest.approx(error * math.exp(loss), rel=1e-3)
    assert values["bits_per_byte_stderr"] == pytest.approx(error * per_byte, rel=1e-3)
    assert (values["window"], values["stride"]) == (window or 96, stride or 48)


@pytest.mark.parametrize("count", [2, 3, 8, 9, 17, 100])
@pytest.mark.parametrize(("window", "stride"), [(2, 1), (8, 4), (8, 7), (9, 2), (100, 50)])
def test_every_token_but_the_first_is_scored_exactly_once_with_enough_before_it(count, window, stride):
    scored = []
    for begin, end, first in windows(count, window, stride):
        assert end - begin <= window
        scored += [(at, at - begin) for at in range(first, end)]
    assert [at for at, _ in scored] == list(range(1, count))
    assert all(before >= min(at, window - stride) for at, before in scored)


def test_a_text_of_many_windows_is_read_in_parts(monkeypatch):
    lm, ids = random_model(tiny_config()), torch.randint(0, 192, (150,)).tolist()
    at_once = text_log_probs(lm, ids, 16, 7)
    monkeypatch.setattr(tasks_text, "WINDOWS", 3)
    assert torch.allclose(text_log_probs(lm, ids, 16, 7), at_once, rtol=0, atol=2e-5)
    assert len(at_once) == 149


def test_the_drawing_of_the_windows_is_true():
    drawn = [".xxx", "  ..xx", "    ..xx"]
    found = list(windows(8, 4, 2))
    assert [" " * b + "." * (f - b) + "x" * (e - f) for b, e, f in found] == drawn


def test_the_limit_of_a_text_is_in_lines(checkpoints, capsys, tmp_path):
    text = "The cat\x0b sat.\r\nThe dog sat.\nThe fox ran.\n"
    (tmp_path / "text.txt").write_text(text, newline="")
    (tmp_path / "two.txt").write_text(text[: text.index("The fox")], newline="")
    limited = answer(capsys, tmp_path, checkpoints["bpe"], "--text", tmp_path / "text.txt", "--limit", 2)[0]
    whole = answer(capsys, tmp_path, checkpoints["bpe"], "--text", tmp_path / "two.txt")[0]
    assert limited["results"]["text.txt"] == whole["results"]["two.txt"]
    assert whole["results"]["two.txt"]["bytes"] == 28


# What all of them rest on


def test_alone_or_in_a_batch_a_sequence_has_the_same_log_probabilities(monkeypatch):
    lm = random_model(tiny_config(hidden_dropout=0.5))
    lm.train()
    lengths = torch.randint(2, 65, (40,)).tolist()
    sequences = [torch.randint(0, 192, (length,)).tolist() for length in lengths]
    alone = [token_log_probs(lm, [ids])[0] for ids in sequences]
    sizes = []
    lm.register_forward_pre_hook(lambda module, inputs: sizes.append(tuple(inputs[0].shape)))
    together = token_log_probs(lm, sequences)
    assert len(sizes) == 1
    for room in (0, 100, 1000):
        sizes.clear()
        monkeypatch.setattr(likelihood, "NUMBERS", room * max(192, 3 * lm.config.intermediate_size))
        in_batches = token_log_probs(lm, sequences)
        assert len(sizes) >= 3
        assert all(rows == 1 or rows * (length + 1) <= room for rows, length in sizes)
        for one, other, third in zip(alone, together, in_batches, strict=True):
            assert torch.allclose(one, other, rtol=0, atol=2e-5)
            assert torch.allclose(one, third, rtol=0, atol=2e-5)
    assert [len(log_p) for log_p in together] == [length - 1 for length in lengths]
    assert lm.training  # as it was found
    assert max(float(log_p.exp().sum()) for log_p in together) > 0.1  # weights that have something to say


def test_equal_sequences_have_equal_numbers_wherever_they_stand():
    lm = random_model(tiny_config())
    sequences = [torch.randint(0, 192, (length,)).tolist() for length in (9, 30, 9, 12)]
    first, *_, last = token_log_probs(lm, [*sequences, list(sequences[0])])
    assert torch.equal(first, last)


def test_a_model_that_diverged_is_an_error():
    lm = random_model(tiny_config())
    with torch.no_grad():
        lm.lm_head.weight[3] = math.nan
    with pytest.raises(ValueError, match="logits are non-finite: its weights are damaged"):
        token_log_probs(lm, [[1, 2, 3]])


def test_standard_errors_of_known_cases():
    assert accuracy_error(0.5, 100) == 0.05
    assert accuracy_error(1.0, 7) == 0.0
    independent = torch.randn(19, dtype=torch.float64)  # too few for blocks: the usual formula
    assert mean_error(independent) == pytest.approx(float(independent.std()) / math.sqrt(19))
    assert math.isnan(mean_error(independent[:1]))


def test_the_standard_error_of_a_mean_is_how_far_means_scatter():
    """Also where neighbours are alike, as the tokens of a text are; taken one by one they would look too sure."""
    means, errors, naive = [], [], []
    for _ in range(300):
        values = torch.randn(200, dtype=torch.float64).repeat_interleave(8) + torch.randn(1600, dtype=torch.float64)
        means.append(float(values.mean()))
        errors.append(mean_error(values))
        naive.append(float(values.std()) / 40)
    scatter = float(torch.tensor(means).std())
    assert torch.tensor(errors).mean() == pytest.approx(scatter, rel=0.12)
    assert torch.tensor(naive).mean() < 0.6 * scatter
