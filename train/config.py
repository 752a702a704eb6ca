"""RunConfig = model + data + train + eval + tracking: everything that one YAML file says."""

from __future__ import annotations

import argparse
import json
import math
import os
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, model_validator

from configs.loader import InputError, LoadedConfig, flatten, load_config, validate
from configs.meaning import Meaning, Section, is_identity, meanings
from configs.run_keys import RunKeys
from data.config import DataConfig
from eval.config import EvalConfig
from model.config import ModelConfig


class OptimizerConfig(Section):
    """AdamW (Loshchilov & Hutter 2019, arXiv 1711.05101) alone, or Muon for the matrices of the blocks."""

    name: Annotated[Literal["muon", "adamw"], Meaning.TENSORS] = Field(
        "muon", description="muon: for the matrices of the blocks, with AdamW for the rest | adamw: for everything."
    )
    lr: float = Field(0.02, gt=0, description="Peak learning rate: of Muon, or of AdamW when it is alone.")
    adamw_lr: float = Field(0.01, gt=0, description="With muon: peak rate of everything outside the blocks, and norms.")
    embedding_lr: float | None = Field(
        None, gt=0, description="Peak rate of an untied embedding; null = as the head's."
    )
    weight_decay: float = Field(0.01, ge=0, description="Decoupled weight decay, on matrices only.")
    momentum: float = Field(
        0.95, ge=0, lt=1, description="Share of its average of gradients that Muon keeps at each step."
    )
    betas: list[Annotated[float, Field(ge=0, lt=1)]] = Field(
        [0.9, 0.95],
        min_length=2,
        max_length=2,
        description="Shares of its averages of gradients and of their squares that AdamW keeps.",
    )
    eps: float = Field(1e-10, gt=0, description="Keeps AdamW from dividing by zero.")


class TrainConfig(Section):
    """The `train:` section."""

    max_steps: int | None = Field(
        None, ge=1, description="Optimizer steps in all. One of three limits may be set; with none of them, 1000 steps."
    )
    max_tokens: int | None = Field(
        None, ge=1, description="Tokens in all, rounded up to whole steps; the second of the three limits."
    )
    max_minutes: float | None = Field(
        None, gt=0, description="Minutes in all; the schedule follows the clock, so two runs are never exactly equal."
    )
    tokens_per_step: Annotated[int, Meaning.IDENTITY] = Field(
        16384,
        ge=2,
        description="Tokens an optimizer step sees, over all micro-batches and processes; a multiple of "
        "data.sequence_length.",
    )
    micro_batch_size: int | Literal["auto"] = Field(
        "auto",
        description="Rows a forward pass; the rest of a step is accumulated. auto: a guess, halved if memory runs out.",
    )
    schedule: Annotated[Literal["wsd", "cosine", "constant"], Meaning.IDENTITY] = Field(
        "wsd", description="wsd (constant, then linear down) | cosine | constant."
    )
    warmup_steps: Annotated[int, Meaning.IDENTITY] = Field(
        0, ge=0, description="Steps from zero to the peak learning rate."
    )
    cooldown: Annotated[float, Meaning.IDENTITY] = Field(
        0.7, ge=0, le=1, description="wsd: share of the steps that the way down takes."
    )
    final_lr_fraction: Annotated[float, Meaning.IDENTITY] = Field(
        0.05, ge=0, le=1, description="Last learning rate, as a share of the peak."
    )
    grad_clip: Annotated[float, Meaning.IDENTITY] = Field(
        1.0, ge=0, description="Largest norm of the gradient; 0 = no clipping."
    )
    precision: Annotated[Literal["auto", "bf16", "fp16", "tf32", "fp32"], Meaning.IDENTITY] = Field(
        "auto",
        description="auto | bf16, fp16 (autocast over fp32 weights; fp16 with loss scaling) | tf32 (fp32 with quicker "
        "products, CUDA) | fp32. auto: bf16 where it is quick.",
    )
    compile: Literal["auto"] | bool = Field(
        "auto", description="Whether to train with torch.compile. auto: where the run is long enough to pay for it."
    )
    activation_checkpointing: bool = Field(
        False, description="Compute every layer again in the backward pass: less memory, about a third more time."
    )
    device: Literal["auto", "cpu", "cuda", "mps"] = Field(
        "auto", description="Where it computes. auto: CUDA or Apple's GPU where there is one, else the CPU."
    )
    log_every: int = Field(10, ge=1, description="Steps between two lines of metrics.jsonl.")
    checkpoint_every: int = Field(500, ge=0, description="Steps between checkpoints; 0 = only at the end.")
    keep_last: int = Field(2, ge=1, description="How many of the newest checkpoints are kept.")
    keep_best: bool = Field(True, description="Keep the checkpoint of the lowest validation loss besides.")
    skip_non_finite: int = Field(
        0, ge=0, description="Steps whose loss or gradient is no number that are passed over before the run stops."
    )
    parallel: Literal["ddp", "fsdp2"] = Field(
        "ddp", description="Under torchrun: ddp (a copy of the model in each process) | fsdp2 (a share of it)."
    )
    trace: bool = Field(
        False, description="trace.jsonl: hash of the batch, loss, gradient norm and lr of every step, to the last bit."
    )
    optimizer: Annotated[OptimizerConfig, Meaning.IDENTITY] = Field(
        OptimizerConfig(), description="How gradients become steps."
    )


class RunConfig(RunKeys):
    """One run. The key `extends` of the YAML is resolved before this is filled."""

    init_from: Annotated[str | None, Meaning.IDENTITY] = Field(
        None, description="A run or model directory to start from; null = random weights."
    )
    model: Annotated[ModelConfig, Meaning.IDENTITY] = Field(ModelConfig(), description="How it computes.")
    data: Annotated[DataConfig, Meaning.IDENTITY] = Field(DataConfig(), description="What it reads.")
    train: TrainConfig = Field(TrainConfig(), description="How it learns.")
    eval: EvalConfig = Field(EvalConfig(), description="What is looked at.")

    @model_validator(mode="after")
    def _check_across_sections(self) -> RunConfig:
        limits = {name: value for name in LIMITS if (value := getattr(self.train, name)) is not None}
        if len(limits) > 1:
            listed = " and ".join(f"train.{name} ({value:,})" for name, value in limits.items())
            *_, last = limits
            others = " ".join(f"train.{name}=null" for name in limits if name != last)
            raise ValueError(f"{listed} both limit the run: give one and set the other to null, for example {others}")
        length, longest = self.data.sequence_length, self.model.max_position_embeddings
        if length > longest:
            raise ValueError(
                f"sequence_length ({length}) is longer than model.max_position_embeddings ({longest}): "
                "lower the first or raise the second"
            )
        if self.train.tokens_per_step % length:
            below = max(1, self.train.tokens_per_step // length) * length
            raise ValueError(
                f"tokens_per_step ({self.train.tokens_per_step}) must be a multiple of data.sequence_length "
                f"({length}): use {below} or {below + length}"
            )
        joined = self.data.rows_joined
        if joined != "auto" and self.rows_per_step % joined:
            raise ValueError(
                f"data.rows_joined ({joined}) must divide the {self.rows_per_step} rows of a step "
                "(tokens_per_step / sequence_length)"
            )
        rows, micro = self.rows_per_step, self.train.micro_batch_size
        if isinstance(micro, int) and (micro < 1 or rows % micro):
            raise ValueError(
                f"micro_batch_size ({micro}) must divide the {rows} rows of a step (tokens_per_step / sequence_length)"
            )
        if self.eval.attention.every and self.eval.attention.max_tokens > longest:
            raise ValueError(
                f"eval.attention.max_tokens ({self.eval.attention.max_tokens}) is longer than "
                f"model.max_position_embeddings ({longest}): lower the first or raise the second"
            )
        return self

    @property
    def rows_per_step(self) -> int:
        """Rows of data.sequence_length tokens that an optimizer step sees, over all micro-batches and processes."""
        return self.train.tokens_per_step // self.data.sequence_length

    @property
    def max_steps(self) -> int | None:
        """Optimizer steps in all, from max_steps or max_tokens; None if the clock decides (max_minutes)."""
        if self.train.max_minutes is not None:
            return None
        if self.train.max_tokens is not None:
            return math.ceil(self.train.max_tokens / self.train.tokens_per_step)
        return self.train.max_steps or DEFAULT_STEPS

    def progress(self, step: int, seconds: float) -> float:
        """Share of the run that is over, 0 … 1: of the steps, or of the minutes if they are the limit."""
        if self.max_steps is None:
            assert self.train.max_minutes is not None
            return min(1.0, seconds / (60 * self.train.max_minutes))
        return step / self.max_steps

    @property
    def directory(self) -> Path:
        """<output_dir>/<name>"""
        return Path(self.output_dir) / self.name

    def to_yaml(self) -> str:
        """The resolved config: every default written out, and it can be trained from again."""
        return yaml.safe_dump(self.model_dump(), sort_keys=False, allow_unicode=True)

    def identity(self) -> dict[str, Any]:
        """What makes a run itself, by dotted key. If one of these differs, it is another run."""
        values = flatten(self.model_dump())
        if self.init_from is not None:
            values["init_from"] = str(Path(self.init_from))  # however its path is spelled
        meaning = meanings(RunConfig)
        return {key: value for key, value in values.items() if is_identity(meaning[key])}


LIMITS = ("max_steps", "max_tokens", "max_minutes")
DEFAULT_STEPS = 1000


def load_run_config(path: str | Path, overrides: list[str] | None = None) -> RunConfig:
    """YAML file + overrides -> a checked RunConfig. Raises InputError."""
    loaded: LoadedConfig = load_config(path, overrides or [])
    config = validate(RunConfig, loaded)
    name = config.name or Path(path).stem
    if Path(name).name != name or name.startswith("."):
        raise InputError(f"{loaded.where(('name',))}: `name` is {name!r}: it must be a plain folder name")
    try:
        os.fsencode(str(Path(config.output_dir) / name))
    except UnicodeEncodeError as error:  # on Linux, without a UTF-8 locale
        problem = (
            f"`output_dir` and `name` hold {error.object[error.start]!r}, which no file's name can hold in this locale"
        )
        raise InputError(f"{loaded.where(('name',))}: {problem}: set PYTHONUTF8=1 in the environment") from None
    return config.model_copy(update={"name": name})


def parse_command_line(description: str, example: str = "configs/demo.yaml") -> RunConfig:
    """`configs/x.yaml [section.key=value ...]` -> RunConfig."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("config", help=f"a YAML file, for example {example}")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="for example seed=1")
    arguments = parser.parse_args()
    return load_run_config(arguments.config, arguments.overrides)


def json_schema() -> str:
    """The JSON Schema of a YAML config, for editors: configs/schema.json."""
    schema = RunConfig.model_json_schema()
    schema["properties"]["extends"] = {
        "type": "string",
        "description": "Another YAML file that this one changes.",
    }
    return json.dumps(schema, indent=2) + "\n"


if __name__ == "__main__":
    print(json_schema(), end="")
