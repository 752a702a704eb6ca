"""Tests never reach for a network."""

import os
import sys

os.environ.update(
    HEADLIGHT_LANG="en", HF_HUB_OFFLINE="1", WANDB_MODE="offline", WANDB_SILENT="true", TOKENIZERS_PARALLELISM="true"
)
# tiny models are quickest so, and test processes do not get in each other's way
os.environ["OMP_NUM_THREADS"] = "1"
# where a test asks for two threads, they do not spin while they wait
os.environ["OMP_WAIT_POLICY"] = "passive"
if kernels := os.environ.get("ATEN_CPU_CAPABILITY"):  # as configs.command does for every command
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", f"/tmp/torchinductor_{kernels}")

import signal

import pytest
import torch

from model import LanguageModel, ModelConfig

# a shell that starts the tests in the background lets them ignore Ctrl-C, and their processes with
# them
signal.signal(signal.SIGINT, signal.default_int_handler)


class _NoPip:
    """Refuses the lookup of `pip`, which makes setuptools step aside for the rest of the process
    (Python 3.11, `_distutils_hack.spec_for_pip`), so that torch.compile fails in whatever test
    comes later. Better fail here.
    """

    @staticmethod
    def find_spec(name, path=None, target=None):
        assert name != "pip", "a test process must not look for the module `pip`: see tests/conftest.py"


sys.meta_path.insert(0, _NoPip)


def pytest_collection_modifyitems(items):
    """Mark tests that need a browser as slow: it starts in seconds, and some machines have none."""
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture
def no_pictures(monkeypatch):
    """Runs that end without the pictures of their heads, which take seconds to draw; the viewer is
    written.
    """
    import eval.hooks.attention  # before the patch: what it imported meanwhile would stay there
    from eval.pictures import run_pictures as pictures

    def write_viewer(run_directory, snapshots, page="auto"):
        return [pictures.write_viewer([(run_directory.name, list(snapshots))], run_directory / "attention/viewer.html")]

    monkeypatch.setattr(pictures, "render", write_viewer)
    monkeypatch.setattr(eval.hooks.attention, "render", write_viewer)


# parts of other architectures than the usual one, with `tiny_config`
GPT2 = {
    "position_embedding": "learned", "norm": "layernorm", "gated_mlp": False, "hidden_act": "gelu_new",
    "attention_bias": True, "mlp_bias": True, "qk_norm": False, "num_key_value_heads": "mha",
}  # fmt: skip
LATENT = {"attention": "mla", "num_key_value_heads": "mha", "qk_norm": False}


def tiny_config(**changes) -> ModelConfig:
    """2 layers x 32, 4 query heads, tied, 192 ids: a forward pass takes a millisecond."""
    fields = {
        "vocab_size": 192,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
        "max_position_embeddings": 64,
    }
    return ModelConfig(**(fields | changes))


def random_model(config: ModelConfig, scale: float = 0.3) -> LanguageModel:
    """A model whose every weight is random: at initialisation the output projections are zero, and
    a test on an attention that adds nothing to the stream would pass whatever attention does.
    """
    lm = LanguageModel(config)
    with torch.no_grad():
        for parameter in lm.parameters():
            parameter.add_(torch.randn_like(parameter) * scale)
    return lm.eval()
