"""A calculator that a model can call. It never runs code.

A call is JSON: {"name": "calculator", "arguments": {"expression": "6 * 7"}}. The response to a
wrong one is an error of one line, so the model may try again.
"""

import ast
import json
import math
import operator
from typing import Any

from data.reply import read_call

LONGEST = 200  # An expression or an error has at most so many characters.
LARGEST = 1e30  # No result may be larger, nor an intermediate one.
ERROR = "error: "  # The response to a wrong call begins so.
OPERATORS: dict[type[ast.AST], Any] = {
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
PARAMETERS = {
    "type": "object",
    "properties": {"expression": {"type": "string"}},
    "required": ["expression"],
}
DESCRIPTION = "Computes an expression, for example 6 * 7."
# The chat template shows these to the model.
SCHEMAS: tuple[dict[str, Any], ...] = (
    {"name": "calculator", "description": DESCRIPTION, "parameters": PARAMETERS},
)


def calculate(expression: str) -> str:
    """Compute + - * / // % ** and brackets over numbers. Raises ValueError for anything else."""
    if len(expression) > LONGEST:
        raise ValueError(
            f"the expression has {len(expression):,} characters, and {LONGEST} are allowed"
        )
    try:
        value = _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError("this is not an expression") from None
    except ZeroDivisionError:
        raise ValueError("division by zero") from None
    # 12 digits hide the rounding of 0.1 + 0.2
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def _value(node: ast.AST) -> int | float:
    # `type`, not isinstance: True is an int
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        value: Any = node.value
    elif isinstance(node, ast.UnaryOp) and type(node.op) in OPERATORS:
        value = OPERATORS[type(node.op)](_value(node.operand))
    elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        left = _value(node.left)
        right = _value(node.right)
        if isinstance(node.op, ast.Pow) and left:
            # refuse 9 ** 9 ** 9 before it is computed, which takes forever
            digits = right * math.log10(abs(left))
            if abs(digits) > math.log10(LARGEST):
                raise ValueError("a power is too large")
        value = OPERATORS[type(node.op)](left, right)
    else:
        raise ValueError(f"{type(node).__name__} is not allowed: use numbers and + - * / // % **")
    if isinstance(value, complex) or not abs(value) <= LARGEST:
        raise ValueError("a number is too large, or not real")
    return value


def respond(call: str) -> str:
    """Answer a call, the JSON text between its tokens, with a result or an error."""
    try:
        checked_call = read_call(call)
        name = checked_call["name"]
        arguments = json.loads(checked_call["arguments"])
        if name != "calculator":
            raise ValueError(f"no tool is called {name!r}: use calculator")
        # a small model invents arguments, and should see the error
        if [*arguments] != ["expression"] or not isinstance(arguments["expression"], str):
            raise ValueError("calculator takes one argument, expression, which is text")
        return calculate(arguments["expression"])
    except json.JSONDecodeError:
        return f"{ERROR}the call is not JSON"
    except (ValueError, RecursionError) as error:
        # JSON may contain half a character (a lone surrogate), which no tokenizer encodes
        text = " ".join(str(error).split())[:LONGEST]
        return ERROR + text.encode(errors="replace").decode()
