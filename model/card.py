"""The model card: README.md of a checkpoint, which the Hugging Face Hub shows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from configs.text import code, markdown
from model.families import family_of

if TYPE_CHECKING:
    from model.transformer import LanguageModel

# `model.export --to hub-folder` leaves these two out: they hold only beside the state of training
BESIDE_TRAINING = """\
`training/` holds the optimizer's state. You need it only to continue the training.

"""
BEFORE_PUBLISHING = """\
## Before you publish it

- Choose a license: the metadata above says `unknown`. Check the terms of the text first.
- Leave the optimizer's state out: `python -m model.export RUN --to hub-folder --out FOLDER`
- Then: `hf upload NAME FOLDER`
"""
USE = {  # library -> how to load it
    "transformers": """\
```python
from transformers import AutoModelForCausalLM, AutoTokenizer

directory = "."  # the folder of this file
model = AutoModelForCausalLM.from_pretrained(directory)
tokenizer = AutoTokenizer.from_pretrained(directory)
```""",
    "peft": """\
This folder holds adapters (LoRA). The model beside which they were trained is {place}.

```python
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

directory = "."  # the folder of this file
tokenizer = AutoTokenizer.from_pretrained(directory)
base = AutoModelForCausalLM.from_pretrained({base!r})
base.resize_token_embeddings(len(tokenizer))  # for tokens that were added
model = PeftModel.from_pretrained(base, directory)
```""",
    "": """\
Only Headlight can load it:

```python
from data import load_tokenizer
from model import load

directory = "."  # the folder of this file
model, tokenizer = load(directory), load_tokenizer(directory)
```""",
}


def model_card(name: str, lm: LanguageModel, progress: dict[str, Any]) -> str:
    """Metadata and a short description. name: of the run.

    progress: of trainer_state.json: step, tokens, best_loss (nats a token, on held-out text), best_step, and identity,
    which holds what makes the run itself by dotted key. {} if it is unknown.
    """
    config, family = lm.config, family_of(lm.config).model_type
    identity = progress.get("identity") or {}
    source = {key[12:]: value for key, value in identity.items() if key.startswith("data.source.")}
    text, datasets = _text_in_words(source)
    is_chat = identity.get("data.records") in ("conversations", "pairs")
    library, adapters = "transformers", lm.adapters
    if not config.loadable_elsewhere or (adapters and family == "gpt2"):  # q, k and v are one matrix in peft's GPT-2
        library = ""
    elif adapters:
        library = "peft"
    use = USE[library].format(place=code(adapters.base), base=adapters.base) if adapters else USE[library]
    metadata = {
        "license": "unknown",
        "language": ["en"] if source.get("kind") == "storyworld" else None,
        "library_name": library,
        "pipeline_tag": "text-generation",
        "tags": [*dict.fromkeys(("headlight", family)), *(["conversational"] if is_chat else [])],
        "datasets": datasets,
    }
    start = "random weights" if identity else "unknown"
    if identity.get("init_from"):
        start = f"the weights of {code(identity['init_from'])}"
    facts = [f"Started from: {start}", f"Text: {'conversations; ' if is_chat else ''}{markdown(text)}"]
    if progress:
        facts += [f"Progress: step {progress['step']:,}, after {progress['tokens']:,} tokens"]
    if progress.get("best_step") is not None:
        best = f"{progress['best_loss']:.4f} nats a token, at step {progress['best_step']:,}"
        facts += [f"Lowest loss on held-out text: {best}"]
    return f"""\
---
{yaml.safe_dump({key: value for key, value in metadata.items() if value}, sort_keys=False)}---

# {markdown(name)}{f", step {progress['step']:,}" if progress else ""}

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
