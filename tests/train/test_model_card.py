"""README.md of a checkpoint: metadata that the Hub reads, and what the model was trained on."""

import yaml

from data.config import DataConfig
from model import LanguageModel
from model.checkpoint import model_card
from tests.conftest import tiny_config
from train.config import RunConfig


def card(config: RunConfig, **changes) -> tuple[dict, str]:
    """Its metadata and its text."""
    progress = {"step": 1200, "tokens": 19_660_800, "best_loss": 2.5, "best_step": 1100, "identity": config.identity()}
    text = model_card("demo", LanguageModel(tiny_config(**changes)), progress)
    _, metadata, body = text.split("---\n", 2)
    return yaml.safe_load(metadata), body


def test_it_says_what_the_model_is_and_what_it_read():
    metadata, body = card(RunConfig(), qk_norm=True)
    assert metadata == {
        "license": "unknown",
        "language": ["en"],
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["headlight", "qwen3"],
    }
    assert "# demo, step 1,200\n" in body
    assert "2 layers x 32, 4 query heads / 2 key-value heads (GQA). It knows 192 tokens" in body
    assert "- Started from: random weights\n- Text: stories that Headlight generates\n" in body
    assert "- Progress: step 1,200, after 19,660,800 tokens\n" in body
    assert "- Lowest loss on held-out text: 2.5000 nats a token, at step 1,100\n" in body
    assert body.index("## Use it") < body.index("## Limits") < body.index("## Before you publish it")
    assert "--to hub-folder" in body


def test_datasets_and_the_model_it_started_from_are_named():
    hub = {"kind": "hub", "name": "roneneldan/TinyStories"}
    parts = [{"source": hub}, {"weight": 3.0, "source": {"kind": "files", "path": "/home/me/secret"}}]
    data = DataConfig(source={"kind": "mix", "parts": parts}, records="conversations")
    metadata, body = card(RunConfig(data=data, init_from="runs/demo"), qk_norm=False)
    assert "language" not in metadata
    assert metadata["datasets"] == ["roneneldan/TinyStories"]
    assert metadata["tags"] == ["headlight", "llama", "conversational"]
    assert "- Started from: the weights of `runs/demo`\n" in body
    assert "- Text: conversations; the dataset roneneldan/TinyStories, split train, local text files\n" in body
    assert "secret" not in body


def test_a_model_that_only_headlight_can_load_says_so():
    metadata, body = card(RunConfig(), norm_position="after", loadable_elsewhere=False)
    tags = {"pipeline_tag": "text-generation", "tags": ["headlight"]}
    assert metadata == {"license": "unknown", "language": ["en"], **tags}
    assert "Only Headlight can load it" in body
    assert "AutoModel" not in body
