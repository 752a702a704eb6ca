"""Weights + config.json: a saved model directory IS a Hugging Face model directory.

Parameter names and the order of operations are transformers', so `AutoModelForCausalLM.from_pretrained(dir)` gives
the same logits. model/files/families.py has what differs between the architectures.
A directory may have been written by somebody else: what is wrong in it is a DamagedFile, one line that names the file.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import torch
import yaml
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from configs.command import InputError
from configs.files import ADAPTER, DamagedFile, checkpoint_directory, is_adapter, read_checkpoint, read_json
from configs.text import code, markdown
from model.config import ModelConfig
from model.files.families import family_in, family_of
from model.files.weight_files import check_tensors, read_tensors
from model.transformer import LanguageModel, on_meta
from model.variants.surgery import add_rows

WEIGHTS = "model.safetensors"
TOKENIZER_FILES = "tokenizer.json tokenizer_config.json special_tokens_map.json chat_template.jinja".split()


def save(lm: LanguageModel, directory: str | Path, weights: dict[str, Tensor] | None = None) -> None:
    """Write model.safetensors, config.json and generation_config.json. Makes the directory if needed.
    A model with adapters is written as adapters, which name their base (model/variants/lora.py).
    weights: the full state_dict, for a model whose parameters are spread over several processes."""
    directory, family = Path(directory), family_of(lm.config)
    directory.mkdir(parents=True, exist_ok=True)
    config = family.write(lm.config)
    config["dtype"] = config["torch_dtype"] = str(next(lm.parameters()).dtype).removeprefix("torch.")
    tokens = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    for name, content in (("config.json", config), ("generation_config.json", tokens)):
        (directory / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    weights = lm.state_dict() if weights is None else weights
    if lm.adapters is not None:
        from model.variants.lora import save_adapters

        return save_adapters(lm, directory, weights)
    tensors = family.to_files({name: weights[name] for name in stored_names(lm)})
    # contiguous: a tensor that is cut out of another one is copied
    save_file({name: x.contiguous() for name, x in tensors.items()}, directory / WEIGHTS, metadata={"format": "pt"})


def stored_names(lm: LanguageModel) -> list[str]:
    """The tensors of a model, a tied matrix once, as transformers stores it."""
    return [name for name in lm.state_dict() if not (lm.config.tie_word_embeddings and name == "lm_head.weight")]


@contextmanager
def new_directory(out: Path) -> Iterator[Path]:
    """For commands: a directory beside `out` to write into. At the end it becomes `out`; after an error it disappears.
    Raises InputError if `out` exists, and if it cannot be written."""
    if os.path.lexists(out):
        raise InputError(f"--out: {out} exists: choose another name")
    temporary = out.with_name(f"{out.name}.{os.getpid()}.tmp")
    try:
        temporary.mkdir(parents=True)
        yield temporary
        temporary.rename(out)
    except (OSError, SafetensorError) as error:
        raise InputError(f"--out: {out} cannot be written: {error}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def copy_tokenizer(source: Path, target: Path) -> None:
    """What makes the tokenizer of a model directory: the files that are there."""
    for file in [source / name for name in TOKENIZER_FILES if (source / name).is_file()]:
        shutil.copyfile(file, target / file.name)


def load(path: str | Path, device: str | torch.device = "cpu") -> LanguageModel:
    """Load a run (its newest checkpoint) or a checkpoint directory, in evaluation mode. Raises DamagedFile, a
    ValueError, also for a model that needs more memory than there is."""

    def build(directory: Path) -> LanguageModel:
        config = read_config(directory)
        try:
            parameters = on_meta(config).num_parameters()
        except (RuntimeError, OverflowError, TypeError, ValueError) as error:  # each kind of size has its own
            raise DamagedFile(f"{directory / 'config.json'}: {str(error).partition(chr(10))[0]}") from None
        needed = 4.0 * parameters + sum(file.stat().st_size for file in directory.glob("*.safetensors"))
        if needed > (free := psutil.virtual_memory().available):
            sizes = f"{needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB of RAM are free"
            raise DamagedFile(f"{directory}: to load its {parameters:,} parameters needs {sizes}")
        lm = LanguageModel(config)
        load_weights(lm, directory)
        return lm

    return read_checkpoint(path, build).to(device).eval()


def read_config(directory: Path) -> ModelConfig:
    """config.json -> ModelConfig. Raises DamagedFile for an architecture that Headlight does not build.

    The tokens that end a text are those of generation_config.json where that has some, as in transformers. peft writes
    no config.json beside adapters: theirs is the base's.
    """
    if is_adapter(directory) and not (directory / "config.json").is_file():
        return read_config(base_of(directory))
    file, generation = directory / "config.json", directory / "generation_config.json"
    fields = read_json(file)
    if generation.is_file() and (ends := read_json(generation).get("eos_token_id")) is not None:
        fields["eos_token_id"] = ends
    return family_in(fields, file).read(fields, file)


def load_weights(lm: LanguageModel, directory: Path) -> None:
    """Copy a directory's weights into a model; of adapters, those of their base with the adapters merged.

    Every tensor must be there and fit, and none may be left over; but a model that was given more token ids than the
    directory has gets new rows for them (`add_rows`). Raises DamagedFile.
    """
    if is_adapter(directory):
        from model.variants.lora import load_adapters, merge

        load_weights(lm, base_of(directory))
        load_adapters(lm, directory)
        merge(lm)
        return
    there, wanted = read_config(directory), lm.lm_head.out_features
    if (there.vocab_size or wanted) < wanted:
        smaller = LanguageModel(there)
        load_weights(smaller, directory)
        add_rows(smaller, wanted)
        lm.load_state_dict(smaller.state_dict())
        return
    lm.load_state_dict(read_weights(lm, directory), strict=not lm.config.tie_word_embeddings)


def read_weights(lm: LanguageModel, directory: Path) -> dict[str, Tensor]:
    """The weights in a directory under the model's own names, checked against it; no lm_head if it is tied. Of a
    directory of adapters, for a model that has such, the adapters alone. Raises DamagedFile."""
    if is_adapter(directory):
        from model.variants.lora import read_adapters

        return read_adapters(lm, directory)
    file, state = directory / "config.json", lm.state_dict()
    family = family_in(read_json(file), file)
    tensors = read_tensors(directory / WEIGHTS, family.current)
    expected = family.to_files({name: torch.empty(state[name].shape, device="meta") for name in stored_names(lm)})
    head = tensors.pop("lm_head.weight", None) if lm.config.tie_word_embeddings else None
    if head is not None:  # a tied matrix may be stored twice, or under the name of the head alone
        (name,) = family.to_files({"model.embed_tokens.weight": head})
        embedding = tensors.setdefault(name, head)
        if not torch.equal(embedding.to(head.dtype), head):
            remedy = f"they are not tied, so set tie_word_embeddings to false in {file}"
            raise DamagedFile(f"{directory / WEIGHTS}: lm_head.weight differs from {name}: {remedy}")
    check_tensors(tensors, {name: list(x.shape) for name, x in expected.items()}, directory / WEIGHTS)
    return family.from_files(tensors)


def base_of(directory: Path) -> Path:
    """The model directory of the base that adapters name: a path from here, or from a folder around them.

    A run that trained on has another newest checkpoint; the hash of the base says whether that one is right.
    """
    file = directory / ADAPTER
    name = Path(str(read_json(file).get("base_model_name_or_path")))
    names = [name, name.parents[1]] if name.parent.name == "checkpoints" else [name]
    for folder in (Path(), *directory.resolve().parents):
        for each in names:
            if (folder / each / "config.json").is_file() or (folder / each / "checkpoints" / "latest").is_file():
                base = checkpoint_directory(folder / each)
                if is_adapter(base):
                    raise DamagedFile(f"{file}: its base {base} holds adapters: name a whole model")
                return base
    raise DamagedFile(f"{file}: its base {name} is not there: put that model back, or change base_model_name_or_path")


# ---------------------------------------------------------------------------------------------------------
# the model card: README.md of a checkpoint, which the Hugging Face Hub shows

USE = {  # library -> how to load it
    "transformers": "`AutoModelForCausalLM` and `AutoTokenizer` of transformers load it: `….from_pretrained(FOLDER)`.",
    "peft": "This folder holds adapters (LoRA), which were trained beside the model {base}. Load that one with its "
    "`AutoModelForCausalLM`, `resize_token_embeddings(len(tokenizer))` if tokens were added, then "
    "`PeftModel.from_pretrained(base, FOLDER)` puts them there.",
    None: "Only Headlight can load it: `model.load(FOLDER)` and `data.load_tokenizer(FOLDER)`.",
}


def run_name(directory: Path) -> str:
    """Return the name of the run that a checkpoint belongs to, or that of the directory."""
    directory = directory.resolve()
    return (directory.parents[1] if directory.parent.name == "checkpoints" else directory).name


def model_card(name: str, lm: LanguageModel, progress: dict[str, Any]) -> str:
    """Metadata and a short description. name: of the run.

    progress: of trainer_state.json: step, tokens, best_loss (nats a token, on held-out text), best_step, and identity,
    which holds what makes the run itself by dotted key. {} if it is unknown.
    """
    config, family, adapters = lm.config, family_of(lm.config).model_type, lm.adapters
    identity = progress.get("identity") or {}
    text, datasets = _text_in_words({key[12:]: identity[key] for key in identity if key.startswith("data.source.")})
    library: str | None = "peft" if adapters else "transformers"
    if not config.loadable_elsewhere or (adapters and family == "gpt2"):  # q, k and v are one matrix in peft's GPT-2
        library = None
    metadata: dict[str, Any] = {
        "license": "unknown",
        "language": ["en"] if identity.get("data.source.kind") == "storyworld" else None,
        "library_name": library,
        "pipeline_tag": "text-generation",
        "tags": [*dict.fromkeys(("headlight", family))],
        "datasets": datasets,
    }
    facts = []
    if identity:
        start = identity.get("init_from")
        facts.append(f"Started from: {f'the weights of {code(start)}' if start else 'random weights'}")
    facts.append(f"Text: {markdown(text)}")
    if identity.get("data.records") in ("conversations", "pairs"):
        metadata["tags"] += ["conversational"]
        facts[-1] = f"Text: conversations; {markdown(text)}"
    if progress:
        name += f", step {progress['step']:,}"
        facts.append(f"Progress: step {progress['step']:,}, after {progress['tokens']:,} tokens")
    if (best := progress.get("best_loss")) is not None:
        facts.append(f"Lowest loss on held-out text: {best:.4f} nats a token, at step {progress['best_step']:,}")
    return f"""\
---
{yaml.safe_dump({key: value for key, value in metadata.items() if value}, sort_keys=False)}---

# {markdown(name)}

A language model with {lm.num_parameters():,} parameters: {config.in_words()}. It knows {config.vocab_size:,} tokens \
and reads up to {config.max_position_embeddings:,} of them at once.

It was trained with Headlight, which trains tiny language models so that you can watch their attention heads learn.

- {f"{chr(10)}- ".join(facts)}

## Use it

{USE[library].format(base=code(adapters.base) if adapters else "")}

## Limits

- This model is small. It makes up facts, so do not rely on what it writes.
- It knows nothing but the text above, with all that is wrong or one-sided in it. Nothing was filtered out.
- Nobody has tested whether it is safe. Keep it away from people who did not choose to read it.
"""


def _text_in_words(source: dict[str, Any]) -> tuple[str, list[str]]:
    """What data.source names, in words, and the datasets of the Hub among it."""
    if source.get("kind") == "hub":
        name = source["name"]
        return f"the dataset {name}, split {source['split']}", [] if Path(name).exists() else [name]
    if source.get("kind") == "mix":
        parts = [_text_in_words(part["source"]) for part in source["parts"]]
        return ", ".join(text for text, _ in parts), [name for _, names in parts for name in names]
    words = {"storyworld": "stories that Headlight generates", "files": "local text files"}
    return words.get(source.get("kind", ""), "unknown"), []
