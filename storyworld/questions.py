"""Questions about a story, with the answers that its facts decide.

Every question has one right answer, and a wrong one that occurs in the story. `draw_question` draws
a story and a question: classes are balanced, and no cheap guess pays.
"""

import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import combinations, count, groupby, pairwise
from random import Random
from typing import NamedTuple

from .lexicon import feeling_words, feelings, place_sorts, wordings
from .names import pick
from .pen import Fact
from .story import LEVELS, Split, Story, tell

KINDS = ("who_has", "where", "who_wanted", "who_said", "first", "feeling", "yes_no", "who_did")
# Each of these can be asked as yes or no.
OPEN_KINDS = ("who_has", "where", "who_wanted", "who_said", "first", "who_did")
# An offset of the seed, so that questions are not about the stories of tell(seed, index).
BOOK = 1_000_003
# The words at the end of a question that name a time.
TIME = r"( (?:at the end of the story|in the end|first|last on the way out|after the [a-z ]+))?"


class Question(NamedTuple):
    """A question about a story.

    candidates: the answer and wrong ones of the same sort, none of them in the question.
    """

    # one of KINDS: "first" asks for the order of events, "who_did" for any deed
    kind: str
    # "Who had the kite at the end of the story?"
    text: str
    # "Tiko", "sad", "yes", "by the river" (also if the story has "to the river")
    answer: str
    # "Tiko had the kite at the end of the story."
    sentence: str
    candidates: tuple[str, ...]


def questions_about(story: Story, kind: str | None = None) -> list[Question]:
    """Return all questions about a story (of one kind) in all their wordings."""
    # a dict: no question comes twice, and their order is kept
    questions: dict[Question, None] = {}
    for name in [kind] if kind else KINDS:
        # kinds in their order: a seed draws by position, so the order must not change
        questions |= dict.fromkeys(ASKERS[name](story))
    # without those that have no wrong candidate, or give their answer away
    return [q for q in questions if len(q.candidates) > 1 and q.answer in q.candidates]


def _about(story: Story, kind: str, text: str, answer: str) -> Question:
    if kind == "where":
        # the places of the same sort: hiding places, seats, or all others
        # exactly one sort has it: a wrong candidate of another sort would be easy to rule out
        (sort,) = (places for places in place_sorts().values() if answer in places)
        possible = [place for place in places_of(story) if place in sort]
        sentence = f"{answer.capitalize()}."
    else:
        possible = list(story.people.values())
        sentence = f"{answer} {text.removeprefix('Who ').removesuffix('?')}."
    # `in` is a quick test before the slow one
    named = [name for name in possible if name in text and re.search(rf"\b{name}\b", text)]
    candidates = [name for name in possible if name not in named]
    return Question(kind, text, answer, sentence, tuple(candidates))


def _own_questions(
    story: Story, kind: str, fact_kind: str, key: str = "asked"
) -> Iterator[Question]:
    # some facts bring questions of their own
    for fact in story.facts:
        if fact.kind == fact_kind and key in fact.values:
            answer = _place_of(story, fact) if kind == "where" else fact.values["who"]
            for text in fact.values[key].split("|"):
                yield _about(story, kind, text, answer)


def _place_of(story: Story, fact: Fact) -> str:
    for texts in story.entities:
        if texts.get("") == fact.values["place"]:
            return texts["at"]
    raise AssertionError("the place of a fact is an entity")


def places_of(story: Story) -> tuple[str, ...]:
    """Return all places of a story, as they answer "where", by their first mentions."""
    numbers = dict.fromkeys(mention.entity for mention in story.mentions)
    entities = [story.entities[number] for number in numbers]
    return tuple(texts["at"] for texts in entities if "at" in texts)


def _worded(key: str, **values: str) -> list[str]:
    return [text.format(**values) for text in wordings("questions")["wordings"][key]]


def _asked(story: Story, kind: str, key: str, answer: str, **values: str) -> Iterator[Question]:
    for text in _worded(key, **values):
        yield _about(story, kind, text, answer)


def _ask_who_has(story: Story) -> Iterator[Question]:
    # Who held a thing at the end, at first, right before or right after somebody?
    # thing -> its holders in order; "" while nobody held it
    held: dict[str, list[str]] = {}
    for fact in story.facts:
        # facts with `asked` have questions of their own
        if fact.kind == "has" and "asked" not in fact.values:
            held.setdefault(fact.values["thing"], []).append(fact.values["who"])
        elif fact.kind in ("at", "lost") and fact.values["what"] in held:
            held[fact.values["what"]].append("")
    for thing, with_repeats in held.items():
        # neighbours that are equal become one: to keep a thing is no hand-over
        holders = [who for who, _ in groupby(with_repeats)]
        # (wording, other person) -> answer
        answers: dict[tuple[str, str], str] = {}
        if holders[-1]:
            answers["has_end", ""] = holders[-1]
        if len(holders) > 1:
            answers["has_first", ""] = holders[0]
        # "after Tiko" is clear if Tiko held it once
        for earlier, later in pairwise(holders):
            if earlier and later and holders.count(earlier) == 1:
                answers["has_after", earlier] = later
            if earlier and later and holders.count(later) == 1:
                answers["has_before", later] = earlier
        for (key, other), who in answers.items():
            yield from _asked(story, "who_has", key, who, thing=thing, other=other)
    yield from _own_questions(story, "who_has", "has")


def _ask_where(story: Story) -> Iterator[Question]:
    # Where was an event, and where is something in the end?
    yield from _own_questions(story, "where", "at")
    # thing or person -> the newest fact about its place
    last: dict[str, Fact] = {}
    for fact in story.facts:
        if fact.kind in ("at", "has", "lost"):
            last[fact.values["thing" if fact.kind == "has" else "what"]] = fact
    for name, fact in last.items():
        if fact.kind == "at" and "asked" not in fact.values:
            # a name needs no article
            if name not in story.people.values() and not name.startswith("the "):
                name = f"the {name}"
            yield from _asked(story, "where", "at_end", _place_of(story, fact), what=name)


def _ask_who_wanted(story: Story) -> Iterator[Question]:
    # Who wished for a thing? Unless two did, or others need it for a trade.
    wanting: dict[str, set[str]] = {}
    needed = set()
    for fact in story.facts:
        if fact.kind == "wants":
            wanting.setdefault(fact.values["thing"], set()).add(fact.values["who"])
            if "asked" in fact.values:
                needed.add(fact.values["thing"])
    for thing, who in wanting.items():
        if len(who) == 1 and thing not in needed:
            # the set has one member; min takes it
            yield from _asked(story, "who_wanted", "wants", min(who), thing=thing)
    yield from _own_questions(story, "who_wanted", "wants")


def _ask_who_said(story: Story) -> Iterator[Question]:
    # Who said these three or more words, which occur once?
    for fact in story.facts:
        if fact.kind != "said":
            continue
        who = fact.values["who"]
        # the question has its own final mark; ' ends a quote inside the quote
        quote = re.sub("[.,!?]+('?)$", r"\1", fact.values["words"])
        if len(quote.split()) >= 3 and story.text.count(quote.removesuffix("'")) == 1:
            # "I see," becomes a sentence
            spoken = re.sub(",('?)$", r".\1", fact.values["words"])
            for question in _asked(story, "who_said", "said", who, words=quote):
                yield question._replace(sentence=f'{who} said, "{spoken}"')


def _ask_first(story: Story) -> Iterator[Question]:
    # Which deed was first, and who was first (or second, or last)?
    yield from _own_questions(story, "first", "did")
    deeds = [fact for fact in story.facts if "deed" in fact.values]
    for fact, other in combinations(deeds, 2):
        deed = fact.values["deed"]
        if deed == other.values["deed"] and "asked" not in fact.values:
            yield _about(story, "first", f"Who {deed} first?", fact.values["who"])
    # "Tiko found the drum"
    clauses = [f"{fact.values['who']} {fact.values['deed']}" for fact in deeds]
    for i, j in combinations(range(len(deeds)), 2):
        earlier = clauses[i]
        later = clauses[j]
        if deeds[i].at >= deeds[j].at or not clauses.count(earlier) == clauses.count(later) == 1:
            continue
        for a, b in ((earlier, later), (later, earlier)):
            for text in _worded("order", a=a, b=b):
                yield Question("first", text, earlier, f"First {earlier}.", (a, b))


def _ask_feeling(story: Story) -> Iterator[Question]:
    # How did somebody feel: at all, if there is one answer; else at first, and in the end?
    # A quick test first: most stories have fewer than two feelings
    if len(set(re.findall(rf"\b(?:{feeling_words()})\b", story.text))) < 2:
        return
    felt: dict[str, list[str]] = {}
    for fact in story.facts:
        if fact.kind == "feels":
            felt.setdefault(fact.values["who"], []).append(fact.values["feeling"])
    everything: dict[str, None] = {}
    for moods in felt.values():
        everything |= dict.fromkeys(moods)
    # "a sleepy fox" would be an answer, too
    introduced = {texts[""] for texts in story.entities if texts.get("trait") in feelings()}
    for who, moods in felt.items():
        if who in introduced:
            continue
        answers = {"feels_first": moods[0], "feels_end": moods[-1]}
        if len(set(moods)) == 1:
            answers = {"feels": moods[0]}
        for key, mood in answers.items():
            for text in _worded(key, who=who):
                yield Question("feeling", text, mood, f"{who} was {mood}.", tuple(everything))


def _ask_yes_no(story: Story) -> Iterator[Question]:
    # offers each candidate of every question of who and where as the answer
    for kind in OPEN_KINDS:
        for question in questions_about(story, kind):
            for candidate in question.candidates:
                yield from yes_no(question, candidate)


def yes_no(question: Question, candidate: str) -> list[Question]:
    """Ask whether this candidate is the answer, in all wordings; [] for "What happened first?"."""
    # The answer judges with both names side by side, where a head that sees a few tokens can
    # compare them: "It was Tiko. Belna? No." With "Belna?" first, models often repeated it in place
    # of the right name (FINDINGS.md#reader).
    text = question.text.removesuffix("?")
    is_place = question.kind == "where"
    who = re.fullmatch(r"Who (.*)", text)
    where = re.fullmatch(rf"Where (was|did) (.*?){TIME}", text)
    if who:
        texts = [f"Was it {candidate} who {who[1]}?", f"Is it true that {candidate} {who[1]}?"]
    elif where:
        texts = [f"{where[1].capitalize()} {where[2]} {candidate}{where[3] or ''}?"]
    else:
        return []
    answer = "yes" if candidate == question.answer else "no"
    sentence = judged(candidate, question.answer, is_place)
    return [Question("yes_no", text, answer, sentence, ("yes", "no")) for text in texts]


def judged(candidate: str, actual: str, is_place: bool) -> str:
    """Return "It was Tiko. Belna? No." or "By the river. In the barn? No." """
    statement = actual.capitalize() if is_place else f"It was {actual}"
    return f"{statement}. {candidate.capitalize()}? {'Yes' if candidate == actual else 'No'}."


ASKERS: dict[str, Callable[[Story], Iterator[Question]]] = {
    "who_has": _ask_who_has,
    "where": _ask_where,
    "who_wanted": _ask_who_wanted,
    "who_said": _ask_who_said,
    "first": _ask_first,
    "feeling": _ask_feeling,
    "yes_no": _ask_yes_no,
    "who_did": partial(_own_questions, kind="who_did", fact_kind="did", key="who_did"),
}


def draw_question(
    seed: int,
    index: int,
    split: Split = "train",
    level: int = 1,
    kind: str | None = None,
    held_out_names: bool | None = None,
) -> tuple[Story, Question]:
    """Draw question number `index` with its story. Without `kind`, the kinds take turns.

    held_out_names: True by default for validation questions.
    """
    # The answer (the second of the people, a group of feelings, yes or no) is drawn first; then
    # stories are read until one has a question with such an answer. So answers are balanced. The
    # best guess is right 57 times in 100: the first feeling of two, at level 2.
    if held_out_names is None:
        held_out_names = split == "validation"
    rng = Random(f"question {split} {level} {seed} {index}")
    turn = index
    if kind is None:
        turn, number = divmod(index, len(KINDS))
        kind = KINDS[number]
    to_judge = kind == "yes_no"
    if to_judge:
        kind = pick(rng, OPEN_KINDS)

    # the answer is this one of the people (or places), in the order of the story;
    which = rng.random()
    # it is the name that is mentioned last (or not);
    last = rng.random() < 1 / 3
    # it is the name before the thing, or the earlier name of two clauses (or not)
    near = rng.random() < 1 / 2
    if kind == "who_wanted" and not near:
        # the last of three is always next to the thing that he or she wants
        which *= 2 / 3
    # answers that are no names
    clauses = kind == "first" and not to_judge and rng.random() >= 1 / 2
    # Answers that come equally often, and the plots to try for them ([]: all). The larger a group,
    # the likelier it is.
    groups: list[tuple[frozenset[str], list[str]]] = []
    for key, weights in wordings("questions")["draws"].get(kind, {}).items():
        group = place_sorts()[key] if kind == "where" else frozenset(key.split(", "))
        tried: list[str] = []
        for plot, weight in weights.items():
            if plot in LEVELS[level][0]:
                tried += [plot] * weight
        if tried:
            groups += [(group - {"anybody"}, tried)] * len(group)
    answers, plots = pick(rng, groups) if groups else (frozenset(), [])

    is_a_name = kind not in ("feeling", "where") and not clauses
    # questions do not share stories
    for number in count(index * 10_000):
        plot = pick(rng, plots) if plots else None
        story = tell(BOOK + seed, number, split, level, held_out_names, plot)
        people = list(story.people.values())
        who = people[int(which * len(people))]
        # a quick test first: it fails for nearly half of the stories
        if is_a_name and (who == max(people, key=story.text.rfind)) != last:
            continue
        fitting = []
        for question in questions_about(story, kind):
            candidates = question.candidates
            if answers and question.answer not in answers:
                continue
            if kind == "where" and question.answer != candidates[int(which * len(candidates))]:
                continue
            if is_a_name and question.answer != who:
                continue
            if kind == "who_wanted" and (name_before_thing(story, question) == who) != near:
                continue
            if clauses and question.answer in people:
                continue
            if clauses and _is_first_name(story, question) == (not near):
                continue
            fitting.append(question)
        if fitting:
            question = pick(rng, fitting)
            if to_judge:
                question = as_yes_no(question, turn % 2 == 0, rng) or question
            return story, question
    raise AssertionError("every kind is asked about some story")


def as_yes_no(question: Question, is_right: bool, rng: Random) -> Question | None:
    """Offer one of the candidates, a right or a wrong one; None for "What happened first?"."""
    wrong = [candidate for candidate in question.candidates if candidate != question.answer]
    texts = yes_no(question, question.answer if is_right else pick(rng, wrong))
    return pick(rng, texts) if texts else None


def _is_first_name(story: Story, question: Question) -> bool | None:
    # Did the first name of the story do the first deed? None if the same person did both.
    # A clause begins with a name: "Tiko found a kite".
    names = {clause.split()[0] for clause in question.candidates}
    if len(names) == 1:
        return None
    return question.answer.startswith(f"{min(names, key=story.text.find)} ")


def name_before_thing(story: Story, question: Question) -> str:
    """Return the name right before the first mention of the thing in question, or ""."""
    thing = re.search(r"the (\w+)", question.text)
    mention = thing and re.search(rf"\b{thing[1]}\b", story.text)
    before = story.text[: mention.start()] if mention else ""
    names = [name for name in story.people.values() if name in before]
    return max(names, key=before.rfind, default="")
