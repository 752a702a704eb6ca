"""Hooks look at the model during training, at some steps.

Write your own as a function of one event, or as a subclass of `Hook`, and name it in YAML
(docs/measure.md):

    eval:
      hooks: [validation, {name: "my_package.my_module:my_function", every: 500}]

A hook that raises is reported and switched off; the run continues.
"""

from eval.hooks.hook import EvalEvent, Hook, Outcome, figures_in, lines_of
from eval.hooks.registry import Hooks, cadences_of, import_named

__all__ = [
    "EvalEvent",
    "Hook",
    "Hooks",
    "Outcome",
    "cadences_of",
    "figures_in",
    "import_named",
    "lines_of",
]
