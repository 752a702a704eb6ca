"""Weights + config.json: a saved model directory IS a Hugging Face model directory.

Parameter names and the order of operations are transformers', so its
`AutoModelForCausalLM.from_pretrained(dir)` gives the same logits. A directory may come from another
program: a fault in it is a DamagedFile, one line that names the file.
"""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from configs.command import InputError
from configs.files import (
    ADAPTER,
    DamagedFile,
    checkpoint_directory,
    is_adapter,
    read_checkpoint,
    read_json,
)
from model.config import ModelConfig
from model.files.families import family_in, family_of
from model.files.weight_files import check_tensors, read_tensors
from model.transformer import LanguageModel, on_meta
from model.variants.surgery import add_rows

WEIGHTS = "model.safetensors"
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)


def save(
    lm: LanguageModel, directory: str | Path, weights: dict[str, Tensor] | None = None
) -> None:
    """Write model.safetensors, config.json and generation_config.json.

    Of a model with adapters, write only those, with the name of their base. weights: the full
    state_dict, if the parameters are spread over several processes.
    """
    directory = Path(directory)
    family = family_of(lm.config)
    directory.mkdir(parents=True, exist_ok=True)
    # 1. the config, as transformers writes it
    config = family.write(lm.config)
    dtype = str(next(lm.parameters()).dtype).removeprefix("torch.")
    config["dtype"] = dtype
    config["torch_dtype"] = dtype  # transformers 4 reads this one
    tokens = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    for name, content in (("config.json", config), ("generation_config.json", tokens)):
        (directory / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    # 2. the weights
    if weights is None:
        weights = lm.state_dict()
    if lm.adapters is not None:
        from model.variants.lora import save_adapters

        save_adapters(lm, directory, weights)
        return
    tensors = family.to_files({name: weights[name] for name in stored_names(lm)})
    # safetensors refuses a transposed tensor, or a part of another one
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(tensors, directory / WEIGHTS, metadata={"format": "pt"})


def stored_names(lm: LanguageModel) -> list[str]:
    """Return the names of a model's tensors; a tied matrix counts once, as in transformers."""
    tied = "lm_head.weight" if lm.config.tie_word_embeddings else ""
    return [name for name in lm.state_dict() if name != tied]


@contextmanager
def new_directory(out: Path) -> Iterator[Path]:
    """Yield a temporary directory that becomes `out` at the end, or disappears after an error.

    Raises InputError if `out` exists, and if it cannot be written.
    """
    if os.path.lexists(out):
        raise InputError(f"--out: {out} exists: choose another name")
    # beside `out`, because a rename works within one file system only
    temporary = out.with_name(f"{out.name}.{os.getpid()}.tmp")
    try:
        temporary.mkdir(parents=True)
        yield temporary
        temporary.rename(out)  # atomic: `out` is complete or does not exist
    except (OSError, SafetensorError) as error:
        raise InputError(f"--out: {out} cannot be written: {error}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def copy_tokenizer(source: Path, target: Path) -> None:
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)


def load(path: str | Path, device: str | torch.device = "cpu") -> LanguageModel:
    """Load a run (its newest checkpoint) or a model directory, in evaluation mode.

    Raises DamagedFile, a ValueError, also if the model needs more memory than there is.
    """

    def build(directory: Path) -> LanguageModel:
        config = read_config(directory)
        # a config may ask for any size: count its parameters before memory is taken for them
        try:
            parameters = on_meta(config).num_parameters()
        except (RuntimeError, OverflowError, TypeError, ValueError) as error:
            problem = str(error).partition("\n")[0]
            raise DamagedFile(f"{directory / 'config.json'}: {problem}") from None
        files = sum(file.stat().st_size for file in directory.glob("*.safetensors"))
        needed = 4.0 * parameters + files  # while loading, both are in memory
        free = psutil.virtual_memory().available
        if needed > free:
            raise DamagedFile(
                f"{directory}: to load its {parameters:,} parameters needs {needed / 1e9:.1f} GB, "
                f"and {free / 1e9:.1f} GB of RAM are free"
            )
        lm = LanguageModel(config)
        load_weights(lm, directory)
        return lm

    # built on the CPU, whose memory was measured above; then moved
    return read_checkpoint(path, build).to(device).eval()


def read_config(directory: Path) -> ModelConfig:
    """Read config.json. Raises DamagedFile for an architecture that Headlight does not build."""
    file = directory / "config.json"
    # peft writes none next to adapters
    if is_adapter(directory) and not file.is_file():
        return read_config(base_of(directory))
    fields = read_json(file)
    # the end tokens of this file come first, as in transformers
    generation = directory / "generation_config.json"
    if generation.is_file():
        end_ids = read_json(generation).get("eos_token_id")
        if end_ids is not None:
            fields["eos_token_id"] = end_ids
    return family_in(fields, file).read(fields, file)


def load_weights(lm: LanguageModel, directory: Path) -> None:
    """Copy a directory's weights into a model; adapters are merged into their base.

    Every tensor must fit, and none may be missing or left over. Raises DamagedFile.
    """
    if is_adapter(directory):
        # imported here, because most models have no adapters
        from model.variants.lora import load_adapters, merge

        load_weights(lm, base_of(directory))
        load_adapters(lm, directory)
        merge(lm)
        return
    config = read_config(directory)
    vocab_size = lm.lm_head.out_features
    # the model has more token ids than the directory: they get new rows
    if config.vocab_size is not None and config.vocab_size < vocab_size:
        smaller = LanguageModel(config)
        load_weights(smaller, directory)
        add_rows(smaller, vocab_size)
        lm.load_state_dict(smaller.state_dict())
        return
    # not strict if tied: such a head has no tensor of its own in the file
    weights = read_weights(lm, directory)
    lm.load_state_dict(weights, strict=not lm.config.tie_word_embeddings)


def read_weights(lm: LanguageModel, directory: Path) -> dict[str, Tensor]:
    """Read and check the weights for a model, by its own names; without lm_head if it is tied.

    From a directory of adapters, read the adapters alone. Raises DamagedFile.
    """
    if is_adapter(directory):
        from model.variants.lora import read_adapters

        return read_adapters(lm, directory)
    config_file = directory / "config.json"
    file = directory / WEIGHTS
    family = family_in(read_json(config_file), config_file)
    tensors = read_tensors(file, family.current)
    if lm.config.tie_word_embeddings and "lm_head.weight" in tensors:
        # a tied matrix may be stored twice, or under the name of the head alone
        head = tensors.pop("lm_head.weight")
        (name,) = family.to_files({"model.embed_tokens.weight": head})
        embedding = tensors.setdefault(name, head)
        if not torch.equal(embedding.to(head.dtype), head):
            raise DamagedFile(
                f"{file}: lm_head.weight differs from {name}: they are not tied, so set "
                f"tie_word_embeddings to false in {config_file}"
            )
    # expected shapes, from tensors without memory
    state = lm.state_dict()
    empty = {name: torch.empty(state[name].shape, device="meta") for name in stored_names(lm)}
    shapes = {name: list(tensor.shape) for name, tensor in family.to_files(empty).items()}
    check_tensors(tensors, shapes, file)
    return family.from_files(tensors)


def base_of(directory: Path) -> Path:
    """Return the model directory of the base that adapters name.

    The name is a path from the working directory, or from a folder that contains the adapters.
    """
    file = directory / ADAPTER
    name = Path(str(read_json(file).get("base_model_name_or_path")))
    names = [name]
    # the run of this checkpoint: if it went on training, the hash of the base will not fit
    if name.parent.name == "checkpoints":
        names.append(name.parents[1])
    for folder in (Path(), *directory.resolve().parents):
        for path in (folder / name for name in names):
            has_checkpoint = (path / "checkpoints" / "latest").is_file()
            if (path / "config.json").is_file() or has_checkpoint:
                base = checkpoint_directory(path)
                if is_adapter(base):
                    raise DamagedFile(f"{file}: its base {base} holds adapters: name a whole model")
                return base
    raise DamagedFile(
        f"{file}: its base {name} does not exist: put that model back, or change "
        "base_model_name_or_path"
    )


def run_name(directory: Path) -> str:
    """Return the name of the run that a checkpoint belongs to, or that of the directory."""
    directory = directory.resolve()
    return (directory.parents[1] if directory.parent.name == "checkpoints" else directory).name
