"""The `grpo:` section."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from configs.schema import Section

MOST_ANSWERS = 2**16  # to one question; the largest known groups have some hundred

MOST_ITERATIONS = 1000  # of one set of answers


class GRPOConfig(Section):
    """Group relative policy optimisation (train/grpo.py): what is sampled, its worth, and how far a step goes."""

    reward: str = Field(
        "exact_match",
        min_length=1,
        description="exact_match (the right answer to the letter) | contains_answer (can be gamed) | or a function of "
        "your own as package.module:function. It gets a question (eval.questions.Asked) and a reply, and returns a "
        "number. Code that a config from elsewhere names is refused without --trust-hooks.",
    )
    group_size: int = Field(
        8,
        ge=2,
        le=MOST_ANSWERS,
        description="Answers that are sampled to each question and compared with each other. A step has "
        "train.tokens_per_step / data.sequence_length answers.",
    )
    max_new_tokens: int = Field(
        24, ge=1, description="Tokens of an answer at most; one that is longer is cut, and so never right."
    )
    tools: list[Literal["calculator", "look_up"]] = Field(
        [],
        max_length=2,
        description="Tools that the prompt describes and whose calls are run: [calculator, look_up]. What they return "
        "is read, not trained on, and belongs to max_new_tokens. [] = none.",
    )
    temperature: float = Field(1.0, ge=1e-6, description="Of the sampled answers. The loss has it too.")
    num_iterations: int = Field(
        1,
        ge=1,
        le=MOST_ITERATIONS,
        description="Steps that learn from the same answers. From the second one on, the ratio is not 1 and the clip "
        "matters.",
    )
    scale_advantages: bool = Field(
        True, description="Divide advantages by the group's standard deviation: true = GRPO | false = Dr. GRPO."
    )
    clip: Literal["ppo", "cispo"] = Field(
        "ppo", description="ppo: a token whose ratio left the bounds has no gradient | cispo: its ratio is cut there."
    )
    clip_low: float = Field(
        0.2, ge=0, le=1, description="ppo: the ratio new / old probability counts down to 1 - clip_low."
    )
    clip_high: float = Field(
        0.2, ge=0, description="And up to 1 + clip_high. DAPO: 0.28, so that rare tokens may rise."
    )
    mean: Literal["sequence", "token", "fixed"] = Field(
        "sequence",
        description="What a token weighs: sequence = all answers weigh the same (GRPO) | token = all tokens do (DAPO) "
        "| fixed = as token, and longer answers weigh more in all (Dr. GRPO).",
    )
    kl: float = Field(
        0.0,
        ge=0,
        description="Weight of the KL divergence from the model of init_from. 0 = that model is not opened.",
    )
