"""A calculator that a model can call, and answers in which its calls are run."""

from eval.tools.answers import MOST_CALLS, Written, write_answers
from eval.tools.calculator import SCHEMAS, calculate, respond

__all__ = ["MOST_CALLS", "SCHEMAS", "Written", "calculate", "respond", "write_answers"]
