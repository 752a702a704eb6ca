"""Looking inside: parts that sum to the whole, patches that change what they should, and
TransformerLens's numbers.
"""

import os

import pytest
import torch

from eval.attention.controls import ablated
from eval.attention.inside import direct_logit_attribution, logit_lens, patch_activations
from model import load
from tests.conftest import GPT2, LATENT, random_model, tiny_config
from tests.model.files.export_models import model, save_with_tokenizer

SMOLLM2 = os.environ.get("HEADLIGHT_SMOLLM2")
HOW = (
    "HEADLIGHT_SMOLLM2 names a folder with SmolLM2-135M-Instruct; notebooks/14_looking_inside.ipynb says how to get it"
)
TOKEN = 9
OTHER = 11
FAMILIES = {
    "MHA": {"num_key_value_heads": "mha"},
    "GQA, QK-norm": {},
    "MQA, large heads": {"num_key_value_heads": "mqa", "tie_word_embeddings": False, "head_dim": 16},
    "norm after": {"qk_norm": "whole", "norm_position": "after"},
    "LayerNorm, biases": GPT2,
    "LayerNorm after": {"norm": "layernorm", "norm_position": "after", "attention_bias": True},
    "no norm": {"norm": "none", "qk_norm": False},
    "MLA": LATENT | {"v_head_dim": 16},
    "experts": {"num_experts": 4},
}


@pytest.fixture(params=FAMILIES.values(), ids=FAMILIES)
def lm(request):
    config = tiny_config(**request.param, loadable_elsewhere=False)
    return random_model(config).train()  # in the middle of training


def twins(vocabulary: int = 192, length: int = 9, place: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Two texts (1, T) of random tokens, no two alike, that differ at one place."""
    ids = torch.randperm(vocabulary - 12)[None, : length + 1] + 12
    other = ids[:, :-1].clone()
    other[0, place] = ids[0, -1]
    return ids[:, :-1], other


def close(ours: torch.Tensor, theirs: torch.Tensor, atol: float = 2e-5) -> None:
    """Tolerance for numbers around 1, or larger, that are summed in another order, in float32."""
    atol *= max(1.0, theirs.abs().max().item())
    torch.testing.assert_close(ours, theirs.detach(), rtol=0, atol=atol)


def test_the_last_lens_is_the_model_and_the_parts_of_a_logit_sum_to_it(lm):
    ids = torch.cat(twins())
    after = ids.roll(-1, 1)  # another token at every position
    lens = logit_lens(lm, ids)
    parts = direct_logit_attribution(lm, ids, after)
    difference = direct_logit_attribution(lm, ids, TOKEN, OTHER)
    with ablated(lm, [(1, 2)]):
        without = direct_logit_attribution(lm, ids, TOKEN, OTHER).heads
    assert lm.training
    assert not [module for module in lm.modules() if module._forward_hooks or module._forward_pre_hooks]
    logits = lm.eval()(ids).detach()
    assert lens.shape == (3, *logits.shape)
    close(lens[-1], logits)
    close(parts.total, logits.gather(-1, after[..., None])[..., 0])
    close(difference.total, logits[..., TOKEN] - logits[..., OTHER])
    # no head's share is counted there
    assert lm.config.norm == "layernorm" or not difference.biases.any()
    assert difference.heads.abs().mean() > 0.01
    assert [tuple(head) for head in (without == 0).all((2, 3)).nonzero().tolist()] == [(1, 2)]


def test_a_patch_brings_back_everything_or_nothing_where_it_must(lm):
    (ids, other), every = twins(), torch.ones(1, 9)
    stream, heads = (patch_activations(lm, ids, other, TOKEN, OTHER, what) for what in ("stream", "heads"))
    assert lm.training
    assert stream.shape == (3, 9)
    assert heads.shape == (2, 4, 9)
    # the embedding differs in one place, and that is the whole difference
    close(stream[0], torch.eye(9)[3])
    close(stream[-1], torch.eye(9)[-1])  # the answer is read off the last place
    for shares in (stream, heads):
        # before that place the texts are one text
        close(shares[..., :3], torch.zeros_like(shares[..., :3]))
    close(patch_activations(lm, ids, other, TOKEN, OTHER, where=every), torch.ones(3, 1))
    assert heads.abs().amax((0, 2)).min() > 1e-3  # of each head something
    nothing = patch_activations(lm, ids, other, TOKEN, OTHER, "heads", torch.zeros(1, 9))
    close(nothing, torch.zeros(2, 4, 1))
    with ablated(lm, [(1, 2)]):
        alone = patch_activations(lm, ids, other, TOKEN, OTHER, "heads", every)[..., 0]
    # it takes no other head along
    assert [tuple(head) for head in (alone == 0).nonzero().tolist()] == [(1, 2)]
    with pytest.raises(ValueError, match="two texts of one length"):
        patch_activations(lm, ids, other[:, :-1], TOKEN, OTHER)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kv_heads", ["mha", 2, pytest.param(None, marks=pytest.mark.skipif(not SMOLLM2, reason=HOW), id="SmolLM2")]
)
def test_transformer_lens_finds_the_same(kv_heads, tmp_path):
    """On two checkpoints with random weights, and on a real model of thirty layers, whose sums are
    longer.
    """
    pytest.importorskip("transformer_lens")
    from transformer_lens import patching
    from transformer_lens.model_bridge import TransformerBridge

    fields = {"num_key_value_heads": kv_heads, "num_hidden_layers": 3, "qk_norm": False}
    path = save_with_tokenizer(model(**fields), tmp_path) if kv_heads else SMOLLM2
    atol = 5e-5 if kv_heads else 2e-4
    lm = load(path)
    bridge = TransformerBridge.boot_transformers(str(path), device="cpu")
    ids, other = twins(300, length=9 if kv_heads else 5)
    token = ids[0, 3].item()
    instead_of = other[0, 3].item()

    def same(name, ours, theirs):
        print(f"{name}: largest difference {(ours - theirs).abs().max():.1e}, largest number {theirs.abs().max():.3g}")
        close(ours, theirs, atol)

    logits, cache = bridge.run_with_cache(ids)
    same("lens", logit_lens(lm, ids), bridge.unembed(bridge.ln_final(cache.accumulated_resid())))

    def answer(logits):
        return logits[0, -1, token] - logits[0, -1, instead_of]

    begin = answer(bridge(other))
    end = answer(logits)
    ours = (lm, ids, other, token, instead_of)
    theirs = (bridge, other, cache, lambda logits: (answer(logits) - begin) / (end - begin))
    same("stream", patch_activations(*ours)[:-1], patching.get_act_patch_resid_pre(*theirs))
    of_heads = patching.get_act_patch_attn_head_out_all_pos(*theirs)
    same("heads", patch_activations(*ours, "heads", torch.ones_like(ids))[..., 0], of_heads)
    if kv_heads:  # a forward pass for every head and place takes minutes in the large one
        by_place = patching.get_act_patch_attn_head_out_by_pos(*theirs).transpose(1, 2)
        same("heads, place by place", patch_activations(*ours, "heads"), by_place)

    # there the head holds the last norm's weights, and attribution is right
    bridge.enable_compatibility_mode()
    _, cache = bridge.run_with_cache(ids)
    parts = direct_logit_attribution(lm, ids, token, instead_of)
    asked = torch.tensor([[token], [instead_of]])
    same("attribution of heads", parts.heads.flatten(0, 1), cache.logit_attrs(cache.stack_head_results(), *asked))
    whole = [parts.embedding, *torch.stack([parts.heads.sum(1), parts.mlps], 1).flatten(0, 1)]
    same("attribution of the rest", torch.stack(whole), cache.logit_attrs(cache.decompose_resid(), *asked))
