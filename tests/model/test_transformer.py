"""LanguageModel: where the loss starts, what labels mean."""

import math

import pytest
import torch
import torch.nn.functional as F

from model import LanguageModel, ModelConfig
from model.loss import CHUNK, cross_entropy_sum
from tests.conftest import random_model, tiny_config


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("hidden", [32, 128, 1024])
@pytest.mark.parametrize("vocab", [64, 2048])
def test_the_loss_starts_at_ln_vocabulary(vocab, hidden, tied):
    lm = LanguageModel(
        ModelConfig(
            vocab_size=vocab,
            hidden_size=hidden,
            num_hidden_layers=2,
            num_attention_heads=4,
            tie_word_embeddings=tied,
        )
    )
    ids = torch.randint(0, vocab, (16, 64))
    loss_sum, count = lm(ids, labels=ids)
    assert (loss_sum / count).item() == pytest.approx(math.log(vocab), rel=0.02)


def test_output_projections_start_at_zero_and_everything_else_does_not():
    for name, parameter in LanguageModel(tiny_config()).named_parameters():
        is_output = name.endswith(("o_proj.weight", "down_proj.weight"))
        assert (parameter == 0).all().item() == is_output, name


def test_labels_are_aligned_and_shifted_inside():
    lm = random_model(tiny_config())
    ids = torch.randint(0, 192, (2, 12))
    labels = ids.clone()
    labels[0, :5] = -100
    with torch.no_grad():
        loss_sum, count = lm(ids, labels=labels)
        logits = lm(ids)
    expected = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")
    assert count == 7 + 11  # of 11 predictions a row, the first row trains on those of positions 5 … 11
    assert loss_sum.item() == pytest.approx(expected.item(), rel=1e-6)


def test_a_batch_without_labels_to_train_on_is_zero_not_nan():
    loss_sum, count = random_model(tiny_config())(torch.zeros(1, 4).long(), labels=torch.full((1, 4), -100))
    assert (loss_sum.item(), count.item()) == (0.0, 0)


def test_tied_weights_are_one_matrix_and_count_once():
    tied, untied = LanguageModel(tiny_config()), LanguageModel(tiny_config(tie_word_embeddings=False))
    assert tied.lm_head.weight is tied.model.embed_tokens.weight
    assert untied.num_parameters() - tied.num_parameters() == 192 * 32


def test_a_sequence_beyond_the_context_is_refused():
    with pytest.raises(ValueError, match="65 tokens, more than max_position_embeddings \\(64\\)"):
        LanguageModel(tiny_config())(torch.zeros(1, 65).long())


@pytest.mark.parametrize("autocast", [False, True], ids=["fp32", "bf16"])
def test_the_chunked_loss_equals_pytorchs_forward_and_backward(autocast, monkeypatch):
    monkeypatch.setitem(CHUNK, "cpu", 7)
    hidden, weight = torch.randn(40, 16), torch.randn(50, 16)
    labels = torch.randint(0, 50, (40,))
    labels[::3] = -100
    found, expected = [], []
    for into, loss in ((found, cross_entropy_sum), (expected, plain_cross_entropy)):
        leaves = [x.clone().requires_grad_() for x in (hidden, weight)]
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            value = loss(*leaves, labels)
        (value / 17).backward()
        into += [value.detach(), *[leaf.grad for leaf in leaves]]
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype == torch.float32
        assert (a - b).abs().max() <= (2e-2 if autocast else 1e-5) * b.abs().max()


def plain_cross_entropy(hidden, weight, labels):
    return F.cross_entropy((hidden @ weight.T).float(), labels, reduction="sum")
