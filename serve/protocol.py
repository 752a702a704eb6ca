"""What may a client ask for, in the words of OpenAI's API? Checked here, before anything is computed.

A field that this server does not know is refused, never ignored: a client that asks for JSON must not believe that it
has it. Excepted are those that never change an answer (`HARMLESS`), and null, which means that a field is not given.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from model.generation import Sampling

MOST_ANSWERS = 16
MOST_STOPS = 4  # as OpenAI
MOST_TOP = 20  # likeliest tokens beside each token, as OpenAI
HARMLESS = {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prediction"}
DEFAULTS: dict[str, Any] = {  # of fields that are not supported: they change nothing, and some clients send them
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "logit_bias": {},
    "response_format": {"type": "text"},
    "modalities": ["text"],
    "suffix": "",
    "best_of": 1,
    "functions": [],
    "function_call": "none",
    "parallel_tool_calls": True,
}


class StreamOptions(BaseModel):
    """`stream_options`."""

    model_config = ConfigDict(extra="forbid")

    include_usage: bool | None = False
    include_obfuscation: bool | None = None  # about the size of events, not about what is in them


class Asked(BaseModel):
    """What both kinds of request have."""

    model_config = ConfigDict(extra="allow")  # `_check` refuses

    model: str = Field(max_length=300)
    temperature: float | None = Field(1.0, ge=0, le=2)
    top_p: float | None = Field(1.0, ge=0, le=1)
    n: int | None = Field(1, ge=1, le=MOST_ANSWERS)
    stop: str | list[str] | None = None
    seed: int | None = Field(None, ge=-(2**63), le=2**63 - 1)
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    top_k: int | None = Field(None, ge=1)  # this and those that follow: as vLLM and others have them
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, gt=0, le=100)
    stop_token_ids: list[Annotated[int, Field(ge=0)]] | None = Field(None, max_length=100)  # beside the model's own
    min_tokens: int | None = Field(0, ge=0)  # before that, nothing ends the answer
    ignore_eos: bool | None = False  # the model's own stop ids end nothing

    @model_validator(mode="after")
    def _check(self) -> Asked:
        for name, value in (self.model_extra or {}).items():
            if name not in HARMLESS and value is not None and value != DEFAULTS.get(name):
                raise ValueError(f"{name[:100]} is not supported here: leave it out")
        if len(self.stops) > MOST_STOPS or not all(self.stops):
            raise ValueError(f"stop must be {MOST_STOPS} texts at most, none of them empty")
        _ = self.sampling  # raises ValueError for numbers that are too small to compute with
        return self

    @property
    def stops(self) -> list[str]:
        """The texts at which an answer ends."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def sampling(self) -> Sampling:
        """How tokens are drawn."""
        if self.temperature == 0 or self.top_p == 0:  # top_p 0: the likeliest token alone
            return Sampling(0.0, repetition_penalty=self.repetition_penalty or 1.0)
        temperature = 1.0 if self.temperature is None else self.temperature
        top_p = None if self.top_p in (None, 1) else self.top_p
        return Sampling(temperature, self.top_k, top_p, self.min_p, self.repetition_penalty or 1.0)


class ChatRequest(Asked):
    """POST /v1/chat/completions."""

    messages: list[dict[str, Any]] = Field(min_length=1, max_length=1000)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = False
    top_logprobs: int | None = Field(None, ge=0, le=MOST_TOP)
    tools: list[dict[str, Any]] | None = Field(None, max_length=100)
    tool_choice: Literal["none", "auto"] | None = None
    chat_template_kwargs: dict[str, Any] | None = None  # this and the next two: as vLLM has them
    continue_final_message: bool | None = False
    add_generation_prompt: bool | None = None
    reasoning_effort: str | None = Field(None, max_length=100)

    @model_validator(mode="after")
    def _check_pairs(self) -> ChatRequest:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        if self.add_generation_prompt is bool(self.continue_final_message):
            raise ValueError("add_generation_prompt: false is for continue_final_message: true, and goes with it")
        return self

    @property
    def template(self) -> dict[str, Any]:
        """Values of the chat template's variables. No effort means no thinking, for which templates have a switch."""
        values: dict[str, Any] = {"enable_thinking": False} if self.reasoning_effort == "none" else {}
        if self.reasoning_effort not in (None, "none"):
            values = {"reasoning_effort": self.reasoning_effort}
        return values | (self.chat_template_kwargs or {})

    def most_tokens(self, limit: int) -> tuple[int | None, int]:
        """Of the answer: how many there must be room for (None: what there is), and how many it may have at most.

        max_completion_tokens is an upper bound, as OpenAI says: front-ends send 1,000 for a title, whatever the model.
        """
        if self.max_completion_tokens is None:
            return self.max_tokens, limit
        return None, min(self.max_completion_tokens, limit)

    @property
    def top(self) -> int | None:
        """Likeliest tokens to tell with each token; None: no log-probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionRequest(Asked):
    """POST /v1/completions."""

    prompt: str | list[str] | list[int] | list[list[int]] | None = None  # None: as a document begins
    max_tokens: int | None = Field(16, ge=0)
    logprobs: int | None = Field(None, ge=0, le=MOST_TOP)
    echo: bool | None = False

    @model_validator(mode="after")
    def _check_echo(self) -> CompletionRequest:
        if self.max_tokens == 0 and not self.echo:
            raise ValueError("max_tokens: 0 needs echo: true, else there is nothing to answer")
        if self.prompt == [] or len(self.prompts) * (self.n or 1) > MOST_ANSWERS:
            raise ValueError(f"prompt: give 1 to {MOST_ANSWERS} prompts, times n")
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        """Each prompt, as text or as token ids; none if it was left out."""
        given: Any = self.prompt
        is_one = isinstance(given, str) or (given and isinstance(given[0], int))
        return [given] if is_one else list(given or [])

    def most_tokens(self, limit: int) -> tuple[int | None, int]:
        return self.max_tokens, limit

    @property
    def top(self) -> int | None:
        return self.logprobs
