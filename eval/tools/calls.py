"""What can the model call? A calculator that never runs code, and a look-up in what was said.

    <tool_call>⏎{"name": "calculator", "arguments": {"expression": "6 * 7"}}⏎</tool_call>

A call that is wrong gets an error as its response, in one line: the model may try again. Nothing that it
writes stops the program. A chat and the rollouts of train.grpo both call these.
"""

from __future__ import annotations

import ast
import json
import math
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

from data.reply import read_call

MOST_CALLS = 4  # one after the other, before the model must answer
LONGEST = 200  # characters of an expression or a name, and of an error
LARGEST = 1e30  # of a number on the way
MOST_SENTENCES = 8
Number = int | float

OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}


def _schema(name: str, description: str, argument: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}
    return {"name": name, "description": description, "parameters": parameters}


SCHEMAS = (
    _schema("calculator", "Computes an expression, for example 6 * 7.", "expression"),
    _schema("look_up", "The sentences of this chat that mention a name.", "name"),
)
ERROR = "error: "  # what the response to a wrong call begins with


def described(names: Sequence[str]) -> tuple[dict[str, Any], ...]:
    """The schemas of tools, for the chat template. Raises KeyError for a name that no tool has."""
    known = {schema["name"]: schema for schema in SCHEMAS}
    return tuple(known[name] for name in dict.fromkeys(names))


def said_by_user(messages: Sequence[dict[str, Any]]) -> str:
    """What the user said in a conversation: the text in which `look_up` looks."""
    return " ".join(message["content"] for message in messages if message["role"] == "user")


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


def _value(node: ast.AST) -> Number:
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


def look_up(name: str, said: str) -> str:
    """The first sentences of what was said that mention the name, as a word of its own. Raises ValueError."""
    if not name.strip() or len(name) > LONGEST:
        raise ValueError("give a name")
    sentences = re.split(r"(?<=[.!?])[\"”]?\s+", said)
    found = [one for one in sentences if re.search(rf"(?<!\w){re.escape(name.strip())}(?!\w)", one)]
    if not found:
        raise ValueError(f"nothing that was said mentions {name.strip()}")
    return " ".join(found[:MOST_SENTENCES])


def respond(call: str, said: str, tools: Sequence[dict[str, Any]] = SCHEMAS) -> str:
    """The response to one call, the JSON text between its tokens; what is wrong with the call is one too.

    said: what the user said, for the look-up.
    """
    try:
        one = read_call(call)
        arguments = json.loads(one["arguments"])
        schema = next((tool for tool in tools if tool["name"] == one["name"]), None)
        if schema is None:
            raise ValueError(f"no tool is called {one['name']!r}: use {', '.join(tool['name'] for tool in tools)}")
        (wanted,) = schema["parameters"]["required"]
        if set(arguments) != {wanted} or not isinstance(arguments[wanted], str):
            raise ValueError(f"{one['name']} takes one argument, {wanted}, which is text")
        return calculate(arguments[wanted]) if wanted == "expression" else look_up(arguments[wanted], said)
    except json.JSONDecodeError:
        return f"{ERROR}the call is not JSON"
    except (ValueError, RecursionError) as error:
        text = " ".join(str(error).split())[:LONGEST]
        return ERROR + text.encode(errors="replace").decode()  # JSON may hold half a character, "\ud800"
