"""The long stories in which words travel: a letter, a theft with witnesses, a rumor.

What somebody is told on the way ("say, 'Rain or shine we stay friends'"), and who was seen where by whom,
decides sentences a few hundred words later. Often one character reports what another one said.
"""

from .pen import Entity, OneOf, Pen
from .plots import three_friends

Cast = dict[str, Entity]
COUNTS = "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven"


def counted(pen: Pen, number: int) -> Entity:
    """A number that the story has counted itself, as a word. It is known, so it leaves nothing to choose."""
    count = pen.new("count")
    count.texts[""] = COUNTS[number - 2]
    return count


def tell_letter(pen: Pen) -> None:
    """Through whose hands did it go, who has read it, and which words came along with it?"""
    cast = {"sender": pen.new("friend"), "receiver": pen.new("friend"), "far": pen.new("place")}
    cast |= {"place": pen.new("place"), "day": pen.new("day"), "thing": pen.new("thing")}
    cast |= {"seal": pen.new("seal"), "saying": pen.new("saying"), "other": pen.new("saying")}
    pen.say("letter.opening", **cast)
    pen.say("letter.write", **cast)
    pen.fact("did", who=cast["sender"], deed="wrote a letter", who_did="Who wrote the letter?")
    pen.fact("wants", who=cast["sender"], thing=cast["thing"])
    pen.say("letter.seal", **cast)
    carriers = [pen.new("friend")]
    pen.say("letter.entrust", next=carriers[0], **cast)
    hand_over(pen, cast["sender"], carriers[0])
    peeker, wet = carry_letter(pen, carriers, cast)
    cast |= {"one": carriers[0], "last": carriers[-1], "peeker": peeker or carriers[0]}
    said = pen.say_either({"letter.deliver": 2, "letter.muddle": 1}, carrier=carriers[-1], **cast)
    hand_over(pen, carriers[-1], cast["receiver"])
    passed_on = dict(zip(("two", "three"), carriers[1:-1], strict=False))
    pen.say(f"letter.chain_{len(carriers)}", **passed_on, **cast)
    if peeker:
        pen.say("letter.broken_self" if peeker is carriers[-1] else "letter.broken_other", **cast)
    else:
        pen.say("letter.whole", **cast)
    if wet:
        unread = pen.say_either({"letter.no_place": 1, "letter.no_thing": 1}, **cast).removeprefix("letter.no_")
        pen.say(f"letter.{'tell' if peeker else 'ask'}_{unread}", **cast)
    else:
        pen.say("letter.read", **cast)
    pen.say("meanwhile.day")
    meet_at_last(pen, cast, right=said == "letter.deliver")
    pen.say("letter.thanks", count=counted(pen, len(carriers)), **cast)
    if peeker:
        pen.say("letter.sorry", **cast)
    pen.say("letter.end", **cast)


def carry_letter(pen: Pen, carriers: list[Entity], cast: Cast) -> tuple[Entity | None, bool]:
    """The way of the letter through two to four hands. Returns who has read it, if anyone, and whether it is wet."""
    peeker, wet = None, False
    for may_arrive in (0, 1, 1, 1):
        carrier = carriers[-1]
        stop = pen.new("place")
        pen.say("letter.way", carrier=carrier, stop=stop, **cast)
        weights = {"letter.honest": 2, "letter.peek": 0 if peeker or wet else 1, "letter.wet": 0 if wet else 1}
        event = pen.say_either(weights, carrier=carrier, **cast)
        if event == "letter.peek":
            peeker = carrier
            broke = "Who broke the seal?|Who opened the letter on the way?"
            pen.fact("did", who=carrier, deed="broke the seal", who_did=broke)
        wet = wet or event == "letter.wet"
        following = pen.new("friend")
        weights = {"letter.pass": len(carriers) < 4, "letter.arrive": may_arrive}
        if pen.say_either(weights, carrier=carrier, next=following, **cast) == "letter.arrive":
            break
        pen.fact("at", what=carrier, place=stop, asked="Where did {what} hand over the letter?")
        hand_over(pen, carrier, following)
        carriers.append(following)
    return peeker, wet


def hand_over(pen: Pen, giver: Entity, taker: Entity) -> None:
    """Note that the letter goes from one to the other."""
    pen.fact("has", who=giver, thing="letter")
    pen.fact("has", who=taker, thing="letter")
    pen.fact("did", who=taker, deed="got the letter from {giver}", giver=giver)


def meet_at_last(pen: Pen, cast: Cast, right: bool) -> None:
    """Sender and receiver meet and compare the words that were sent with those that came."""
    pen.say("letter.meet", **cast)
    for who, friend in ((cast["sender"], cast["receiver"]), (cast["receiver"], cast["sender"])):
        pen.fact("at", what=who, place=cast["place"], friend=friend, asked="Where did {what} meet {friend}?")
    asked = "Who came with the {thing}?|Who brought the {thing}?"
    pen.fact("has", who=cast["receiver"], thing=cast["thing"], asked=asked)
    pen.say("letter.recall", heard=cast["saying" if right else "other"], **cast)
    pen.say("letter.words_right" if right else "letter.words_wrong", **cast)


def tell_theft(pen: Pen) -> None:
    """Who was not where they said?"""
    owner, detective, walker = three_friends(pen)
    toy, stand = pen.new("thing"), pen.new("place")
    cast = {"owner": owner, "detective": detective, "walker": walker, "stand": stand, "toy": toy}
    pen.say("theft.opening", **cast)
    pen.fact("at", what=toy, place=stand, owner=owner, asked="Where did {owner} keep the {what}?")
    pen.fact("has", who=owner, thing=toy)
    suspects = three_friends(pen)
    claims = {who: {"who": who, "spot": pen.new("place"), "errand": pen.new("errand")} for who in suspects}
    for who, claim in claims.items():
        pen.say("theft.plan", **claim)
        asked = "Where did {what} want to go that morning?|Where did {what} claim to have been?"
        pen.fact("at", what=who, place=claim["spot"], asked=asked)
    pen.say("meanwhile.day")
    pen.say("theft.gone", **cast)
    pen.fact("did", who=owner, deed="missed the {toy}", toy=toy, who_did="Who missed the {toy}?")
    searched = pen.say_either({"theft.search": 1, "meanwhile.day": 1}, wrong=pen.new("spot"), **cast) == "theft.search"
    pen.say("theft.detective", **cast)
    pen.fact("did", who=detective, who_did="Who asked the neighbors where they had been?")
    question_suspects(pen, claims, cast)
    thief = find_thief(pen, claims, cast)
    cast |= {"thief": thief, **claims[thief]}
    cast |= dict(zip(("one", "two"), (who for who in suspects if who is not thief), strict=True))
    pen.say("theft.accuse", **cast)
    get_it_back(pen, cast)
    pen.say_either({"theft.later": 1, "meanwhile.day": int(searched)}, rest=pen.new("spot"), **cast)
    pen.say("theft.honest", **cast)
    pen.say("theft.end", **cast)


def question_suspects(pen: Pen, claims: dict[Entity, Cast], cast: Cast) -> None:
    """All three are asked, in any order, and say that they were where they said they would be."""
    unasked = list(claims)
    for call in ("theft.call", "theft.call_next", "theft.call_last"):
        who = OneOf(*unasked)
        pen.say(call, who=who, **cast)
        pen.fact("did", who=cast["detective"], deed="talked to {suspect}", suspect=who)
        unasked.remove(who.chosen)
        pen.say("theft.answer", **claims[who.chosen])


def find_thief(pen: Pen, claims: dict[Entity, Cast], cast: Cast) -> Entity:
    """The walker has seen two of the three where they said they were. Each may be the third, with equal odds."""
    pen.say("theft.walker", **cast)
    thief = None
    for others, (who, claim) in zip((2, 1, 0), claims.items(), strict=True):
        weights = {"theft.saw": 1 if thief else others, "theft.empty": 0 if thief else 1}
        if pen.say_either(weights, walker=cast["walker"], **claim) == "theft.empty":
            thief = who
    assert thief is not None
    return thief


def get_it_back(pen: Pen, cast: Cast) -> None:
    """What the accused has to say, where the thing is, and what comes of it."""
    cast = cast | {"hiding": pen.new("spot"), "bird": pen.new("bird")}
    toy = cast["toy"]
    truth = pen.say_either({"theft.stole": 2, "theft.mended": 1, "theft.bird": 1}, **cast)
    taker = cast["bird" if truth == "theft.bird" else "thief"]
    pen.fact("has", who=taker, thing=toy, asked="Who took the {thing}?|Who took the {thing} away?")
    pen.say("theft.fetch", **cast)
    asked = "Where was the {what} found?|Where did they find the {what}?"
    pen.fact("at", what=toy, place=cast["hiding"], asked=asked)
    pen.say("theft.back", **cast)
    pen.fact("has", who=cast["owner"], thing=toy)
    pen.fact("did", who=cast["owner"], deed="got the {toy} back", toy=toy)
    pen.say(f"{truth}_end", **cast)


def tell_rumor(pen: Pen) -> None:
    """Who said what to whom, and who was the first to say something else?"""
    tellers = [pen.new("friend"), pen.new("friend")]
    first = tellers[0]
    seen = {"number": pen.new("number"), "place": pen.new("place"), "flock": pen.new("flock")}
    pen.say("rumor.opening", first=first, **seen)
    pen.fact("at", what=seen["flock"], place=seen["place"], first=first, asked="Where did {first} see the {what}?")
    pen.say("rumor.begin", first=first, listener=tellers[1], **seen)
    note_telling(pen, first, tellers[1], seen["flock"])
    pen.say("aside.day")
    heard, changed_by = spread_rumor(pen, tellers, seen)
    last = tellers[-1]
    pen.say("meanwhile.day")
    pen.say("rumor.go", last=last, **heard)
    asked = "Where did {what} look for the {flock}?"
    pen.fact("at", what=last, place=heard["place"], flock=seen["flock"], asked=asked)
    if "place" in changed_by:
        pen.say("rumor.nothing", last=last, **heard)
        trace_back(pen, "place", changed_by["place"], tellers, seen, heard)
        pen.say("rumor.find", first=first, **seen)
        if "number" in changed_by:
            pen.say("rumor.also", last=last, who=changed_by["number"], more=heard["number"], **seen)
    elif "number" in changed_by:
        pen.say("rumor.only", last=last, more=heard["number"], **seen)
        trace_back(pen, "number", changed_by["number"], tellers, seen, heard)
    else:
        pen.say("rumor.all", last=last, **seen)
    pen.say("rumor.truth", first=first, last=last, **seen)
    for who in changed_by.values():
        pen.say("rumor.lesson", who=who, last=last)
    if not changed_by:
        pen.say("rumor.praise", first=first, last=last)
    pen.say("rumor.end", last=last, **seen)


def spread_rumor(pen: Pen, tellers: list[Entity], seen: Cast) -> tuple[Cast, Cast]:
    """Five hear it, one from the other. Returns what the last of them heard, and who changed what."""
    heard, changed_by = dict(seen), {}
    for _ in range(4):
        teller, listener = tellers[-1], pen.new("friend")
        cast = {"source": tellers[-2], "teller": teller, "listener": listener}
        cast |= {"more": pen.new("number"), "elsewhere": pen.new("place")}
        weights = {"rumor.right": 2, "rumor.new_number": "number" not in changed_by}
        weights["rumor.new_place"] = "place" not in changed_by
        event = pen.say_either(weights, **cast, **heard)
        tellers.append(listener)
        if event != "rumor.right":
            part = event.removeprefix("rumor.new_")
            heard[part] = cast["more" if part == "number" else "elsewhere"]
            changed_by[part] = teller
            changed = f"Who changed the {part}?|Who got the {part} wrong?"
            pen.fact("did", who=teller, deed=f"got the {part} wrong", who_did=changed)
        note_telling(pen, teller, listener, seen["flock"])
    return heard, changed_by


def note_telling(pen: Pen, teller: Entity, listener: Entity, flock: Entity) -> None:
    """Note that one has told the other."""
    told = "Who told {listener} about the {flock}?"
    pen.fact("did", who=teller, deed="spoke to {listener}", listener=listener, flock=flock, who_did=told)


def trace_back(pen: Pen, part: str, culprit: Entity, tellers: list[Entity], seen: Cast, heard: Cast) -> None:
    """The last one asks the one before, who names the one before that, until somebody owns up."""
    teller = tellers[-2]
    question = "rumor.question" if part == "place" else "rumor.doubt"
    pen.say(question, last=tellers[-1], teller=teller, place=heard["place"], more=heard["number"])
    while teller is not culprit:
        source = tellers[tellers.index(teller) - 1]
        pen.say("rumor.pass_on", teller=teller, source=source)
        teller = source
    source = tellers[tellers.index(teller) - 1]
    pen.say(f"rumor.own_{part}", teller=teller, source=source, elsewhere=heard["place"], more=heard["number"], **seen)
