"""Questions about a story, with the answers that its facts decide.

Every question has exactly one right answer, at the end of the story or at the time that it names, and at least one
wrong one that the story also holds. `questions_about` lists all that can be asked about one story; draw.py picks.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import combinations, pairwise
from re import fullmatch, sub
from typing import NamedTuple

from .lexicon import feelings, place_sorts, wordings
from .pen import Fact
from .story import Story

KINDS = ("who_has", "where", "who_wanted", "who_said", "first", "feeling", "yes_no", "who_did")
OPEN_KINDS = ("who_has", "where", "who_wanted", "who_said", "first", "who_did")  # each can be asked as yes or no
TIME = r"( (?:at the end of the story|in the end|first|last on the way out|after the [a-z ]+))?"  # stands last


class Question(NamedTuple):
    """A question about a story.

    kind:       one of KINDS. "first" asks for the order of events, and "who_did" for a deed whatever its order
    text:       "Who had the kite at the end of the story?"
    answer:     as short as it can be: "Tiko", "by the river", "sad", "Tiko found the kite", "yes". A place is
                always named in the same words, "by the river", even if the story says "to the river" or "from
                the river"; a comparison should accept "river" alone
    sentence:   the same as a sentence: "Tiko had the kite at the end of the story."
    candidates: what a careless reader could answer, `answer` among them: at least two, of the same sort, and
                none that the question names
    """

    kind: str
    text: str
    answer: str
    sentence: str
    candidates: tuple[str, ...]

    def reply(self, shortly: bool) -> str:
        """The answer in a few words, or as a sentence.

        Yes or no always comes with what it is judged by: to judge before anything is said takes more heads in a row
        than a small model has (EXPERIMENTS.md).
        """
        return self.answer if shortly and self.kind != "yes_no" else self.sentence


def questions_about(story: Story, kind: str | None = None) -> list[Question]:
    """All questions about a story (or all of one kind), in all their wordings.

    Only those that could be answered wrongly, and whose answer they do not give away. Raises ValueError for an unknown
    kind.
    """
    if kind is not None and kind not in KINDS:
        raise ValueError(f"unknown kind of question {kind!r}: use one of {', '.join(KINDS)}")
    questions = dict.fromkeys(question for one in ([kind] if kind else KINDS) for question in ASKERS[one](story))
    return [q for q in questions if len(q.candidates) > 1 and q.answer in q.candidates]


def about(kind: str, text: str, answer: str, possible: Sequence[str]) -> Question:
    """A question of who or where. Its answer makes a sentence with it."""
    candidates = tuple(one for one in possible if one not in text or not re.search(rf"\b{one}\b", text))
    sentence = capital(answer) if kind == "where" else f"{answer} {text[4:-1]}"  # without "Who " and "?"
    return Question(kind, text, answer, f"{sentence}.", candidates)


def own_questions(story: Story, kind: str, fact_kind: str, key: str = "asked") -> Iterator[Question]:
    """The questions that the facts of a kind word themselves."""
    for fact in story.facts:
        if fact.kind == fact_kind and key in fact.values:
            for text in fact.values[key].split("|"):
                if kind == "where":
                    yield ask_for_place(story, text, fact)
                else:
                    yield about(kind, text, fact.values["who"], names_of(story))


def ask_for_place(story: Story, text: str, fact: Fact) -> Question:
    """Where was it? Candidates are the story's places of the same sort: hiding places, seats, or all others."""
    place = next(texts["at"] for texts in story.entities if texts.get("") == fact.values["place"])
    (sort,) = [places for places in place_sorts().values() if place in places]
    return about("where", text, place, [other for other in places_of(story) if other in sort])


def names_of(story: Story) -> tuple[str, ...]:
    return tuple(story.people.values())


def places_of(story: Story) -> tuple[str, ...]:
    """All places of a story, as they answer "where", in the order in which it mentions them."""
    numbers = dict.fromkeys(mention.entity for mention in story.mentions)
    return tuple(story.entities[number]["at"] for number in numbers if "at" in story.entities[number])


def worded(key: str, **values: str) -> list[str]:
    """The wordings of questions.yaml under this key."""
    return [wording.format(**values) for wording in wordings("questions")["wordings"][key]]


def ask_who_has(story: Story) -> Iterator[Question]:
    """Who held a thing at the end, at first, right before or right after somebody?"""
    people = names_of(story)
    for thing, holders in holders_of(story).items():
        asks = {("has_end", ""): holders[-1]} if holders[-1] else {}
        if len(holders) > 1:
            asks["has_first", ""] = holders[0]
        for one, other in pairwise(holders):
            if one and other and holders.count(one) == 1:
                asks["has_after", one] = other
            if one and other and holders.count(other) == 1:
                asks["has_before", other] = one
        for (key, other), who in asks.items():
            for text in worded(key, thing=thing, other=other):
                yield about("who_has", text, who, people)
    yield from own_questions(story, "who_has", "has")


def holders_of(story: Story) -> dict[str, list[str]]:
    """Thing -> who held it, one after another; "" while it lay somewhere. Things asked for otherwise are left out."""
    holders: dict[str, list[str]] = {}
    for fact in story.facts:
        thing = fact.values.get("thing") if fact.kind == "has" else fact.values.get("what")
        if fact.kind == "has" and thing and "asked" not in fact.values:
            holders.setdefault(thing, []).append(fact.values["who"])
        elif fact.kind in ("at", "lost") and thing in holders:
            holders[thing].append("")
    return {
        thing: [who for who, before in zip(all_, [None, *all_], strict=False) if who != before]
        for thing, all_ in holders.items()
    }


def ask_where(story: Story) -> Iterator[Question]:
    """Where did it happen? Where is something in the end?"""
    yield from own_questions(story, "where", "at")
    last: dict[str, Fact] = {}
    for fact in story.facts:
        if fact.kind in ("at", "has", "lost"):
            last[fact.values["thing" if fact.kind == "has" else "what"]] = fact
    for what, fact in last.items():
        if fact.kind == "at" and "asked" not in fact.values:
            known = what in names_of(story) or what.startswith("the ")
            for text in worded("at_end", what=what if known else f"the {what}"):
                yield ask_for_place(story, text, fact)


def ask_who_wanted(story: Story) -> Iterator[Question]:
    """Who wished for a thing, if only one did? Who asked for it, if another needs it to get something else?"""
    wanting: dict[str, set[str]] = {}
    for fact in story.facts:
        if fact.kind == "wants":
            wanting.setdefault(fact.values["thing"], set()).add(fact.values["who"])
    needed = {fact.values["thing"] for fact in story.facts if fact.kind == "wants" and "asked" in fact.values}
    for thing, who in wanting.items():
        for text in worded("wants", thing=thing) if len(who) == 1 and thing not in needed else ():
            yield about("who_wanted", text, min(who), names_of(story))
    yield from own_questions(story, "who_wanted", "wants")


def ask_who_said(story: Story) -> Iterator[Question]:
    """Who said these words, if nobody else did and they are three or more?"""
    for fact in story.facts:
        words = sub("[.,!?]+('?)$", r"\1", fact.values.get("words", ""))  # a question brings its own last mark
        if fact.kind == "said" and len(words.split()) >= 3 and story.text.count(words.removesuffix("'")) == 1:
            who, spoken = fact.values["who"], sub(",('?)$", r".\1", fact.values["words"])
            for text in worded("said", words=words):
                candidates = about("who_said", text, who, names_of(story)).candidates
                yield Question("who_said", text, who, f'{who} said, "{spoken}"', candidates)


def ask_first(story: Story) -> Iterator[Question]:
    """What happened first, and who did something first (or second, or last)?"""
    yield from own_questions(story, "first", "did")
    deeds = [fact for fact in story.facts if "deed" in fact.values]
    for one, other in combinations(deeds, 2):
        if one.values["deed"] == other.values["deed"] and "asked" not in one.values:
            yield about("first", f"Who {one.values['deed']} first?", one.values["who"], names_of(story))
    clauses = [f"{fact.values['who']} {fact.values['deed']}" for fact in deeds]
    for (first, earlier), (second, later) in combinations(zip(deeds, clauses, strict=True), 2):
        if first.at < second.at and clauses.count(earlier) == clauses.count(later) == 1:
            for a, b in ((earlier, later), (later, earlier)):
                for text in worded("order", a=a, b=b):
                    yield Question("first", text, earlier, f"First {earlier}.", (a, b))


def ask_feeling(story: Story) -> Iterator[Question]:
    """How did somebody feel: at all, if there is only one answer; else at first, and in the end?

    No question is asked about a character introduced as "a sleepy fox" or the like: that would be an answer, too.
    """
    felt: dict[str, list[str]] = {}
    if len(set(feeling_words().findall(story.text))) < 2:  # most stories, and this is soon seen
        return
    introduced = {texts[""] for texts in story.entities if texts.get("trait") in feelings()}
    for fact in story.facts:
        if fact.kind == "feels":
            felt.setdefault(fact.values["who"], []).append(fact.values["feeling"])
    everything = tuple(dict.fromkeys(mood for moods in felt.values() for mood in moods))
    for who, moods in ((who, moods) for who, moods in felt.items() if who not in introduced):
        asks = {"feels": moods[0]} if len(set(moods)) == 1 else {"feels_first": moods[0], "feels_end": moods[-1]}
        for key, mood in asks.items():
            for text in worded(key, who=who):
                yield Question("feeling", text, mood, f"{who} was {mood}.", everything)


@cache
def feeling_words() -> re.Pattern[str]:
    """Any of the feelings, wherever it stands."""
    return re.compile(rf"\b(?:{'|'.join(sorted(feelings(), key=len, reverse=True))})\b")


def ask_yes_no(story: Story) -> Iterator[Question]:
    """Every question of who and where, with each of its candidates offered as the answer."""
    for kind in OPEN_KINDS:
        for question in questions_about(story, kind):
            yield from yes_no(question, question.candidates)


def yes_no(question: Question, candidates: Sequence[str]) -> list[Question]:
    """The question as one that is answered by yes or no, in all its wordings (none for "What happened first?"), about
    each of these candidates.

    The answer first says who it was, and judges after both names stand side by side, where a head that sees a few
    tokens can compare them: "It was Tiko. Belna? No." Where "Belna?" came first, it was often said again in place of
    the right name, and "No, it was Tiko." would have to be judged before anything is said (EXPERIMENTS.md).
    """
    text, is_place = question.text.removesuffix("?"), question.kind == "where"
    if match := fullmatch(r"Who (.*)", text):
        forms = ["Was it {} who " + match[1] + "?", "Is it true that {} " + match[1] + "?"]
    elif match := fullmatch(rf"Where (was|did) (.*?){TIME}", text):
        forms = [f"{match[1].capitalize()} {match[2]} {{}}{match[3] or ''}?"]
    else:
        return []
    made = []
    for candidate in candidates:
        short = "yes" if candidate == question.answer else "no"
        sentence = judged(candidate, question.answer, is_place)
        made += [Question("yes_no", form.format(candidate), short, sentence, ("yes", "no")) for form in forms]
    return made


def judged(candidate: str, actual: str, is_place: bool) -> str:
    """ "It was Tiko. Belna? No." or "By the river. In the barn? No." """
    statement = capital(actual) if is_place else f"It was {actual}"
    return f"{statement}. {capital(candidate)}? {'Yes' if candidate == actual else 'No'}."


def capital(text: str) -> str:
    return text[0].upper() + text[1:]


ASKERS: dict[str, Callable[[Story], Iterator[Question]]] = {
    "who_has": ask_who_has,
    "where": ask_where,
    "who_wanted": ask_who_wanted,
    "who_said": ask_who_said,
    "first": ask_first,
    "feeling": ask_feeling,
    "yes_no": ask_yes_no,
    "who_did": partial(own_questions, kind="who_did", fact_kind="did", key="who_did"),
}
