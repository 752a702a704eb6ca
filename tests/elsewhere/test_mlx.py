"""mlx-lm opens Headlight's models: the same logits, except where docs/ecosystem.md names a case."""

import numpy as np
import pytest
import torch

from tests.conftest import LATENT
from tests.model.files.export_models import LLAMA, WRITTEN, model, save_with_tokenizer

pytestmark = pytest.mark.slow
mx = pytest.importorskip("mlx.core", reason="pip install mlx-lm (and mlx-cpu, where there is no Mac)")
WINDOWS = {"sliding_window": 5}
SMOLLM3 = LLAMA | WINDOWS | {"no_rope_layers": [1, 0], "layer_types": ["full_attention", "sliding_attention"]}
EQUAL = {name: changes for name, changes in WRITTEN.items() if name != "gpt2"} | {
    "experts": {"num_experts": 4}, "mla": LATENT | {"tie_word_embeddings": False}, "smollm3, windows": SMOLLM3,
}  # fmt: skip
WRONG = {
    "qwen3, windows": WINDOWS, "qwen2, windows": LLAMA | {"qkv_bias": True} | WINDOWS,
    "experts, windows": {"num_experts": 4} | WINDOWS, "activation": LLAMA | {"hidden_act": "gelu"},
}  # fmt: skip
REFUSED = {
    "gpt2": WRITTEN["gpt2"], "ministral": LLAMA | WINDOWS, "tied mla": LATENT, "biases": {"attention_bias": True}
}  # fmt: skip


def difference(changes, directory):
    """The largest one between its logits and ours."""
    from mlx_lm.utils import load_model

    lm = model(**changes)
    ids = torch.randint(0, 300, (1, 30))
    theirs, _ = load_model(save_with_tokenizer(lm, directory))
    with torch.no_grad():
        return np.abs(np.array(theirs(mx.array(ids.numpy()))) - lm(ids).numpy()).max()


@pytest.mark.parametrize("name", [*EQUAL, *WRONG])
def test_logits_are_ours_where_the_guide_says_so(tmp_path, name):
    mx.set_default_device(mx.cpu)
    assert (difference((EQUAL | WRONG)[name], tmp_path / "model") < 1e-4) == (name in EQUAL)


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_refuses(tmp_path, name):
    with pytest.raises(ValueError, match="not supported|parameters"):
        difference(REFUSED[name], tmp_path / "model")
