"""Invented words: names for the characters, nonsense for the songs.

A name that no reader has met before can only be written down again by looking back to where it first
appeared. That is what makes it worth inventing them: copying is the first thing attention learns.
"""

import re
from functools import cache
from random import Random

CONSONANTS = "bdfghjklmnprstvwz"
VOWELS = "aeiou"
CODAS = "nlrm"  # what may close a syllable of a name

# Pieces that would make a name rude, cruel or unlucky, and whole names that are words already.
UNKIND_PIECES = """
    bum coc cum dam dem dik dil fag fuc fuk gor gun hit homo jap jew kak kil kok kum kunt kurv kurw lesb
    mur mus naz neg nig pedo pip pis piss poo pup pus put rap ret sek sex suk sul tar tit tur van vul wan
    was wil wop zib
"""
MORE_UNKIND_PIECES = "peni anus rape bone bike kake jizu toto bolero denali dakota regato"  # in longer names
HELD_OUT_STRIDE = 211  # of the three-syllable names every 211th is used: a prime, so that all syllables come
REAL_WORDS = """
    began given giver hider medal maker taker tower jackal fungi rumba tango
    any baby baker balsa banjo barge baron basin begin belle below beta bike biker bimbo body bone boner
    bonus borer bosom bozo buyer cake cater data delve demon dense diner direr diva divan dive dozen dumbo
    else false fatal felon fever final finer five fiver fodder force forge game gate gofer halo hello hero
    hide hole holy home homer horse hotel human humor jihad judo jumbo kilo kimono kite label lady lake
    lamb large laser late later lava lemon lenin lever life limbo lime limo line linen liver logo loner
    lower lunar mafia major mango manor many melon merge meta metal mine minor modem mole moral moron
    motel motor mule mural name nasal naval nerve never nine nose note novel nurse pagan panda panel paper
    peril petal pilot polar pole polo pony pose pulse puma purse ride rise river robin role rope rose ruby
    rule rumor sable salon same satan save semen sense serum serve seven side silo soda sofa solar solo
    solve sonar sumo super tempo tenor tense tiger time tofu token tone totem tumor tuna tuner valve venom
    towel verge verse very vodka vomer vote water wave wide wife wise woman women yoga zebra zone
"""


@cache
def names() -> tuple[str, ...]:
    """All names, each as likely as any other: two syllables, such as Tiko, Belna or Jurim."""
    syllables = [c + v for c in CONSONANTS for v in VOWELS]
    pool = [a + b for a in syllables for b in syllables if b[1] != "e"]  # "Gave" and "Fire" would be words
    pool += [a + coda + b for a in syllables for coda in CODAS for b in syllables]
    pool += [a + b + coda for a in syllables for b in syllables for coda in CODAS]
    real_words, unkind = set(REAL_WORDS.split()), UNKIND_PIECES.split()
    kind = (name for name in pool if name not in real_words and not any(piece in name for piece in unkind))
    return tuple(name.capitalize() for name in kind)


@cache
def name_set() -> frozenset[str]:
    """The same names, for looking up."""
    return frozenset(names())


@cache
def held_out_names() -> tuple[str, ...]:
    """Names that no training text holds, for they have a third open syllable: Belora, Timovu, Zunide.

    They are for questions and conversations that ask whether a model copies, or only knows its names by heart.
    """
    syllables = [c + v for c in CONSONANTS for v in VOWELS]
    pool = [a + b + c for a in syllables for b in syllables for c in syllables if c[1] != "e"]
    unkind = (UNKIND_PIECES + MORE_UNKIND_PIECES).split()
    real_words = set(REAL_WORDS.split())
    return tuple(
        name.capitalize()
        for name in pool[::HELD_OUT_STRIDE]
        if len({name[0], name[2], name[4]}) == 3  # no Bababa
        and name not in real_words
        and not any(piece in name for piece in unkind)
    )


@cache
def held_out_name_set() -> frozenset[str]:
    """The same names, for looking up."""
    return frozenset(held_out_names())


# Forms of names that neither the stories nor the held-out questions have: C = consonant, V = vowel, N = one of CODAS.
OTHER_FORMS = ("VCVCV", "VCVCVN", "CVNCVN", "CVCVCVN", "CVCVNCV", "CVNCVCV", "CVCVCVCV")  # shorter ones are words
LETTERS = {"C": CONSONANTS, "V": VOWELS, "N": CODAS}


def renamed(texts: list[str], rng: Random) -> list[str]:
    """The texts with a name of another form for every name: Tamil becomes Ubora, Selvakun or Bororuzi.

    The same name becomes the same one in all texts, and no two become one. A model that has met names of many
    forms must copy what is there; one that has met a single form may copy only what looks like it.
    """
    new: dict[str, str] = {}
    words, pieces = REAL_WORDS.split(), (UNKIND_PIECES + MORE_UNKIND_PIECES).split()

    def other(match: re.Match[str]) -> str:
        name = match[0]
        while name in name_set() and name not in new:
            form = OTHER_FORMS[int(rng.random() * len(OTHER_FORMS))]
            made = "".join(LETTERS[sort][int(rng.random() * len(LETTERS[sort]))] for sort in form)
            if made.capitalize() not in new.values() and made not in words and not any(bad in made for bad in pieces):
                new[name] = made.capitalize()
        return new.get(name, name)

    return [re.sub(r"\b[A-Z][a-z]+\b", other, text) for text in texts]
