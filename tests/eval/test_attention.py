"""Capture: the weights are the kernel's, the check bites; the command line draws."""

import pytest
import torch

from eval.attention import capture
from model.attention_backends import attention_weights
from tests.conftest import random_model, tiny_config
from tests.train.helpers import run_module


@pytest.fixture
def lm():
    return random_model(tiny_config(num_attention_heads=8, num_key_value_heads=2, head_dim=8))


@pytest.fixture
def ids():
    return torch.randint(0, 192, (2, 12))


@pytest.mark.parametrize("backend", ["eager", "flash", "sdpa"])
def test_weights_are_causal_distributions_and_the_same_for_every_backend(lm, ids, backend):
    lm.set_attn_implementation(backend)
    maps = capture(lm, ids)
    assert maps.weights.shape == (2, 2, 8, 12, 12)
    assert maps.weights.dtype == torch.float32
    assert torch.allclose(maps.weights.sum(-1), torch.ones(()), atol=1e-6)
    assert (maps.weights.triu(1) == 0).all()
    lm.set_attn_implementation("eager")
    assert torch.allclose(maps.weights, capture(lm, ids).weights, atol=1e-6)


def test_capture_works_in_bf16(lm, ids):
    exact = capture(lm, ids).weights
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = capture(lm, ids).weights
    assert torch.allclose(exact.sum(-1), rounded.sum(-1), atol=1e-5)
    assert (exact - rounded).abs().mean() < 0.01


def test_weights_are_computed_in_float32_even_where_the_model_computes_in_bf16(lm, ids):
    """From the rounded q and k that the kernel got, but with products and softmax in full precision."""
    seen = {}
    for module in lm.attention_modules():
        module.recorder = lambda layer, q, k, v, out: seen.update({layer: (q.float(), k.float())})
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        lm.eval()(ids)
        maps = capture(lm, ids)
    for layer, (q, k) in seen.items():
        assert torch.allclose(maps.weights[layer], attention_weights(q, k, None), atol=1e-6)


def test_chosen_layers_and_heads_keep_their_numbers(lm, ids):
    everything, some = capture(lm, ids), capture(lm, ids, layers=[1], heads=[2, 7])
    assert torch.equal(some.weights[0], everything.weights[1][:, [2, 7]])
    assert some.labels == [["L1 H2 (KV 0)", "L1 H7 (KV 1)"]]
    for wrong in ({"layers": [2]}, {"heads": [8]}, {"heads": [-1]}):
        with pytest.raises(ValueError, match="does not exist: there are"):
            capture(lm, ids, **wrong)


def test_capture_leaves_everything_as_it_was(lm, ids):
    lm.train()
    before = torch.get_rng_state()
    capture(lm, ids)
    assert lm.training
    assert torch.equal(torch.get_rng_state(), before)
    assert all(module.recorder is None for module in lm.attention_modules())
    assert all(p.grad is None for p in lm.parameters())


def test_documents_do_not_look_at_each_other(lm, ids):
    documents = torch.tensor([[0] * 5 + [1] * 7] * 2)
    weights = capture(lm, ids, document_ids=documents).weights
    assert (weights[..., 5:, :5] == 0).all()
    assert capture(lm, ids).weights[..., 5:, :5].sum() > 0.1


def test_a_sliding_layer_shows_its_window_and_nothing_before_it(ids):
    lm = random_model(tiny_config(sliding_window=4, layer_types=["sliding_attention", "full_attention"]))
    weights = capture(lm, ids).weights
    rows, columns = torch.meshgrid(torch.arange(12), torch.arange(12), indexing="ij")
    assert (weights[0][..., rows - columns >= 4] == 0).all()
    assert (weights[1][..., rows - columns >= 4] > 0).all()


def test_the_command_line_draws_a_checkpoint(tmp_path):
    from data.config import TokenizerConfig
    from data.tokenizer import train_tokenizer
    from model import save

    tokenizer = train_tokenizer(TokenizerConfig(kind="byte"), [])
    save(random_model(tiny_config(vocab_size=tokenizer.vocab_size)), tmp_path)
    tokenizer.save(tmp_path)
    done = run_module("eval.attention", tmp_path, "--text", "the cat", "--out", tmp_path / "pictures")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "pictures/text.png").stat().st_size > 10_000
    assert run_module("eval.attention", tmp_path, "--max-tokens", "300", "--out", tmp_path).returncode == 2
    wrong = run_module("eval.attention", tmp_path / "nowhere")
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
    assert "is neither a run" in wrong.stderr
