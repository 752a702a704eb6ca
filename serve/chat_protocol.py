"""What may the page's chat ask for? Checked here, before anything is computed; an unknown field is refused."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from eval.attention.controls import Head
from model.generation import Sampling
from serve.protocol import MOST_TOP
from serve.workbench import ModelAsked

MOST_HEADS = 4096  # that are changed at once
MOST_SCALE = 10.0
MOST_MESSAGES = 1000
TokenIds = Annotated[list[Annotated[int, Field(ge=0, le=2**31)]], Field(max_length=2**20)]


class QuestionAsked(ModelAsked):
    """GET /live/chat/question. The same number gives the same question."""

    number: int = Field(0, ge=0, le=2**40)
    new_names: bool = False


class Scaled(BaseModel):
    """A head whose output is multiplied by a factor. 0 = off, 1 = as it was trained."""

    model_config = ConfigDict(extra="forbid", strict=True)

    layer: int = Field(ge=0, le=9999)
    head: int = Field(ge=0, le=9999)
    factor: float = Field(ge=-MOST_SCALE, le=MOST_SCALE, allow_inf_nan=False)


class Changed(ModelAsked):
    """A model, with some of its heads changed."""

    model_config = ConfigDict(extra="forbid", strict=True)

    heads: list[Scaled] = Field(default=[])

    @property
    def factors(self) -> dict[Head, float]:
        return {(one.layer, one.head): one.factor for one in self.heads}

    @model_validator(mode="after")
    def _each_once(self) -> Changed:
        if len(self.factors) < len(self.heads):
            raise ValueError("heads: a head may be named once only")
        return self


class Message(BaseModel):
    """What somebody said; of an answer also its thoughts and its tool calls, as they came."""

    model_config = ConfigDict(extra="forbid", strict=True)

    role: Literal["system", "user", "assistant"]
    content: str
    reasoning_content: str = ""
    tool_calls: list[dict[str, str]] = []


class AnswerAsked(Changed):
    """POST /live/chat/answer. Give messages; or a prompt, as text or as the ids of an earlier answer's prompt.

    answer_ids: what stands of the answer already: it continues from there. temperature 0: always the likeliest token.
    top: how many of the likeliest tokens come with each token.
    """

    messages: list[Message] | None = Field(None, min_length=1, max_length=MOST_MESSAGES)
    prompt: str | TokenIds | None = None
    answer_ids: TokenIds = Field(default=[])
    max_tokens: int = Field(128, ge=1)
    temperature: float = Field(0.0, ge=0, allow_inf_nan=False)
    top_p: float = Field(1.0, ge=1e-6, le=1)
    seed: int = Field(0, ge=0)
    top: int = Field(8, ge=1, le=MOST_TOP)

    @model_validator(mode="after")
    def _one_prompt(self) -> AnswerAsked:
        if (self.messages is None) == (self.prompt is None):
            raise ValueError("give either messages or a prompt")
        _ = self.sampling
        return self

    @property
    def sampling(self) -> Sampling:
        """How tokens are drawn. Raises ValueError for a temperature that is too small to compute with."""
        return Sampling(self.temperature, top_p=None if self.top_p == 1 else self.top_p)


class WeighAsked(Changed):
    """POST /live/chat/weigh. Of these ids, those from `begin` on are weighed."""

    ids: TokenIds = Field(min_length=2)
    begin: int = Field(ge=1)
    top: int = Field(8, ge=1, le=MOST_TOP)

    @model_validator(mode="after")
    def _begins_inside(self) -> WeighAsked:
        if self.begin >= len(self.ids):
            raise ValueError(f"begin: {self.begin} is not among the {len(self.ids)} ids: they count from 0")
        return self


class LookAsked(Changed):
    """POST /live/chat/look. What predicted the token at `position` of these ids."""

    ids: TokenIds = Field(min_length=2)
    position: int = Field(ge=1)

    @model_validator(mode="after")
    def _lies_inside(self) -> LookAsked:
        if self.position >= len(self.ids):
            raise ValueError(f"position: {self.position} is not among the {len(self.ids)} ids: they count from 0")
        return self
