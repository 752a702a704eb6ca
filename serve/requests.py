"""Check the requests of OpenAI's API before anything is computed.

Unknown fields are refused, because a client that asks for JSON must not believe that it gets it.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from eval.attention.controls import Head
from model.generation import Sampling
from serve.library import Library, Model
from serve.limits import ApiError
from serve.structured import WantedForm

# Each answer takes a row of the batch, and blocks for all that it may write.
MOST_ANSWERS = 16
# OpenAI lists as many likely tokens beside a token.
MOST_TOP = 20
# Some clients always send these fields. Each is accepted with the value that changes nothing, or
# with ANY value.
ANY: Any = object()
IGNORED = {
    "user": ANY, "metadata": ANY, "store": ANY, "service_tier": ANY, "prediction": ANY,
    "safety_identifier": ANY, "prompt_cache_key": ANY, "suffix": "", "best_of": 1,
    "frequency_penalty": 0, "presence_penalty": 0, "logit_bias": {},
    "response_format": {"type": "text"}, "modalities": ["text"],
}  # fmt: skip

Text = Annotated[str, Field(min_length=1)]
TokenId = Annotated[int, Field(ge=0)]
Factor = Annotated[float, Field(ge=-10, le=10)]


class GenerationRequest(BaseModel):
    """Fields shared by chat and completion requests."""

    model_config = ConfigDict(extra="forbid")

    model: str = Field(max_length=300)
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, ge=0, le=1)
    n: int = Field(1, ge=1, le=MOST_ANSWERS)
    stop: Text | Annotated[list[Text], Field(max_length=4)] = []
    seed: int | None = Field(None, ge=-(2**63), le=2**63 - 1)
    stream: bool = False
    stream_options: dict[Literal["include_usage", "include_obfuscation"], bool | None] = {}
    # These are not OpenAI's; vLLM and others have them.
    top_k: int | None = Field(None, ge=1)
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float = Field(1.0, gt=0, le=100)
    # added to the model's own
    stop_token_ids: list[TokenId] = Field(default=[], max_length=100)
    # True: the model's own stop ids do not end an answer
    ignore_eos: bool = False
    _sampling: Sampling

    @model_validator(mode="before")
    @classmethod
    def _leave_out_ignored(cls, body: Any) -> Any:
        # pydantic refuses anything else
        if not isinstance(body, dict):
            return body
        # null means that a field is not set
        return {k: v for k, v in body.items() if v is not None and IGNORED.get(k) not in (ANY, v)}

    @model_validator(mode="after")
    def _set_sampling(self) -> GenerationRequest:
        # a top_p of 0 leaves only the likeliest token
        temperature = self.temperature if self.top_p else 0.0
        top_p = self.top_p if 0 < self.top_p < 1 else None
        penalty = self.repetition_penalty
        self._sampling = Sampling(temperature, self.top_k, top_p, self.min_p, penalty)
        return self


class WhichModel(BaseModel):
    """The page's choice of a checkpoint, of adapters, and of changed heads."""

    model_config = ConfigDict(extra="forbid")

    # None: the newest checkpoint
    step: int | None = None
    # a run
    adapter: str | None = None
    # layer, head, factor of its output (0: off)
    heads: list[tuple[int, int, Factor]] = []

    async def find(self, library: Library, name: str) -> tuple[Model, dict[Head, float]]:
        """Return the model, loaded if need be, and its heads' factors. Raises ApiError."""
        # a thread, because loading takes seconds
        model = await asyncio.to_thread(library.find, name, self.step, self.adapter)
        layers = range(model.lm.config.num_hidden_layers)
        heads = range(model.lm.config.num_attention_heads)
        for layer, head, _ in self.heads:
            if layer not in layers or head not in heads:
                raise ApiError(400, f"heads: layer {layer} of this model has no head {head}")
        return model, {(layer, head): factor for layer, head, factor in self.heads}


class Inspect(WhichModel):
    """The field `inspect` of the page's chat, which is not OpenAI's."""

    # the beginning of the answer, or with no new tokens all of it
    answer_ids: list[int] = []


class ChatRequest(GenerationRequest):
    """POST /v1/chat/completions."""

    messages: list[dict[str, Any]] = Field(min_length=1, max_length=1000)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=0)
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=MOST_TOP)
    tools: list[dict[str, Any]] = Field(default=[], max_length=100)
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] = "auto"
    parallel_tool_calls: bool = True
    response_format: dict[str, Any] | None = None
    # this one and the next are vLLM's
    chat_template_kwargs: dict[str, Any] = {}
    continue_final_message: bool = False
    reasoning_effort: str | None = Field(None, max_length=100)
    inspect: Inspect | None = None
    _form: WantedForm | None = None

    @model_validator(mode="after")
    def _check(self) -> ChatRequest:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        if self.max_completion_tokens == 0 and not self.answer_ids:
            raise ValueError("max_completion_tokens: 0 leaves nothing to answer")
        self._form = self._wanted_form()
        if self._form and (self.inspect or self.continue_final_message):
            raise ValueError(f"{self._form.field} is for new answers, and this one is begun")
        return self

    def _wanted_form(self) -> WantedForm | None:
        values = [tool.get("function") for tool in self.usable_tools]
        functions = [function for function in values if isinstance(function, dict)]
        must_call = self.tool_choice not in ("none", "auto")
        # one function, by name; anything else is no choice
        match self.tool_choice:
            case {"type": "function", "function": {"name": name}}:
                functions = [function for function in functions if function.get("name") == name]
            case dict():
                functions = []
        if must_call and not functions:
            raise ValueError("tool_choice: use none, auto, required, or name a function of tools")
        # without a form, nothing keeps a model from calling twice
        if functions and not must_call and not self.parallel_tool_calls:
            raise ValueError("parallel_tool_calls: false works with tool_choice: required only")
        schema: dict[str, Any] | None = None
        match self.response_format:
            case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
                pass
            case {"type": "json_object", **others} if not others:
                schema = {"type": "object"}
            case dict():
                raise ValueError("response_format: use text, json_object, json_schema with schema")
        if must_call:
            return WantedForm("tool_choice", None, functions)
        return None if schema is None else WantedForm("response_format", schema, functions)

    @property
    def usable_tools(self) -> list[dict[str, Any]]:
        return [] if self.tool_choice == "none" else self.tools

    @property
    def answer_ids(self) -> list[int]:
        return [] if self.inspect is None else self.inspect.answer_ids

    @property
    def template(self) -> dict[str, Any]:
        """The values of the chat template's variables."""
        effort: dict[str, Any] = {}
        # no effort means no thinking, for which templates have a switch
        if self.reasoning_effort == "none":
            effort = {"enable_thinking": False}
        elif self.reasoning_effort is not None:
            effort = {"reasoning_effort": self.reasoning_effort}
        return effort | self.chat_template_kwargs


class CompletionRequest(GenerationRequest):
    """POST /v1/completions."""

    # None: as a document begins
    prompt: str | list[str] | list[int] | list[list[int]] | None = None
    max_tokens: int = Field(16, ge=0)
    logprobs: int | None = Field(None, ge=0, le=MOST_TOP)
    echo: bool = False

    @model_validator(mode="after")
    def _check_counts(self) -> CompletionRequest:
        if self.max_tokens == 0 and not self.echo:
            raise ValueError("max_tokens: 0 needs echo: true")
        if self.prompt == [] or len(self.prompts) * self.n > MOST_ANSWERS:
            raise ValueError(f"prompt: give 1 to {MOST_ANSWERS} prompts, times n")
        return self

    @property
    def prompts(self) -> list[Any]:
        # one text, or the ids of one
        if isinstance(self.prompt, str) or (self.prompt and isinstance(self.prompt[0], int)):
            return [self.prompt]
        return list(self.prompt or [])
