"""A question about a story, its right answer, and a wrong one in the same wording: pairs whose labels are exact."""

from random import Random
from typing import Any

from .conversations import OTHER_BOOK, ask_for, asked_about, pick, turn
from .draw import draw_question
from .questions import KINDS, Question, judged, names_of, places_of
from .story import Split, Story


def prefer(
    seed: int, index: int, split: Split = "train", level: int = 1, held_out_names: bool | None = None
) -> dict[str, Any]:
    """Pair number `index`, in TRL's layout: {"prompt", "chosen", "rejected"}, each a list of messages.

    Two in three give the story and ask for a sentence or a few words. In the others the assistant has told it. The
    rejected answer is one of the question's wrong candidates. No conversation of `converse` with a small seed is about
    the same story. The same arguments give the same pair on every machine.
    """
    rng = Random(f"pair {split} {level} {seed} {index}")
    if held_out_names is None:
        held_out_names = split == "validation"
    story, question = draw_question(3 * OTHER_BOOK + seed, index, split, level, pick(rng, KINDS), held_out_names)
    prompt: list[dict[str, str]] = []
    text, shortly = question.text, False
    if rng.random() < 1 / 3:
        turn(prompt, ask_for(story, rng)[0], story.text)
    else:
        shortly = rng.random() < 1 / 2
        text = asked_about(story.text, text, shortly, rng)
    prompt.append({"role": "user", "content": text})
    right, wrong = question.reply(shortly), wrong_answer(story, question, shortly, rng)
    return {
        "prompt": prompt,
        "chosen": [{"role": "assistant", "content": right}],
        "rejected": [{"role": "assistant", "content": wrong}],
    }


def wrong_answer(story: Story, question: Question, shortly: bool, rng: Random) -> str:
    """A wrong candidate, in short or in the sentence of the right one."""
    wrong = pick(rng, [one for one in question.candidates if one != question.answer])
    if question.kind == "yes_no":
        return misjudged(story, question, rng)
    if shortly:
        return wrong
    for right, other in ((question.answer, wrong), (capital(question.answer), capital(wrong))):
        if question.kind == "feeling":  # it stands last
            head, found, tail = question.sentence.rpartition(right)
        else:
            head, found, tail = question.sentence.partition(right)
        if found:
            return f"{head}{other}{tail}"
    raise ValueError(f"{question.sentence!r} does not hold {question.answer!r}")


def misjudged(story: Story, question: Question, rng: Random) -> str:
    """ "It was Belna. Tiko? No." where yes is right; where no is right, that it was so."""
    about_place = question.text.split()[0] != "Is" and " who " not in question.text
    possible = places_of(story) if about_place else names_of(story)
    named = sorted((one for one in possible if one in question.text), key=question.text.find)
    if question.answer == "no":
        return judged(named[0], named[0], about_place, "yes")
    others = [one for one in possible if one not in named] or ["somebody else"]
    return judged(named[0], pick(rng, others), about_place, "no")


def capital(text: str) -> str:
    return text[0].upper() + text[1:]
