"""Who said what, and who felt how: read from a told story with the help of its mentions.

A mention tells whom the pen meant, be it by name or by "she". A quote belongs to the mention that a verb of
saying ties it to, a feeling to the mention before "was". Where the text ties them to no one,
no question is asked.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from .pen import Fact, Mention

VERBS = "said cried whispered called laughed shouted sighed groaned moaned mumbled asked wondered begged told promised"
SAYING = f"(?:{'|'.join(VERBS.split())})"
QUOTE = re.compile(r'"([^"]+)"')
SAID_BY = re.compile(f" {SAYING} ")  # "Oh!" said Tiko
DID_SAY = re.compile(rf" (?:\w+ly )?{SAYING}\b")  # "Oh!" Tiko proudly said
LEADS_IN = re.compile(rf"(?<!was ){SAYING}, $")  # Tiko the fox said, "Oh!"
SUBJECTS = ("", "he", "He")  # the forms in which somebody can be the subject of a sentence
# What may stand between somebody and the verb; and what else may if nobody else is in the sentence.
NEXT_TO_SAID, ALONE_WITH_SAID = re.compile(r" (?:\w+ly )?"), re.compile(r"[a-z, ]+")
NEXT_TO_WAS, ALONE_WITH_WAS = re.compile(r"(?:, who| the (?:\w+ )?\w+)? "), re.compile(r" [a-z ]+ and ")


class Listener:
    """Knows where in a text the people of a story stand as subjects."""

    def __init__(self, text: str, mentions: Sequence[Mention], people: Mapping[int, str]):
        self.text = text
        self.people = people
        self.subjects = [m for m in mentions if m.entity in people and m.form in SUBJECTS]
        self.starting = {m.start: m for m in self.subjects}

    def said(self) -> Iterator[Fact]:
        """A fact for every quote that somebody is tied to."""
        for quote in QUOTE.finditer(self.text):
            speaker = self._speaker(quote)
            if speaker is not None:
                yield Fact(quote.end(), "said", {"who": self.people[speaker.entity], "words": quote[1]})

    def _speaker(self, quote: re.Match[str]) -> Mention | None:
        if verb := SAID_BY.match(self.text, quote.end()):
            return self.starting.get(verb.end())
        if subject := self.starting.get(quote.end() + 1):
            return subject if DID_SAY.match(self.text, subject.end) else None
        if verb := LEADS_IN.search(self.text[: quote.start()]):
            return self._subject_of(verb.start(), NEXT_TO_SAID, ALONE_WITH_SAID)
        return None

    def felt(self, feelings: Sequence[str]) -> Iterator[Fact]:
        """A fact for everybody of whom the text says that he, she, both or everyone felt something."""
        words = "|".join(sorted(feelings, key=len, reverse=True))
        for match in re.finditer(rf"\b(?:was|were|Feeling) ({words})\b", self.text):
            for entity in self._who_felt(match):
                yield Fact(match.end(), "feels", {"who": self.people[entity], "feeling": match[1]})

    def _who_felt(self, match: re.Match[str]) -> list[int]:
        if match[0].startswith("Feeling"):  # Feeling tired, she lay down
            return [m.entity for m in self.subjects if m.start == match.end() + len(", ")]
        before = self.text[: match.start()]
        if before.endswith(("everyone ", "both ")):
            since = 0 if before.endswith("everyone ") else self._sentence(match.start())
            return list(dict.fromkeys(m.entity for m in self.subjects if since <= m.start < match.start()))
        subject = self._subject_of(match.start(), NEXT_TO_WAS, ALONE_WITH_WAS)
        return [subject.entity] if subject else []

    def _subject_of(self, verb: int, next_to: re.Pattern[str], alone: re.Pattern[str]) -> Mention | None:
        """Who does what the verb at this character says."""
        begin = self._sentence(verb)
        subjects = [m for m in self.subjects if begin <= m.start < verb]
        if not subjects:
            return None
        last = subjects[-1]
        only = len({m.entity for m in subjects}) == 1
        fits = next_to.fullmatch(self.text, last.end, verb) or (only and alone.fullmatch(self.text, last.end, verb))
        return last if fits else None

    def _sentence(self, at: int) -> int:
        """Where the sentence begins that holds this character."""
        return 1 + max(self.text.rfind(mark, 0, at) for mark in '.!?"')
