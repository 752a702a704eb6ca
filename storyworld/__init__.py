"""The built-in world: short children's stories whose entropy is known exactly.

`tell(seed, index)` writes a story. `read(text)` recovers every choice that made it, and what each one cost in
bits. On average over stories, no language model can pay less than that sum, so a loss curve has a floor.
Names and songs are invented at random: predicting them means looking back and copying.

A story knows what is true in it (`facts`), so there are questions with known answers (`questions_about`,
`draw_question`), conversations about them (`converse`, `interview`), and pairs of a right and a wrong answer
(`prefer`). It knows which word stands for which (`antecedents`, and `align` for any tokenizer). `repeated` gives
documents for finding induction heads, `recall` documents that ask for what they said.
"""

from .conversations import converse, interview, prefer
from .drills import DRILLS, say_again
from .mentions import Antecedent, align, antecedents
from .names import renamed
from .questions import Question, draw_question, questions_about
from .recall import REPEATED_WORDS, Recall, recall, repeated
from .story import Story, read, tell

# Which stories does this world tell? Runs and prepared data remember the version. Raise it when any story, question or
# conversation changes, and record the new digest; tests/storyworld/test_versions.py says which. A docstring or a faster
# way to the same text needs no new version.
STORYWORLD_VERSION = 6
STORYWORLD_DIGESTS = {6: "e2537cad1de03529"}

__all__ = [
    "DRILLS", "REPEATED_WORDS", "Antecedent", "Question", "Recall", "Story", "align", "antecedents", "converse",
    "draw_question", "interview", "prefer", "questions_about", "read", "recall", "renamed", "repeated",
    "say_again", "tell",
]  # fmt: skip
