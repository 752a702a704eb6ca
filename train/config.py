"""RunConfig: the checked contents of one YAML file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from configs.command import InputError
from configs.loader import (
    LoadedConfig,
    PathText,
    Section,
    Tag,
    flatten,
    identity_keys,
    load_config,
    set_keys,
    validate,
)
from data.config import DataConfig
from eval.config import EvalConfig, Outcome
from model.config import ModelConfig
from model.files.families import NoFamily, family_of
from model.variants.config import LoraConfig
from train.methods.config import Change, DistillConfig, DPOConfig, Fork, GRPOConfig
from train.methods.shape import shape_of
from train.run.config_checks import problem_of_name, refuse_foreign_code
from train.run.wall import parse_wall


class OptimizerConfig(Section):
    """AdamW (Loshchilov & Hutter 2019, arXiv 1711.05101), alone or beside Muon."""

    name: Literal["muon", "adamw"] = "muon"
    """muon: Muon for the layers' matrices, AdamW for the rest | adamw: AdamW for everything."""
    lr: float = Field(0.02, gt=0)
    """Highest learning rate: Muon's, or AdamW's when it is alone (then try 0.005)."""
    adamw_lr: float = Field(0.005, gt=0)
    """With muon: highest rate of all that AdamW trains: head, norms, tied embedding."""
    embedding_lr: float | None = Field(0.1, gt=0)
    """Highest rate of the embedding, if it is not tied. null = the head's."""
    weight_decay: float = Field(0.01, ge=0)
    """How fast weights shrink (decoupled decay), matrices only."""
    momentum: float = Field(0.95, ge=0, lt=1)
    """Muon: share of past gradients that each step keeps."""
    betas: list[Annotated[float, Field(ge=0, lt=1)]] = Field(
        [0.9, 0.95], min_length=2, max_length=2
    )
    """AdamW: shares of past gradients and of their squares that each step keeps."""
    eps: float = Field(1e-10, ge=1e-30, le=1)
    """Keeps AdamW from dividing by zero."""


class TrainConfig(Section):
    """The `train:` section."""

    max_steps: int | None = Field(None, ge=1)
    """Length of the run in steps. Set one of these three at most; none = 1000 steps."""
    max_tokens: int | None = Field(None, ge=1)
    """Length in tokens, padding included, rounded up to whole steps."""
    max_minutes: float | None = Field(None, gt=0)
    """Length in minutes. The schedule follows the clock: no two runs are exactly equal."""
    tokens_per_step: Annotated[int, Tag.IDENTITY] = Field(8192, ge=2)
    """Tokens of one optimizer step, over all processes: a multiple of data.sequence_length."""
    micro_batch_size: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    """Rows computed at once, of those in a step. auto = a guess, halved where memory runs out."""
    processes: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    """On a CPU: processes that share the rows of a step. Beside other programs they are much
    quicker than threads. auto = one a core, with at least 512 tokens each.
    """
    schedule: Annotated[Literal["wsd", "cosine", "constant"], Tag.IDENTITY] = "wsd"
    """Course of the learning rate: wsd (constant, then straight down) | cosine | constant."""
    warmup_steps: Annotated[int, Tag.IDENTITY] = Field(0, ge=0)
    """Steps up to the highest learning rate. Muon needs none, AdamW a few per cent."""
    cooldown: Annotated[float, Tag.IDENTITY] = Field(0.7, ge=0, le=1)
    """wsd: share of the run in which the learning rate goes down."""
    final_lr_fraction: Annotated[float, Tag.IDENTITY] = Field(0.05, ge=0, le=1)
    """Learning rate of the last step, as a share of the highest (not constant)."""
    grad_clip: Annotated[float, Tag.IDENTITY] = Field(1.0, ge=0)
    """A longer gradient is shortened to this norm. 0 = never."""
    precision: Annotated[Literal["auto", "bf16", "fp16", "tf32", "fp32"], Tag.IDENTITY] = "auto"
    """Number format of the computation (weights stay fp32): auto = bf16 where it is fast | bf16 |
    fp16 (with loss scaling) | tf32 (CUDA only) | fp32.
    """
    compile: Literal["auto"] | bool = "auto"
    """Train with torch.compile. auto: where the run is long enough to pay for it."""
    activation_checkpointing: bool = False
    """true: compute layers twice to save memory; takes about a third more time."""
    parallel: Literal["ddp", "fsdp2", "hsdp"] = "ddp"
    """Under torchrun, each process holds: ddp = the whole model | fsdp2 = a share of it | hsdp = a
    share of its machine's.
    """
    skip_non_finite: int = Field(0, ge=0)
    """Steps with a non-finite loss or gradient that are skipped before the run stops."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where to compute. auto: CUDA or Apple's GPU if there is one, else the CPU."""
    log_every: int = Field(10, ge=1)
    """Steps between two lines of metrics.jsonl."""
    checkpoint_every: int = Field(200, ge=0)
    """Steps between checkpoints; the end always saves one. 0 = only at the end."""
    keep_last: int = Field(2, ge=1)
    """How many of the newest checkpoints are kept."""
    keep_best: bool = True
    """Also keep the checkpoint with the lowest validation loss."""
    trace: bool = False
    """true: trace.jsonl gets each step's batch hash, loss, gradient norm and rate, exactly."""
    optimizer: Annotated[OptimizerConfig, Tag.IDENTITY] = OptimizerConfig()
    """How gradients change the weights."""


class TrackingConfig(Section):
    """The `tracking:` section; metrics.jsonl is always written."""

    wandb: Literal["offline", "online", "disabled"] = "offline"
    """offline: written to disk, for `wandb sync` later | online | disabled."""
    project: str = "headlight"
    """Name of the project in wandb."""
    tensorboard: bool = False
    """Write event files for TensorBoard, in the run's directory."""
    swanlab: Literal["offline", "online", "disabled"] = "disabled"
    """offline: written to disk, for `swanlab sync` later | online | disabled."""
    wall: str | None = Field(None, examples=["Mia@192.168.1.20:8000"])
    """A class's wall (`serve --class`), which gets the step at which a head forms. null = none."""

    @field_validator("wall")
    @classmethod
    def _check_wall(cls, wall: str | None) -> str | None:
        if wall is not None:
            parse_wall(wall)
        return wall


class RunConfig(Section):
    """The whole run: keys of its own, and a section for each part."""

    name: str = ""
    """Name of the run and of its directory, in letters, digits, spaces and `_ . + = -`. Empty = the
    YAML file's name.
    """
    output_dir: PathText = "runs"
    """Folder that holds all run directories, and the prepared data."""
    seed: Annotated[int, Tag.IDENTITY] = Field(0, ge=0, lt=2**63)  # PyTorch's limit
    """Decides all random choices: first weights, order of the rows, dropout."""
    resume: PathText = "auto"
    """auto: continue the run of this name | never: refuse a directory that exists | or a checkpoint
    directory to continue from.
    """
    allow_mismatch: bool = False
    """true: continue a run although its data or settings have changed."""
    rungs: dict[str, dict[str, Any]] | None = Field(
        None, examples=[{"learned-positions": {"model.position_embedding": "learned"}}]
    )
    """Variants for train.sweep: a name, and the keys that it changes. train.pretrain ignores them
    and trains the config itself, the baseline.
    """
    outcome: Outcome | None = Field(None, examples=[{"score": "copy_gain", "at_least": 1.0}])
    """The outcome of a sweep, for eval.cards. No run changes by it."""
    forked_from: Fork | None = Field(None, examples=[{"run": "runs/small", "step": 600}])
    """The run that this one continues from a step. train.fork sets it."""
    changes: Annotated[list[Change], Tag.IDENTITY] = Field(
        [], examples=[[{"at": 600, "without": ["L0H2"]}]]
    )
    """Changes while the run trains. train.fork adds one."""
    tracking: TrackingConfig = TrackingConfig()
    """Where figures go in addition to metrics.jsonl."""

    dpo: Annotated[DPOConfig | None, Tag.IDENTITY] = Field(
        None, examples=[{"beta": 0.1, "loss": "sigmoid", "label_smoothing": 0.0}]
    )
    """Learning from pairs of answers, with train.dpo. null = its defaults."""
    lora: Annotated[LoraConfig | None, Tag.IDENTITY] = None
    """Train small adapters beside the frozen matrices of init_from. null = train every matrix."""
    distill: Annotated[DistillConfig | None, Tag.IDENTITY] = Field(
        None,
        examples=[{"teacher": "runs/demo", "beta": 0.0, "temperature": 1.0, "hard_share": 0.1}],
    )
    """Learning from another model's probabilities, with train.distill."""
    grpo: Annotated[GRPOConfig | None, Tag.IDENTITY] = Field(
        None, examples=[{"reward": "exact_match", "group_size": 8}]
    )
    """Reinforcement learning on sampled answers, with train.grpo."""
    init_from: Annotated[PathText | None, Tag.IDENTITY] = None
    """Start from the weights of this run, model directory or model of the Hub (OWNER/NAME), with
    its shape and its tokenizer. null = random weights.
    """
    model: Annotated[ModelConfig, Tag.IDENTITY] = ModelConfig()
    """The network."""
    data: Annotated[DataConfig, Tag.IDENTITY] = DataConfig()
    """The text, and how it becomes tokens and rows."""
    train: TrainConfig = TrainConfig()
    """How the network learns."""
    eval: EvalConfig = EvalConfig()
    """What is measured and recorded during training."""

    @model_validator(mode="after")
    def _check_across_sections(self) -> RunConfig:
        model = self.model
        train = self.train
        limits = [f"train.{name}" for name in LIMITS if getattr(train, name) is not None]
        if len(limits) > 1:
            raise ValueError(f"{' and '.join(limits)} both limit the run: set one of them to null")

        # learned positions are a table of this length, and RoPE was trained no further
        length = self.data.sequence_length
        longest = model.max_position_embeddings
        probed = self.eval.attention.max_tokens if self.eval.attention.every else 0
        lengths = {"data.sequence_length": length, "eval.attention.max_tokens": probed}
        for key, tokens in lengths.items():
            if tokens > longest:
                raise ValueError(
                    f"{key} ({tokens}) is longer than model.max_position_embeddings ({longest})"
                )

        # Some rows belong together and must be in one step: a group of answers, or a pair.
        unit = length
        why = ""
        if self.grpo is not None:
            unit *= self.grpo.group_size
            why = f" times grpo.group_size ({self.grpo.group_size})"
        elif self.data.records == "pairs":
            unit *= 2
            why = " times 2, for both answers of a pair"
        if train.tokens_per_step % unit:
            below = max(1, train.tokens_per_step // unit) * unit
            raise ValueError(
                f"train.tokens_per_step ({train.tokens_per_step}) must be a multiple of "
                f"data.sequence_length ({length}){why}: use {below} or {below + unit}"
            )
        rows = self.rows_per_step
        joined = self.data.rows_joined
        micro = train.micro_batch_size
        for key, share in (("data.rows_joined", joined), ("train.micro_batch_size", micro)):
            if share != "auto" and rows % share:
                raise ValueError(f"{key} ({share}) must divide the {rows} rows of a step")

        if self.lora is not None and self.init_from is None:
            raise ValueError("lora needs a trained model: set init_from, for example to runs/demo")
        has_experts = (model.num_experts or 0) > 1
        if has_experts and model.num_experts_per_tok == 1 and model.norm_topk_prob:
            # The weights of a token's experts add up to 1. The weight of one alone is always 1,
            # whatever the router computes, so no gradient reaches it.
            raise ValueError(
                "num_experts_per_tok 1: set model.norm_topk_prob=false, or the router cannot learn"
            )
        self.check_changes()
        return self

    def check_changes(self) -> None:
        """Raise ValueError if a change names a head or a layer that the model does not have."""
        layers = self.model.num_hidden_layers
        heads = self.model.num_attention_heads
        for change in self.changes:
            for name in (*change.clamp, *change.without, *change.freeze):
                layer, head, *_ = (*map(int, re.findall(r"\d+", name)), 0, 0)
                if layer >= layers or head >= heads:
                    raise ValueError(
                        f"changes: there is no {name}: this model has layers 0 to {layers - 1} of "
                        f"heads 0 to {heads - 1}"
                    )

    def during(self, step: int) -> RunConfig:
        """Return the config after this many steps: with the changes that have begun by then."""
        # Not those to come: they belong to `identity`, and an older checkpoint does not have them.
        begun = [change for change in self.changes if change.at <= step]
        values = self.model_dump() | {"changes": [change.model_dump() for change in begun]}
        # As overrides of the command line, so each key of a change is checked as those are.
        loaded = LoadedConfig(self.directory / "config.yaml", values)
        for change in begun:
            if change.is_on(step):
                settings = [f"{key}={json.dumps(value)}" for key, value in change.keys.items()]
                set_keys(loaded, settings, RunConfig)
        return validate(RunConfig, loaded) if self.changes else self

    def next_change(self, step: int) -> int | None:
        """Return the next step at which a change begins or ends, or a model must be kept."""
        steps = []
        for change in self.changes:
            steps += [change.at, change.at + (change.steps or 0)]
            # A pattern may be that of an earlier step: the run pauses there and keeps the model.
            models = [model for model in change.clamp.values() if isinstance(model, int)]
            steps += [model for model in models if model < change.at]
        return min((each for each in steps if each > step), default=None)

    @property
    def rows_per_step(self) -> int:
        """The rows of data.sequence_length tokens in a step, over all processes."""
        return self.train.tokens_per_step // self.data.sequence_length

    @property
    def max_steps(self) -> int | None:
        """The steps of the whole run; None if the clock decides (max_minutes)."""
        if self.train.max_minutes is not None:
            return None
        if self.train.max_tokens is not None:
            return -(-self.train.max_tokens // self.train.tokens_per_step)  # rounded up
        return self.train.max_steps or DEFAULT_STEPS

    def progress(self, step: int, seconds: float) -> float:
        """Return the share of the run that is over, 0 … 1, by steps or by the clock."""
        if self.train.max_minutes is not None:
            return min(1.0, seconds / (60 * self.train.max_minutes))
        return step / (self.max_steps or DEFAULT_STEPS)

    @property
    def directory(self) -> Path:
        """The folder of the run."""
        return Path(self.output_dir) / self.name

    def identity(self) -> dict[str, Any]:
        """Return what makes a run itself, by dotted key. If a value differs, it is another run."""
        values = flatten(self.model_dump())
        if self.init_from is not None:
            values["init_from"] = str(Path(self.init_from))  # runs/demo/ is runs/demo
        return {key: value for key, value in values.items() if key in IDENTITY}


# Of these keys of `train:` only one may be set. Without any, a run has DEFAULT_STEPS.
LIMITS = ("max_steps", "max_tokens", "max_minutes")
DEFAULT_STEPS = 1000
IDENTITY = identity_keys(RunConfig)


def load_run_config(
    path: str | Path, overrides: list[str] | None = None, *, trust_hooks: bool = True
) -> RunConfig:
    """Read a YAML file and overrides into a checked RunConfig. Nothing that it names is imported.

    trust_hooks=False refuses code that a config from elsewhere names. Raises InputError.
    """
    loaded = load_config(path, overrides or [], RunConfig)
    loaded.values["name"] = loaded.values.get("name") or Path(path).stem
    config = validate(RunConfig, loaded)
    problem = problem_of_name(config.name)
    if problem:
        place = loaded.where(("name",))
        raise InputError(f"{place}: the name of the run is {config.name[:120]!r}: it {problem}")
    if not trust_hooks:
        refuse_foreign_code(loaded, config.eval, config.model, config.grpo)
    if config.init_from is not None:
        config = _with_shape_of_start(config, config.init_from, loaded.keys_of_start("model"))
    try:
        # early: a model that fits no family could be trained, but never saved
        family_of(config.model)
    except NoFamily as error:
        raise InputError(f"{loaded.where(('model', error.args[1][0]))}: {error}") from None
    return config


def _with_shape_of_start(config: RunConfig, source: str, named: set[str]) -> RunConfig:
    """Return a config whose `model:` has the shape of `source`. named: keys that the user set."""
    if named >= ModelConfig.model_fields.keys():
        return config  # it is the config.yaml of a run, which names all keys
    data = config.data
    if (config.directory / "checkpoints" / "latest").is_file():
        # This run has begun and has the shape itself. By now init_from may be gone.
        source = str(config.directory)
        if data.tokenizer.path == config.init_from:
            tokenizer = data.tokenizer.model_copy(update={"path": source})
            data = data.model_copy(update={"tokenizer": tokenizer})
    model = shape_of(source, config.model, named)
    config = config.model_copy(update={"model": model, "data": data})
    try:
        # again: learned positions may be fewer than the tokens of a row
        config._check_across_sections()  # type: ignore[operator]
    except ValueError as error:
        raise InputError(f"init_from: {error}") from None
    return config
