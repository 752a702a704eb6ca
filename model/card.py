"""The model card: README.md of a checkpoint, which the Hugging Face Hub shows.

What only holds beside the state of training stands in two blocks, which `model.export --to hub-folder` leaves out.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import BaseModel

from configs.text import code, markdown
from model.families import family_of

if TYPE_CHECKING:
    from model.transformer import LanguageModel

CARD = """\
# {title}

A language model with {parameters:,} parameters: {layers} layers of width {width}, {heads} attention heads with \
{kv_heads}, {vocabulary:,} tokens in its vocabulary. It reads up to {context:,} tokens at once.

It was trained with Headlight, which trains tiny language models so that you can watch their attention heads learn.

- Started from: {start}
- Text: {text}
{progress}
## Use it

{use}

{beside_training}\
## Limits

- This model is small. It makes up facts, so do not rely on what it writes.
- It knows nothing but the text above, with all that is wrong or one-sided in it. Nothing was filtered out.
- Nobody has tested whether it is safe. Keep it away from people who did not choose to read it.

{before_publishing}"""
BESIDE_TRAINING = """\
`training/` holds the optimizer's state. You need it only to continue the training.

"""
BEFORE_PUBLISHING = """\
## Before you publish it

- Choose a license: the metadata above says `unknown`. Check the terms of the text first.
- Leave the optimizer's state out: `python -m model.export RUN --to hub-folder --out FOLDER`
- Then: `hf upload NAME FOLDER`
"""

USE_TRANSFORMERS = """\
```python
from transformers import AutoModelForCausalLM, AutoTokenizer

directory = "."  # the folder of this file
model = AutoModelForCausalLM.from_pretrained(directory)
tokenizer = AutoTokenizer.from_pretrained(directory)
```"""
USE_ADAPTERS = """\
This folder holds adapters (LoRA). The model beside which they were trained is {place}.

```python
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

directory = "."  # the folder of this file
tokenizer = AutoTokenizer.from_pretrained(directory)
base = AutoModelForCausalLM.from_pretrained({base!r})
base.resize_token_embeddings(len(tokenizer))  # for tokens that were added
model = PeftModel.from_pretrained(base, directory)
```"""
USE_HEADLIGHT = """\
It was trained with `loadable_elsewhere: false`, so only Headlight can load it:

```python
from data import load_tokenizer
from model import load

directory = "."  # the folder of this file
model, tokenizer = load(directory), load_tokenizer(directory)
```"""


class Progress(BaseModel):
    """How far training was, as trainer_state.json says it.

    best_loss: the lowest on held-out text, in nats a token; None before the first look. identity: what makes the run
    itself (RunConfig.identity()), by dotted key.
    """

    step: int
    tokens: int
    best_loss: float | None = None
    best_step: int | None = None
    identity: dict[str, Any] | None = None


def model_card(name: str, lm: LanguageModel, progress: Progress | None) -> str:
    """Metadata and a short description. name: of the run. progress: None if it is unknown."""
    config, identity = lm.config, (progress.identity if progress else None) or {}
    first, chats = identity.get("init_from"), identity.get("data.records") in ("conversations", "pairs")
    source = {key[12:]: value for key, value in identity.items() if key.startswith("data.source.")}
    text, datasets = _text_in_words(source)
    metadata: dict[str, Any] = {"license": "unknown"}
    if source.get("kind") == "storyworld":
        metadata["language"] = ["en"]
    if config.loadable_elsewhere:
        metadata["library_name"] = "peft" if lm.adapters else "transformers"
    metadata["pipeline_tag"] = "text-generation"
    metadata["tags"] = list(dict.fromkeys(("headlight", family_of(config).model_type)))
    metadata["tags"] += ["conversational"] if chats else []
    if datasets:
        metadata["datasets"] = datasets

    title, lines = str(markdown(name)), ""
    if progress is not None:
        title += f", step {progress.step:,}"
        lines = f"- Progress: step {progress.step:,}, after {progress.tokens:,} tokens\n"
        if progress.best_loss is not None and progress.best_step is not None:
            best = f"{progress.best_loss:.4f} nats a token, at step {progress.best_step:,}"
            lines += f"- Lowest loss on held-out text: {best}\n"
    use = USE_TRANSFORMERS if config.loadable_elsewhere else USE_HEADLIGHT
    if lm.adapters is not None and config.loadable_elsewhere:
        use = USE_ADAPTERS.format(place=code(lm.adapters.base), base=lm.adapters.base)
    body = CARD.format(
        title=title,
        parameters=lm.num_parameters(),
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=f"keys and values from one latent vector of {config.kv_lora_rank} numbers"
        if config.attention == "mla"
        else f"{config.num_key_value_heads} key/value heads",
        vocabulary=config.vocab_size,
        context=config.max_position_embeddings,
        start=f"the weights of {code(first)}" if first else "random weights" if "init_from" in identity else "unknown",
        text=("conversations; " if chats else "") + markdown(text),
        progress=lines,
        use=use,
        beside_training=BESIDE_TRAINING,
        before_publishing=BEFORE_PUBLISHING,
    )
    return f"---\n{yaml.safe_dump(metadata, sort_keys=False)}---\n\n{body}"


def _text_in_words(source: dict[str, Any]) -> tuple[str, list[str]]:
    """What data.source names, in words, and the datasets of the Hub among it."""
    kind = str(source.get("kind"))
    if kind == "mix":
        parts = [_text_in_words(part["source"]) for part in source["parts"]]
        return ", ".join(text for text, _ in parts), [name for _, names in parts for name in names]
    if kind == "hub":
        name = source["name"]
        return f"the dataset {name}, split {source['split']}", [] if Path(name).exists() else [name]
    return {"storyworld": "stories that Headlight generates", "files": "local text files"}.get(kind, "unknown"), []


def published(card: str, figures: str) -> str:
    """A card, also an edited one, without what holds only beside the state of training, and with these figures."""
    return card.replace(BESIDE_TRAINING, "").replace(BEFORE_PUBLISHING, figures)
