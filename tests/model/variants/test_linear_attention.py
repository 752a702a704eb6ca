"""Linear attention: two forms of one rule, equal to transformers'; what its cache keeps, and what
other programs and pages are told of a layer without attention weights.
"""

import pytest
import torch

from configs.command import InputError
from eval.attention import capture
from eval.attention.controls import ablate_each, scaled
from eval.config import EvalConfig
from eval.hooks.attention import Attention
from model import LanguageModel, ModelConfig, generate, left_pad, load, save
from model.accounting import flops_per_token
from model.files.families import NoFamily
from model.files.gguf import not_in_llama_cpp
from model.generation import Sampling
from model.kv_cache import KVCache
from model.masks import MaskSpec
from model.variants.caches import make_cache
from model.variants.linear_attention import CHUNK, LinearAttention, chunked, recurrent
from model.variants.surgery import convert_kv_heads
from serve.batching import Batcher, Request
from tests.conftest import random_model, tiny_config

HYBRID = {"layer_types": ["linear_attention", "full_attention"], "loadable_elsewhere": False}
LINEAR = {"layer_types": ["linear_attention"], "loadable_elsewhere": False}
LENGTHS = [1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 7]


def unit(*shape, dtype):
    return torch.nn.functional.normalize(torch.randn(*shape, dtype=dtype), dim=-1)


def drawn(T, dtype=torch.float32, B=2, H=3, D_k=8, D_v=5):
    """q, k, v, ln α, β and a state; α from nearly 0, where everything is forgotten, to nearly 1."""
    log_alpha = torch.nn.functional.logsigmoid(torch.randn(B, H, T, dtype=dtype) * 4 + 2)
    beta = torch.rand(B, H, T, dtype=dtype)
    q, k = unit(2, B, H, T, D_k, dtype=dtype)
    v = torch.randn(B, H, T, D_v, dtype=dtype)
    return q, k, v, log_alpha, beta, torch.randn(B, H, D_k, D_v, dtype=dtype)


@pytest.mark.parametrize("T", LENGTHS)
def test_both_forms_give_the_same_numbers_and_gradients(T):
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
        inputs = drawn(T, dtype)
        results = []
        for form in (recurrent, chunked):
            own = [x.clone().requires_grad_() for x in inputs]
            out, state = form(*own)
            (out.square().sum() + state.square().sum()).backward()
            results.append([out.detach(), state.detach(), *(x.grad for x in own)])
        for expected, got in zip(*results, strict=True):
            assert got.isfinite().all()
            # gradients are sums over all later tokens, so they are larger
            assert torch.allclose(expected, got, rtol=tolerance, atol=tolerance * (1 + expected.abs().max().item()))


@pytest.mark.parametrize("T", LENGTHS)
def test_a_document_of_a_row_is_as_if_alone(T):
    *inputs, state = drawn(T)
    documents = (torch.rand(2, T) < 0.1).cumsum(1)
    together, end = chunked(*inputs, state, documents)
    for row in range(2):
        for number in range(int(documents[row, -1]) + 1):
            places = (documents[row] == number).nonzero()[:, 0]
            if not len(places):
                continue
            own = [x[row : row + 1, :, places] for x in inputs]
            # the first continues the state, all others begin with an empty memory
            begin = state[row : row + 1] if number == 0 else torch.zeros(1, 3, 8, 5)
            alone, last = recurrent(*own, begin)
            assert torch.allclose(together[row : row + 1, :, places], alone, atol=1e-5)
        assert torch.allclose(end[row : row + 1], last, atol=1e-5)


def test_the_rule_is_that_of_transformers():
    modeling = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    q, k, v, log_alpha, beta, state = drawn(150)
    theirs = [x.transpose(1, 2) for x in (q * 8**0.5, k, v, log_alpha, beta)]
    rule = modeling.torch_chunk_gated_delta_rule
    expected, end = rule(*theirs, initial_state=state, output_final_state=True)
    out, last = chunked(q, k, v, log_alpha, beta, state)
    assert torch.allclose(out, expected.transpose(1, 2), atol=1e-5)
    assert torch.allclose(last, end, atol=1e-5)


def test_the_layer_is_that_of_transformers():
    """OLMo Hybrid's layer with A = 1: then its α is the sigmoid of minus its a_proj."""
    modeling = pytest.importorskip("transformers.models.olmo_hybrid.modeling_olmo_hybrid")
    from transformers.models.olmo_hybrid.configuration_olmo_hybrid import OlmoHybridConfig

    sizes = {"linear_key_head_dim": 6, "linear_value_head_dim": 10, "linear_conv_kernel_dim": 3}
    theirs_config = OlmoHybridConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, linear_allow_neg_eigval=False,
        layer_types=["linear_attention", "full_attention"], **sizes,
    )  # fmt: skip
    theirs = modeling.OlmoHybridGatedDeltaNet(theirs_config, 0).eval()
    ours = LinearAttention(tiny_config(**LINEAR, **sizes, rms_norm_eps=1e-5), 0)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.normal_(std=0.3)
        tensors = {name: tensor for name, tensor in ours.state_dict().items() if "a_proj" not in name}
        tensors |= {"a_proj.weight": -ours.a_proj.weight, "dt_bias": -ours.a_proj.bias, "A_log": torch.zeros(4)}
        theirs.load_state_dict(tensors)
        x = torch.randn(2, 90, 32)
        real = torch.arange(90) >= torch.tensor([[0], [20]])
        places = torch.arange(90)
        got = ours(x, x, x, MaskSpec(places, places, 2, attention_mask=real))
        expected = theirs(x, attention_mask=real)
    assert torch.allclose(got[real], expected[real], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("changes", [HYBRID, LINEAR, HYBRID | {"linear_conv_kernel_dim": 1}])
@pytest.mark.parametrize("kind", ["dynamic", "offloaded", "int8"])
def test_a_cache_changes_no_number(kind, changes):
    lm = random_model(tiny_config(**changes, linear_value_head_dim=6))
    ids = torch.randint(0, 192, (2, 40))
    # the second prompt has padding on the left
    real = torch.arange(40) >= torch.tensor([[0], [7]])
    cache = make_cache(kind, lm.config, 2, 40, next(lm.parameters()))
    with torch.no_grad():
        expected = lm(ids, attention_mask=real)
        pieces = []
        for piece in ids.split([11, 1, 1, 5, 22], dim=1):
            seen = cache.length + piece.shape[1]
            pieces.append(lm(piece, attention_mask=real[:, :seen], kv_cache=cache))
        alone = lm(ids[1:, 7:])
    got = torch.cat(pieces, dim=1)
    tolerance = 0.5 if kind == "int8" and changes is not LINEAR else 1e-4  # rounded keys
    assert torch.allclose(got[real], expected[real], atol=tolerance)
    assert torch.allclose(expected[1:, 7:], alone, atol=1e-4)  # padding changes nothing
    assert torch.equal(generate(lm, ids[:, :9], 12, 0), generate(lm, ids[:, :9], 12, 0, kv_cache=None))


def test_packed_documents_do_not_leak_and_gradients_are_finite():
    lm = random_model(tiny_config(**HYBRID, max_position_embeddings=200))
    ids = torch.randint(0, 192, (1, 150))
    lengths = [3, 70, 1, 76]
    documents = torch.arange(4).repeat_interleave(torch.tensor(lengths))[None] + 5
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    packed = lm(ids, document_ids=documents, position_ids=positions)
    alone = torch.cat([lm(part) for part in ids.split(lengths, dim=1)], dim=1)
    assert torch.allclose(packed, alone, atol=1e-4)
    changed = ids.clone()
    changed[0, 10] = (ids[0, 10] + 1) % 192  # of the second document
    assert torch.equal(lm(changed, document_ids=documents, position_ids=positions)[:, 73:], packed[:, 73:])
    loss_sum, count = lm(ids, document_ids=documents, position_ids=positions, labels=ids)
    (loss_sum / count).backward()
    assert all(parameter.grad.isfinite().all() for parameter in lm.parameters())
    assert all(parameter.grad.abs().max() > 0 for parameter in lm.parameters())


def test_the_cache_keeps_a_memory_that_does_not_grow_and_cannot_go_back():
    config = tiny_config(**LINEAR)  # 4 heads of 8, 2 layers
    lm = random_model(config)
    cache = KVCache(config)
    sizes = []
    for _ in range(3):
        with torch.no_grad():
            lm(torch.randint(0, 192, (3, 9)), kv_cache=cache)
        sizes.append(cache.nbytes)
    assert sizes == [2 * 3 * 4 * (4 * 8 * 8 + 3 * 3 * 4 * 8)] * 3  # memories, and three inputs
    cache.repeat_interleave(2)
    assert cache.nbytes == 2 * sizes[0]
    cache.crop(27)
    assert cache.length == 27
    cache.crop(26)
    assert cache.length == 0
    assert cache.nbytes == 0


def test_an_earlier_cache_is_used_again_only_for_a_longer_text():
    lm = random_model(tiny_config(**HYBRID))
    cache = KVCache(lm.config)
    first = generate(lm, torch.randint(0, 192, (1, 9)), 8, 0, kv_cache=cache)
    assert cache.length == 16
    longer = torch.cat((first, torch.randint(0, 192, (1, 4))), dim=1)
    shorter = first[:, :12]
    for prompt in (longer, shorter):
        again = generate(lm, prompt, 8, 0, kv_cache=cache)
        assert torch.equal(again, generate(lm, prompt, 8, 0, kv_cache=None))
    several = generate(lm, shorter, 6, seed=3, num_return_sequences=2)
    assert torch.equal(several, generate(lm, shorter, 6, seed=3, num_return_sequences=2, kv_cache=None))


def test_a_server_answers_as_generate_does():
    lm = random_model(tiny_config(**HYBRID))
    prompts = [torch.randint(0, 192, (length,)).tolist() for length in (20, 5, 20, 33)]
    prompts[2][:16] = prompts[0][:16]  # a beginning that attention alone could share
    batcher = Batcher(lm, block_size=4, chunk=8)
    answers = []
    for prompt in prompts:
        tokens = []
        answers.append(tokens)
        request = Request(prompt, 10, Sampling(temperature=0), frozenset(), tokens.append)
        batcher.submit(request)
    while batcher.step():
        pass
    for prompt, tokens in zip(prompts, answers, strict=True):
        expected = generate(lm, torch.tensor([prompt]), 10, 0, stop_ids=())[0, len(prompt) :]
        assert [token.id for token in tokens[:10]] == expected.tolist()


def test_a_saved_model_is_the_same_model(tmp_path):
    lm = random_model(tiny_config(**HYBRID, linear_key_head_dim=6, linear_conv_kernel_dim=2))
    save(lm, tmp_path)
    again = load(tmp_path)
    assert again.config == lm.config
    ids = torch.randint(0, 192, (2, 30))
    assert torch.equal(again(ids), lm(ids))


def test_other_formats_refuse_it_by_name(tmp_path):
    with pytest.raises(NoFamily, match="linear_attention is saved as Headlight's own"):
        save(random_model(tiny_config(**HYBRID | {"loadable_elsewhere": True})), tmp_path)
    assert "headlight" in not_in_llama_cpp(tiny_config(**HYBRID))
    with pytest.raises(ValueError, match="linear_key_head_dim is for layer_types"):
        tiny_config(linear_key_head_dim=4)
    lm = random_model(tiny_config(**HYBRID))
    with pytest.raises(ValueError, match="linear_attention needs no room"):
        generate(lm, torch.zeros(1, 4, dtype=torch.long), 4, kv_cache="static")
    with pytest.raises(ValueError, match="num_key_value_heads"):
        convert_kv_heads(lm, 4)


def test_layers_without_weights_are_left_out_or_refused():
    lm = random_model(tiny_config(**HYBRID | {"num_hidden_layers": 4}))
    ids = torch.randint(0, 192, (2, 9))
    maps = capture(lm, ids)
    assert maps.layers == [1, 3]
    assert maps.weights.shape == (2, 2, 4, 9, 9)
    assert torch.equal(capture(lm, ids, layers=[3]).weights[0], maps.weights[1])
    purely_linear = random_model(tiny_config(**LINEAR))
    for model, layers in ((lm, [0, 1]), (purely_linear, None)):
        with pytest.raises(ValueError, match="linear_attention has no attention weights"):
            capture(model, ids, layers=layers)
    with pytest.raises(InputError, match="leave it out"):
        Attention().check(EvalConfig(), purely_linear.config)
    with pytest.raises(InputError, match="leave them out"):
        Attention().check(EvalConfig(attention={"layers": [0]}), lm.config)
    Attention().check(EvalConfig(attention={"layers": [1]}), lm.config)


def test_a_head_without_weights_can_be_switched_off():
    lm = random_model(tiny_config(**HYBRID, linear_value_head_dim=12))
    ids = torch.randint(0, 192, (1, 9))
    with torch.no_grad():
        before = lm(ids)
        with scaled(lm, {(0, head): 0.0 for head in range(4)}):
            without = lm(ids)
        lm.attention_modules()[0].o_proj.weight.zero_()
        assert not torch.allclose(before, without)
        assert torch.allclose(lm(ids), without)
    assert ablate_each(lm, lambda: lm(ids).sum().item()).shape == (2, 4)


def test_its_work_does_not_grow_with_the_text():
    # 2 layers with 4 heads of 8 x 8: three products with each memory
    short, long = (flops_per_token(LanguageModel(tiny_config(**LINEAR)), T, training=False) for T in (16, 64))
    matrices = sum(p.numel() for n, p in LanguageModel(tiny_config(**LINEAR)).named_parameters() if "proj.weight" in n)
    assert short == long == 2 * (matrices + 32 * 192) + 2 * 4 * 6 * 8 * 8


def test_padded_prompts_of_a_batch():
    lm = random_model(tiny_config(**HYBRID))
    prompts = [torch.randint(0, 192, (length,)).tolist() for length in (4, 9, 1)]
    ids, real = left_pad(prompts)
    together = generate(lm, ids, 6, 0, stop_ids=(), attention_mask=real)
    for row, prompt in enumerate(prompts):
        alone = generate(lm, torch.tensor([prompt]), 6, 0, stop_ids=())
        assert torch.equal(together[row, -6:], alone[0, -6:])


def test_the_state_stays_in_float32_under_autocast():
    lm = random_model(tiny_config(**LINEAR))
    cache = KVCache(lm.config)
    ids = torch.randint(0, 192, (1, 30))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        out = lm(ids, kv_cache=cache)
    assert out.dtype == torch.bfloat16
    assert {x.dtype for state in cache.states.values() for x in state} == {torch.float32}
    half = random_model(ModelConfig(**lm.config.model_dump())).bfloat16()
    assert half(ids).isfinite().all()
