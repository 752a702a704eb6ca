"""RunConfig: everything that one YAML file says, checked."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from configs.command import InputError
from configs.files import read_checkpoint
from configs.loader import (
    LoadedConfig,
    PathText,
    Section,
    Tag,
    flatten,
    identity_keys,
    load_config,
    validate,
)
from data.config import DataConfig
from eval.config import EvalConfig
from model.config import LoraConfig, ModelConfig
from model.files.checkpoint import read_config
from model.files.families import NoFamily, family_of


class OptimizerConfig(Section):
    """AdamW (Loshchilov & Hutter 2019, arXiv 1711.05101) alone, or Muon for the matrices of the blocks."""

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
    betas: list[Annotated[float, Field(ge=0, lt=1)]] = Field([0.9, 0.95], min_length=2, max_length=2)
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
    """On a CPU: processes that share the rows of a step. Beside other programs they are much quicker than threads. auto
    = one a core, with at least 512 tokens each."""
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
    """Number format of the computation (weights stay fp32): auto = bf16 where it is fast | bf16 | fp16 (with loss
    scaling) | tf32 (CUDA only) | fp32."""
    compile: Literal["auto"] | bool = "auto"
    """Train with torch.compile. auto: where the run is long enough to pay for it."""
    activation_checkpointing: bool = False
    """true: compute layers twice to save memory; takes about a third more time."""
    parallel: Literal["ddp", "fsdp2", "hsdp"] = "ddp"
    """Under torchrun, each process holds: ddp = the whole model | fsdp2 = a share of it | hsdp = a share of its
    machine's."""
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


# The methods that come after pretraining: each section is null, which is off, or holds the method's keys. A method adds
# its section here and to RunConfig, and its script to METHODS.


class DPOConfig(Section):
    """Direct preference optimisation (train/dpo.py): a better and a worse answer to one prompt."""

    beta: float = Field(0.1, ge=1e-6)
    """Strength of the pull towards the reference: a larger value keeps the model nearer to it."""
    loss: Literal["sigmoid", "ipo"] = "sigmoid"
    """sigmoid = DPO's own | ipo = a wanted distance between the answers, which is not exceeded, a mean over tokens."""
    label_smoothing: float = Field(0.0, ge=0, lt=0.5)
    """sigmoid: share of pairs whose answers are swapped by mistake (robust DPO)."""
    sft_weight: float = Field(0.0, ge=0)
    """What the chosen answer's own loss, a mean over its tokens, counts beside the preference: with it, the chosen
    answer stays likely (RPO)."""


class DistillConfig(Section):
    """Distillation (train/distill.py): who teaches, and how the student is compared with it."""

    teacher: PathText = Field(min_length=1)
    """The run or model directory to learn from. It must have the same tokenizer."""
    beta: float = Field(0.0, ge=0, le=1)
    """How two distributions are compared: 0 = forward KL, the student covers all that the teacher finds likely | 1 =
    reverse KL, it keeps to what the teacher finds likeliest | between = the generalised Jensen-Shannon divergence."""
    temperature: float = Field(1.0, ge=0.05)
    """Divides the logits of both: above 1, unlikely tokens count more."""
    hard_share: float = Field(0.1, ge=0, le=1)
    """Share of the ordinary loss on the text's own tokens; the rest is the teacher's."""
    on_policy: float = Field(0.0, ge=0, le=1)
    """Share of the steps whose text the student writes itself. 0 = none."""
    max_new_tokens: int = Field(128, ge=1)
    """Tokens that the student writes in a row of such a step, at most."""


class GRPOConfig(Section):
    """Group relative policy optimisation (train/grpo.py): what is sampled, its worth, and how far a step goes."""

    reward: str = Field("exact_match", min_length=1)
    """exact_match (the right answer to the letter) | contains_answer (can be gamed) | or a function of your own as
    package.module:function. It gets a question (eval.questions.Question) and a reply, and returns a number. Code that a
    config from elsewhere names is refused without --trust-hooks."""
    group_size: int = Field(8, ge=2, le=2**16)  # the largest known groups have some hundred
    """Answers that are sampled to each question and compared with each other. A step has train.tokens_per_step /
    data.sequence_length answers."""
    max_new_tokens: int = Field(24, ge=1)
    """Tokens of an answer at most; one that is longer is cut, and so never right."""
    tools: list[Literal["calculator"]] = Field([], max_length=1)
    """Tools that the prompt describes and whose calls are run: [calculator]. What they return is read, not trained on,
    and belongs to max_new_tokens. [] = none."""
    temperature: float = Field(1.0, ge=1e-6)
    """Of the sampled answers. The loss has it too."""
    num_iterations: int = Field(1, ge=1, le=1000)
    """Steps that learn from the same answers. From the second one on, the ratio is not 1 and the clip matters."""
    scale_advantages: bool = True
    """Divide advantages by the group's standard deviation: true = GRPO | false = Dr. GRPO."""
    clip: Literal["ppo", "cispo"] = "ppo"
    """ppo: a token whose ratio left the bounds has no gradient | cispo: its ratio is cut there."""
    clip_low: float = Field(0.2, ge=0, le=1)
    """ppo: the ratio new / old probability counts down to 1 - clip_low."""
    clip_high: float = Field(0.2, ge=0)
    """And up to 1 + clip_high. DAPO: 0.28, so that rare tokens may rise."""
    mean: Literal["sequence", "token", "fixed"] = "sequence"
    """What a token weighs: sequence = all answers weigh the same (GRPO) | token = all tokens do (DAPO) | fixed = as
    token, and longer answers weigh more in all (Dr. GRPO)."""
    kl: float = Field(0.0, ge=0)
    """Weight of the KL divergence from the model of init_from. 0 = that model is not opened."""


class TrackingConfig(Section):
    """The `tracking:` section; metrics.jsonl is always written."""

    wandb: Literal["offline", "online", "disabled"] = "offline"
    """offline: written to disk, for `wandb sync` later | online | disabled."""
    project: str = "headlight"
    """Name of the project in wandb."""
    tensorboard: bool = False
    """Write event files for TensorBoard, in the run's directory."""


class RunConfig(Section):
    """One run. The key `extends` is resolved before."""

    name: str = ""
    """Name of the run and of its directory, in letters, digits, spaces and `_ . + = -`. Empty = the YAML file's
    name."""
    output_dir: PathText = "runs"
    """Folder that holds all run directories, and the prepared data."""
    seed: Annotated[int, Tag.IDENTITY] = Field(0, ge=0, lt=2**63)
    """Decides all random choices: first weights, order of the rows, dropout."""
    resume: PathText = "auto"
    """auto: continue the run of this name | never: refuse a directory that exists | or a checkpoint directory to
    continue from."""
    allow_mismatch: bool = False
    """true: continue a run although its data or settings have changed."""
    rungs: dict[str, dict[str, Any]] | None = Field(
        None, examples=[{"learned-positions": {"model.position_embedding": "learned"}}]
    )
    """Variants for train.sweep: a name, and the keys that it changes. train.pretrain takes no notice: it trains the
    config itself, the baseline."""
    tracking: TrackingConfig = TrackingConfig()
    """Where figures go, besides metrics.jsonl."""

    dpo: Annotated[DPOConfig | None, Tag.IDENTITY] = Field(
        None, examples=[{"beta": 0.1, "loss": "sigmoid", "label_smoothing": 0.0}]
    )
    """Learning from pairs of answers, with train.dpo. null = its defaults."""
    lora: Annotated[LoraConfig | None, Tag.IDENTITY] = None
    """Train small adapters beside the frozen matrices of init_from. null = train every matrix."""
    distill: Annotated[DistillConfig | None, Tag.IDENTITY] = Field(
        None, examples=[{"teacher": "runs/demo", "beta": 0.0, "temperature": 1.0, "hard_share": 0.1}]
    )
    """Learning from another model's probabilities, with train.distill."""
    grpo: Annotated[GRPOConfig | None, Tag.IDENTITY] = Field(
        None, examples=[{"reward": "exact_match", "group_size": 8}]
    )
    """Reinforcement learning on sampled answers, with train.grpo."""
    init_from: Annotated[PathText | None, Tag.IDENTITY] = None
    """Start from the weights of this run, model directory or model of the Hub (OWNER/NAME), with its shape and its
    tokenizer. null = random weights."""
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
        limits = [f"train.{name}" for name in LIMITS if getattr(self.train, name) is not None]
        if len(limits) > 1:
            raise ValueError(f"{' and '.join(limits)} both limit the run: set one of them to null")
        length, longest, rows = self.data.sequence_length, self.model.max_position_embeddings, self.rows_per_step
        probed = self.eval.attention.max_tokens if self.eval.attention.every else 0
        for key, tokens in (("data.sequence_length", length), ("eval.attention.max_tokens", probed)):
            if tokens > longest:
                raise ValueError(f"{key} ({tokens}) is longer than model.max_position_embeddings ({longest})")
        together, why = 1, ""  # rows that must be in one step
        if self.grpo is not None:
            together, why = self.grpo.group_size, f" times grpo.group_size ({self.grpo.group_size})"
        elif self.data.records == "pairs":
            together, why = 2, " times 2, for both answers of a pair"
        if self.train.tokens_per_step % (together * length):
            below = max(1, rows // together) * together * length
            raise ValueError(
                f"train.tokens_per_step ({self.train.tokens_per_step}) must be a multiple of data.sequence_length "
                f"({length}){why}: use {below} or {below + together * length}"
            )
        joined, micro = self.data.rows_joined, self.train.micro_batch_size
        for key, share in (("data.rows_joined", joined), ("train.micro_batch_size", micro)):
            if share != "auto" and rows % share:
                raise ValueError(f"{key} ({share}) must divide the {rows} rows of a step")
        if self.lora is not None and self.init_from is None:
            raise ValueError("lora trains beside the matrices of a trained model: set init_from, such as runs/demo")
        if (self.model.num_experts or 0) > 1 and self.model.num_experts_per_tok == 1 and self.model.norm_topk_prob:
            # the weights of a token's experts add up to 1, so one alone is always 1, and the router learns nothing
            raise ValueError("num_experts_per_tok 1: set model.norm_topk_prob=false, or the router cannot learn")
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
            return -(-self.train.max_tokens // self.train.tokens_per_step)
        return self.train.max_steps or DEFAULT_STEPS

    def progress(self, step: int, seconds: float) -> float:
        """Share of the run that is over, 0 … 1: of the steps, or of the minutes if they are the limit."""
        if self.train.max_minutes is not None:
            return min(1.0, seconds / (60 * self.train.max_minutes))
        return step / (self.max_steps or DEFAULT_STEPS)

    @property
    def directory(self) -> Path:
        """<output_dir>/<name>"""
        return Path(self.output_dir) / self.name

    def identity(self) -> dict[str, Any]:
        """What makes a run what it is, by dotted key. If one of these differs, it is another run."""
        values = flatten(self.model_dump())
        if self.init_from is not None:
            values["init_from"] = str(Path(self.init_from))  # whichever way its path is written
        return {key: value for key, value in values.items() if key in IDENTITY}


LIMITS = ("max_steps", "max_tokens", "max_minutes")
DEFAULT_STEPS = 1000
IDENTITY = identity_keys(RunConfig)


def load_run_config(path: str | Path, overrides: list[str] | None = None, *, trust_hooks: bool = True) -> RunConfig:
    """YAML file + overrides -> a checked RunConfig. Nothing that it names is imported. Raises InputError.

    trust_hooks: False refuses code that a config from elsewhere names.
    """
    loaded = load_config(path, overrides or [], RunConfig)
    loaded.values["name"] = loaded.values.get("name") or Path(path).stem
    config = validate(RunConfig, loaded)
    if problem := problem_of_name(config.name):
        raise InputError(f"{loaded.where(('name',))}: the name of the run is {config.name[:120]!r}: it {problem}")
    if not trust_hooks:
        _refuse_foreign_code(loaded, config)
    if config.init_from is not None and not (named := loaded.keys_of_start("model")) >= ModelConfig.model_fields.keys():
        # model: is as the model there needs it, but for the keys that were said about it; all of them are in the
        # config.yaml of a run. Once this run has begun, init_from may be gone, and is not needed.
        source, data = config.init_from, config.data
        if (config.directory / "checkpoints" / "latest").is_file():
            source = str(config.directory)
            if data.tokenizer.path == config.init_from:
                data = data.model_copy(update={"tokenizer": data.tokenizer.model_copy(update={"path": source})})
        config = config.model_copy(update={"model": shape_of(source, config.model, named), "data": data})
        try:
            config._check_across_sections()  # type: ignore[operator]  # learned positions may be fewer than a row's
        except ValueError as error:
            raise InputError(f"init_from: {error}") from None
    try:
        family_of(config.model)
    except NoFamily as error:
        raise InputError(f"{loaded.where(('model', error.args[1][0]))}: {error}") from None
    return config


def problem_of_name(name: str) -> str:
    """What is wrong with the name of a run, "" for nothing. It must do as a folder's name on every system."""
    is_plain = all(c in " _.+=-" or unicodedata.category(c)[0] in "LMN" for c in name)  # letters, their marks, numbers
    if is_plain and 0 < len(name.encode()) <= 200 and name[0] not in " .-+=" and name[-1] not in " .":
        return ""
    return "must be 1 to 100 letters, digits, spaces and _ . + = -, begin with a letter or digit and not end in a dot"


def _refuse_foreign_code(loaded: LoadedConfig, config: RunConfig) -> None:
    """A config is the user's own word on the command line, or in a file where they work. What lies elsewhere may have
    come from others, and so may config.yaml, the name under which a run keeps its own."""
    named = [(("eval", "hooks"), hook if isinstance(hook, str) else hook.name) for hook in config.eval.hooks]
    named += [(("grpo", "reward"), config.grpo.reward)] if config.grpo else []
    named = [(key, name) for key, name in named if ":" in name]
    named += [(("model", "my_attention"), config.model.my_attention)] if config.model.my_attention else []
    for key, code in named:
        place = loaded.where(key)
        file, own_folders = Path(place.rpartition(":")[0]).resolve(), (Path.cwd(), Path(__file__).parents[1])
        is_own = file.name != "config.yaml" and any(file.is_relative_to(folder.resolve()) for folder in own_folders)
        if not place.startswith("command line ") and not is_own:
            raise InputError(
                f"{place}: `{'.'.join(key)}` names {code[:100]}, code that training would run, in a config "
                "that came from elsewhere: name built-in ones instead, or read that code and give --trust-hooks"
            )


TRUST_HELP = (
    "run the code that eval.hooks, grpo.reward and model.my_attention name, also in a config that came from elsewhere"
)


# ---------------------------------------------------------------------------------------------------------
# which script trains it

METHODS = {  # the scripts after train.pretrain: their section, and what data.records must be ("" = it does not matter)
    "train.sft": ("", "conversations"),
    "train.dpo": ("dpo", "pairs"),
    "train.grpo": ("grpo", "conversations"),
    "train.distill": ("distill", ""),
}


def script_of(config: RunConfig) -> str:
    """The script that trains what a RunConfig says. Raises InputError where it has the sections of two."""
    named = [script for script, (section, _) in METHODS.items() if section and getattr(config, section) is not None]
    if len(named) > 1:
        sections = " and ".join(METHODS[script][0] for script in named)
        raise InputError(f"the config has sections of {sections}: set all but one of them to null")
    if named or config.data.records == "pairs":
        return named[0] if named else "train.dpo"
    tunes = config.init_from is not None and config.data.records == "conversations"
    return "train.sft" if tunes else "train.pretrain"


def check_script(config: RunConfig, script: str) -> None:
    """Raises InputError where this script cannot train what a RunConfig says."""
    own, (section, records) = script_of(config), METHODS.get(script, ("", ""))
    if own != script and METHODS.get(own, ("", ""))[0]:
        named = own.removeprefix("train.") if getattr(config, METHODS[own][0]) is not None else "data.records: pairs"
        raise InputError(f"{script} knows nothing of `{named}`: use python -m {own}")
    if section in ("grpo", "distill") and getattr(config, section) is None:
        raise InputError(f"{section}: is null: {script} needs this section, as configs/{section}_demo.yaml has it")
    if records and config.data.records != records:
        instead = "" if own == script else f", or use python -m {own}"
        raise InputError(f"{script} needs {records}: set data.records={records}{instead}")
    if records and config.init_from is None:
        raise InputError(f"{script} starts from a trained model: set init_from, for example init_from=runs/demo")


# ---------------------------------------------------------------------------------------------------------
# init_from: the shape is that of the model there

ADDED = {"rope_scaling", "sliding_window", "layer_types"}  # a model that has none learns to live with them
FREE = {  # the weights of init_from mean the same with another value
    "router_aux_loss_coef", "max_position_embeddings", "attention_dropout", "hidden_dropout", "initialization",
    "loadable_elsewhere", "attn_implementation", "my_attention", "vocab_size", "bos_token_id", "eos_token_id",
    "pad_token_id",
}  # fmt: skip


def shape_of(source: str, model: ModelConfig, named: set[str]) -> ModelConfig:
    """`model:` as the model in `source` needs it, but for the keys that were named about it.

    A source that cannot be read changes nothing here: the run that needs it says so.
    """
    try:
        _, there = read_start(source)
    except InputError:
        return model
    own = named | free_keys(there)
    if "max_position_embeddings" in own - named:  # no tensor has its size
        own.discard("max_position_embeddings")
        there["max_position_embeddings"] = max(there["max_position_embeddings"], model.max_position_embeddings)
    if not there["loadable_elsewhere"]:
        own.discard("loadable_elsewhere")
    taken = ModelConfig.model_validate(there)
    update = {key: getattr(taken, key) for key in there if key not in own}
    if "layer_types" in own and model.layer_types:  # there may be fewer layers, or more
        update["layer_types"] = (model.layer_types * taken.num_hidden_layers)[: taken.num_hidden_layers]
    return model.model_copy(update=update)


def read_start(init_from: str) -> tuple[Path, dict[str, Any]]:
    """A model's directory and its config's values."""
    return read_checkpoint(init_from, lambda directory: (directory, read_config(directory).model_dump()))


def free_keys(there: dict[str, Any]) -> set[str]:
    """The keys of `model:` that may have another value than `there`, in the config of the model begun from."""
    free = FREE | {key for key in ADDED if there[key if key == "rope_scaling" else "sliding_window"] is None}
    if there["position_embedding"] == "learned":
        free.discard("max_position_embeddings")  # it is the size of a tensor
    return free
