"""The built-in world: short children's stories whose entropy is known exactly.

`tell(seed, index)` writes a story; `parse(text)` recovers every choice that made it and what each one cost in
bits. The sum is the least that any language model can pay for the story, so a loss curve gets a floor to aim at.
Names and songs are invented at random: predicting them means looking back and copying.
"""

from .pens import Choice
from .story import Story, parse, tell, tell_many

__all__ = ["Choice", "Story", "parse", "tell", "tell_many"]
