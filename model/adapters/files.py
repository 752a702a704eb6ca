"""Adapters on the disk: adapter_config.json and adapter_model.safetensors, as the `peft` library writes and reads them.

The directory names its base and does not hold it. Only what the base computed with is right for the adapters, so the
file also has a hash of the base's weights (in its metadata, where peft takes no notice).
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from pydantic import BaseModel, Field, FiniteFloat, model_validator
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from configs.files import ADAPTER, DamagedFile, check_files, checkpoint_directory, is_adapter, is_file, read_json
from model.adapters.config import MOST_RANK, LoraConfig
from model.adapters.lora import adapted, add_adapters
from model.saving import weight_files

if TYPE_CHECKING:
    from model.transformer import LanguageModel

TENSORS = "adapter_model.safetensors"
PREFIX = "base_model.model."  # peft's wrapper around the model
HASH = "base_sha256"
# added rows of the embedding or the head (lora.AddedRows): our name, and peft's
ROWS, PEFT_ROWS = "parametrizations.weight.0.lora_rows", "token_adapter.trainable_tokens_delta"
# what peft can do besides, which computes something else
OTHER_KINDS = (
    "alora_invocation_tokens alpha_pattern arrow_config fan_in_fan_out kasa_config layer_replication lora_bias "
    "modules_to_save monteclora_config rank_pattern target_parameters use_bdlora use_dora "
    "use_qalora use_rslora velora_config"
).split()


class AdapterJson(BaseModel):
    """What is read of adapter_config.json."""

    peft_type: Literal["LORA"]
    base_model_name_or_path: Annotated[str, Field(min_length=1, max_length=4000)]
    r: Annotated[int, Field(ge=1, le=MOST_RANK)]
    lora_alpha: Annotated[FiniteFloat, Field(gt=0)]
    lora_dropout: Annotated[FiniteFloat, Field(ge=0, lt=1)] = 0.0
    bias: Literal["none"] = "none"
    init_lora_weights: Literal[True, False, "gaussian", "orthogonal", "eva"] = True  # others change the base as well
    trainable_token_indices: dict[str, list[int]] | None = None

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, values: Any) -> Any:
        for key in OTHER_KINDS:
            if isinstance(values, dict) and values.get(key):
                raise ValueError(f"{key} is set, and Headlight computes plain LoRA only")
        return values


def weights_hash(lm: LanguageModel) -> str:
    """sha256 of all weights but adapters, by name: the same for every file that holds the same numbers."""
    digest = hashlib.sha256()
    for name, tensor in sorted(lm.state_dict().items()):
        if ".lora_" in name or (name == "lm_head.weight" and lm.config.tie_word_embeddings):
            continue
        digest.update(f"{name} {list(tensor.shape)} {tensor.dtype} ".encode())
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def save_adapters(lm: LanguageModel, directory: Path, weights: dict[str, Tensor]) -> None:
    """Write both files for a model with adapters. weights: the adapters' tensors by the model's names, others too."""
    assert lm.adapters is not None
    config = lm.adapters.config
    names = sorted({name.rpartition(".")[2] for name in adapted(lm)})
    values = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": lm.adapters.base,
        "r": config.rank,
        "lora_alpha": int(config.alpha) if config.alpha.is_integer() else config.alpha,
        "lora_dropout": config.dropout,
        "target_modules": config.target_modules or names,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "modules_to_save": None,
        "use_dora": False,
        "use_rslora": False,
    }
    tied = "lm_head." + ROWS if lm.config.tie_word_embeddings else ""  # the same tensor as the embedding's
    tensors = {name: x.contiguous() for name, x in weights.items() if ".lora_" in name and name != tied}
    vocab = lm.lm_head.out_features
    trained = {name.split(".")[-5]: [*range(vocab - len(x), vocab)] for name, x in tensors.items() if ROWS in name}
    values |= {"trainable_token_indices": trained} if trained else {}
    (directory / ADAPTER).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    tensors = {PREFIX + name.replace(ROWS, PEFT_ROWS): x for name, x in tensors.items()}
    # one entry: safetensors writes several in any order, and the files of two equal runs are equal
    save_file(tensors, directory / TENSORS, metadata={HASH: lm.adapters.base_sha256})


def base_of(directory: Path) -> Path:
    """The model directory of the base that adapters name: a path from here, or from a folder around them.

    A run that trained on has another newest checkpoint; `check_base` says whether that one is right. Raises
    DamagedFile.
    """
    name = Path(read_json(directory / ADAPTER, AdapterJson).base_model_name_or_path)
    names = [name, name.parents[1]] if name.parent.name == "checkpoints" else [name]
    for folder in (Path(), *directory.resolve().parents):
        for each in names:
            if is_file(folder / each / "config.json") or is_file(folder / each / "checkpoints" / "latest"):
                base = checkpoint_directory(folder / each)
                if is_adapter(base):
                    raise DamagedFile(f"{directory / ADAPTER}: its base {base} holds adapters: name a whole model")
                return base
    raise DamagedFile(
        f"{directory / ADAPTER}: its base {name} is not there: put that model back, or change base_model_name_or_path"
    )


def load_adapters(lm: LanguageModel, directory: Path) -> None:
    """Put the adapters of a directory, ours or peft's, beside the matrices of their base.

    Raises DamagedFile for another base, and for files that do not fit.
    """
    config, rows = read_adapter_config(directory), _rows_of_base(lm, directory)
    check_base(directory, weights_hash(lm))
    try:
        add_adapters(lm, config, rows=rows)
    except ValueError as error:
        raise DamagedFile(f"{directory / ADAPTER}: {error}") from None
    lm.load_state_dict(read_adapters(lm, directory), strict=False)


def _rows_of_base(lm: LanguageModel, directory: Path) -> int | None:
    """Where the rows of added tokens begin; None without any. Raises DamagedFile for other rows."""
    indices = read_json(directory / ADAPTER, AdapterJson).trainable_token_indices
    if not indices:
        return None
    start, vocab = min(min(each, default=0) for each in indices.values()), lm.lm_head.out_features
    modules = ["embed_tokens", *([] if lm.config.tie_word_embeddings else ["lm_head"])]
    if indices != {name: [*range(start, vocab)] for name in modules}:
        raise DamagedFile(
            f"{directory / ADAPTER}: trainable_token_indices must be the last rows of {' and '.join(modules)}, up to "
            f"{vocab - 1}: Headlight trains those of added tokens only"
        )
    return start


def read_adapter_config(directory: Path) -> LoraConfig:
    """The config of the adapters in a directory; target_modules are the whole names of the matrices that have one."""
    check_files(directory, ADAPTER, TENSORS)
    there = read_json(directory / ADAPTER, AdapterJson)
    modules = sorted({name.partition(".lora_")[0] for name in _stored(directory).shapes if ROWS not in name})
    return LoraConfig(rank=there.r, alpha=there.lora_alpha, dropout=there.lora_dropout, target_modules=modules)


def check_base(directory: Path, sha256: str) -> None:
    """Raises DamagedFile if adapters were trained beside other weights than those of this hash; peft records none."""
    file = directory / TENSORS
    try:
        with safe_open(file, "pt") as opened:
            wanted = (opened.metadata() or {}).get(HASH, sha256)
    except (OSError, SafetensorError) as error:
        raise DamagedFile(f"{file}: cannot be read: {str(error).partition(chr(10))[0][:200]}") from None
    if wanted != sha256:
        raise DamagedFile(
            f"{directory}: these adapters belong to another base: the weights that they were trained beside have the "
            f"hash {wanted[:12]}, and these have {sha256[:12]}: open them with the base they were trained from"
        )


def read_adapters(lm: LanguageModel, directory: Path) -> dict[str, Tensor]:
    """The tensors of a directory under the model's own names, checked against its adapters. Raises DamagedFile."""
    check_files(directory, ADAPTER, TENSORS)
    stored = _stored(directory)
    expected = {name: list(x.shape) for name, x in lm.state_dict().items() if ".lora_" in name}
    if lm.config.tie_word_embeddings:
        expected.pop("lm_head." + ROWS, None)
    for name in sorted(expected.keys() | stored.shapes.keys()):
        if expected.get(name) != stored.shapes.get(name):
            found, wanted = (f"{x[name]}" if name in x else "nothing" for x in (stored.shapes, expected))
            raise DamagedFile(f"{stored.file}: {name[:100]} has shape {found}, the adapters of this model {wanted}")
    tensors = weight_files.read(stored)
    weight_files.warn_of_non_finite(tensors, stored.file)
    return tensors


def _stored(directory: Path) -> weight_files.Stored:
    stored = weight_files.describe_file(
        directory / TENSORS, lambda name: name.removeprefix(PREFIX).replace(PEFT_ROWS, ROWS)
    )
    if not stored.shapes:
        raise DamagedFile(f"{stored.file}: holds no tensor")
    return stored
