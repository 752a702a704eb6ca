"""The built-in world: short children's stories whose entropy is known exactly.

`tell(seed, index)` writes a story; `parse(text)` recovers every choice that made it and what each one cost
in bits. On average over stories no language model can pay less than that sum, so a loss curve has a floor.
Names and songs are invented at random: predicting them means looking back and copying.
"""

from .pen import Choice
from .story import Story, parse, tell, tell_many

__all__ = ["Choice", "Story", "parse", "tell", "tell_many"]
