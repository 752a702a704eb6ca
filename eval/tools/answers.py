"""Answers to many prompts at once, with the calls of tools run; train.grpo uses it too.

A turn that calls a tool, its response, and the answer:

    <tool_call>…</tool_call><|im_end|> | ⏎<|im_start|>tool⏎…assistant⏎ | 42<|im_end|>
    own                                  of the tool                     own
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from data.chat import ids_after_answer
from data.reply import CALL, Reply, read_reply
from data.tokenizer import Tokenizer
from eval.tools.calculator import ERROR, respond
from model import LanguageModel, generate, left_pad

MOST_CALLS = 4  # After so many calls in a row the model must answer.


@dataclass
class Written:
    """The tokens that follow one prompt, in any number of turns."""

    prompt: Sequence[int] = ()
    room: int = 0  # tokens that may follow
    ids: list[int] = field(default_factory=list)  # with the end of each turn
    own: list[bool] = field(default_factory=list)  # written by the model, not by a tool
    log_probs: list[float] = field(default_factory=list)  # 0 for tokens of a tool
    begin: int = 0  # index in ids of the last turn
    rounds: int = 0  # of responses
    waits: bool = False  # the last turn calls, without a response
    calls: int = 0
    errors: int = 0  # calls that failed
    # the random number that draws each token; None at temperature 0
    uniform: Tensor | None = field(default=None, repr=False, compare=False)

    def add(self, ids: Sequence[int], log_probs: Sequence[float] | None) -> None:
        """Add tokens of the model, or of a tool (without log_probs)."""
        self.ids += ids
        self.own += [log_probs is not None] * len(ids)
        self.log_probs += [0.0] * len(ids) if log_probs is None else log_probs

    def last_turn(self, tokenizer: Tokenizer, tools: bool = False) -> Reply:
        """Return the model's last turn, parsed. tools: with its calls."""
        turn = self.ids[self.begin :]
        if self.waits and not tools:
            # cut off a call without a response
            turn = turn[: turn.index(tokenizer.special_id(CALL))]
        before = [*self.prompt, *self.ids[: self.begin]]
        return read_reply(tokenizer, turn, before, tools=tools)

    def reply(self, tokenizer: Tokenizer) -> str:
        """Return the content of the last turn, with "…" where it was cut."""
        ended = not self.waits and bool(self.ids) and self.ids[-1] in tokenizer.stop_ids
        return self.last_turn(tokenizer).content + ("" if ended else "…")


def write_answers(
    lm: LanguageModel,
    tokenizer: Tokenizer,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    rngs: Sequence[Random] = (),
    copies: int = 1,
    tools: bool = False,
    kv_cache: str = "dynamic",
) -> list[Written]:
    """Return `copies` answers to each prompt, next to each other.

    max_new_tokens: of an answer, responses of tools included
    rngs:           a generator for each answer, so that answers are independent; none if greedy
    tools:          run calls; otherwise a call is an answer
    """
    longest = lm.config.max_position_embeddings
    device = lm.device
    stops = set(tokenizer.stop_ids)
    answers = []
    for prompt in prompts:
        room = min(max_new_tokens, longest - len(prompt))
        answers += [Written(prompt, room) for _ in range(copies)]
    if temperature:
        for answer, rng in zip(answers, rngs, strict=True):
            # 24 bits, which float32 holds exactly: none of them is rounded to 1
            numbers = [rng.getrandbits(24) / 2**24 for _ in range(max_new_tokens)]
            answer.uniform = torch.tensor(numbers)
    waiting = answers
    rows = [list(prompt) for prompt in prompts]
    while waiting:
        ids, real = left_pad(rows, tokenizer.pad_id)  # (rows, T)
        log_probs: list[Tensor] = []
        # each token has its own number: a second round goes on behind the first one's
        uniform = [x.uniform[len(x.ids) :] for x in waiting if x.uniform is not None]
        # all that wait in one batch; those that are done cost nothing more
        drawn = generate(
            lm,
            ids.to(device),
            max(max_new_tokens - len(answer.ids) for answer in waiting),
            temperature=temperature,
            stop_ids=stops,
            uniform=pad_sequence(uniform, batch_first=True).to(device) if uniform else None,
            attention_mask=real.to(device),
            num_return_sequences=len(waiting) // len(rows),
            log_probs=log_probs,
            kv_cache=kv_cache,
        )
        new_ids = drawn[:, ids.shape[1] :].tolist()
        chances = torch.stack(log_probs, dim=1).tolist() if log_probs else [[] for _ in waiting]
        for answer, new, chance in zip(waiting, new_ids, chances, strict=True):
            # + 1: with the token that stops it
            end = next((i + 1 for i, token in enumerate(new) if token in stops), len(new))
            end = min(end, answer.room - len(answer.ids))
            answer.add(new[:end], chance[:end])
        waiting = [answer for answer in waiting if _goes_on(answer, tokenizer, tools)]
        # from now on each answer is a row of its own
        rows = [[*answer.prompt, *answer.ids] for answer in waiting]
    return answers


def _goes_on(answer: Written, tokenizer: Tokenizer, tools: bool) -> bool:
    turn = answer.ids[answer.begin :]
    if not turn or turn[-1] not in tokenizer.stop_ids:
        # in a batch, a longer prompt may have cut this answer early
        return len(answer.ids) < answer.room
    if not tools or turn[-1] != tokenizer.turn_end:
        return False
    # the last turn has ended: if it calls, run the calls, and the model goes on
    calls = answer.last_turn(tokenizer, tools=True).calls
    if not calls:
        return False
    answer.waits = True
    # or a model that always calls would never end
    if answer.rounds == MOST_CALLS:
        return False
    responses = list(map(respond, calls))
    response = {"role": "tool", "content": "\n".join(responses)}
    # leave out the end of the turn, which the model wrote
    _, *message = ids_after_answer(tokenizer, [response], add_generation_prompt=True)
    if len(answer.ids) + len(message) >= answer.room:
        return False  # no room for an answer to it
    answer.calls += len(responses)
    answer.errors += sum(text.startswith(ERROR) for text in responses)
    answer.rounds += 1
    answer.waits = False
    answer.add(message, None)
    answer.begin = len(answer.ids)
    return True
