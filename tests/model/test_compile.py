"""Compile-clean: no graph break; training compiles a layer and the loss once, decoding the whole
model.
"""

from dataclasses import replace

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.testing import CompileCounter
from torch._functorch.aot_autograd import make_boxed_func
from torch.nn.attention import varlen

from data.packing import document_starts
from model.attention import eager
from model.backends.choice import BACKENDS
from model.backends.compiled_step import FewRows
from model.backends.kernels import block_mask, flex_kernel_compiled
from model.generation import generate
from model.loss import CHUNK
from model.masks import MaskSpec, boolean_mask
from model.variants.caches import StaticCache
from model.variants.surgery import with_config
from tests import varlen_kernel
from tests.conftest import GPT2, LATENT, random_model, tiny_config
from train.machine.compilation import compile_layers

MIXED = {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]}
OLMO2 = {"qk_norm": "whole", "norm_position": "after"}
SMOLLM3 = {"qk_norm": False, "no_rope_layers": [1, 0], "attention_bias": True}


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def assert_same_training(loss, expected, lm, of_loss, of_gradients):
    """The loss and every gradient: PyTorch 2.11 compiled gradients of zero, with the right loss.

    Gradients may differ by that share of their largest entry, or of 0.1: that of a bias of the keys
    is zero but for rounding, because a constant in all scores of a row changes nothing.
    """
    assert torch.allclose(loss, expected, rtol=of_loss)
    parameters = list(lm.parameters())
    for found, wanted in zip(*(torch.autograd.grad(x, parameters) for x in (loss, expected)), strict=True):
        assert float((found - wanted).abs().max()) <= of_gradients * max(0.1, float(wanted.abs().max()))


SMEARED = {"smear_keys": True, "loadable_elsewhere": False}
SHAPES = {"full": {}, "windows": MIXED, "olmo2": OLMO2, "smollm3": SMOLLM3, "latent": LATENT, "gpt2": GPT2}
SHAPES["smeared"] = SMEARED
CASES = [("blocked", "full", True), *(("blocked", shape, False) for shape in SHAPES), ("sdpa", "full", False)]
CASES += [pytest.param(name, x, False, marks=pytest.mark.slow) for name in ("eager", "flash", "sdpa") for x in SHAPES]


def compiled_for_training(lm, counter):
    """A second model of the same weights, its layers compiled as training does, without a graph
    break.
    """
    other = with_config(lm).train()
    compile_layers(other, backend=counter, fullgraph=True)
    return other


def kinds_of_layers(lm):
    return len(set(zip(lm.config.windows, lm.config.rotates, strict=True)))


@pytest.mark.parametrize("packed", [False, True], ids=["dense", "packed"])
@pytest.mark.parametrize(("backend", "shape", "in_bfloat16"), CASES)
def test_training_compiles_each_kind_of_layer_once_and_the_loss(backend, shape, in_bfloat16, packed, monkeypatch):
    monkeypatch.setitem(CHUNK, "cpu", 16)  # four chunks, one graph
    lm = random_model(tiny_config(**SHAPES[shape])).train()
    lm.set_attn_implementation(backend)
    counter = CompileCounter()  # counts graphs; a graph break or a recompilation makes one more
    compiled = compiled_for_training(lm, counter)
    for _ in range(4):
        ids = torch.randint(0, 192, (2, 32))
        documents = torch.randint(0, 4, (2, 32)).sort().values if packed else None
        with torch.autocast("cpu", torch.bfloat16, enabled=in_bfloat16):
            loss, _ = compiled(ids, labels=ids, document_ids=documents)
            expected, _ = lm(ids, labels=ids, document_ids=documents)
        assert_same_training(loss, expected, lm, *((1e-3, 2e-2) if in_bfloat16 else (1e-5, 1e-4)))
    assert counter.frame_count <= kinds_of_layers(lm) + 1
    with torch.autocast("cpu", torch.bfloat16, enabled=in_bfloat16), torch.no_grad():
        # evaluation, whose shapes change, is not compiled
        compiled.eval()(ids[:, :7], labels=ids[:, :7])
    assert counter.frame_count <= kinds_of_layers(lm) + 1


def test_more_chunks_of_the_loss_are_no_more_to_compile(monkeypatch):
    lm = random_model(tiny_config()).train()
    nodes = []

    def count(graph, inputs):
        nodes[-1] += len(graph.graph.nodes)
        return make_boxed_func(graph.forward)

    for size in (64, 8):
        monkeypatch.setitem(CHUNK, "cpu", size)
        nodes.append(0)
        ids = torch.randint(0, 192, (2, 32))
        loss, _ = compiled_for_training(lm, aot_autograd(fw_compiler=count))(ids, labels=ids)
        loss.backward()
    assert nodes[0] == nodes[1] > 0


@pytest.fixture
def lengths_on_a_cpu(monkeypatch):
    """PyTorch's operator itself, as flash calls it on a GPU, with what its documentation says as
    its kernel here.
    """
    # it would refuse a CPU
    monkeypatch.setitem(BACKENDS, "varlen", replace(BACKENDS["varlen"], limits=None))
    varlen._varlen_attn.register_kernel("cpu")(varlen_kernel.forward)
    varlen._varlen_attn_backward.register_kernel("cpu")(varlen_kernel.backward)


@pytest.mark.usefixtures("lengths_on_a_cpu")
@pytest.mark.parametrize("padded", [False, True], ids=["alone", "padded"])
@pytest.mark.parametrize("told", [True, False], ids=["starts given", "starts found"])
def test_lengths_in_place_of_a_mask_are_compiled_once_too(told, padded):
    lm = random_model(tiny_config(**MIXED)).train()
    lm.set_attn_implementation("varlen")
    counter = CompileCounter()
    compiled = compiled_for_training(lm, counter)
    lm.set_attn_implementation("eager")
    for i in range(3):
        ids = torch.randint(0, 192, (2, 32))
        documents = torch.randint(0, 4, (2, 32)).sort().values
        real = torch.arange(32) < torch.tensor([[25 + i], [32]]) if padded else None
        labels = ids if real is None else ids.where(real, -100)
        starts = torch.from_numpy(document_starts(documents.numpy())) if told else None
        masks = {"attention_mask": real, "document_ids": documents, "document_starts": starts}
        loss, expected = (model(ids, labels=labels, **masks)[0] for model in (compiled, lm))
        assert_same_training(loss, expected, lm, 1e-3, 1e-3)
    assert counter.frame_count <= kinds_of_layers(lm) + 1


@pytest.mark.slow
@pytest.mark.parametrize("packed", [False, True], ids=["dense", "packed"])
def test_flex_is_one_graph_too(packed):
    """Forward only, which is what FlexAttention has on a CPU."""
    lm = random_model(tiny_config(**MIXED))
    counter = CompileCounter()
    step = torch.compile(lm, backend=counter, fullgraph=True, dynamic=False)
    for _ in range(3):
        ids = torch.randint(0, 192, (2, 32))
        documents = torch.randint(0, 4, (2, 32)).sort().values if packed else None
        with torch.no_grad():
            lm.set_attn_implementation("sdpa")
            expected = lm(ids, document_ids=documents)
            lm.set_attn_implementation("flex")
            assert torch.allclose(step(ids, document_ids=documents), expected, atol=1e-4)
    assert counter.frame_count == 1


@pytest.mark.usefixtures("lengths_on_a_cpu")
@pytest.mark.parametrize("changes", [{}, MIXED, LATENT, SMEARED], ids=["full", "windows", "latent", "smeared"])
@pytest.mark.parametrize("padded", [False, True], ids=["alone", "padded"])
@pytest.mark.parametrize("backend", ["sdpa", "varlen"])
def test_decoding_into_a_static_cache_is_one_graph(backend, changes, padded):
    lm = random_model(tiny_config(**changes))
    cache = StaticCache(lm.config, 2, 40, "cpu", torch.float32)
    ids = torch.randint(0, 192, (2, 20))
    real = torch.arange(40) >= torch.tensor([[3], [0]]) if padded else None
    counter = CompileCounter()
    step = torch.compile(lm, backend=counter, fullgraph=True, dynamic=False)
    with torch.no_grad():
        full = lm(ids, attention_mask=real[:, :20] if padded else None)
        lm.set_attn_implementation(backend)
        lm(ids[:, :8], attention_mask=real, kv_cache=cache)
        for place in range(8, 20):
            logits = step(ids[:, place : place + 1], attention_mask=real, kv_cache=cache)
            assert torch.allclose(logits[:, 0], full[:, place], atol=1e-4)
    assert cache.length == 20
    assert counter.frame_count == 1


@pytest.mark.parametrize("padded", [False, True], ids=["alone", "padded"])
def test_prompts_of_every_length_share_the_compiled_step(padded, monkeypatch):
    """Through `generate`, as it is used; the cache has room for 64 tokens whatever the lengths are."""
    lm = random_model(tiny_config())
    counter = CompileCounter()
    compiled = torch.compile(lambda lm, *a, **k: lm(*a, **k), backend=counter, fullgraph=True, dynamic=False)
    monkeypatch.setattr("model.generation.compiled_step", lambda kind: compiled)
    for length in (3, 5, 8):
        ids = torch.randint(0, 192, (2, length))
        real = torch.arange(length) >= torch.tensor([[1], [0]]) if padded else None
        found = generate(lm, ids, 4, temperature=0, attention_mask=real, kv_cache="static", compile=True)
        assert torch.equal(found, generate(lm, ids, 4, temperature=0, attention_mask=real))
    assert counter.frame_count == 1


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, SMOLLM3, GPT2], ids=["plain", "bias and NoPE", "gpt2"])
def test_really_compiled_decoding_gives_the_same_tokens(changes):
    lm = random_model(tiny_config(**changes))
    prompt = torch.randint(0, 192, (2, 6))
    compiled = generate(lm, prompt, 20, temperature=0, kv_cache="static", compile=True)
    assert torch.equal(compiled, generate(lm, prompt, 20, temperature=0))
    assert torch.equal(generate(lm, prompt, 20, temperature=0, kv_cache="static", compile=True), compiled)


@pytest.mark.parametrize("shape", [(1, 1, 24), (1, 24), (4, 1, 24), (2, 3, 24), (40, 24)])
@pytest.mark.parametrize("bias", [True, False])
def test_products_of_few_rows_are_those_of_a_linear_layer(shape, bias):
    layer = torch.nn.Linear(24, 40, bias=bias)
    x = torch.randn(shape)
    with torch.no_grad(), FewRows():
        product = layer(x)
    torch.testing.assert_close(product, layer(x), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("length", "window", "packed"), [(200, None, False), (200, 50, True), (64, 5, True)])
def test_the_fused_flex_kernel_equals_eager(length, window, packed):
    """The C++ kernel that FlexAttention compiles on a CPU, by itself: inside a compiled model
    PyTorch 2.13 cannot.
    """
    places = torch.arange(length)
    documents = (places // 40).expand(2, length).contiguous() if packed else None
    spec = MaskSpec(places, places, 2, None, documents, window)
    q, k, v = (torch.randn(2, heads, length, 16) for heads in (4, 2, 2))
    with torch.no_grad():
        found = flex_kernel_compiled()(q, k, v, block_mask=block_mask(spec), enable_gqa=True)
    assert torch.allclose(found, eager(q, k, v, boolean_mask(spec), 0.0), atol=1e-5)
