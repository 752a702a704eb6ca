"""The model card: README.md of a checkpoint, which the Hugging Face Hub shows.

Two blocks hold only beside the state of training; `model.export --to hub-folder` leaves them out.
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
Only Headlight can load it:

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
    config, family = lm.config, family_of(lm.config).model_type
    identity = (progress.identity if progress is not None else None) or {}
    source = {key[12:]: value for key, value in identity.items() if key.startswith("data.source.")}
    text, datasets = _text_in_words(source)
    is_chat = identity.get("data.records") in ("conversations", "pairs")
    use, library = USE_TRANSFORMERS, "transformers"
    if not config.loadable_elsewhere or (
        lm.adapters is not None and family == "gpt2"
    ):  # one matrix in peft, three here
        use, library = USE_HEADLIGHT, ""
    elif lm.adapters is not None:
        use, library = USE_ADAPTERS.format(place=code(lm.adapters.base), base=lm.adapters.base), "peft"
    metadata = {
        "license": "unknown",
        "language": ["en"] if source.get("kind") == "storyworld" else None,
        "library_name": library,
        "pipeline_tag": "text-generation",
        "tags": [*dict.fromkeys(("headlight", family)), *(["conversational"] if is_chat else [])],
        "datasets": datasets,
    }
    metadata = {key: value for key, value in metadata.items() if value}
    start = identity.get("init_from")
    facts = [
        f"Started from: {f'the weights of {code(start)}' if start else 'random weights' if identity else 'unknown'}"
    ]
    facts += [f"Text: {'conversations; ' if is_chat else ''}{markdown(text)}"]
    if progress is not None:
        facts += [f"Progress: step {progress.step:,}, after {progress.tokens:,} tokens"]
        if progress.best_loss is not None and progress.best_step is not None:
            best = f"{progress.best_loss:.4f} nats a token, at step {progress.best_step:,}"
            facts += [f"Lowest loss on held-out text: {best}"]
    return f"""\
---
{yaml.safe_dump(metadata, sort_keys=False)}---

# {markdown(name)}{f", step {progress.step:,}" if progress is not None else ""}

A language model with {lm.num_parameters():,} parameters: {config.in_words()}. It knows {config.vocab_size:,} tokens \
and reads up to {config.max_position_embeddings:,} of them at once.

It was trained with Headlight, which trains tiny language models so that you can watch their attention heads learn.

{chr(10).join(f"- {fact}" for fact in facts)}

## Use it

{use}

{BESIDE_TRAINING}\
## Limits

- This model is small. It makes up facts, so do not rely on what it writes.
- It knows nothing but the text above, with all that is wrong or one-sided in it. Nothing was filtered out.
- Nobody has tested whether it is safe. Keep it away from people who did not choose to read it.

{BEFORE_PUBLISHING}"""


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
