"""Questions about a story, with the answers that its facts decide.

Every question has exactly one right answer, at the end of the story or at the time that it names. `questions_about`
lists all that can be asked about one story; `draw_question` picks one story and one question, so that over many draws
the classes are equally frequent and no cheap guess (the first name, the last name, always "yes") pays.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations, pairwise
from random import Random
from re import fullmatch, sub

from .lexicon import Pool, lexicon
from .pen import Fact
from .story import Split, Story, plot_of, tell
from .wordings import wordings

KINDS = ("who_has", "where", "who_wanted", "who_said", "first", "feeling", "yes_no")
OPEN_KINDS = ("who_has", "where", "who_wanted", "who_said", "first")  # what a yes-no question can be made of
TIME = r"( (?:at the end of the story|in the end|first|last on the way out|after the [a-z ]+))?"  # stands last


@dataclass(frozen=True)
class Question:
    """A question about a story.

    kind:       one of KINDS
    text:       "Who had the kite at the end of the story?"
    answer:     as short as it can be: "Tiko", "by the river", "sad", "Tiko found the kite", "yes"
    sentence:   the same as a sentence: "Tiko had the kite at the end of the story."
    candidates: what a careless reader could answer, `answer` among them
    """

    kind: str
    text: str
    answer: str
    sentence: str
    candidates: tuple[str, ...]


def questions_about(story: Story, kind: str | None = None) -> list[Question]:
    """All questions about a story (or all of one kind), in all their wordings.

    Raises ValueError for an unknown kind.
    """
    if kind is not None and kind not in KINDS:
        raise ValueError(f"unknown kind of question {kind!r}: use one of {', '.join(KINDS)}")
    found = (question for one in ([kind] if kind else KINDS) for question in ASKERS[one](story))
    return list(dict.fromkeys(found))


def about(kind: str, text: str, answer: str, candidates: tuple[str, ...]) -> Question:
    """A question of who or where. Its answer makes a sentence with it."""
    sentence = f"It was {answer}." if kind == "where" else f"{answer} {text.removeprefix('Who ').removesuffix('?')}."
    if sentence.endswith('".'):  # the full stop of a quote stands inside it, unless it ends with another mark
        sentence = sentence[:-2] + ('"' if sentence[-3] in ".!?" else '."')
    return Question(kind, text, answer, sentence, candidates)


def names_of(story: Story) -> tuple[str, ...]:
    return tuple(story.people.values())


def places_of(story: Story) -> tuple[str, ...]:
    """All places of a story, as they answer "where", in the order in which it mentions them."""
    numbers = dict.fromkeys(mention.entity for mention in story.mentions)
    return tuple(story.entities[number]["at"] for number in numbers if "at" in story.entities[number])


def worded(key: str, **values: str) -> list[str]:
    """The wordings of questions.yaml under this key."""
    return [wording.format(**values) for wording in wordings("questions")["wordings"][key]]


def asked(story: Story, kind: str) -> Iterator[tuple[Fact, list[str]]]:
    """The facts of a kind that bring their own wordings, and these."""
    for fact in story.facts:
        if fact.kind == kind and "asked" in fact.values:
            yield fact, fact.values["asked"].split("|")


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
    for fact, texts in asked(story, "has"):
        for text in texts:
            yield about("who_has", text, fact.values["who"], people)


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
    at = {texts[""]: texts["at"] for texts in story.entities if "at" in texts}
    places = places_of(story)
    for fact, texts in asked(story, "at"):
        for text in texts:
            yield about("where", text, at[fact.values["place"]], places)
    last: dict[str, Fact] = {}
    for fact in story.facts:
        if fact.kind in ("at", "has", "lost"):
            last[fact.values["thing" if fact.kind == "has" else "what"]] = fact
    for what, fact in last.items():
        if fact.kind == "at" and "asked" not in fact.values:
            known = what in names_of(story) or what.startswith("the ")
            for text in worded("at_end", what=what if known else f"the {what}"):
                yield about("where", text, at[fact.values["place"]], places)


def ask_who_wanted(story: Story) -> Iterator[Question]:
    """Who wished for a thing, if only one did?"""
    wanting: dict[str, set[str]] = {}
    for fact in story.facts:
        if fact.kind == "wants":
            wanting.setdefault(fact.values["thing"], set()).add(fact.values["who"])
    for thing, who in wanting.items():
        for text in worded("wants", thing=thing) if len(who) == 1 else ():
            yield about("who_wanted", text, min(who), names_of(story))


def ask_who_said(story: Story) -> Iterator[Question]:
    """Who said these words, if nobody else did and they are three or more?"""
    for fact in story.facts:
        words = fact.values.get("words", "").rstrip(",")
        if fact.kind == "said" and len(words.split()) >= 3 and story.text.count(words) == 1:
            for text in worded("said", words=sub(",'$", "'", words)):
                yield about("who_said", text, fact.values["who"], names_of(story))


def ask_first(story: Story) -> Iterator[Question]:
    """What happened first, and who did something first (or second, or last)?"""
    for fact, texts in asked(story, "did"):
        for text in texts:
            yield about("first", text, fact.values["who"], names_of(story))
    deeds = [fact for fact in story.facts if fact.kind == "did"]
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
    """How did somebody feel: at all, if there is only one answer; else at first, and in the end?"""
    felt: dict[str, list[str]] = {}
    for fact in story.facts:
        if fact.kind == "feels":
            felt.setdefault(fact.values["who"], []).append(fact.values["feeling"])
    everything = tuple(dict.fromkeys(mood for moods in felt.values() for mood in moods))
    for who, moods in felt.items():
        asks = {"feels": moods[0]} if len(set(moods)) == 1 else {"feels_first": moods[0], "feels_end": moods[-1]}
        for key, mood in asks.items():
            for text in worded(key, who=who):
                yield Question("feeling", text, mood, f"{who} was {mood}.", everything)


def ask_yes_no(story: Story) -> Iterator[Question]:
    """Every question of who and where, with each of its candidates offered as the answer."""
    for kind in OPEN_KINDS:
        for question in ASKERS[kind](story):
            for candidate in question.candidates:
                yield from yes_no(question, candidate)


def yes_no(question: Question, candidate: str) -> list[Question]:
    """The question as one that is answered by yes or no, in all its wordings (none for "What happened first?")."""
    is_it, so = question.text.removesuffix("?"), candidate == question.answer
    if match := fullmatch(r"Who (.*)", is_it):
        texts = [f"Was it {candidate} who {match[1]}?", f"Is it true that {candidate} {match[1]}?"]
    elif match := fullmatch(rf"Where (was|did) (.*?){TIME}", is_it):
        texts = [f"{match[1].capitalize()} {match[2]} {candidate}{match[3] or ''}?"]
    else:
        return []
    sentence = "Yes." if so else f"No, it was {question.answer}."
    return [Question("yes_no", text, "yes" if so else "no", sentence, ("yes", "no")) for text in texts]


ASKERS: dict[str, Callable[[Story], Iterator[Question]]] = {
    "who_has": ask_who_has,
    "where": ask_where,
    "who_wanted": ask_who_wanted,
    "who_said": ask_who_said,
    "first": ask_first,
    "feeling": ask_feeling,
    "yes_no": ask_yes_no,
}


BOOK = 1_000_003  # the stories that questions are about are none of those that tell(seed, index) gives for small seeds


def draw_question(
    seed: int,
    index: int,
    split: Split = "train",
    level: int = 1,
    kind: str | None = None,
    held_out_names: bool | None = None,
) -> tuple[Story, Question]:
    """Question number `index` and the story that it is about; the kinds take turns unless one is given.

    Validation questions are about validation stories told with held-out names, unless `held_out_names` says
    otherwise. What the answer shall be (the second of the story's people, a certain group of feelings, yes or
    no) is settled first, and then stories are read until one has a question with such an answer. So answers
    are balanced whatever the plots prefer. The same arguments give the same question on every machine.
    """
    if held_out_names is None:
        held_out_names = split == "validation"
    turn, which = divmod(index, len(KINDS))
    rng = Random(f"question {split} {level} {seed} {index}")
    goal = Goal(kind or KINDS[which], so=(index if kind else turn) % 2 == 0, rng=rng)
    for attempt in range(10_000):
        number = index * 10_000 + attempt
        if goal.plots and plot_of(BOOK + seed, number, split, level) not in goal.plots:
            continue
        story = tell(BOOK + seed, number, split, level, held_out_names)
        fitting = goal.fitting(story)
        if fitting:
            return story, goal.asked(fitting[int(rng.random() * len(fitting))])
    raise RuntimeError(f"no story of level {level} has a question of kind {kind!r}")


def place_pools() -> list[Pool]:
    """The words for places, and those for hiding places."""
    pools = [lexicon().roles[role]["at"] for role in ("place", "spot")]
    return [pool for pool in pools if isinstance(pool, Pool)]


class Goal:
    """What the answer to the next question shall be."""

    def __init__(self, kind: str, so: bool, rng: Random):
        self.rng = rng
        self.so = so  # yes or no, if it is a question for that
        self.yes_no = kind == "yes_no"
        self.kind = OPEN_KINDS[int(rng.random() * len(OPEN_KINDS))] if self.yes_no else kind
        self.which = rng.random()  # which of the people (or places), in the order in which the story mentions them
        self.last = rng.random() < 1 / 3  # whether it is the one whom the story names last
        self.names = self.kind != "first" or self.yes_no or rng.random() < 1 / 2  # or a clause
        groups: list[tuple[list[str], str]] = []  # answers from a fixed vocabulary, and the plots that have them
        if self.kind == "where":
            groups = [([texts["at"] for texts in pool.texts.values()], "any") for pool in place_pools()]
        elif self.kind == "feeling":
            groups = [(words.split(", "), plots) for words, plots in wordings("questions")["feelings"].items()]
        sized = [group for group in groups for _ in group[0]] or [([], "any")]  # the likelier the larger it is
        self.answers, plots = sized[int(rng.random() * len(sized))]
        self.plots = [] if plots == "any" else plots.split()

    def fitting(self, story: Story) -> list[Question]:
        """The questions about this story whose answer is as wished."""
        found = questions_about(story, self.kind)
        if self.answers:
            found = [question for question in found if question.answer in self.answers]
        if self.kind == "feeling":
            return found
        found = [question for question in found if len(question.candidates) > 1]
        people = names_of(story)
        if not self.names:
            return [question for question in found if question.answer not in people]
        if self.kind == "where":
            places = places_of(story) or ("",)
            return [question for question in found if question.answer == places[int(self.which * len(places))]]
        who = people[int(self.which * len(people))]
        if (who == max(people, key=story.text.rfind)) != self.last:
            return []
        return [question for question in found if question.answer == who]

    def asked(self, question: Question) -> Question:
        """The question itself or, if it shall be answered by yes or no, one of those made of it."""
        if not self.yes_no:
            return question
        others = [candidate for candidate in question.candidates if candidate != question.answer]
        candidate = question.answer if self.so else others[int(self.rng.random() * len(others))]
        texts = yes_no(question, candidate)
        return texts[int(self.rng.random() * len(texts))]
