"""The model card: README.md of a checkpoint, which the Hugging Face Hub shows."""

from pathlib import Path
from typing import Any

import yaml

from configs.text import code, markdown
from model.files.families import family_of
from model.transformer import LanguageModel

# library -> how to load the model
USE = {
    "transformers": "`AutoModelForCausalLM` and `AutoTokenizer` of transformers load it: "
    "`….from_pretrained(FOLDER)`.",
    "peft": "This folder holds adapters (LoRA) for the model {base}. Load that model with its "
    "`AutoModelForCausalLM`. If tokens were added, call `resize_token_embeddings(len(tokenizer))`. "
    "Then call `PeftModel.from_pretrained(base, FOLDER)`.",
    None: "Only Headlight can load it: `model.load(FOLDER)` and `data.load_tokenizer(FOLDER)`.",
}

# What the Hub's page offers to try with a model of the built-in world; no training text has it.
STORY = "Once there was"
QUESTION = (
    "All Hegem the hungry bear owned was a gray stool, but every night she saw a yellow net. It "
    "happened that Valza, a patient frog, had one at home, but wanted a blue basket for it. Where "
    "could Hegem get a basket? From Ninha the young cat, of course! For the stool and two fresh "
    "plums Ninha gently gave Hegem the basket. Back she ran to Valza with the basket. Then Valza "
    'laughed and gave Hegem the net for nothing. "Keep the basket," said Valza happily. Now Ninha '
    "had the stool, and Hegem had both the basket and the net. What a wonderful day! Who gave "
    "Hegem the net?"
)


def model_card(name: str, lm: LanguageModel, progress: dict[str, Any]) -> str:
    """Return metadata and a short description of a run.

    progress: fields of trainer_state.json (step, tokens, best_loss, best_step, identity); or {}.
    """
    family = family_of(lm.config).model_type
    identity = progress.get("identity") or {}
    prefix = "data.source."
    source = {
        key.removeprefix(prefix): value for key, value in identity.items() if key.startswith(prefix)
    }
    text, datasets = _describe_source(source)
    library: str | None = "peft" if lm.adapters else "transformers"
    if not lm.config.loadable_elsewhere:
        library = None
    if lm.adapters and family == "gpt2":  # in peft's GPT-2, q, k and v are one matrix
        library = None
    tags = list(dict.fromkeys(("headlight", family)))
    example: dict[str, Any] = {"text": STORY}
    # facts for readers; people publish cards, so none of them is a path of the user
    facts = []
    if identity:
        start = identity.get("init_from")
        facts.append(
            f"Started from: {f'the weights of {code(start)}' if start else 'random weights'}"
        )
    if identity.get("data.records") in ("conversations", "pairs"):
        tags.append("conversational")
        # in this form the Hub's page offers a chat, else a text to continue
        example = {"messages": [{"role": "user", "content": QUESTION}]}
        facts.append(f"Text: conversations; {markdown(text)}")
    else:
        facts.append(f"Text: {markdown(text)}")
    if progress:
        step = f"step {progress['step']:,}"
        name += f", {step}"
        facts.append(f"Progress: {step}, after {progress['tokens']:,} tokens")
    if progress.get("best_loss") is not None:
        loss = f"{progress['best_loss']:.4f} nats a token, at step {progress['best_step']:,}"
        facts.append(f"Lowest loss on held-out text: {loss}")
    # the Hub reads this block of YAML
    is_world = identity.get("data.source.kind") == "storyworld"
    metadata: dict[str, Any] = {
        "license": "unknown",
        "language": ["en"] if is_world else None,
        "library_name": library,
        "pipeline_tag": "text-generation",
        "tags": tags,
        "datasets": datasets,
        "widget": [example] if is_world else None,
    }
    metadata = {key: value for key, value in metadata.items() if value}
    items = "\n- ".join(facts)
    return f"""\
---
{yaml.safe_dump(metadata, sort_keys=False)}---

# {markdown(name)}

A language model with {lm.num_parameters():,} parameters: {lm.config.in_words()}. Its vocabulary \
has {lm.config.vocab_size:,} tokens, and it reads up to {lm.config.max_position_embeddings:,} of \
them at once.

It was trained with Headlight, which trains tiny language models so that you can watch their \
attention heads learn.

- {items}

## Use it

{USE[library].format(base=code(lm.adapters.base) if lm.adapters else "")}

## Limits

- This model is small. It makes up facts, so do not rely on what it writes.
- It learned from the text above alone, with all its errors and bias. Nothing was filtered out.
- Nobody has tested whether it is safe. Keep it away from people who did not choose to read it.
"""


def _describe_source(source: dict[str, Any]) -> tuple[str, list[str]]:
    """Describe data.source in words, without paths, and list its datasets of the Hub."""
    kind = source.get("kind", "")
    if kind == "hub":
        name = source["name"]
        datasets = [] if Path(name).exists() else [name]  # a local folder has no page on the Hub
        return f"the dataset {name}, split {source['split']}", datasets
    if kind == "mix":
        texts = []
        datasets = []
        for part in source["parts"]:
            text, names = _describe_source(part["source"])
            texts.append(text)
            datasets += names
        return ", ".join(texts), datasets
    descriptions = {"storyworld": "stories that Headlight generates", "files": "local text files"}
    return descriptions.get(kind, "unknown"), []
