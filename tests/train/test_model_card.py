"""README.md of a checkpoint: metadata that the Hub reads, and what the model was trained on."""

import pytest
import yaml

from data.config import DataConfig
from model import LanguageModel
from model.checkpoint import model_card
from tests.conftest import tiny_config
from train.config import RunConfig

PARTS = [
    {"source": {"kind": "hub", "name": "roneneldan/TinyStories"}},
    {"weight": 3.0, "source": {"kind": "files", "path": "/home/me/secret"}},
]
MIX = DataConfig(source={"kind": "mix", "parts": PARTS}, records="conversations")


@pytest.mark.parametrize(
    ("config", "changes", "tags", "more", "words"),
    [
        (RunConfig(), {"qk_norm": True}, ["qwen3"], {"language": ["en"], "library_name": "transformers"}, "(GQA)"),
        (
            RunConfig(data=MIX, init_from="runs/demo"),
            {"qk_norm": False},
            ["llama", "conversational"],
            {"datasets": ["roneneldan/TinyStories"], "library_name": "transformers"},
            "the weights of `runs/demo`",
        ),
        (RunConfig(), {"norm_position": "after", "loadable_elsewhere": False}, [], {"language": ["en"]}, "Only Headl"),
    ],
)
def test_it_says_what_the_model_is_and_what_it_read(config, changes, tags, more, words):
    progress = {"step": 1200, "tokens": 19_660_800, "best_loss": 2.5, "best_step": 1100, "identity": config.identity()}
    _, metadata, body = model_card("demo", LanguageModel(tiny_config(**changes)), progress).split("---\n", 2)
    shared = {"license": "unknown", "pipeline_tag": "text-generation", "tags": ["headlight", *tags]}
    assert yaml.safe_load(metadata) == shared | more
    assert words in body
    assert "2.5000 nats" in body
    assert "secret" not in body
    assert ("AutoModel" in body) == ("library_name" in more)
