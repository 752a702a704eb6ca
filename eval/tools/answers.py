"""What does the model answer, if what it calls is run? Many answers at once.

    prompt | <tool_call>…</tool_call><|im_end|> | ⏎<|im_start|>tool⏎…<|im_end|>⏎<|im_start|>assistant⏎ | 42<|im_end|>
             ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~                                                          ~~~~~~~~~~~~
                          own                                        of the tool                             own

Answers that call go on in the next round, with longer prompts; the others are finished. Ids stay as they were drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from torch import Tensor

from data.chat import end_of_turn_ids, next_prompt_ids
from data.reply import Reply, read_reply
from data.tokenizer import Tokenizer
from eval.tools.calls import ERROR, MOST_CALLS, respond
from model import LanguageModel, generate, left_pad


@dataclass
class Written:
    """What follows one prompt, in any number of turns.

    prompt: its ids. ids: all tokens behind it, with the token that ended each turn. own: which of them the model wrote;
    the others are responses of tools, in the chat template's form. log_probs: ln of the probability with which each was
    drawn, 0 where it was not. begin: where the last turn begins in ids. rounds: how often the responses of tools were
    added; waits: the last turn calls, and gets no response. calls, errors: how many were run, and failed.
    """

    prompt: Sequence[int] = ()
    ids: list[int] = field(default_factory=list)
    own: list[bool] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    begin: int = 0
    rounds: int = 0
    waits: bool = False
    calls: int = 0
    errors: int = 0

    def add(self, ids: Sequence[int], log_probs: Sequence[float] | None) -> None:
        """More tokens; without log_probs they are not the model's."""
        self.ids += ids
        self.own += [log_probs is not None] * len(ids)
        self.log_probs += [0.0] * len(ids) if log_probs is None else log_probs

    def last_calls(self, tokenizer: Tokenizer) -> list[str]:
        """The text of each call in the last turn."""
        return self._last_turn(tokenizer, self.ids[self.begin :], tools=True).calls

    def reply(self, tokenizer: Tokenizer) -> str:
        """The content of the last turn, with "…" where it was cut. A call without a response is cut off."""
        turn = self.ids[self.begin :]
        if self.waits:
            turn = turn[: turn.index(tokenizer.special_id("<tool_call>"))]
        ended = bool(turn) and turn[-1] in tokenizer.stop_ids
        return self._last_turn(tokenizer, turn).content + ("" if ended else "…")

    def _last_turn(self, tokenizer: Tokenizer, turn: list[int], tools: bool = False) -> Reply:
        return read_reply(tokenizer, turn, [*self.prompt, *self.ids[: self.begin]], tools=tools)


def write_answers(
    lm: LanguageModel,
    tokenizer: Tokenizer,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    temperature: float,
    rng: Random,
    copies: int = 1,
    tools: Sequence[dict[str, Any]] = (),
    said: Sequence[str] = (),
) -> list[Written]:
    """`copies` answers to each prompt, next to each other; the prompts are read once, all of them together.

    max_new_tokens: of an answer, responses of tools included. rng: gives each round its seed. tools: the schemas of
    those that may be called; none = a call is an answer like any other. said: for each prompt, what the user said.
    """
    answers = [Written(prompt) for prompt in prompts for _ in range(copies)]
    waiting, rows = list(range(len(answers))), [list(prompt) for prompt in prompts]
    rooms = [min(max_new_tokens, lm.config.max_position_embeddings - len(prompt)) for prompt in prompts]
    device, stops = next(lm.parameters()).device, set(tokenizer.stop_ids)
    while waiting:
        ids, real = left_pad(rows, tokenizer.pad_id)
        log_probs: list[Tensor] = []
        drawn = generate(
            lm,
            ids.to(device),
            max(max_new_tokens - len(answers[number].ids) for number in waiting),
            temperature=temperature,
            stop_ids=stops,
            seed=rng.getrandbits(63),
            attention_mask=real.to(device),
            num_return_sequences=len(waiting) // len(rows),
            log_probs=log_probs,
        )
        of_rows = torch.stack(log_probs, dim=1).tolist() if log_probs else [[] for _ in waiting]
        further = []
        for number, new, chances in zip(waiting, drawn[:, ids.shape[1] :].tolist(), of_rows, strict=True):
            answer, prompt = answers[number], number // copies
            end = next((at + 1 for at, token in enumerate(new) if token in stops), len(new))
            end = min(end, rooms[prompt] - len(answer.ids))
            answer.add(new[:end], chances[:end])
            if _goes_on(answer, rooms[prompt], tokenizer, tools, said[prompt] if tools else ""):
                further.append(number)
        waiting = further
        rows = [[*prompts[number // copies], *answers[number].ids] for number in waiting]
    return answers


def _goes_on(answer: Written, room: int, tokenizer: Tokenizer, tools: Sequence[dict[str, Any]], said: str) -> bool:
    """Whether an answer needs another round. If its last turn called, the responses are added here."""
    end, *line_end = end_of_turn_ids(tokenizer)
    turn = answer.ids[answer.begin :]
    if not turn or turn[-1] not in tokenizer.stop_ids:  # a longer prompt beside it may have taken the room
        return len(answer.ids) < room
    if not tools or turn[-1] != end or not (calls := answer.last_calls(tokenizer)):
        return False
    answer.waits = True
    if answer.rounds == MOST_CALLS:
        return False
    responses = [respond(call, said, tools) for call in calls]
    message = [*line_end, *next_prompt_ids(tokenizer, "tool", "\n".join(responses))]
    if len(answer.ids) + len(message) >= room:
        return False  # no room for an answer to it
    answer.calls += len(responses)
    answer.errors += sum(response.startswith(ERROR) for response in responses)
    answer.rounds += 1
    answer.waits = False
    answer.add(message, None)
    answer.begin = len(answer.ids)
    return True
