"""EvalConfig: what is looked at while training, and how often."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, field_validator

from configs.meaning import Section


class HookConfig(Section):
    """One hook and when it runs."""

    name: str = Field(description="validation | questions | samples | attention, or your own as `module:function`.")
    every: int | None = Field(
        None, ge=0, description="Steps between two runs; 0 = only at the end; null = eval.every (eval.attention.every)."
    )
    early: list[Annotated[int, Field(ge=0)]] | None = Field(
        None, description="Steps at which it runs besides; null = none (eval.attention.early)."
    )


class AttentionConfig(Section):
    """What is kept of every attention head while training: maps and scores."""

    every: int = Field(100, ge=0, description="Look at every head each so many steps, and at the end; 0 = never.")
    early: list[Annotated[int, Field(ge=0)]] = Field(
        [0, 1, 2, 5, 10, 20, 50], description="Steps at which they are looked at besides: most happens early."
    )
    texts: list[Annotated[str, Field(min_length=1)]] = Field(
        [], description="Texts looked at; none: how held-out documents begin."
    )
    probe_file: str | None = Field(None, description="A YAML file with more of them: texts: [{name: …, text: …}].")
    max_tokens: int = Field(32, ge=2, le=256, description="How many tokens of a text are kept as a map.")
    layers: list[int] | None = Field(None, description="Layers that are looked at; null = all.")
    heads: list[int] | None = Field(None, description="Query heads that are looked at; null = all.")
    metrics: Literal["all"] | list[str] = Field(
        "all", description="Head scores: all, or some by name (docs/attention_scores.md)."
    )


HOOKS: list[str | HookConfig] = ["validation", "questions", "samples", "attention"]


@dataclass(frozen=True)
class Cadence:
    """When a hook runs: each `every` steps, at the steps of `early`, and at the end."""

    every: int
    early: tuple[int, ...] = ()
    at_the_end: bool = True

    def is_due(self, step: int, is_last: bool) -> bool:
        """Whether it runs after this step."""
        return (is_last and self.at_the_end) or step in self.early or (self.every > 0 and step % self.every == 0)


class EvalConfig(Section):
    """The `eval:` section."""

    hooks: list[str | HookConfig] = Field(
        HOOKS, description="What runs during training, in this order: a name, or {name: …, every: …, early: […]}."
    )
    every: int = Field(
        100, ge=0, description="Steps between two runs of a hook that names no other cadence; 0 = only at the end."
    )
    max_tokens: int | None = Field(
        65536, ge=2, description="Held-out tokens an evaluation reads while training; null = all."
    )
    final_max_tokens: int | None = Field(
        None, ge=2, description="Held-out tokens the last evaluation reads; null = all."
    )
    floor_documents: int = Field(
        200,
        ge=0,
        description="Whole held-out stories compared with the entropy floor at the end (storyworld).",
    )
    prompts: list[str] = Field([""], description="Fixed prompts continued at every evaluation.")
    sample_tokens: int = Field(160, ge=1, description="Longest continuation, in tokens.")
    temperature: float = Field(0.8, ge=0, description="Temperature of the samples; 0 = always the likeliest token.")
    top_p: float | None = Field(
        0.95,
        gt=0,
        le=1,
        description="Samples are drawn from the likeliest tokens that together have this probability; null = from all.",
    )
    questions: int = Field(
        0,
        ge=0,
        description="Held-out questions asked at every evaluation, the first and the last too (storyworld "
        "conversations); 0 = none.",
    )
    attention: AttentionConfig = Field(AttentionConfig(), description="Attention maps and head scores.")

    @field_validator("hooks")
    @classmethod
    def _check_names(cls, hooks: list[str | HookConfig]) -> list[str | HookConfig]:
        names = [_named(hook).name for hook in hooks]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"hooks: {twice[0]} is named twice: once is enough, with `early` for further steps")
        return hooks

    def cadences(self) -> dict[str, Cadence]:
        """When every hook runs, by its name, in the order in which they run."""
        return {hook.name: self._cadence(hook) for hook in map(_named, self.hooks)}

    def is_due(self, step: int) -> bool:
        """Whether any hook runs after this step, which is not the last one."""
        return any(cadence.is_due(step, is_last=False) for cadence in self.cadences().values())

    def _cadence(self, hook: HookConfig) -> Cadence:
        if hook.name == "attention":
            every = self.attention.every if hook.every is None else hook.every
            early = self.attention.early if hook.early is None else hook.early
            is_on = every > 0 or bool(hook.early)  # eval.attention.every = 0 is off; a hook's own steps are asked for
            return Cadence(every, tuple(early) if is_on else (), at_the_end=is_on)
        first = [0] if hook.name == "questions" else []  # what is known before the first step
        return Cadence(
            self.every if hook.every is None else hook.every, tuple(first if hook.early is None else hook.early)
        )


def _named(hook: str | HookConfig) -> HookConfig:
    return hook if isinstance(hook, HookConfig) else HookConfig(name=hook)
