"""The sections of the methods that come after pretraining, and of changes while a run trains.

A section that is null is off. A method adds its section here and to RunConfig (train/config.py),
and its script to METHODS (train/run/command_line.py).
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt

from configs.loader import PathText, Section


class DPOConfig(Section):
    """Direct preference optimisation (train/dpo.py): a better and a worse answer to one prompt."""

    beta: float = Field(0.1, ge=1e-6)
    """Strength of the pull towards the reference: a larger value keeps the model nearer to it."""
    loss: Literal["sigmoid", "ipo"] = "sigmoid"
    """sigmoid = DPO's own | ipo stops at a fixed distance, as a mean over tokens."""
    label_smoothing: float = Field(0.0, ge=0, lt=0.5)
    """sigmoid: share of pairs whose answers are swapped by mistake (robust DPO)."""
    sft_weight: float = Field(0.0, ge=0)
    """Weight of the chosen answer's own loss, a mean over its tokens. It keeps that answer likely
    (RPO).
    """


class DistillConfig(Section):
    """Distillation (train/distill.py): the teacher, and the distance from it."""

    teacher: PathText = Field(min_length=1)
    """The run or model directory to learn from. It must have the same tokenizer."""
    beta: float = Field(0.0, ge=0, le=1)
    """How two distributions are compared: 0 = forward KL, the student covers all that the teacher
    finds likely | 1 = reverse KL, it keeps to what the teacher finds likeliest | between = the
    generalised Jensen-Shannon divergence.
    """
    temperature: float = Field(1.0, ge=0.05)
    """Divides the logits of both: above 1, unlikely tokens count more."""
    hard_share: float = Field(0.1, ge=0, le=1)
    """Share of the ordinary loss on the text's own tokens; the rest is the teacher's."""
    on_policy: float = Field(0.0, ge=0, le=1)
    """Share of the steps whose text the student writes itself. 0 = none."""
    max_new_tokens: int = Field(128, ge=1)
    """Tokens that the student writes in a row of such a step, at most."""


class GRPOConfig(Section):
    """Group relative policy optimisation (train/grpo.py): samples, rewards, and the loss."""

    reward: str = Field("exact_match", min_length=1)
    """exact_match (the right answer to the letter) | contains_answer (can be gamed) | or a function
    of your own as package.module:function. It gets a question (eval.questions.Question) and a
    reply, and returns a number. Code that a config from elsewhere names is refused without
    --trust-hooks.
    """
    group_size: int = Field(8, ge=2, le=2**16)
    """Answers that are sampled to each question and compared with each other. A step has
    train.tokens_per_step / data.sequence_length answers.
    """
    max_new_tokens: int = Field(24, ge=1)
    """Tokens of an answer at most; one that is longer is cut, and so never right."""
    tools: list[Literal["calculator"]] = Field([], max_length=1)
    """Tools that the prompt describes and whose calls are run: [calculator]. What they return is
    read, not trained on, and counts towards max_new_tokens. [] = none.
    """
    temperature: float = Field(1.0, ge=1e-6)
    """Sampling temperature; the loss uses the same value."""
    num_iterations: int = Field(1, ge=1, le=1000)
    """Steps that learn from the same answers. From the second one on, the ratio is not 1 and the
    clip matters.
    """
    scale_advantages: bool = True
    """Divide advantages by the group's standard deviation: true = GRPO | false = Dr. GRPO."""
    clip: Literal["ppo", "cispo"] = "ppo"
    """ppo: a token whose ratio left the bounds has no gradient | cispo: its ratio is cut there."""
    clip_low: float = Field(0.2, ge=0, le=1)
    """ppo: the ratio new / old probability counts down to 1 - clip_low."""
    clip_high: float = Field(0.2, ge=0)
    """And up to 1 + clip_high. DAPO: 0.28, so that rare tokens may rise."""
    mean: Literal["sequence", "token", "fixed"] = "sequence"
    """Weight of a token: sequence = all answers weigh the same (GRPO) | token = all tokens do
    (DAPO) | fixed = as token, and longer answers weigh more in all (Dr. GRPO).
    """
    kl: float = Field(0.0, ge=0)
    """Weight of the KL divergence from the model of init_from. 0 = that model is not opened."""


# A head, such as L0H2; a layer, such as L0.
HeadName = Annotated[str, Field(pattern=r"^L\d+H\d+$")]
PartName = Annotated[str, Field(pattern=r"^(L\d+(H\d+)?|embedding)$")]
PATTERNS = ("uniform", "previous", "itself")


class Change(Section):
    """A change of a run while it trains. All differences that follow have this one cause."""

    at: int = Field(0, ge=0)
    """It holds after this many steps."""
    steps: int | None = Field(None, ge=1)
    """How many steps it lasts. null = until the end."""
    clamp: dict[HeadName, Literal["uniform", "previous", "itself"] | NonNegativeInt] = Field(
        {}, examples=[{"L0H2": "previous"}]
    )
    """Heads with a pattern that is not their own: uniform (over all visible tokens) | previous (the
    token before) | itself | a number: what this head of the model after so many steps looks at."""
    without: list[HeadName] = Field([], examples=[["L0H2"]])
    """Heads that write nothing: their columns of the output projection are zero."""
    freeze: list[PartName] = Field([], examples=[["L0H2", "L1", "embedding"]])
    """Parts that are not updated: a head, a layer, or the embedding."""
    keys: dict[str, Any] = Field({}, examples=[{"train.optimizer.lr": 0.01}])
    """Other keys of the config, with their values while it lasts."""

    def is_on(self, step: int) -> bool:
        """Return True if the change holds when this many steps were taken."""
        return self.at <= step and (self.steps is None or step < self.at + self.steps)

    def in_words(self) -> str:
        """Return a line such as "from step 600 to 700: without L0H2"."""
        parts = []
        for name, pattern in self.clamp.items():
            kind = pattern if isinstance(pattern, str) else f"its pattern at step {pattern:,}"
            parts.append(f"{name} clamped ({kind})")
        for verb, names in (("without", self.without), ("frozen:", self.freeze)):
            parts += [f"{verb} {', '.join(names)}"] * bool(names)
        parts += [f"{key}={json.dumps(value)}" for key, value in self.keys.items()]
        end = "" if self.steps is None else f" to {self.at + self.steps:,}"
        return f"from step {self.at:,}{end}: {'; '.join(parts) or 'nothing is changed'}"


class Fork(Section):
    """The origin of a fork."""

    run: PathText
    """The run that it continues."""
    step: int = Field(ge=0)
    """The last step that both have."""
