"""What may a client ask for, in the words of OpenAI's API? Checked here, before anything is computed.

A field that this server does not know is refused, never ignored: a client that asks for JSON must not believe that it
has it. Excepted are those that never change an answer (`HARMLESS`), and null, which means that a field is not given.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from model.generation import Sampling

MOST_ANSWERS = 16
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
Text = Annotated[str, Field(min_length=1)]


def _as_list(given: Any) -> Any:
    return [given] if isinstance(given, str) else given


class StreamOptions(BaseModel):
    """`stream_options`."""

    model_config = ConfigDict(extra="forbid")

    include_usage: bool | None = False
    include_obfuscation: bool | None = None  # about the size of events, not about what is in them


class Asked(BaseModel):
    """What both kinds of request have."""

    model_config = ConfigDict(extra="forbid")

    model: str = Field(max_length=300)
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, ge=0, le=1)
    n: int = Field(1, ge=1, le=MOST_ANSWERS)
    stop: Annotated[list[Text], BeforeValidator(_as_list), Field(max_length=4)] = []  # 4, as OpenAI
    seed: int | None = Field(None, ge=-(2**63), le=2**63 - 1)
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    top_k: int | None = Field(None, ge=1)  # this and those that follow: as vLLM and others have them
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float = Field(1.0, gt=0, le=100)
    stop_token_ids: list[Annotated[int, Field(ge=0)]] = Field(default=[], max_length=100)  # beside the model's own
    min_tokens: int = Field(0, ge=0)  # before that, nothing ends the answer
    ignore_eos: bool = False  # the model's own stop ids end nothing

    @model_validator(mode="before")
    @classmethod
    def _without_what_changes_nothing(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        given = {name: value for name, value in body.items() if value is not None and name not in HARMLESS}
        return {name: value for name, value in given.items() if name not in DEFAULTS or value != DEFAULTS[name]}

    @model_validator(mode="after")
    def _can_be_drawn(self) -> Asked:
        _ = self.sampling  # raises ValueError for numbers that are too small to compute with
        return self

    @property
    def sampling(self) -> Sampling:
        """How tokens are drawn."""
        if self.temperature == 0 or self.top_p == 0:  # top_p 0: the likeliest token alone
            return Sampling(0.0, repetition_penalty=self.repetition_penalty)
        top_p = None if self.top_p == 1 else self.top_p
        return Sampling(self.temperature, self.top_k, top_p, self.min_p, self.repetition_penalty)


class ChatRequest(Asked):
    """POST /v1/chat/completions."""

    messages: list[dict[str, Any]] = Field(min_length=1, max_length=1000)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=MOST_TOP)
    tools: list[dict[str, Any]] = Field(default=[], max_length=100)
    tool_choice: Literal["none", "auto"] = "auto"
    chat_template_kwargs: dict[str, Any] = {}  # this and the next two: as vLLM has them
    continue_final_message: bool = False
    add_generation_prompt: bool | None = None
    reasoning_effort: str | None = Field(None, max_length=100)

    @model_validator(mode="after")
    def _check_pairs(self) -> ChatRequest:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        if self.add_generation_prompt is self.continue_final_message:
            raise ValueError("add_generation_prompt: false is for continue_final_message: true, and goes with it")
        return self

    @property
    def template(self) -> dict[str, Any]:
        """Values of the chat template's variables. No effort means no thinking, for which templates have a switch."""
        effort = {} if self.reasoning_effort is None else {"reasoning_effort": self.reasoning_effort}
        return ({"enable_thinking": False} if self.reasoning_effort == "none" else effort) | self.chat_template_kwargs

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
        return self.top_logprobs if self.logprobs else None


class CompletionRequest(Asked):
    """POST /v1/completions."""

    prompt: str | list[str] | list[int] | list[list[int]] | None = None  # None: as a document begins
    max_tokens: int = Field(16, ge=0)
    logprobs: int | None = Field(None, ge=0, le=MOST_TOP)
    echo: bool = False

    @model_validator(mode="after")
    def _check_counts(self) -> CompletionRequest:
        if self.max_tokens == 0 and not self.echo:
            raise ValueError("max_tokens: 0 needs echo: true, else there is nothing to answer")
        if self.prompt == [] or len(self.prompts) * self.n > MOST_ANSWERS:
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
