"""EvalConfig: what is measured during training, and how often."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt

from configs.loader import PathText, Section


class HookConfig(Section):
    """One hook and when it runs."""

    name: str
    """validation | questions | samples | attention | experts | recall | in_context, or your own as
    `module:function`."""
    every: int | None = Field(None, ge=0)
    """Steps between two runs; 0 = only at the end; null = eval.every (eval.attention.every)."""
    early: list[NonNegativeInt] | None = None
    """Extra steps at which it runs; null = none (eval.attention.early)."""

    def is_due(self, step: int, is_last: bool) -> bool:
        """Return True every `every` steps, at the steps of `early`, and at the end."""
        every = self.every or 0
        return is_last or step in (self.early or ()) or (every > 0 and step % every == 0)


class AttentionConfig(Section):
    """Maps and scores of every attention head during training."""

    every: int = Field(200, ge=0)
    """Steps between two looks at every head, also at the end. 0 = never."""
    early: list[NonNegativeInt] = Field([0, 1, 2, 5, 10, 20, 50])
    """Extra steps at which to look: most happens early."""
    texts: list[Annotated[str, Field(min_length=1)]] = Field([])
    """Texts to look at. Empty = the first words of held-out documents."""
    probe_file: PathText | None = None
    """A YAML file with more texts: {texts: {fox: The fox saw the bird.}}."""
    max_tokens: int = Field(32, ge=2, le=256)
    """How many tokens of each text the maps keep."""
    layers: list[NonNegativeInt] | None = Field(None, min_length=1)
    """Which layers to look at, counted from 0. null = all."""
    heads: list[NonNegativeInt] | None = Field(None, min_length=1)
    """Which query heads to look at, counted from 0. null = all."""
    metrics: Literal["all"] | list[str] = Field("all", examples=[["induction", "sink"]])
    """Head scores: all, or a list of names (docs/measure.md)."""
    page: Literal["auto", "plain", "none"] = "auto"
    """At the end, pictures and viewer.html: auto = with the model in it, up to 5 MB | plain =
    without | none = no pictures, and the page as during training."""


class Outcome(Section):
    """The figure by which the runs of a sweep are compared, named before they are trained."""

    score: str
    """A figure of the model (copy_gain), a head score (induction; the best head counts), recall."""
    at_least: float
    """A run reaches the outcome at the first step with this value."""


class EvalConfig(Section):
    """The `eval:` section."""

    hooks: list[str | HookConfig] = Field(
        ["validation", "questions", "samples", "attention"],
        examples=[
            [
                "validation",
                {"name": "samples", "every": 1000, "early": [0, 10]},
                "your_package.module:function",
            ]
        ],
    )
    """What runs during training, in this order: a name, or {name: …, every: …, early: […]}. Code
    that a config from elsewhere names is refused without --trust-hooks."""
    every: int = Field(200, ge=0)
    """Steps between two runs of a hook without its own cadence. 0 = only at the end."""
    max_tokens: int | None = Field(32768, ge=2)
    """Held-out tokens that an evaluation reads during training. null = all."""
    final_max_tokens: int | None = Field(262144, ge=2)
    """Held-out tokens that the last evaluation reads. null = all."""
    floor_documents: int = Field(200, ge=0)
    """storyworld: held-out stories compared at the end with the lowest possible loss."""
    prompts: list[str] = Field([""])
    """Texts that the model continues at every evaluation, or questions where it learns
    conversations. "" begins a new document, or asks a held-out question of the data."""
    sample_tokens: int = Field(200, ge=1)
    """Longest continuation in tokens."""
    temperature: float = Field(0.8, ge=0, le=100)
    """How freely the continuations are drawn. 0 = always the most likely token."""
    top_p: float | None = Field(0.95, ge=1e-6, le=1)
    """Draw from the most likely tokens that together have this probability. null = all."""
    questions: int = Field(0, ge=0)
    """storyworld conversations: held-out questions asked at every evaluation. 0 = none."""
    attention: AttentionConfig = AttentionConfig()
    """Attention maps and head scores."""
