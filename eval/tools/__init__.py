"""What can the model call, and what does it answer if its calls are run? A calculator that never runs code.

    prompt | <tool_call>…</tool_call><|im_end|> | ⏎<|im_start|>tool⏎…<|im_end|>⏎<|im_start|>assistant⏎ | 42<|im_end|>
             ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~                                                          ~~~~~~~~~~~~
                          own                                        of the tool                             own

A call is JSON: {"name": "calculator", "arguments": {"expression": "6 * 7"}}. One that is wrong gets an error as its
response, in one line: the model may try again. A chat and the rollouts of train.grpo both call it.
"""

from __future__ import annotations

import ast
import json
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from data.chat import CALL, Reply, ids_after_answer, read_call, read_reply
from data.tokenizer import Tokenizer
from model import LanguageModel, generate, left_pad
from model.generation import random_numbers

MOST_CALLS = 4  # one after the other, before the model must answer
LONGEST = 200  # characters of an expression, and of an error
LARGEST = 1e30  # of a number on the way
ERROR = "error: "  # what the response to a wrong call begins with

OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    **{ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv},
    **{ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow},
    **{ast.UAdd: operator.pos, ast.USub: operator.neg},
}
SCHEMAS: tuple[dict[str, Any], ...] = (  # for the chat template
    {
        "name": "calculator",
        "description": "Computes an expression, for example 6 * 7.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string"}},
            "required": ["expression"],
        },
    },
)


def calculate(expression: str) -> str:
    """The value of + - * / // % ** and brackets over numbers. Raises ValueError for everything else.

    The expression is parsed, and each node of the tree must be one of these; nothing is ever evaluated as code.
    """
    if len(expression) > LONGEST:
        raise ValueError(f"the expression has {len(expression):,} characters, and {LONGEST} are allowed")
    try:
        value = _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError("this is not an expression") from None
    except ZeroDivisionError:
        raise ValueError("division by zero") from None
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def _value(node: ast.AST) -> int | float:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        value: Any = node.value
    elif isinstance(node, ast.UnaryOp) and type(node.op) in OPERATORS:
        value = OPERATORS[type(node.op)](_value(node.operand))
    elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Pow) and left and abs(right * math.log10(abs(left))) > math.log10(LARGEST):
            raise ValueError("a power is too large")  # before it is computed
        value = OPERATORS[type(node.op)](left, right)
    else:
        raise ValueError(f"{type(node).__name__} is not allowed: use numbers and + - * / // % **")
    if isinstance(value, complex) or not abs(value) <= LARGEST:
        raise ValueError("a number is too large, or not real")
    return value


def respond(call: str) -> str:
    """The response to one call, the JSON text between its tokens; what is wrong with the call is one too."""
    try:
        checked_call = read_call(call)
        name, arguments = checked_call["name"], json.loads(checked_call["arguments"])
        if name != "calculator":
            raise ValueError(f"no tool is called {name!r}: use calculator")
        if [*arguments] != ["expression"] or not isinstance(arguments["expression"], str):
            raise ValueError("calculator takes one argument, expression, which is text")
        return calculate(arguments["expression"])
    except json.JSONDecodeError:
        return f"{ERROR}the call is not JSON"
    except (ValueError, RecursionError) as error:
        text = " ".join(str(error).split())[:LONGEST]
        return ERROR + text.encode(errors="replace").decode()  # JSON may hold half a character, "\ud800"


# ---------------------------------------------------------------------------------------------------------
# many answers at once


@dataclass
class Written:
    """What follows one prompt, in any number of turns.

    prompt: its ids. room: tokens that may follow. ids: those that do, with the token that ended each turn. own: which
    of them the model wrote; the others are responses of tools, in the chat template's form. log_probs: ln of the
    probability with which each was drawn, 0 where it was not. begin: where the last turn begins in ids. rounds: how
    often the responses of tools were added; waits: the last turn calls, and gets no response. calls, errors: how many
    were run, and failed. uniform: the random number that draws each token; None at temperature 0.
    """

    prompt: Sequence[int] = ()
    room: int = 0
    ids: list[int] = field(default_factory=list)
    own: list[bool] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    begin: int = 0
    rounds: int = 0
    waits: bool = False
    calls: int = 0
    errors: int = 0
    uniform: Tensor | None = field(default=None, repr=False, compare=False)

    def add(self, ids: Sequence[int], log_probs: Sequence[float] | None) -> None:
        """More tokens; without log_probs they are not the model's."""
        self.ids += ids
        self.own += [log_probs is not None] * len(ids)
        self.log_probs += [0.0] * len(ids) if log_probs is None else log_probs

    def last_turn(self, tokenizer: Tokenizer, tools: bool = False) -> Reply:
        """What the model wrote last, taken apart. A call without a response is cut off, if calls are not asked for."""
        turn = self.ids[self.begin :]
        if self.waits and not tools:
            turn = turn[: turn.index(tokenizer.special_id(CALL))]
        return read_reply(tokenizer, turn, [*self.prompt, *self.ids[: self.begin]], tools=tools)

    def reply(self, tokenizer: Tokenizer) -> str:
        """The content of the last turn, with "…" where it was cut."""
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
    """`copies` answers to each prompt, next to each other; the prompts are read once, all of them together.

    max_new_tokens: of an answer, responses of tools included. rngs: a generator for each answer, so
    that none depends on the others; none at temperature 0. tools: whether calls are run; else a call
    is an answer like any other.
    """
    longest, device, stops = lm.config.max_position_embeddings, next(lm.parameters()).device, set(tokenizer.stop_ids)
    answers = [Written(prompt, min(max_new_tokens, longest - len(prompt))) for prompt in prompts for _ in range(copies)]
    if temperature:
        for answer, numbers in zip(answers, random_numbers(rngs, max_new_tokens), strict=True):
            answer.uniform = numbers
    waiting, rows = answers, [list(prompt) for prompt in prompts]
    while waiting:
        ids, real = left_pad(rows, tokenizer.pad_id)
        log_probs: list[Tensor] = []
        uniform = [answer.uniform[len(answer.ids) :] for answer in waiting if answer.uniform is not None]
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
        of_rows = torch.stack(log_probs, dim=1).tolist() if log_probs else [[] for _ in waiting]
        for answer, new, chances in zip(waiting, drawn[:, ids.shape[1] :].tolist(), of_rows, strict=True):
            end = next((at + 1 for at, token in enumerate(new) if token in stops), len(new))
            end = min(end, answer.room - len(answer.ids))
            answer.add(new[:end], chances[:end])
        waiting = [answer for answer in waiting if _goes_on(answer, tokenizer, tools)]
        rows = [[*answer.prompt, *answer.ids] for answer in waiting]
    return answers


def _goes_on(answer: Written, tokenizer: Tokenizer, tools: bool) -> bool:
    """Whether an answer needs another round. If its last turn called, the responses are added here."""
    turn = answer.ids[answer.begin :]
    if not turn or turn[-1] not in tokenizer.stop_ids:  # a longer prompt beside it may have taken the room
        return len(answer.ids) < answer.room
    if not tools or turn[-1] != tokenizer.turn_end or not (calls := answer.last_turn(tokenizer, tools=True).calls):
        return False
    answer.waits = True
    if answer.rounds == MOST_CALLS:
        return False
    responses = list(map(respond, calls))
    response = {"role": "tool", "content": "\n".join(responses)}
    _, *message = ids_after_answer(tokenizer, [response], add_generation_prompt=True)  # the turn has ended already
    if len(answer.ids) + len(message) >= answer.room:
        return False  # no room for an answer to it
    answer.calls += len(responses)
    answer.errors += sum(response.startswith(ERROR) for response in responses)
    answer.rounds += 1
    answer.waits = False
    answer.add(message, None)
    answer.begin = len(answer.ids)
    return True
