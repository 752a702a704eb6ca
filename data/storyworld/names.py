"""Invented words: names for the characters, nonsense for the songs.

A name that no reader has met before can only be written down again by looking back to where it first
appeared. That is what makes it worth inventing them: copying is the first thing attention learns.
"""

from functools import cache

CONSONANTS = "bdfghjklmnprstvwz"
VOWELS = "aeiou"
CODAS = "nlrm"  # what may close a syllable

# Pieces that would make a name rude, cruel or unlucky. Lower case, matched anywhere in the name.
UNKIND = (
    "fag fuk fuc kak kok kum cum coc dik dil nig neg tit titi pis pus pup poo pipi popo kaka kaki vul van hel jap jew "
    "rap rape mur naz nazi hit mus sek sex suk sul tar turd wan was wee wil rum gor gun kil kunt ebol ana bum bud "
    "dum dam dem hom homo lesb lep ret zib sir mam papa pap nun ber bar ".split()
)


@cache
def names() -> tuple[str, ...]:
    """All names, each as likely as any other: two syllables, four to six letters, such as Tiko, Belna or Jurim."""
    open_syllables = [c + v for c in CONSONANTS for v in VOWELS]
    pool = [a + end + b for a in open_syllables for end in ("", *CODAS) for b in open_syllables]
    pool += [a + b + end for a in open_syllables for b in open_syllables for end in CODAS]
    return tuple(name.capitalize() for name in pool if not any(piece in name for piece in UNKIND))


@cache
def name_set() -> frozenset[str]:
    """The same names for looking up."""
    return frozenset(names())
