"""The longer stories of level 2: more characters, more state, and speech within speech.

Programs like those in plots.py. In a letter, a theft with witnesses and a rumor, words travel: what somebody is told
on the way ("say, 'Rain or shine we stay friends'"), and who was seen where by whom, decides sentences a few hundred
words later. Often one character reports what another one said.
"""

from itertools import pairwise

from .pen import Entity, OneOf, Pen
from .plots import PLOT_WEIGHTS, PLOTS, three_friends

Cast = dict[str, Entity]
COUNTS = "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven"


def counted(pen: Pen, number: int) -> Entity:
    """A number that the story has counted itself, as a word. It is known, so it leaves nothing to choose."""
    count = pen.new("count")
    count.texts[""] = COUNTS[number - 2]
    return count


def tell_letter(pen: Pen) -> None:
    """Through whose hands did it go, who has read it, and which words came along with it?"""
    cast = pen.cast(sender="friend", receiver="friend", far="place", place="place", day="day", thing="thing")
    cast |= pen.cast(seal="seal", saying="saying", other="saying")
    pen.say("letter.opening", "letter.write", "letter.seal", **cast)
    carriers = [pen.new("friend")]
    pen.say("letter.entrust", next=carriers[0], **cast)
    peeker, wet = None, False
    for may_arrive in (0, 1, 1, 1):  # through two to four hands
        here = {"carrier": carriers[-1], "stop": pen.new("place"), **cast}
        pen.say("letter.way", **here)
        weights = {"letter.honest": 2, "letter.peek": 0 if peeker or wet else 1, "letter.wet": 0 if wet else 1}
        event = pen.say_either(weights, **here)
        if event == "letter.peek":
            peeker = carriers[-1]
        wet = wet or event == "letter.wet"
        following = pen.new("friend")
        weights = {"letter.pass": len(carriers) < 4, "letter.arrive": may_arrive}
        if pen.say_either(weights, next=following, **here) == "letter.arrive":
            break
        carriers.append(following)
    cast |= {"one": carriers[0], "last": carriers[-1], "peeker": peeker or carriers[0]}
    delivered = pen.say_either({"letter.deliver": 2, "letter.muddle": 1}, carrier=carriers[-1], **cast)
    passed_on = dict(zip(("two", "three"), carriers[1:-1], strict=False))
    opened_by = "self" if peeker is carriers[-1] else "other"
    seal = f"letter.broken_{opened_by}" if peeker else "letter.whole"
    pen.say(f"letter.chain_{len(carriers)}", seal, **passed_on, **cast)
    if wet:
        unread = pen.say_either({"letter.no_place": 1, "letter.no_thing": 1}, **cast).removeprefix("letter.no_")
        pen.say(f"letter.{'tell' if peeker else 'ask'}_{unread}", **cast)
    else:
        pen.say("letter.read", **cast)
    right = delivered == "letter.deliver"
    cast |= {"heard": cast["saying" if right else "other"], "count": counted(pen, len(carriers))}
    words = "letter.words_right" if right else "letter.words_wrong"
    pen.say("meanwhile.day", "letter.meet", "letter.recall", words, "letter.thanks", **cast)
    if peeker:
        pen.say("letter.sorry", **cast)
    pen.say("letter.end", **cast)


def tell_theft(pen: Pen) -> None:
    """Who was not where they said?"""
    cast = pen.cast(owner="friend", detective="friend", walker="friend", toy="thing", stand="place")
    pen.say("theft.opening", **cast)
    suspects = three_friends(pen)
    claims = {who: {"who": who, "spot": pen.new("place"), "errand": pen.new("errand")} for who in suspects}
    for claim in claims.values():
        pen.say("theft.plan", **claim)
    pen.say("meanwhile.day", "theft.gone", **cast)
    searched = pen.say_either({"theft.search": 1, "meanwhile.day": 1}, wrong=pen.new("spot"), **cast) == "theft.search"
    pen.say("theft.detective", **cast)
    unasked = list(suspects)  # all three are asked, in any order, and say that they were where they said they would be
    for call in ("theft.call", "theft.call_next", "theft.call_last"):
        who = OneOf(*unasked)
        pen.say(call, who=who, **cast)
        unasked.remove(who.chosen)
        pen.say("theft.answer", **claims[who.chosen])
    pen.say("theft.walker", **cast)  # who has seen two of the three there; each may be the third, with equal odds
    thief: Entity | None = None
    for others, (suspect, claim) in zip((2, 1, 0), claims.items(), strict=True):
        weights = {"theft.saw": 1, "theft.empty": 0} if thief else {"theft.saw": others, "theft.empty": 1}
        if pen.say_either(weights, walker=cast["walker"], **claim) == "theft.empty":
            thief = suspect
    assert thief is not None
    cast |= {"thief": thief, **claims[thief]}
    cast |= dict(zip(("one", "two"), (who for who in suspects if who is not thief), strict=True))
    pen.say("theft.accuse", **cast)
    cast |= pen.cast(hiding="spot", bird="bird")
    truth = pen.say_either({"theft.stole": 2, "theft.mended": 1, "theft.bird": 1}, **cast)
    pen.say("theft.fetch", "theft.back", f"{truth}_end", **cast)
    pen.say_either({"theft.later": 1, "meanwhile.day": int(searched)}, rest=pen.new("spot"), **cast)
    pen.say("theft.honest", "theft.end", **cast)


def tell_rumor(pen: Pen) -> None:
    """Who said what to whom, and who was the first to say something else?"""
    tellers = [pen.new("friend"), pen.new("friend")]
    first = tellers[0]
    seen = pen.cast(number="number", place="place", flock="flock")
    pen.say("rumor.opening", first=first, **seen)
    pen.say("rumor.begin", "aside.day", first=first, listener=tellers[1], **seen)
    heard, changed_by = dict(seen), {}
    for _ in range(4):  # five hear it, one from the other
        teller = tellers[-1]
        cast = pen.cast(listener="friend", more="number", elsewhere="place")
        cast |= {"source": tellers[-2], "teller": teller}
        weights = {"rumor.right": 2, "rumor.new_number": "number" not in changed_by}
        weights["rumor.new_place"] = "place" not in changed_by
        event = pen.say_either(weights, **cast, **heard)
        tellers.append(cast["listener"])
        if event != "rumor.right":
            part = event.removeprefix("rumor.new_")
            heard[part] = cast["more" if part == "number" else "elsewhere"]
            changed_by[part] = teller
    last = tellers[-1]
    pen.say("meanwhile.day", "rumor.go", last=last, **heard)
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


def trace_back(pen: Pen, part: str, culprit: Entity, tellers: list[Entity], seen: Cast, heard: Cast) -> None:
    """The last one asks the one before, who names the one before that, until somebody owns up."""
    question = "rumor.question" if part == "place" else "rumor.doubt"
    pen.say(question, last=tellers[-1], teller=tellers[-2], place=heard["place"], more=heard["number"])
    for teller, source in pairwise(tellers[-2::-1]):
        if teller is culprit:
            own = {"elsewhere": heard["place"], "more": heard["number"], **seen}
            pen.say(f"rumor.own_{part}", teller=teller, source=source, **own)
            break
        pen.say("rumor.pass_on", teller=teller, source=source)


def tell_ferry(pen: Pen) -> None:
    """Who is on which side of the lake, and who said what to whom long ago?"""
    a, b, c = three_friends(pen)
    ferry, loads = pen.new("friend"), {who: pen.new("thing") for who in (a, b, c)}
    cast = {"ferry": ferry, "a": a, "b": b, "c": c, "place": pen.new("place")}
    cast |= {"load_a": loads[a], "load_b": loads[b], "load_c": loads[c]}
    insult_of = {a: pen.new("insult"), c: pen.new("insult")}
    pen.say("ferry.opening", "ferry.guests", "ferry.load", **cast)
    for who, insult in insult_of.items():
        pen.say("ferry.quarrel", who=who, insult=insult, **cast)
    pen.say("ferry.think", **cast)
    crossings = 7  # to bring all three over without leaving b alone with another
    if pen.say_either({"ferry.wrong": 1, "meanwhile.day": 2}, guest=OneOf(a, c), **cast) == "ferry.wrong":
        pen.say("ferry.again", **cast)
        crossings += 2
    pen.say("ferry.over", "ferry.one_over", "ferry.alone", guest=b, over=b, one=a, two=c, **cast)
    guest = OneOf(a, c)
    pen.say("ferry.over", guest=guest, **cast)
    second, third = (a, c) if guest.chosen is a else (c, a)
    pen.say("ferry.back", "ferry.one_over", other=second, over=second, one=b, two=third, **cast)
    pen.say("ferry.over", "ferry.two_over", "ferry.alone", guest=third, one=second, two=third, left=b, **cast)
    pen.say("ferry.over", guest=b, **cast)
    owner_of = {load: who for who, load in loads.items()}
    lost = OneOf(*owner_of)
    if pen.say_either({"ferry.missing": 1, "meanwhile.day": 1}, lost=lost, **cast) == "ferry.missing":
        pen.say("ferry.fetch", lost=lost, owner=owner_of[lost.chosen], **cast)
        crossings += 2
    for who, insult in insult_of.items():
        pen.say_either({"ferry.sorry": 2, "ferry.cross": 1}, who=who, insult=insult, **cast)
    fare = OneOf(*owner_of)
    pen.say("ferry.count", count=counted(pen, crossings), fare=fare, **cast)
    pen.say("ferry.pay", "ferry.end", owner=owner_of[fare.chosen], fare=fare, **cast)


def tell_feast(pen: Pen) -> None:
    """Who brought what, who sits where, and who takes whose gift home?"""
    host, guests = pen.new("friend"), [pen.new("friend") for _ in range(4)]
    seats, foods, gifts = ({pen.new(role): guest for guest in guests} for role in ("seat", "dainty", "thing"))
    pen.say("feast.opening", host=host)
    for guest, seat, food, gift in zip(guests, seats, foods, gifts, strict=True):
        pen.say("feast.arrive", "feast.sit", guest=guest, seat=seat, host=host, food=food, gift=gift)
    eaten = OneOf(*foods)
    pen.say("feast.eat", food=eaten)
    pen.say("feast.praise", owner=foods.pop(eaten.chosen), host=host)
    taken = draw_gifts(pen, host, gifts)
    pen.say("feast.tale", host=host)
    for _ in range(2):
        seat = OneOf(*seats)
        pen.say("feast.remember", seat=seat)
        guest = seats.pop(seat.chosen)
        pen.say("feast.owner", "feast.giver", guest=guest, gift=taken[guest], giver=gifts[taken[guest]])
    left = OneOf(*foods)
    pen.say("feast.left", food=left, host=host)
    pen.say("feast.end", food=left, owner=foods[left.chosen], host=host)


def draw_gifts(pen: Pen, host: Entity, gifts: dict[Entity, Entity]) -> dict[Entity, Entity]:
    """Everyone draws the gift of another (gifts: gift -> giver). One has hoped for a certain gift and may swap."""
    wisher = OneOf(*gifts.values())
    pen.say("feast.hope", wisher=wisher)
    wanted = OneOf(*(gift for gift, giver in gifts.items() if giver is not wisher.chosen))
    cast = {"host": host, "wisher": wisher, "wanted": wanted}
    pen.say("feast.whisper", "feast.rule", **cast)
    taken: dict[Entity, Entity] = {}  # guest -> gift
    *_, last_gift = gifts
    for guest in gifts.values():
        left = [gift for gift in gifts if gift not in taken.values()]
        possible = [gift for gift in left if gifts[gift] is not guest]
        if len(left) == 2 and last_gift in left:  # the last guest must not be left with it, for it is his own
            possible = [last_gift]
        drawn = OneOf(*possible)
        pen.say("feast.draw", guest=guest, gift=drawn)
        taken[guest] = drawn.chosen
    (holder,) = (guest for guest, gift in taken.items() if gift is wanted.chosen)
    if holder is wisher.chosen:
        pen.say("feast.lucky", **cast)
        return taken
    cast |= {"holder": holder, "other": taken[wisher.chosen]}
    pen.say("feast.plead", **cast)
    may_swap = 0 if gifts[taken[wisher.chosen]] is holder else 2  # nobody takes his own gift home
    if pen.say_either({"feast.swap": may_swap, "feast.keep": 1}, **cast) == "feast.swap":
        taken[holder], taken[wisher.chosen] = taken[wisher.chosen], taken[holder]
    return taken


def tell_bargain(pen: Pen) -> None:
    """Who has what, and wants what for it? What is asked for first is got last."""
    cast = pen.cast(hero="friend", have="thing", wish="thing")
    pen.say("bargain.opening", "aside.day", **cast)
    trader, item, price = pen.new("friend"), cast["wish"], pen.new("thing")
    pen.say("bargain.first", trader=trader, item=item, price=price, **cast)
    stalls = [(trader, item)]
    agreed = ""
    while agreed != "bargain.bottom":
        following = pen.new("friend")
        pen.say("bargain.hint", trader=trader, item=price, next=following)
        trader, item, price = following, price, pen.new("thing")
        pen.say("bargain.meet", trader=trader, item=item, **cast)
        stalls.append((trader, item))
        weights = {"bargain.deeper": 5 - len(stalls), "bargain.bottom": 0 if len(stalls) == 2 else 1}
        agreed = pen.say_either(weights, trader=trader, item=item, price=price, **cast)
    pen.say("meanwhile.day")
    trader, got = stalls[-1]  # and now the swaps, from the last stall to the first
    holder_of = {cast["have"]: trader}  # of all but the wish
    pen.fact("has", who=cast["hero"], thing=got)
    pen.fact("has", who=trader, thing=cast["have"])
    pen.fact("did", who=cast["hero"], deed="got the {got} from {other}", got=got, other=trader)
    none_gone = True
    for trader, item in reversed(stalls[:-1]):
        swap = {"trader": trader, "item": item, "got": got, **pen.cast(buyer="friend", extra="thing")}
        if pen.say_either({"bargain.unwind": 3, "bargain.gone": none_gone}, **swap, **cast) == "bargain.gone":
            pen.say("bargain.buy", **swap, **cast)
            holder_of[swap["extra"]] = trader
            trader, none_gone = swap["buyer"], False
        holder_of[got] = trader
        got = item
    pen.say("bargain.joy", count=counted(pen, len(stalls)), **cast)
    for _ in range(3):
        asked = OneOf(*holder_of)
        pen.say("bargain.ask", asked=asked)
        pen.say("bargain.answer", holder=holder_of.pop(asked.chosen))
    pen.say("bargain.end", **cast)


LONG_TELLERS = tell_letter, tell_theft, tell_ferry, tell_feast, tell_bargain, tell_rumor
LONG_PLOTS = PLOTS | {teller.__name__.removeprefix("tell_"): teller for teller in LONG_TELLERS}

# Three stories in four are long ones; the long plots are equally likely. One in forty holds a song.
LONG_PLOT_WEIGHTS = {plot: PLOT_WEIGHTS.get(plot, 40) for plot in LONG_PLOTS}
