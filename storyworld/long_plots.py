"""The longer plots of level 2: more characters, more state, and speech within speech.

A message ("say, 'Rain or shine we stay friends'") or a witness decides sentences a few hundred
words later. Often one character reports the words of another.
"""

from itertools import pairwise

from .pen import Entity, OneOf, Pen
from .plots import PLOT_WEIGHTS, PLOTS, three_friends

Cast = dict[str, Entity]
COUNTS = "two three four five six seven eight nine ten eleven".split()


def counted(pen: Pen, number: int) -> Entity:
    """Return a number as a word."""
    # it follows from the story, so there is no choice
    count = pen.new("count")
    count.texts[""] = COUNTS[number - 2]
    return count


def tell_letter(pen: Pen) -> None:
    """A letter goes through two to four hands: who has read it, and which words arrive?"""
    cast = pen.cast(sender="friend", receiver="friend", far="place", place="place", day="day")
    cast |= pen.cast(thing="thing", seal="seal", saying="saying", other="saying")
    pen.say("letter.opening", "letter.write", "letter.seal", **cast)
    carriers = [pen.new("friend")]
    pen.say("letter.entrust", next=carriers[0], **cast)
    # each may happen to one carrier; two to four carriers
    peeker = None
    wet = False
    for may_arrive in (0, 1, 1, 1):
        # a new place for each stop, so that questions can ask where a carrier was
        here = {"carrier": carriers[-1], "stop": pen.new("place"), **cast}
        pen.say("letter.way", **here)
        # one peek at most, and none at a wet letter
        may_peek = not (peeker or wet)
        weights = {"letter.honest": 2, "letter.peek": may_peek, "letter.wet": not wet}
        event = pen.say_either(weights, **here)
        if event == "letter.peek":
            peeker = carriers[-1]
        wet = wet or event == "letter.wet"
        following = pen.new("friend")
        weights = {"letter.pass": len(carriers) < 4, "letter.arrive": may_arrive}
        if pen.say_either(weights, next=following, **here) == "letter.arrive":
            break
        carriers.append(following)
    # a beat about the peeker is only written if there is one
    cast |= {"one": carriers[0], "last": carriers[-1], "peeker": peeker or carriers[0]}
    weights = {"letter.deliver": 2, "letter.muddle": 1}
    delivered = pen.say_either(weights, carrier=carriers[-1], **cast)
    passed_on = dict(zip(("two", "three"), carriers[1:-1], strict=False))
    opened_by = "self" if peeker is carriers[-1] else "other"
    seal = f"letter.broken_{opened_by}" if peeker else "letter.whole"
    pen.say(f"letter.chain_{len(carriers)}", seal, **passed_on, **cast)
    if wet:
        # the ink of one of the two is gone; whoever has read the letter can tell it
        event = pen.say_either({"letter.no_place": 1, "letter.no_thing": 1}, **cast)
        unread = event.removeprefix("letter.no_")
        pen.say(f"letter.tell_{unread}" if peeker else f"letter.ask_{unread}", **cast)
    else:
        pen.say("letter.read", **cast)
    cast["count"] = counted(pen, len(carriers))
    if delivered == "letter.deliver":
        cast["heard"] = cast["saying"]
        outcome = "letter.words_right"
    else:
        cast["heard"] = cast["other"]
        outcome = "letter.words_wrong"
    pen.say("meanwhile.day", "letter.meet", "letter.recall", outcome, "letter.thanks", **cast)
    if peeker:
        pen.say("letter.sorry", **cast)
    pen.say("letter.end", **cast)


def tell_theft(pen: Pen) -> None:
    """A theft: which of three suspects was not where they claim?"""
    cast = pen.cast(owner="friend", detective="friend", walker="friend")
    cast |= pen.cast(toy="thing", stand="place")
    pen.say("theft.opening", **cast)
    suspects = three_friends(pen)
    # the plan of each suspect is told early and repeated under questioning: a long-distance copy
    claims = {who: {"who": who, **pen.cast(spot="place", errand="errand")} for who in suspects}
    for claim in claims.values():
        pen.say("theft.plan", **claim)
    pen.say("meanwhile.day", "theft.gone", **cast)
    searched = pen.say_either(
        {"theft.search": 1, "meanwhile.day": 1}, wrong=pen.new("spot"), **cast
    )
    pen.say("theft.detective", **cast)
    # all three are asked, in any order, and repeat their plans
    unasked = list(suspects)
    for call in ("theft.call", "theft.call_next", "theft.call_last"):
        who = OneOf(*unasked)
        pen.say(call, who=who, **cast)
        unasked.remove(who.chosen)
        pen.say("theft.answer", **claims[who.chosen])
    # the walker has seen two of the three; each is the third with equal probability
    pen.say("theft.walker", **cast)
    thief: Entity | None = None
    for suspects_left, (suspect, claim) in zip((2, 1, 0), claims.items(), strict=True):
        weights = {"theft.saw": suspects_left, "theft.empty": 1}
        if thief:
            weights = {"theft.saw": 1, "theft.empty": 0}
        if pen.say_either(weights, walker=cast["walker"], **claim) == "theft.empty":
            thief = suspect
    assert thief is not None
    cast |= {"thief": thief, **claims[thief]}
    cast["one"], cast["two"] = (who for who in suspects if who is not thief)
    pen.say("theft.accuse", **cast)
    cast |= pen.cast(hiding="spot", bird="bird")
    truth = pen.say_either({"theft.stole": 2, "theft.mended": 1, "theft.bird": 1}, **cast)
    pen.say("theft.fetch", "theft.back", f"{truth}_end", **cast)
    weights = {"theft.later": 1, "meanwhile.day": int(searched == "theft.search")}
    pen.say_either(weights, rest=pen.new("spot"), **cast)
    pen.say("theft.honest", "theft.end", **cast)


def tell_rumor(pen: Pen) -> None:
    """A rumor passes five people: who was the first to change it?"""
    # in the order of hearing: teller i told teller i + 1
    tellers = [pen.new("friend"), pen.new("friend")]
    first = tellers[0]
    seen = pen.cast(number="number", place="place", flock="flock")
    pen.say("rumor.opening", first=first, **seen)
    pen.say("rumor.begin", "aside.day", first=first, listener=tellers[1], **seen)
    # the rumor as it is told now; number and place may each change once
    heard = dict(seen)
    changed_by: Cast = {}
    for _ in range(4):
        teller = tellers[-1]
        cast = pen.cast(listener="friend", more="number", elsewhere="place")
        cast |= {"source": tellers[-2], "teller": teller}
        weights = {
            "rumor.right": 2,
            "rumor.new_number": "number" not in changed_by,
            "rumor.new_place": "place" not in changed_by,
        }
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
            who = changed_by["number"]
            pen.say("rumor.also", last=last, who=who, more=heard["number"], **seen)
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


def trace_back(
    pen: Pen, part: str, culprit: Entity, tellers: list[Entity], seen: Cast, heard: Cast
) -> None:
    """Follow the rumor back, from the last teller to the one who changed it."""
    question = "rumor.question" if part == "place" else "rumor.doubt"
    cast = {"last": tellers[-1], "place": heard["place"], "more": heard["number"]}
    pen.say(question, teller=tellers[-2], **cast)
    # from the last but one back to the first
    for teller, source in pairwise(tellers[-2::-1]):
        if teller is culprit:
            cast = {"elsewhere": heard["place"], "more": heard["number"], **seen}
            pen.say(f"rumor.own_{part}", teller=teller, source=source, **cast)
            break
        pen.say("rumor.pass_on", teller=teller, source=source)


def tell_ferry(pen: Pen) -> None:
    """A ferry takes three quarrelling guests across a lake: who is on which side?"""
    a, b, c = three_friends(pen)
    cast = {"a": a, "b": b, "c": c}
    cast |= pen.cast(ferry="friend", load_a="thing", load_b="thing", load_c="thing", place="place")
    owner_of = {cast["load_a"]: a, cast["load_b"]: b, cast["load_c"]: c}
    insult_of = {a: pen.new("insult"), c: pen.new("insult")}
    pen.say("ferry.opening", "ferry.guests", "ferry.load", **cast)
    for who, insult in insult_of.items():
        pen.say("ferry.quarrel", who=who, insult=insult, **cast)
    pen.say("ferry.think", **cast)
    # as with a wolf, a goat (b) and a cabbage, it takes seven crossings
    crossings = 7
    weights = {"ferry.wrong": 1, "meanwhile.day": 2}
    if pen.say_either(weights, guest=OneOf(a, c), **cast) == "ferry.wrong":
        pen.say("ferry.again", **cast)
        crossings += 2
    pen.say("ferry.over", "ferry.one_over", "ferry.alone", guest=b, over=b, one=a, two=c, **cast)
    guest = OneOf(a, c)
    pen.say("ferry.over", guest=guest, **cast)
    second, third = (a, c) if guest.chosen is a else (c, a)
    pen.say("ferry.back", "ferry.one_over", other=second, over=second, one=b, two=third, **cast)
    over = {"guest": third, "one": second, "two": third, "left": b}
    pen.say("ferry.over", "ferry.two_over", "ferry.alone", **over, **cast)
    pen.say("ferry.over", guest=b, **cast)
    lost = OneOf(*owner_of)
    weights = {"ferry.missing": 1, "meanwhile.day": 1}
    if pen.say_either(weights, lost=lost, **cast) == "ferry.missing":
        pen.say("ferry.fetch", lost=lost, owner=owner_of[lost.chosen], **cast)
        crossings += 2
    for who, insult in insult_of.items():
        pen.say_either({"ferry.sorry": 2, "ferry.cross": 1}, who=who, insult=insult, **cast)
    fare = OneOf(*owner_of)
    pen.say("ferry.count", count=counted(pen, crossings), fare=fare, **cast)
    pen.say("ferry.pay", "ferry.end", owner=owner_of[fare.chosen], fare=fare, **cast)


def tell_feast(pen: Pen) -> None:
    """A feast: who brought what, who sits where, and who takes whose gift home?"""
    host = pen.new("friend")
    guests = [pen.new("friend") for _ in range(4)]
    # thing -> guest
    seats = {pen.new("seat"): guest for guest in guests}
    foods = {pen.new("dainty"): guest for guest in guests}
    gifts = {pen.new("thing"): guest for guest in guests}
    pen.say("feast.opening", host=host)
    for guest, seat, food, gift in zip(guests, seats, foods, gifts, strict=True):
        cast = {"guest": guest, "seat": seat, "host": host, "food": food, "gift": gift}
        pen.say("feast.arrive", "feast.sit", **cast)
    eaten = OneOf(*foods)
    pen.say("feast.eat", food=eaten)
    pen.say("feast.praise", owner=foods.pop(eaten.chosen), host=host)
    taken = draw_gifts(pen, host, gifts)
    pen.say("feast.tale", host=host)
    for _ in range(2):
        seat = OneOf(*seats)
        pen.say("feast.remember", seat=seat)
        guest = seats.pop(seat.chosen)
        gift = taken[guest]
        pen.say("feast.owner", "feast.giver", guest=guest, gift=gift, giver=gifts[gift])
    left = OneOf(*foods)
    pen.say("feast.left", food=left, host=host)
    pen.say("feast.end", food=left, owner=foods[left.chosen], host=host)


def draw_gifts(pen: Pen, host: Entity, gifts: dict[Entity, Entity]) -> dict[Entity, Entity]:
    """Everyone draws another one's gift (gifts: gift -> giver). One may swap for a favourite."""
    wisher = OneOf(*gifts.values())
    pen.say("feast.hope", wisher=wisher)
    others = [gift for gift, giver in gifts.items() if giver is not wisher.chosen]
    favourite = OneOf(*others)
    cast = {"host": host, "wisher": wisher, "wanted": favourite}
    pen.say("feast.whisper", "feast.rule", **cast)
    taken: dict[Entity, Entity] = {}  # guest -> gift
    last_gift = list(gifts)[-1]
    for guest in gifts.values():
        left = [gift for gift in gifts if gift not in taken.values()]
        possible = [gift for gift in left if gifts[gift] is not guest]
        # the last guest must not be left with his own gift
        # else this guest would have no gift of another one to draw
        if len(left) == 2 and last_gift in left:
            possible = [last_gift]
        drawn = OneOf(*possible)
        pen.say("feast.draw", guest=guest, gift=drawn)
        taken[guest] = drawn.chosen
    (holder,) = (guest for guest, gift in taken.items() if gift is favourite.chosen)
    if holder is wisher.chosen:
        pen.say("feast.lucky", **cast)
        return taken
    cast |= {"holder": holder, "other": taken[wisher.chosen]}
    pen.say("feast.plead", **cast)
    # nobody takes his own gift home
    may_swap = 0 if gifts[taken[wisher.chosen]] is holder else 2
    if pen.say_either({"feast.swap": may_swap, "feast.keep": 1}, **cast) == "feast.swap":
        taken[holder], taken[wisher.chosen] = taken[wisher.chosen], taken[holder]
    return taken


def tell_bargain(pen: Pen) -> None:
    """A chain of trades: each trader asks for the next thing; the first wish comes last."""
    cast = pen.cast(hero="friend", have="thing", wish="thing")
    pen.say("bargain.opening", "aside.day", **cast)
    trader = pen.new("friend")
    item = cast["wish"]
    price = pen.new("thing")
    pen.say("bargain.first", trader=trader, item=item, price=price, **cast)
    stalls = [(trader, item)]
    agreed = ""
    # down the chain: every trader wants something first, until one takes what the hero has
    while agreed != "bargain.bottom":
        following = pen.new("friend")
        pen.say("bargain.hint", trader=trader, item=price, next=following)
        trader = following
        item = price
        price = pen.new("thing")
        pen.say("bargain.meet", trader=trader, item=item, **cast)
        stalls.append((trader, item))
        weights = {"bargain.deeper": 5 - len(stalls), "bargain.bottom": len(stalls) != 2}
        agreed = pen.say_either(weights, trader=trader, item=item, price=price, **cast)
    pen.say("meanwhile.day")
    # the swaps go from the last stall to the first
    trader, got = stalls[-1]
    # thing -> its holder, without the wish
    holder_of = {cast["have"]: trader}
    pen.fact("has", who=cast["hero"], thing=got)
    pen.fact("has", who=trader, thing=cast["have"])
    pen.fact("did", who=cast["hero"], deed="got the {got} from {other}", got=got, other=trader)
    none_gone = True
    for trader, item in reversed(stalls[:-1]):
        swap = {
            "trader": trader,
            "item": item,
            "got": got,
            **pen.cast(buyer="friend", extra="thing"),
        }
        weights = {"bargain.unwind": 3, "bargain.gone": none_gone}
        if pen.say_either(weights, **swap, **cast) == "bargain.gone":
            pen.say("bargain.buy", **swap, **cast)
            holder_of[swap["extra"]] = trader
            trader = swap["buyer"]
            none_gone = False
        holder_of[got] = trader
        got = item
    pen.say("bargain.joy", count=counted(pen, len(stalls)), **cast)
    for _ in range(3):
        thing = OneOf(*holder_of)
        pen.say("bargain.ask", asked=thing)
        pen.say("bargain.answer", holder=holder_of.pop(thing.chosen))
    pen.say("bargain.end", **cast)


LONG_PLOTS = PLOTS | {
    "letter": tell_letter,
    "theft": tell_theft,
    "ferry": tell_ferry,
    "feast": tell_feast,
    "bargain": tell_bargain,
    "rumor": tell_rumor,
}

# Three stories in four are long ones; the long plots are equally likely. One in forty holds a song.
LONG_PLOT_WEIGHTS = dict.fromkeys(LONG_PLOTS, 40) | PLOT_WEIGHTS
