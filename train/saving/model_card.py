"""README.md of a checkpoint: the model card that the Hugging Face Hub shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from model import LanguageModel
from model.families import family_of

TEXT = """\
# {title}

A language model with {parameters:,} parameters: {layers} layers of width {width}, {heads} attention heads with \
{kv_heads} key/value heads, {vocabulary:,} tokens in its vocabulary. It reads up to {context:,} tokens at once.

It was trained with Headlight, which trains tiny language models so that you can watch their attention heads learn.

- Started from: {start}
- Text: {text}
- Progress: step {step:,}, after {tokens:,} tokens

## Use it

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

directory = "."  # where this file lies
model = AutoModelForCausalLM.from_pretrained(directory)
tokenizer = AutoTokenizer.from_pretrained(directory)
```

`training/` holds the optimizer's state. You need it only to continue the training.

## Before you publish it

- Choose a license and add it to the metadata above. Check the terms of the text first.
- Leave the optimizer's state out: `hf upload NAME . --exclude "training/*"`
- This model is small. It makes up facts, so do not rely on what it writes.
"""


def model_card(name: str, lm: LanguageModel, step: int, tokens: int, identity: dict[str, Any]) -> str:
    """Metadata and a short description. name: of the run. identity: RunConfig.identity(), by dotted key."""
    config = lm.config
    chats = identity.get("data.records") == "conversations"
    text, datasets = _text({key[12:]: value for key, value in identity.items() if key.startswith("data.source.")})
    metadata = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["headlight", family_of(config).model_type, *(["conversational"] if chats else [])],
        **({"datasets": datasets} if datasets else {}),
    }
    source = identity.get("init_from")
    start = f"the weights of `{source}`" if source else "random weights" if "init_from" in identity else "unknown"
    body = TEXT.format(
        title=f"{name}, step {step:,}",
        parameters=sum(p.numel() for p in lm.parameters()),  # each once, even where embedding and head are one matrix
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        vocabulary=config.vocab_size,
        context=config.max_position_embeddings,
        start=start,
        text=("conversations; " if chats else "") + text,
        step=step,
        tokens=tokens,
    )
    return f"---\n{yaml.safe_dump(metadata, sort_keys=False)}---\n\n{body}"


def _text(source: dict[str, Any]) -> tuple[str, list[str]]:
    """What data.source names, in words, and the datasets of the Hub among it."""
    kind = str(source.get("kind"))
    if kind == "mix":
        parts = [_text(part["source"]) for part in source["parts"]]
        return ", ".join(text for text, _ in parts), [name for _, names in parts for name in names]
    if kind == "hub":
        name = source["name"]
        return f"the dataset {name}, split {source['split']}", [] if Path(name).exists() else [name]
    return {"storyworld": "stories that Headlight generates", "files": "local text files"}.get(kind, "unknown"), []
