"""A conversation with a model.

The chat template writes all messages anew at every turn, as in training. The model reads only the
tokens behind the common beginning, which the key-value cache holds.
"""

from collections.abc import Generator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from configs.command import InputError
from configs.files import is_adapter, read_checkpoint
from configs.loader import load_config
from data.chat import prompt_ids
from data.reading.messages import Message, Role
from data.reply import Reply
from data.tokenizer import Tokenizer
from eval.load_model import ends_turns, open_model, run_folder, trained_length
from eval.run_files import read_samples
from model import LanguageModel
from model.files.checkpoint import read_config
from model.generation import Sampling, stream
from model.kv_cache import KVCache
from model.variants.lora import load_adapters, remove_adapters
from model.variants.surgery import with_rope_scaling

FREE = 8  # At least an eighth of the context, or max_new_tokens, is kept free for an answer.


@dataclass(frozen=True)
class Turn:
    """The tokens of the last answer."""

    ids: list[int]  # all that the model saw, and the answer, without the token that ended it
    begin: int  # index in ids where the answer begins
    # "" by itself | "stopped" by the reader | "cut" after max_new_tokens | "full": no context
    ended: str


class Conversation:
    """Messages and answers; or, for a model trained on texts, one text that both write.

    Raises ValueError for a temperature out of range.
    """

    def __init__(
        self,
        lm: LanguageModel,
        tokenizer: Tokenizer,
        *,
        temperature: float = 0.8,
        max_new_tokens: int = 256,
        seed: int = 0,
    ):
        self.lm = lm
        self.tokenizer = tokenizer
        # These four may change between two answers.
        self.max_new_tokens = max_new_tokens
        self.seed = seed
        # 0.95 cuts the long tail of a small model's mistakes
        self.sampling = Sampling(temperature, top_p=0.95)
        self.tools: tuple[dict, ...] = ()
        # True if the model was trained on chats and may end a turn by itself; can be set.
        self.is_chat = ends_turns(lm, tokenizer)
        self.system = ""
        self.cache = KVCache(lm.config)
        self._base_ends = lm.config.eos_token_id
        self.reset()

    @property
    def context_length(self) -> int:
        """Tokens that the model can see, its answer included."""
        return self.lm.config.max_position_embeddings

    def reset(self) -> None:
        """Start again, with the same system message, settings and random numbers."""
        self.turns: list[list[Message]] = []  # the messages of each turn
        self.last: Turn | None = None  # the tokens of the last answer
        self.reply = Reply(self.tokenizer)  # that answer, parsed
        self.thought = ""  # the thoughts in the newest piece of an answer
        self.forgotten = 0  # oldest turns that `answer` left out because the context was full
        self._answered = 0
        # this also gives the memory back
        self.cache.crop(0)

    def set_system(self, text: str) -> None:
        """Put a system message before all turns; "" removes it. Raises ValueError."""
        if (text or self.tools) and not self.is_chat:
            part = "tools" if self.tools else "system message"
            raise ValueError(f"this model was trained on texts, not on chats: it has no {part}")
        self.system = text

    def use_adapters(self, run: str | Path | None) -> None:
        """Switch to the adapters (LoRA) of a run, or to none, and begin a new conversation.

        Raises InputError, and then no adapters are in use.
        """

        def load(directory: Path) -> int | list[int] | None:
            if not is_adapter(directory):
                raise InputError(f"{directory}: holds a whole model: chat with it by itself")
            load_adapters(self.lm, directory)
            return read_config(directory).eos_token_id

        if self.lm.adapters is not None:
            remove_adapters(self.lm)
        ends = self._base_ends
        try:
            if run is not None:
                ends = read_checkpoint(run, load)
        except (OSError, ValueError) as error:
            raise InputError(str(error)) from None
        finally:
            # Adapters trained on chats end their turns; their base may not.
            self.lm.config = self.lm.config.model_copy(update={"eos_token_id": ends})
            self.is_chat = ends_turns(self.lm, self.tokenizer)
            if not self.is_chat:
                self.system = ""
            self.reset()

    def answer(self, text: str, role: Role = "user") -> Generator[str, None, None]:
        """Yield the answer to a message, or the text's continuation, in decoded pieces.

        role: "user", or "tool" for the results of the model's calls

        A piece is content, without thoughts and calls; "" while only thoughts come. Closing the
        generator ends the turn. Raises ValueError for a message that is empty or too long.
        """
        if not text.strip():
            rest = "answer: type a message" if self.is_chat else "continue"
            raise ValueError(f"there is nothing to {rest}")
        turns = list(self.turns)
        longest = self.context_length
        room = min(self.max_new_tokens, longest // FREE)
        message = Message(role, text)
        prompt = self._prompt(turns, message)
        # without room for an answer, forget the oldest turns
        while len(prompt) + room > longest and turns:
            del turns[0]
            prompt = self._prompt(turns, message)
        if len(prompt) >= longest:
            raise ValueError(
                f"that makes {len(prompt):,} tokens, and the model sees {longest:,}, "
                f"its answer included: shorten it"
            )
        self.forgotten = len(self.turns) - len(turns)
        self.turns = turns
        return self._pieces(prompt, message)

    def _prompt(self, turns: list[list[Message]], message: Message) -> list[int]:
        messages = [*chain(*turns), message]
        if self.is_chat:
            if self.system or self.tools:
                messages.insert(0, Message("system", self.system))
            return prompt_ids(self.tokenizer, messages, self.tools)
        text = ""
        for part in messages:
            # Latin words need a space between them, Chinese ones do not
            ends_in_word = text[-1:].isascii() and not text[-1:].isspace()
            begins_word = text and part.role == "user" and part.content[0].isalnum()
            text += f" {part.content}" if ends_in_word and begins_word else part.content
        return self.tokenizer.begin(text)

    def _pieces(self, prompt: list[int], message: Message) -> Generator[str, None, None]:
        ended = "stopped"
        stop_ids = self.tokenizer.stop_ids
        self.reply = Reply(self.tokenizer, prompt, tools=bool(self.tools), is_chat=self.is_chat)
        ids = self.reply.ids
        # The cache keeps the beginning that both prompts share, which is not read again.
        steps = stream(
            self.lm,
            torch.tensor([prompt], device=self.lm.device),
            self.max_new_tokens,
            self.sampling,
            stop_ids,
            self.seed + self._answered,
            kv_cache=self.cache,
        )
        self._answered += 1  # so that a repeated question may get another answer
        try:
            for step in steps:
                token = int(step)
                if token in stop_ids:
                    ended = ""
                    break
                self.thought, piece = self.reply.add(token)
                if self.thought or piece:
                    yield piece
            else:
                ended = "full" if len(prompt) + len(ids) >= self.context_length else "cut"
        except KeyboardInterrupt:
            # within a forward pass: some layers of the cache may have the token, others not
            self.cache.crop(0)
            raise
        finally:
            # also when the caller closes this generator
            steps.close()  # type: ignore[attr-defined]  # updates the tokens of the cache
            self.thought, rest = self.reply.end()
            if not ended and not self.is_chat:
                self.turns = []  # the document ends: the next line begins a new one
            elif ids or not ended:
                self.turns.append([message, self.reply.message])
            self.last = Turn([*prompt, *ids], len(prompt), ended)
        if self.thought or rest:
            yield rest


def open_conversation(
    run: str | Path,
    temperature: float | None = None,
    device: str = "auto",
    rope: tuple[str, float] | None = None,
    quantise: str | None = None,
    **settings: Any,
) -> Conversation:
    """Open a conversation with a run or a checkpoint directory. Raises InputError.

    temperature: default, that of the run's own samples
    rope:        another scaling of RoPE than the saved one, and its factor
    quantise:    as in `eval.load_model.open_model`
    settings:    of Conversation
    """
    lm, tokenizer = open_model(run, device, quantise=quantise)
    file = run_folder(run) / "config.yaml"
    if temperature is None and file.is_file():
        temperature = (load_config(file).values.get("eval") or {}).get("temperature")
    if temperature is None:
        temperature = 0.8
    try:
        if rope is not None:
            scaling = lm.config.rope_scaling
            length = scaling.original_max_position_embeddings if scaling else None
            length = length or trained_length(run) or lm.config.max_position_embeddings
            lm = with_rope_scaling(lm, *rope, length)
        return Conversation(lm, tokenizer, temperature=float(temperature), **settings)
    except ValueError as error:
        raise InputError(str(error)) from None


def first_line(run: str | Path) -> str:
    """Suggest a line for a run that continues texts, from its newest sample; "" without any."""
    samples = read_samples(run_folder(run), lambda problem: None)
    if not samples:
        return ""
    text = samples[-1]["prompt"] or " ".join(samples[-1]["text"].split()[:6])
    # one short line, whatever the sample has in it
    return " ".join(text.split())[:60].strip()
