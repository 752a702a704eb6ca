"""Questions about a story, with the answers that its facts decide.

Every question has exactly one right answer, at the end of the story or at the time that it names, and at least one
wrong one that the story also holds. `questions_about` lists all that can be asked about one story. `draw_question`
picks a story and a question: over many draws the classes are equally frequent, and no cheap guess pays.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import combinations, count, groupby, pairwise
from random import Random
from typing import NamedTuple

from .lexicon import feeling_words, feelings, place_sorts, wordings
from .names import pick
from .pen import Fact
from .story import LEVELS, Split, Story, tell

KINDS = ("who_has", "where", "who_wanted", "who_said", "first", "feeling", "yes_no", "who_did")
OPEN_KINDS = ("who_has", "where", "who_wanted", "who_said", "first", "who_did")  # each can be asked as yes or no
BOOK = 1_000_003  # the stories that questions are about are none of those that tell(seed, index) gives for small seeds
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


def questions_about(story: Story, kind: str | None = None) -> list[Question]:
    """All questions about a story (or all of one of the KINDS), in all their wordings.

    Only those that could be answered wrongly, and whose answer they do not give away.
    """
    questions = dict.fromkeys(question for asker in ([kind] if kind else KINDS) for question in ASKERS[asker](story))
    return [q for q in questions if len(q.candidates) > 1 and q.answer in q.candidates]


def about(story: Story, kind: str, text: str, answer: str) -> Question:
    """A question of who or where. Its answer makes a sentence with it.

    Candidates are the people, or the story's places of the same sort: hiding places, seats, or all others.
    """
    possible: Sequence[str] = list(story.people.values())
    if kind == "where":
        (sort,) = [places for places in place_sorts().values() if answer in places]
        possible = [place for place in places_of(story) if place in sort]
    candidates = tuple(name for name in possible if name not in text or not re.search(rf"\b{name}\b", text))
    sentence = answer.capitalize() if kind == "where" else f"{answer} {text[4:-1]}"  # without "Who " and "?"
    return Question(kind, text, answer, f"{sentence}.", candidates)


def own_questions(story: Story, kind: str, fact_kind: str, key: str = "asked") -> Iterator[Question]:
    """The questions that the facts of a kind word themselves."""
    for fact in story.facts:
        if fact.kind == fact_kind and key in fact.values:
            for text in fact.values[key].split("|"):
                yield about(story, kind, text, place_of(story, fact) if kind == "where" else fact.values["who"])


def place_of(story: Story, fact: Fact) -> str:
    return next(texts["at"] for texts in story.entities if texts.get("") == fact.values["place"])


def places_of(story: Story) -> tuple[str, ...]:
    """All places of a story, as they answer "where", in the order in which it mentions them."""
    numbers = dict.fromkeys(mention.entity for mention in story.mentions)
    return tuple(story.entities[number]["at"] for number in numbers if "at" in story.entities[number])


def worded(key: str, **values: str) -> list[str]:
    """The wordings of questions.yaml under this key."""
    return [wording.format(**values) for wording in wordings("questions")["wordings"][key]]


def asked(story: Story, kind: str, key: str, answer: str, **values: str) -> Iterator[Question]:
    """A question of who or where in all the wordings of this key."""
    return (about(story, kind, text, answer) for text in worded(key, **values))


def ask_who_has(story: Story) -> Iterator[Question]:
    """Who held a thing at the end, at first, right before or right after somebody?"""
    held: dict[str, list[str]] = {}  # thing -> who held it, one after another; "" while it lay somewhere
    for fact in story.facts:
        if fact.kind == "has" and "asked" not in fact.values:  # these are asked for otherwise
            held.setdefault(fact.values["thing"], []).append(fact.values["who"])
        elif fact.kind in ("at", "lost") and fact.values["what"] in held:
            held[fact.values["what"]].append("")
    for thing, with_repeats in held.items():
        holders = [who for who, _ in groupby(with_repeats)]
        asks = {("has_end", ""): holders[-1]} if holders[-1] else {}
        if len(holders) > 1:
            asks["has_first", ""] = holders[0]
        for earlier, later in pairwise(holders):
            if earlier and later and holders.count(earlier) == 1:
                asks["has_after", earlier] = later
            if earlier and later and holders.count(later) == 1:
                asks["has_before", later] = earlier
        for (key, other), who in asks.items():
            yield from asked(story, "who_has", key, who, thing=thing, other=other)
    yield from own_questions(story, "who_has", "has")


def ask_where(story: Story) -> Iterator[Question]:
    """Where did it happen? Where is something in the end?"""
    yield from own_questions(story, "where", "at")
    last: dict[str, Fact] = {}
    for fact in story.facts:
        if fact.kind in ("at", "has", "lost"):
            last[fact.values["thing" if fact.kind == "has" else "what"]] = fact
    for what, fact in last.items():
        if fact.kind == "at" and "asked" not in fact.values:
            known = what in story.people.values() or what.startswith("the ")
            yield from asked(story, "where", "at_end", place_of(story, fact), what=what if known else f"the {what}")


def ask_who_wanted(story: Story) -> Iterator[Question]:
    """Who wished for a thing, if only one did? Who asked for it, if another needs it to get something else?"""
    wanting: dict[str, set[str]] = {}
    for fact in story.facts:
        if fact.kind == "wants":
            wanting.setdefault(fact.values["thing"], set()).add(fact.values["who"])
    needed = {fact.values["thing"] for fact in story.facts if fact.kind == "wants" and "asked" in fact.values}
    for thing, who in wanting.items():
        if len(who) == 1 and thing not in needed:
            yield from asked(story, "who_wanted", "wants", min(who), thing=thing)
    yield from own_questions(story, "who_wanted", "wants")


def ask_who_said(story: Story) -> Iterator[Question]:
    """Who said these words, if nobody else did and they are three or more?"""
    for fact in story.facts:
        words = re.sub("[.,!?]+('?)$", r"\1", fact.values.get("words", ""))  # a question brings its own last mark
        if fact.kind == "said" and len(words.split()) >= 3 and story.text.count(words.removesuffix("'")) == 1:
            who, spoken = fact.values["who"], re.sub(",('?)$", r".\1", fact.values["words"])
            for question in asked(story, "who_said", "said", who, words=words):
                yield question._replace(sentence=f'{who} said, "{spoken}"')


def ask_first(story: Story) -> Iterator[Question]:
    """What happened first, and who did something first (or second, or last)?"""
    yield from own_questions(story, "first", "did")
    deeds = [fact for fact in story.facts if "deed" in fact.values]
    for deed, other in combinations(deeds, 2):
        if deed.values["deed"] == other.values["deed"] and "asked" not in deed.values:
            yield about(story, "first", f"Who {deed.values['deed']} first?", deed.values["who"])
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
    if len(set(re.findall(rf"\b(?:{feeling_words()})\b", story.text))) < 2:  # most stories, and this is soon seen
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


def ask_yes_no(story: Story) -> Iterator[Question]:
    """Every question of who and where, with each of its candidates offered as the answer."""
    for kind in OPEN_KINDS:
        for question in questions_about(story, kind):
            for candidate in question.candidates:
                yield from yes_no(question, candidate)


def yes_no(question: Question, candidate: str) -> list[Question]:
    """Whether this candidate is the answer, in all wordings; none for "What happened first?".

    The answer first says who it was, and judges after both names stand side by side, where a head that sees a few
    tokens can compare them: "It was Tiko. Belna? No." Where "Belna?" came first, it was often said again in place of
    the right name, and "No, it was Tiko." would have to be judged before anything is said (FINDINGS.md#reader).
    """
    text, is_place = question.text.removesuffix("?"), question.kind == "where"
    if match := re.fullmatch(r"Who (.*)", text):
        forms = ["Was it {} who " + match[1] + "?", "Is it true that {} " + match[1] + "?"]
    elif match := re.fullmatch(rf"Where (was|did) (.*?){TIME}", text):
        forms = [f"{match[1].capitalize()} {match[2]} {{}}{match[3] or ''}?"]
    else:
        return []
    short, sentence = "yes" if candidate == question.answer else "no", judged(candidate, question.answer, is_place)
    return [Question("yes_no", form.format(candidate), short, sentence, ("yes", "no")) for form in forms]


def judged(candidate: str, actual: str, is_place: bool) -> str:
    """ "It was Tiko. Belna? No." or "By the river. In the barn? No." """
    statement = actual.capitalize() if is_place else f"It was {actual}"
    return f"{statement}. {candidate.capitalize()}? {'Yes' if candidate == actual else 'No'}."


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


# Which question about which story


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

    No cheap guess pays (tests/storyworld/test_questions.py): over 400 questions of every kind, the best is right
    57 times in 100 (the first feeling of two, at level 2), and one of a name 51 (the name before what is wanted).
    """
    if held_out_names is None:
        held_out_names = split == "validation"
    rng = Random(f"question {split} {level} {seed} {index}")
    turn, which_kind = (index, 0) if kind else divmod(index, len(KINDS))
    kind = kind or KINDS[which_kind]
    if to_judge := kind == "yes_no":
        kind = pick(rng, OPEN_KINDS)

    which = rng.random()  # which of the people (or places) is the answer, in the order in which the story mentions them
    last = rng.random() < 1 / 3  # whether it is the one whom the story names last
    near = rng.random() < 1 / 2  # whether the name before the thing (or, for clauses, the earlier name) is it
    if kind == "who_wanted" and not near:
        which *= 2 / 3  # the one named last of three always stands beside what he or she wants
    clauses = kind == "first" and not to_judge and rng.random() >= 1 / 2  # answers that are no names
    # Answers that come equally often, the larger the group the likelier, and the plots to try for them (none: all).
    groups: list[tuple[frozenset[str], list[str]]] = []
    for key, weights in wordings("questions")["draws"].get(kind, {}).items():
        group = place_sorts()[key] if kind == "where" else frozenset(key.split(", "))
        tried = [plot for plot, weight in weights.items() if plot in LEVELS[level][0] for _ in range(weight)]
        groups += [(group - {"anybody"}, tried) for _ in group if tried]
    answers, plots = pick(rng, groups) if groups else (frozenset(), [])

    for number in count(index * 10_000):
        story = tell(BOOK + seed, number, split, level, held_out_names, pick(rng, plots) if plots else None)
        people = list(story.people.values())
        who = people[int(which * len(people))]
        is_a_name = kind not in ("feeling", "where") and not clauses
        if is_a_name and (who == max(people, key=story.text.rfind)) != last:
            continue  # nearly half of the stories, and this is soon seen
        fitting = [q for q in questions_about(story, kind) if not answers or q.answer in answers]
        if kind == "where":
            fitting = [q for q in fitting if q.answer == q.candidates[int(which * len(q.candidates))]]
        elif clauses:
            fitting = [q for q in fitting if q.answer not in people and names_in_order(story, q) in (None, near)]
        elif is_a_name:
            fitting = [q for q in fitting if q.answer == who]
            if kind == "who_wanted":
                fitting = [q for q in fitting if (name_before_thing(story, q) == who) == near]
        if fitting:
            question = pick(rng, fitting)
            return story, (to_judge and as_yes_no(question, turn % 2 == 0, rng)) or question
    raise AssertionError("every kind is asked about some story")


def as_yes_no(question: Question, so: bool, rng: Random) -> Question | None:
    """The question with one of its candidates offered, the right one if `so`; None for "What happened first?"."""
    others = [candidate for candidate in question.candidates if candidate != question.answer]
    texts = yes_no(question, question.answer if so else pick(rng, others))
    return pick(rng, texts) if texts else None


def names_in_order(story: Story, question: Question) -> bool | None:
    """Whether what happened first was done by the one whom the story names first; None if one did both."""
    first, *others = sorted({clause.split()[0] for clause in question.candidates}, key=story.text.find)
    return question.answer.startswith(f"{first} ") if others else None


def name_before_thing(story: Story, question: Question) -> str:
    """The name right before the first mention of the thing that the question asks for; "" without one."""
    thing = re.search(r"the (\w+)", question.text)
    mention = thing and re.search(rf"\b{thing[1]}\b", story.text)
    before = story.text[: mention.start() if mention else 0]
    return max(("", *story.people.values()), key=lambda name: before.rfind(name) if name else -1)
