"""The built-in world: short children's stories whose entropy is known exactly.

`tell(seed, index)` writes a story. `read(text)` recovers the choices that made it, with their cost
in bits. On average no language model can do better, so a loss curve has a floor. Names and songs
are random: to predict them, a model must look back and copy.

From the `facts` of a story come questions with known answers (`questions_about`, `draw_question`),
conversations (`converse`, `interview`), and pairs of a right and a wrong answer (`prefer`). Its
mentions are known (`antecedents`, and `align` for any tokenizer). `repeated` and `blocks` make
documents that teach a model to copy, `recall` documents of facts and questions.
"""

from .conversations import converse, interview, prefer
from .drills import DRILLS, say_again
from .mentions import Antecedent, align, antecedents
from .names import renamed
from .questions import Question, draw_question, questions_about
from .recall import REPEATED_WORDS, Recall, blocks, recall, repeated
from .story import Story, read, tell

# Runs and prepared data remember the version. Raise it when any story, question or conversation
# changes, and record the new digest, which tests/storyworld/test_versions.py prints.
STORYWORLD_VERSION = 6
STORYWORLD_DIGESTS = {6: "e2537cad1de03529"}

__all__ = [
    "DRILLS", "REPEATED_WORDS", "Antecedent", "Question", "Recall", "Story", "align",
    "antecedents", "blocks", "converse", "draw_question", "interview", "prefer", "questions_about",
    "read", "recall", "renamed", "repeated", "say_again", "tell",
]  # fmt: skip
