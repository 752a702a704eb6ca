"""How does a conversation continue? In token ids, so that a turn reads only what is new in it.

Messages and answers keep the ids in which they were read and written, so the key-value cache stays valid. Encoding the
text again need not give the ids that the model drew. A chat template that writes what was said differently now (some
leave old thoughts out) has the last word.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from configs.command import InputError
from configs.files import checkpoint_directory
from configs.loader import load_config
from data.chat import end_of_turn_ids, next_prompt_ids, prompt_ids
from data.reply import Reply
from data.tokenizer import Tokenizer
from eval.chat.loops import repeated_block
from eval.opening import ends_turns, open_model, with_rope_options
from model import LanguageModel
from model.generation import Sampling, stream
from model.kv_cache import KVCache

FREE = 8  # an eighth of the context, if not max_new_tokens, is kept free for an answer


@dataclass(frozen=True)
class Turn:
    """What the last answer took.

    ids:    all that the model saw, and the answer, without the token that ended it
    begin:  where the answer begins in ids
    reused: tokens whose keys and values the cache had; read: tokens that were run through the model
    ended:  "" by itself | "stopped" by the reader | "cut" after max_new_tokens | "full": no context left | "loops"
    """

    ids: list[int]
    begin: int
    reused: int
    read: int
    ended: str


class Conversation:
    """Messages and answers, or, for a model that was not trained on chats, one text that both write.

    turns: the ids of each turn, what ended it included. last: the Turn of the last answer, None before one. reply: that
    answer, taken apart. thought: what came of its thoughts with the newest piece.
    forgotten: how many of the oldest turns the last `answer` left out, since the context was full.
    Settings may be changed between two answers. Raises ValueError for a temperature or top_p out of range.
    """

    def __init__(
        self,
        lm: LanguageModel,
        tokenizer: Tokenizer,
        *,
        temperature: float = 0.8,
        top_p: float | None = 0.95,
        max_new_tokens: int = 256,
        seed: int = 0,
    ):
        self.lm, self.tokenizer = lm, tokenizer
        self.sampling = Sampling(temperature, top_p=top_p)
        self.max_new_tokens, self.seed = max_new_tokens, seed
        self.system, self.head = "", tokenizer.first_ids
        self.tools: tuple[dict, ...] = ()
        self._is_chat: bool | None = None
        self.cache = KVCache(lm.config)
        self.reset()

    @property
    def is_chat(self) -> bool:
        """Whether the model was trained on chats: then it may end a turn by itself. It may be set."""
        return ends_turns(self.lm, self.tokenizer) if self._is_chat is None else self._is_chat

    @is_chat.setter
    def is_chat(self, value: bool) -> None:
        self._is_chat = value

    @property
    def context_length(self) -> int:
        """Tokens that the model can see, its answer included."""
        return self.lm.config.max_position_embeddings

    def reset(self) -> None:
        """Start again; system message and settings stay. The same questions get the same answers again."""
        self.turns: list[list[int]] = []
        self._said: list[list[dict[str, str]]] = []  # the messages of each turn
        self.last: Turn | None = None
        self.reply, self.thought = Reply(self.tokenizer), ""
        self.forgotten, self._answered, self._document_ended = 0, 0, False
        self.cache.clear()

    def set_temperature(self, temperature: float) -> None:
        """0 = always the likeliest token. Raises ValueError for a negative one, infinity and NaN."""
        self.sampling = replace(self.sampling, temperature=temperature)

    def set_system(self, text: str) -> None:
        """Put a system message before all turns; "" takes it away. Raises ValueError where there can be none."""
        if (text or self.tools) and not self.is_chat:
            missing = "tools" if self.tools else "system message"
            raise ValueError(f"this model was trained on texts, not on chats: it has no {missing}")
        head = self.tokenizer.first_ids
        if text or self.tools:
            said = [{"role": "system", "content": text}]
            head = prompt_ids(self.tokenizer, said, self.tools, add_generation_prompt=False)
        if len(head) > self.context_length // 2:
            what = "the system message with the tools" if self.tools else "the system message"
            raise ValueError(
                f"{what} takes {len(head):,} tokens, and the model sees {self.context_length:,}: shorten it"
            )
        self.system, self.head = text, head

    def answer(self, text: str, role: str = "user") -> Generator[str, None, None]:
        """The answer to a message, or the text's continuation, piece by piece as decoded. Closing it ends the turn.

        A piece is content: without thoughts, and without calls if there are tools. It is "" while only thoughts come.
        role: "user", or "tool" for what the model's calls gave.

        Raises ValueError, before anything is read, for an empty message and one that the context has no room for.
        """
        if not text.strip():
            raise ValueError(
                "there is nothing to answer: type a message" if self.is_chat else "there is nothing to continue"
            )
        if self._document_ended:
            self.turns, self._document_ended = [], False
        self.forgotten = self._make_room(self._ids_of(text, role))
        new = self._ids_of(text, role)  # again: it may be the first turn now
        del self._said[: len(self._said) - len(self.turns)]
        asked = {"role": role, "content": text}
        prompt = self._as_the_template_says([*self.head, *chain(*self.turns), *new], asked)
        device = next(self.lm.parameters()).device
        steps = stream(
            self.lm,
            torch.tensor([prompt], device=device),
            self.max_new_tokens,
            self.sampling,
            self.tokenizer.stop_ids,
            self.seed + self._answered,
            kv_cache=self.cache,
        )
        self._answered += 1
        return self._pieces(steps, prompt, new, asked)

    def _as_the_template_says(self, ids: list[int], asked: dict[str, str]) -> list[int]:
        """The ids of a prompt, if they spell what the chat template writes; otherwise what it writes."""
        if not self.is_chat:
            return ids or [self.tokenizer.bos_id]
        system = [{"role": "system", "content": self.system}] if self.system or self.tools else []
        written = prompt_ids(self.tokenizer, [*system, *chain(*self._said), asked], self.tools)
        spelled = [self.tokenizer.decode(one, skip_special_tokens=False) for one in (ids, written)]
        prompt = ids if spelled[0] == spelled[1] else written
        if len(prompt) >= self.context_length:
            raise ValueError(self._too_long(len(prompt)))
        return prompt

    def _pieces(
        self, steps: Iterator[Any], prompt: list[int], new: list[int], asked: dict[str, str]
    ) -> Generator[str, None, None]:
        reused, ended = self.cache.length, "stopped"
        self.reply = Reply(self.tokenizer, prompt, tools=bool(self.tools), is_chat=self.is_chat)
        ids = self.reply.ids
        try:
            for step in steps:
                if (token := int(step)) in self.tokenizer.stop_ids:
                    ended = ""
                    break
                self.thought, piece = self.reply.add(token)
                if self.thought or piece:
                    yield piece
                if repeated_block(ids):
                    ended = "loops"
                    break
            else:
                ended = "full" if len(prompt) + len(ids) >= self.context_length else "cut"
            self.thought, rest = self.reply.end()
            if self.thought or rest:
                yield rest
        finally:
            steps.close()  # type: ignore[attr-defined]  # a generator: now the cache knows what it has read
            if ids or not ended:
                self._keep(new, ids, ended)
                said = self.tokenizer.decode(ids, skip_special_tokens=False)  # the template takes it apart
                self._said.append([asked, {"role": "assistant", "content": said}])
            self.last = Turn([*prompt, *ids], len(prompt), reused, self.cache.length - reused, ended)

    def _keep(self, new: list[int], ids: list[int], ended: str) -> None:
        # the turn ends as data.chat writes it, even if you stopped the answer
        self.turns.append([*new, *ids, *(end_of_turn_ids(self.tokenizer) if self.is_chat else [])])
        self._document_ended = not self.is_chat and not ended

    def _make_room(self, new: list[int]) -> int:
        """Forget the oldest turns until `new` and an answer fit: how many."""
        longest, fixed = self.context_length, len(self.head) + len(new)
        if fixed >= longest:
            raise ValueError(self._too_long(fixed))
        room, before = min(self.max_new_tokens, longest // FREE), len(self.turns)
        while self.turns and fixed + sum(map(len, self.turns)) + room > longest:
            del self.turns[0]
        return before - len(self.turns)

    def _too_long(self, tokens: int) -> str:
        longest = self.context_length
        return f"that makes {tokens:,} tokens, and the model sees {longest:,}, its answer included: shorten it"

    def _ids_of(self, text: str, role: str) -> list[int]:
        """What stands between the last turn and the answer to this message; of a text, its next words."""
        if self.is_chat:
            return next_prompt_ids(self.tokenizer, role, text)
        written = self.tokenizer.decode(self.turns[-1][-4:]) if self.turns else ""
        between = " " if written and written[-1].isascii() and not written[-1].isspace() and text[0].isalnum() else ""
        return self.tokenizer.encode(between + text)


def open_conversation(
    run: str | Path,
    temperature: float | None = None,
    device: str = "auto",
    rope: tuple[str | None, float | None] = (None, None),
    quantise: str | None = None,
    **settings: Any,
) -> Conversation:
    """A conversation with a run or a checkpoint directory. temperature: default, that of the run's own samples.

    rope: another scaling of RoPE than the saved one, and its factor, as `eval.opening.with_rope_options` takes them.
    quantise: of the weights, as `eval.opening.open_checkpoint` takes it.
    settings: those of Conversation. Raises InputError for what cannot be read, and settings out of range.
    """
    lm, tokenizer = open_model(run, device, quantise=quantise)
    lm = with_rope_options(lm, run, *rope)
    try:
        given = temperature if temperature is not None else _temperature_of(run)
        return Conversation(lm, tokenizer, temperature=given, **settings)
    except (OSError, ValueError) as error:
        raise InputError(str(error)) from None


def _temperature_of(run: str | Path) -> float:
    """`eval.temperature` in the config.yaml of the run; 0.8 where there is none."""
    directory = checkpoint_directory(run)
    for folder in (directory, *directory.parents[:2]):
        if (folder / "config.yaml").is_file():
            found = (load_config(folder / "config.yaml").values.get("eval") or {}).get("temperature", 0.8)
            return float(found)
    return 0.8
