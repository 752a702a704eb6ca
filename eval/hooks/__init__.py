"""What runs during training? Hooks: each looks at the model now and then, and says what it saw.

Write one of your own as a function of one event, or as a subclass of `Hook`, and name it in YAML (docs/hooks.md):

    eval:
      hooks: [validation, {name: "my_package.my_module:my_function", every: 500}]
"""

from eval.hooks.event import EvalEvent, Hook, Outcome

__all__ = ["EvalEvent", "Hook", "Outcome"]
