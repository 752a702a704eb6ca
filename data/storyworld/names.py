"""Invented words: names for the characters, nonsense for the songs.

A name that no reader has met before can only be written down again by looking back to where it first
appeared. That is what makes it worth inventing them: copying is the first thing attention learns.
"""

from functools import cache

CONSONANTS = "bdfghjklmnprstvwz"
VOWELS = "aeiou"
CODAS = "nlrm"  # what may close a syllable of a name

# Pieces that would make a name rude, cruel or unlucky, and whole names that are words already.
UNKIND_PIECES = (
    "bum cum coc dem dik dil dam fag fuc fuk gor gun hit homo jap jew kak kil kok kum kunt lesb mur mus naz neg nig pedo "
    "pip piss pis poo pup pus put rap ret sek sex suk sul tar tit tur van vul was wan wil wop zib"
).split()
REAL_WORDS = (
    "baker balsa banjo baron basin begin belle below biker boner bonus borer bosom buyer cater diner direr divan dozen dumbo "
    "fatal felon fever final finer fiver fodder gofer halo hello hero hotel human humor jumbo kimono label later laser "
    "lemon lever limbo limo linen liver logo loner lower lunar mafia major manor melon metal mango minor modem moral "
    "moron motel motor mural nasal naval never novel panda panel paper peril petal pilot polar polo pose purse "
    "river robin rumor sable salon satan semen serum seven solar solo solve sonar sumo super tempo tenor tiger "
    "token totem tumor tuner valve venom vomer water woman women zebra jihad pagan bimbo vodka lenin homer demon "
    "bozo judo kilo silo tofu wife life rule mule nose rose rope hole home lake cake bike kite game name same late gate "
    "wave save dive five nine mine line time lime hide side ride wide wise rise note vote bone tone zone mole pole role "
    "horse nurse verse sense tense dense force forge large barge merge verge serve nerve delve pulse false else "
    "lamb body holy very many any ruby lady baby pony puma tuna soda sofa yoga diva lava data beta meta"
).split()

SONG_ONSETS = "b d f g h k l m n p r t w z".split()
SONG_RHYMES = "a ee oo um im ong ink ally ibby oo-la".split()


@cache
def names() -> tuple[str, ...]:
    """All names, each as likely as any other: two syllables, four or five letters, such as Tiko, Belna, Jurim."""
    syllables = [c + v for c in CONSONANTS for v in VOWELS]
    pool = [a + coda + b for a in syllables for coda in ("", *CODAS) for b in syllables]
    pool += [a + b + coda for a in syllables for b in syllables for coda in CODAS]
    real_words = set(REAL_WORDS)
    kind = (name for name in pool if name not in real_words and not any(piece in name for piece in UNKIND_PIECES))
    return tuple(name.capitalize() for name in kind)


@cache
def name_set() -> frozenset[str]:
    """The same names, for looking up."""
    return frozenset(names())
