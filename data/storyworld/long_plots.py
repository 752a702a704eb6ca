"""The longer stories of level 2: more characters, more state, and speech within speech.

Programs like those in plots.py; those in which words travel from mouth to mouth are in hearsay.py.
"""

from .hearsay import Cast, counted, tell_letter, tell_rumor, tell_theft
from .pen import Entity, OneOf, Pen
from .plots import IN_EXCHANGE, PLOT_WEIGHTS, PLOTS, three_friends


def tell_ferry(pen: Pen) -> None:
    """Who is on which side of the lake, and who said what to whom long ago?"""
    a, b, c = three_friends(pen)
    ferry, loads = pen.new("friend"), {who: pen.new("thing") for who in (a, b, c)}
    cast = {"ferry": ferry, "a": a, "b": b, "c": c, "place": pen.new("place")}
    cast |= {"load_a": loads[a], "load_b": loads[b], "load_c": loads[c]}
    insult_of = {a: pen.new("insult"), c: pen.new("insult")}
    pen.say("ferry.opening", **cast)
    pen.fact("did", who=ferry, who_did="Who rowed the boat?|Who rowed over the lake and back?")
    pen.say("ferry.guests", **cast)
    pen.say("ferry.load", **cast)
    for who, load in loads.items():
        pen.fact("has", who=who, thing=load)
        pen.fact("at", what=who, place=cast["place"], asked="Where did {what} want to go?")
    for who, insult in insult_of.items():
        pen.say("ferry.quarrel", who=who, insult=insult, **cast)
    pen.say("ferry.think", **cast)
    crossings = cross_lake(pen, cast)
    owner_of = {load: who for who, load in loads.items()}
    lost = OneOf(*owner_of)
    if pen.say_either({"ferry.missing": 1, "meanwhile.day": 1}, lost=lost, **cast) == "ferry.missing":
        pen.say("ferry.fetch", lost=lost, owner=owner_of[lost.chosen], **cast)
        asked = "Who forgot the {thing}?|Who left the {thing} on the shore?"
        pen.fact("has", who=owner_of[lost.chosen], thing=lost, asked=asked)
        crossings += 2
    for who, insult in insult_of.items():
        if pen.say_either({"ferry.sorry": 2, "ferry.cross": 1}, who=who, insult=insult, **cast) == "ferry.sorry":
            pen.fact("did", who=b, deed="said sorry to {other}", other=who)
    fare = OneOf(*owner_of)
    pen.say("ferry.count", count=counted(pen, crossings), fare=fare, **cast)
    pen.say("ferry.pay", owner=owner_of[fare.chosen], fare=fare, **cast)
    pen.fact("has", who=ferry, thing=fare)
    pen.fact("wants", who=ferry, thing=fare)
    pen.say("ferry.end", fare=fare, **cast)


def cross_lake(pen: Pen, cast: Cast) -> int:
    """Bring all three over without leaving b alone with another. Returns how often the boat has crossed."""
    a, b, c = cast["a"], cast["b"], cast["c"]
    crossings = 7
    if pen.say_either({"ferry.wrong": 1, "meanwhile.day": 2}, guest=OneOf(a, c), **cast) == "ferry.wrong":
        pen.say("ferry.again", **cast)
        crossings += 2
    pen.say("ferry.over", guest=b, **cast)
    pen.say("ferry.one_over", over=b, one=a, two=c)
    pen.say("ferry.alone", **cast)
    guest = OneOf(a, c)
    pen.say("ferry.over", guest=guest, **cast)
    second, third = (a, c) if guest.chosen is a else (c, a)
    pen.say("ferry.back", other=second, **cast)
    pen.say("ferry.one_over", over=second, one=b, two=third)
    pen.say("ferry.over", guest=third, **cast)
    pen.say("ferry.two_over", one=second, two=third, left=b)
    pen.say("ferry.alone", **cast)
    pen.say("ferry.over", guest=b, **cast)
    return crossings


def tell_feast(pen: Pen) -> None:
    """Who brought what, who sits where, and who takes whose gift home?"""
    host, guests = pen.new("friend"), [pen.new("friend") for _ in range(4)]
    seats = {pen.new("seat"): guest for guest in guests}
    foods = {pen.new("dainty"): guest for guest in guests}
    gifts = {pen.new("thing"): guest for guest in guests}
    pen.say("feast.opening", host=host)
    pen.fact("did", who=host, who_did="Who gave the feast?")
    for guest, seat, food, gift in zip(guests, seats, foods, gifts, strict=True):
        pen.say("feast.arrive", guest=guest, food=food, gift=gift)
        pen.say("feast.sit", guest=guest, seat=seat, host=host)
        pen.fact("at", what=guest, place=seat, asked="Where did {what} sit?|Where was the seat of {what}?")
        pen.fact("has", who=guest, thing=food, asked="Who brought the {thing}?|Who came with the {thing}?")
        pen.fact("has", who=guest, thing=gift)
    eaten = OneOf(*foods)
    pen.say("feast.eat", food=eaten)
    pen.say("feast.praise", owner=foods.pop(eaten.chosen), host=host)
    taken = draw_gifts(pen, host, gifts)
    pen.say("feast.tale", host=host)
    for _ in range(2):
        seat = OneOf(*seats)
        pen.say("feast.remember", seat=seat)
        guest = seats.pop(seat.chosen)
        pen.say("feast.owner", guest=guest, gift=taken[guest])
        pen.say("feast.giver", guest=guest, gift=taken[guest], giver=gifts[taken[guest]])
    left = OneOf(*foods)
    pen.say("feast.left", food=left, host=host)
    pen.say("feast.end", food=left, owner=foods[left.chosen], host=host)


def draw_gifts(pen: Pen, host: Entity, gifts: dict[Entity, Entity]) -> dict[Entity, Entity]:
    """Everyone draws the gift of another (gifts: gift -> giver). One has hoped for a certain gift and may swap."""
    wisher = OneOf(*gifts.values())
    pen.say("feast.hope", wisher=wisher)
    wanted = OneOf(*(gift for gift, giver in gifts.items() if giver is not wisher.chosen))
    cast = {"host": host, "wisher": wisher, "wanted": wanted}
    pen.say("feast.whisper", **cast)
    asked = "Who hoped for the {thing}?|Who hoped to get the {thing}?"  # the one who gets it may want to keep it, too
    pen.fact("wants", who=wisher, thing=wanted, asked=asked)
    pen.say("feast.rule", host=host)
    taken: dict[Entity, Entity] = {}  # guest -> gift
    for guest in gifts.values():
        left = [gift for gift in gifts if gift not in taken.values()]
        drawn = OneOf(*(gift for gift in left if may_draw(guest, gift, left, gifts)))
        pen.say("feast.draw", guest=guest, gift=drawn)
        taken[guest] = drawn.chosen
        pen.fact("has", who=guest, thing=drawn)
        pen.fact("did", who=guest, deed="drew the {gift}", gift=drawn)
    (holder,) = (guest for guest, gift in taken.items() if gift is wanted.chosen)
    if holder is wisher.chosen:
        pen.say("feast.lucky", **cast)
        return taken
    cast |= {"holder": holder, "other": taken[wisher.chosen]}
    pen.say("feast.plead", **cast)
    may_swap = 0 if gifts[taken[wisher.chosen]] is holder else 2  # nobody takes his own gift home
    if pen.say_either({"feast.swap": may_swap, "feast.keep": 1}, **cast) == "feast.swap":
        taken[holder], taken[wisher.chosen] = taken[wisher.chosen], taken[holder]
        for guest in (holder, wisher.chosen):
            pen.fact("has", who=guest, thing=taken[guest])
    return taken


def may_draw(guest: Entity, gift: Entity, left: list[Entity], gifts: dict[Entity, Entity]) -> bool:
    """Whether the gift is another's and the last guest will not be left with his own."""
    *_, last_gift = gifts
    return gifts[gift] is not guest and (len(left) != 2 or last_gift not in left or gift is last_gift)


def tell_bargain(pen: Pen) -> None:
    """Who has what, and wants what for it? What is asked for first is got last."""
    hero, have, wish = pen.new("friend"), pen.new("thing"), pen.new("thing")
    cast = {"hero": hero, "have": have, "wish": wish}
    pen.say("bargain.opening", **cast)
    pen.fact("has", who=hero, thing=have)
    pen.fact("wants", who=hero, thing=wish)
    pen.say("aside.day")
    trader, item, price = pen.new("friend"), wish, pen.new("thing")
    pen.say("bargain.first", trader=trader, item=item, price=price, **cast)
    pen.fact("has", who=trader, thing=item)
    pen.fact("wants", who=trader, thing=price, item=item, asked=IN_EXCHANGE)
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
        pen.fact("has", who=trader, thing=item)
        if agreed == "bargain.bottom":  # which the hero has, so nobody else can want it
            pen.fact("wants", who=trader, thing=have, asked="Who wanted the {thing}?|Who wanted to have the {thing}?")
        else:
            pen.fact("wants", who=trader, thing=price, item=item, asked=IN_EXCHANGE)
    pen.say("meanwhile.day")
    holder_of = swap_back(pen, stalls, cast)
    pen.say("bargain.joy", count=counted(pen, len(stalls)), **cast)
    for _ in range(3):
        asked = OneOf(*holder_of)
        pen.say("bargain.ask", asked=asked)
        pen.say("bargain.answer", holder=holder_of.pop(asked.chosen))
    pen.say("bargain.end", **cast)


def swap_back(pen: Pen, stalls: list[tuple[Entity, Entity]], cast: Cast) -> dict[Entity, Entity]:
    """The swaps, from the last stall to the first. Returns who then holds which thing, but for the wish."""
    trader, got = stalls[-1]
    holder_of = {cast["have"]: trader}
    note_swap(pen, cast["hero"], got, trader, cast["have"])
    for trader, item in reversed(stalls[:-1]):
        swap = {"trader": trader, "item": item, "got": got, "buyer": pen.new("friend"), "extra": pen.new("thing")}
        may_be_gone = 1 if len(holder_of) == len(stalls) - stalls.index((trader, item)) - 1 else 0
        if pen.say_either({"bargain.unwind": 3, "bargain.gone": may_be_gone}, **swap, **cast) == "bargain.gone":
            pen.fact("has", who=swap["buyer"], thing=swap["extra"])
            pen.fact("wants", who=swap["buyer"], thing=item)
            note_swap(pen, swap["buyer"], item, trader, swap["extra"], earlier=True)
            pen.say("bargain.buy", **swap, **cast)
            holder_of[swap["extra"]] = trader
            trader = swap["buyer"]
        note_swap(pen, cast["hero"], item, trader, got)
        holder_of[got] = trader
        got = item
    return holder_of


def note_swap(pen: Pen, one: Entity, got: Entity, other: Entity, for_it: Entity, earlier: bool = False) -> None:
    """Note that one now has what the other had, and the other way round; earlier: the moment is unknown."""
    pen.fact("has", who=one, thing=got)
    pen.fact("has", who=other, thing=for_it)
    if not earlier:
        pen.fact("did", who=one, deed="got the {got} from {other}", got=got, other=other)


LONG_PLOTS = PLOTS | {
    "letter": tell_letter,
    "theft": tell_theft,
    "ferry": tell_ferry,
    "feast": tell_feast,
    "bargain": tell_bargain,
    "rumor": tell_rumor,
}

# Three stories in four are long ones; the long plots are equally likely. One in forty holds a song.
LONG_PLOT_WEIGHTS = {plot: PLOT_WEIGHTS.get(plot, 40) for plot in LONG_PLOTS}
