"""How does a conversation continue? Its template writes all messages anew at every turn, as training had them; what the
key-value cache holds of the same beginning is not read again."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from configs.command import InputError
from configs.files import is_adapter, read_checkpoint
from configs.loader import load_config
from data.chat import Reply, prompt_ids
from data.reading.messages import Message, Role
from data.tokenizer import Tokenizer
from eval.load_model import ends_turns, open_model, run_folder, trained_length
from eval.run_files import read_samples
from model import LanguageModel
from model.files.checkpoint import read_config
from model.generation import Sampling, stream
from model.kv_cache import KVCache
from model.variants.lora import load_adapters, remove_adapters
from model.variants.surgery import with_rope_scaling

FREE = 8  # an eighth of the context, if not max_new_tokens, is kept free for an answer


@dataclass(frozen=True)
class Turn:
    """What the last answer took.

    ids:    all that the model saw, and the answer, without the token that ended it
    begin:  where the answer begins in ids
    reused: tokens whose keys and values the cache had
    ended:  "" by itself | "stopped" by the reader | "cut" after max_new_tokens | "full": no context left
    """

    ids: list[int]
    begin: int
    reused: int
    ended: str


class Conversation:
    """Messages and answers, or, for a model that was not trained on chats, one text that both write.

    is_chat: whether the model was trained on chats, and may end a turn by itself. It may be set. turns: the messages of
    each turn. last: the Turn of the last answer, None before one. reply: that answer, taken apart. thought: what came
    of its thoughts with the newest piece. forgotten: how many of the oldest turns the last `answer` left out, since the
    context was full. Settings may be changed between two answers: `sampling`, max_new_tokens, seed, tools.
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
        self.lm, self.tokenizer, self.max_new_tokens, self.seed = lm, tokenizer, max_new_tokens, seed
        self.sampling = Sampling(temperature, top_p=0.95)
        self.is_chat, self.system = ends_turns(lm, tokenizer), ""
        self.tools: tuple[dict, ...] = ()
        self.cache, self._base_ends = KVCache(lm.config), lm.config.eos_token_id
        self.reset()

    @property
    def context_length(self) -> int:
        """Tokens that the model can see, its answer included."""
        return self.lm.config.max_position_embeddings

    def reset(self) -> None:
        """Start again; system message and settings stay. The same questions get the same answers again."""
        self.turns: list[list[Message]] = []
        self.last: Turn | None = None
        self.reply, self.thought = Reply(self.tokenizer), ""
        self.forgotten, self._answered = 0, 0
        self.cache.crop(0)

    def set_system(self, text: str) -> None:
        """Put a system message before all turns; "" takes it away. Raises ValueError where there can be none."""
        if (text or self.tools) and not self.is_chat:
            what = "tools" if self.tools else "system message"
            raise ValueError(f"this model was trained on texts, not on chats: it has no {what}")
        self.system = text

    def use_adapters(self, run: str | Path | None) -> None:
        """Switch to the adapters (LoRA) of a run, None = none, and begin a new conversation: what is in the cache is of
        other weights. The base is in memory once. Raises InputError for what does not fit; then none are in use."""

        def load(directory: Path) -> int | list[int] | None:
            if not is_adapter(directory):
                raise InputError(f"{directory}: holds a whole model, not adapters: chat with it by itself")
            load_adapters(self.lm, directory)
            return read_config(directory).eos_token_id

        if self.lm.adapters is not None:
            remove_adapters(self.lm)
        ends = self._base_ends
        try:
            ends = read_checkpoint(run, load) if run is not None else ends
        except (OSError, ValueError) as error:
            raise InputError(str(error)) from None
        finally:  # fine-tuned on chats, a model ends its turns; its base does not
            self.lm.config = self.lm.config.model_copy(update={"eos_token_id": ends})
            self.is_chat = ends_turns(self.lm, self.tokenizer)
            self.system = self.system if self.is_chat else ""
            self.reset()

    def answer(self, text: str, role: Role = "user") -> Generator[str, None, None]:
        """The answer to a message, or the text's continuation, piece by piece as decoded. Closing it ends the turn.

        A piece is content: without thoughts, and without calls if there are tools. It is "" while only thoughts come.
        role: "user", or "tool" for what the model's calls gave.

        Raises ValueError, before anything is read, for an empty message and one that the context has no room for.
        """
        if not text.strip():
            raise ValueError(f"there is nothing to {'answer: type a message' if self.is_chat else 'continue'}")
        turns, longest = list(self.turns), self.context_length
        room = min(self.max_new_tokens, longest // FREE)
        message = Message(role, text)
        while len(prompt := self._prompt(turns, message)) + room > longest and turns:
            del turns[0]
        if len(prompt) >= longest:
            tokens = f"that makes {len(prompt):,} tokens, and the model sees {longest:,}"
            raise ValueError(f"{tokens}, its answer included: shorten it")
        self.forgotten, self.turns = len(self.turns) - len(turns), turns
        return self._pieces(prompt, message)

    def _prompt(self, turns: list[list[Message]], message: Message) -> list[int]:
        """The ids of all that was said, up to where the answer to this message begins; or of one text."""
        messages = [*chain(*turns), message]
        if self.is_chat:
            system = [Message("system", self.system)] if self.system or self.tools else []
            return prompt_ids(self.tokenizer, [*system, *messages], self.tools)
        text = ""
        for part in messages:
            ends_in_word = text[-1:].isascii() and not text[-1:].isspace()  # a Chinese one needs no space
            begins_word = text and part.role == "user" and part.content[0].isalnum()
            text += f" {part.content}" if ends_in_word and begins_word else part.content
        return self.tokenizer.begin(text)

    def _pieces(self, prompt: list[int], message: Message) -> Generator[str, None, None]:
        row, cached = torch.tensor([prompt], device=next(self.lm.parameters()).device), self.cache.token_ids
        if cached is not None:  # keep what is the same from the beginning; at least one token is read, for its logits
            count = min(cached.shape[1], len(prompt) - 1)
            self.cache.crop(int((cached[0, :count] == row[0, :count]).cumprod(0).sum()))
        reused, ended, stop_ids = self.cache.length, "stopped", self.tokenizer.stop_ids
        self.reply = Reply(self.tokenizer, prompt, tools=bool(self.tools), is_chat=self.is_chat)
        ids, seed = self.reply.ids, self.seed + self._answered
        self._answered += 1
        steps = stream(self.lm, row, self.max_new_tokens, self.sampling, stop_ids, seed, kv_cache=self.cache)
        try:
            for step in steps:
                if (token := int(step)) in stop_ids:
                    ended = ""
                    break
                self.thought, piece = self.reply.add(token)
                if self.thought or piece:
                    yield piece
            else:
                ended = "full" if len(prompt) + len(ids) >= self.context_length else "cut"
        except KeyboardInterrupt:  # within a forward pass: the cache may hold half a token
            self.cache.crop(0)
            raise
        finally:
            steps.close()  # type: ignore[attr-defined]  # a generator: now the cache knows what it has read
            self.thought, rest = self.reply.end()
            if not ended and not self.is_chat:
                self.turns = []  # the document ends here: the next line begins a new one
            elif ids or not ended:
                self.turns.append([message, self.reply.message])
            self.last = Turn([*prompt, *ids], len(prompt), reused, ended)
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
    """A conversation with a run or a checkpoint directory. temperature: default, that of the run's own samples.

    rope: another scaling of RoPE than the saved one, and its factor. quantise: of the weights, as
    `eval.load_model.open_model` takes it. settings: those of Conversation. Raises InputError for what cannot be read,
    and settings out of range.
    """
    lm, tokenizer = open_model(run, device, quantise=quantise)
    file = run_folder(run) / "config.yaml"
    if temperature is None and file.is_file():
        temperature = (load_config(file).values.get("eval") or {}).get("temperature")
    try:
        if rope is not None:
            scaling = lm.config.rope_scaling
            of_scaling = scaling.original_max_position_embeddings if scaling else None
            lm = with_rope_scaling(lm, *rope, of_scaling or trained_length(run) or lm.config.max_position_embeddings)
        return Conversation(lm, tokenizer, temperature=0.8 if temperature is None else float(temperature), **settings)
    except ValueError as error:
        raise InputError(str(error)) from None


def first_line(run: str | Path) -> str:
    """What you could type to a run that continues texts: the prompt of its newest sample, or the first words of it; ""
    where it has no samples."""
    for sample in read_samples(run_folder(run), lambda problem: None)[-1:]:
        return " ".join((sample["prompt"] or " ".join(sample["text"].split()[:6])).split())[:60].strip()
    return ""
