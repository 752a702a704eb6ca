"""The plots of the stories: one short program each, for every pen.

A program keeps the state of its story (who holds the kite, who hides where) in variables, and
writes beats from `beats/<plot>.yaml`. Later sentences follow from that state, so a model must
remember earlier events to predict them.
"""

from .pen import Entity, OneOf, Pen

# Questions about a place, by the number of places that still follow.
LOST_STOPS = (
    "Where did {what} stop last on the way out?|Where was the last stop of {what}?",
    "Where did {what} stop after {before}?|Where was the second stop of {what}?",
    "Where did {what} stop first?|Where was the first stop of {what}?",
)
HELPED_FIRST = "Who helped {cook} first?|Who was the first to help {cook}?"
HELPED_LAST = "Who helped {cook} last?|Who was the second to help {cook}?"
GAVE = "Who gave {cook} the {thing}?|Who gave away the {thing}?"


def three_friends(pen: Pen) -> tuple[Entity, Entity, Entity]:
    return pen.new("friend"), pen.new("friend"), pen.new("friend")


def tell_pass(pen: Pen) -> None:
    """Three friends pass a toy on: who holds it?"""
    # the holder changes; `hero` stays the first one, whom opening and end are about
    friends = three_friends(pen)
    holder, friend, third = friends
    cast = {"hero": holder, "toy": pen.new("thing"), "place": pen.new("place")}
    pen.say(
        "pass.opening", "pass.joy", "aside.day", "pass.friends", friend=friend, third=third, **cast
    )
    # two to four times
    # weight 0: at least two hand-overs, or nothing would have to be remembered
    for may_end in (0, 0, 1, 1):
        others = [entity for entity in friends if entity is not holder]
        taker = OneOf(*others)
        weights = {"pass.give": 1, "pass.dusk": may_end}
        if pen.say_either(weights, giver=holder, taker=taker, **cast) == "pass.dusk":
            break
        holder = taker.chosen
    else:
        # not drawn, so it costs no bits
        pen.say("pass.dusk")
    back = "pass.back" if holder is cast["hero"] else "pass.away"
    pen.say("pass.keeper", back, holder=holder, **cast)


def tell_hide(pen: Pen) -> None:
    """Hide and seek: who hides where, in which clothes, and who is found first?"""
    seeker, one, two = three_friends(pen)
    spot_of = {one: pen.new("spot"), two: pen.new("spot")}
    clothes_of = {one: pen.new("clothes"), two: pen.new("clothes")}
    pen.say("hide.opening", seeker=seeker)
    for hider in (one, two):
        pen.say("hide.hide", hider=hider, spot=spot_of[hider], clothes=clothes_of[hider])
    # a search in a wrong place puts distance between the facts and the questions about them
    pen.say_either({"hide.ready": 1, "hide.wrong": 1}, seeker=seeker, wrong=pen.new("spot"))
    # which clothes are seen decides who is found
    seen = OneOf(clothes_of[one], clothes_of[two])
    cast = {"seeker": seeker, "wrong": pen.new("spot"), "seen": seen}
    if pen.say_either({"hide.wrong": 1, "hide.seen": 1}, **cast) == "hide.wrong":
        pen.say("hide.seen", **cast)
    first, last = (one, two) if seen.chosen is clothes_of[one] else (two, one)
    pen.say("hide.first", seeker=seeker, found=first, spot=spot_of[first])
    pen.say_either(
        {"hide.last": 2, "hide.give_up": 1}, seeker=seeker, last=last, spot=spot_of[last]
    )
    pen.say("hide.turn", seeker=seeker, found=first)
    pen.say("hide.prize", last=last, spot=spot_of[last])


def tell_lost(pen: Pen) -> None:
    """Something is lost at one of three places, each equally likely: where?"""
    cast = pen.cast(hero="friend", friend="friend", toy="thing")
    pen.say("lost.opening", **cast)
    places = [pen.new("place") for _ in range(3)]
    early, middle, late = places
    dropped_at: Entity | None = None
    for places_left, place in zip((2, 1, 0), places, strict=True):
        # 1/3, then 1/2 of 2/3, then the rest
        weights = {"lost.walk": places_left, "lost.drop": 1}
        if dropped_at:
            weights = {"lost.walk": 1, "lost.drop": 0}
        if pen.say_either(weights, place=place, **cast) == "lost.drop":
            dropped_at = place
        pen.fact("did", who=cast["hero"], deed=f"came {place.texts['to']}")
        # each stop has other questions: only the middle one needs the stop before it
        stops = LOST_STOPS[places_left]
        pen.fact("at", what=cast["hero"], place=place, before=early, asked=stops)
    assert dropped_at is not None
    ways_back = {early: "lost.past_two", middle: "lost.past_one", late: "lost.past_none"}
    way_back = ways_back[dropped_at]
    cast |= {"place": dropped_at, "late": late, "middle": middle}
    pen.say("lost.gone", "lost.friend", "lost.remember", way_back, "lost.found", "lost.end", **cast)


def tell_trade(pen: Pen) -> None:
    """A chain of trades: who owns which of three things?"""
    cast = pen.cast(hero="friend", owner="friend", helper="friend")
    cast |= pen.cast(have="thing", need="thing", wish="thing")
    pen.say("trade.opening", "trade.ask", "trade.search", **cast)
    swapped = pen.say_either({"trade.swap": 2, "trade.help": 1}, **cast).removeprefix("trade.")
    pen.say("trade.return", **cast)
    paid = pen.say_either({"trade.deal": 2, "trade.gift": 1}, **cast).removeprefix("trade.")
    pen.say(f"trade.end_{swapped}_{paid}", **cast)


def tell_race(pen: Pen) -> None:
    """A race: in which order do they run?"""
    first, second, third = three_friends(pen)
    early = first
    cast = pen.cast(start="place", goal="place", prize="prize")
    pen.say("race.opening", "race.start", one=first, two=second, three=third, **cast)
    weights = {"race.stop": 1, "race.pass_first": 1, "race.pass_second": 1}
    for _ in range(2):
        event = pen.say_either(weights, leader=first, second=second, third=third)
        first, second, third = {
            "race.stop": (second, third, first),
            "race.pass_first": (second, first, third),
            "race.pass_second": (first, third, second),
        }[event]
    # the last sentences compare the end with the start, a few dozen tokens earlier
    ahead = "race.stayed_ahead" if first is early else "race.fell_behind"
    cast |= {"first": first, "second": second, "third": third, "early": early}
    pen.say("race.goal", "race.prize", ahead, "race.share", **cast)


def tell_wish(pen: Pen) -> None:
    """Two presents: who wished for what?"""
    maker, one, two = three_friends(pen)
    wish_of = {one: pen.new("thing"), two: pen.new("thing")}
    wishes = {"one": one, "two": two, "gift": wish_of[one], "present": wish_of[two]}
    pen.say("wish.opening", "wish.wishes", "wish.made", maker=maker, **wishes)
    visited = OneOf(one, two)
    pen.say("wish.visit", maker=maker, first=visited)
    first, second = (one, two) if visited.chosen is one else (two, one)
    cast = {"maker": maker, "first": first, "second": second}
    cast |= {"right": wish_of[first], "wrong": wish_of[second]}
    if pen.say_either({"wish.right": 1, "wish.mixed": 1}, **cast) == "wish.mixed":
        pen.say("wish.fix", **cast)
    pen.say("wish.then", maker=maker, second=second, gift=wish_of[second])
    thanks = pen.new("thing")
    pen.say("wish.end", "wish.thanks", maker=maker, thanks=thanks, giver=OneOf(one, two), **wishes)


def tell_soup(pen: Pen) -> None:
    """Two neighbours help to cook a soup: who gave what?"""
    cook, *neighbors = three_friends(pen)
    one = pen.new("food")
    two = pen.new("food")
    cast = {"cook": cook, "dish": pen.new("dish")}
    pen.say("soup.opening", "soup.go", one=one, two=two, **cast)
    # which neighbour lends which food is drawn here, and decides later sentences
    lent = OneOf(one, two)
    pen.say("soup.lend", cook=cook, giver=neighbors[0], gift=lent)
    # both helped, so a question must ask for the order
    pen.fact("did", who=neighbors[0], deed="helped {cook}", cook=cook, asked=HELPED_FIRST)
    gifts = (one, two) if lent.chosen is one else (two, one)
    pen.say("soup.lend", cook=cook, giver=neighbors[1], gift=gifts[1])
    pen.fact("did", who=neighbors[1], deed="helped {cook}", cook=cook, asked=HELPED_LAST)
    for giver, food in zip(neighbors, gifts, strict=True):
        pen.fact("has", who=giver, thing=food, cook=cook, asked=GAVE)
    weights = {"soup.extra": 1, "soup.cook": 2}
    if pen.say_either(weights, extra=pen.new("food"), **cast) == "soup.extra":
        pen.say("soup.cook", **cast)
    praised = OneOf(one, two)
    pen.say("soup.taste", asked=praised, **cast)
    owner, other = neighbors
    gift = gifts[1]
    if praised.chosen is not gifts[0]:
        owner, other = other, owner
        gift = gifts[0]
    cast |= {"owner": owner, "other": other, "gift": gift}
    pen.say("soup.thanks", "soup.bowls", "soup.end", **cast)


def tell_message(pen: Pen) -> None:
    """A message may change on its way: who waits where, with which thing?"""
    cast = pen.cast(sender="friend", runner="friend", guest="friend", place="place", time="time")
    cast |= pen.cast(thing="thing", wrong="place", other="thing", past="place")
    pen.say("message.opening", "message.order", "message.way", "aside.day", **cast)
    weights = {"message.right": 2, "message.wrong_place": 1, "message.wrong_thing": 1}
    heard = pen.say_either(weights, **cast)
    consequences = {
        "message.right": ["message.met"],
        "message.wrong_place": ["message.apart", "message.joined"],
        "message.wrong_thing": ["message.swapped", "message.use"],
    }
    pen.say(*consequences[heard], "message.end", **cast)


def tell_song(pen: Pen) -> None:
    """A song of nonsense words, repeated by a valley, a bird or a friend."""
    cast = pen.cast(singer="friend", friend="friend", bird="bird", song="song")
    pen.say("song.opening", "aside.day", **cast)
    listener = pen.say_either({"song.valley": 1, "song.bird": 1, "song.teach": 1}, **cast)
    pen.say(f"{listener}_back", **cast)
    if pen.say_either({"song.again": 1, f"{listener}_end": 2}, **cast) == "song.again":
        pen.say(f"{listener}_end", **cast)


PLOTS = {
    "pass": tell_pass,
    "hide": tell_hide,
    "lost": tell_lost,
    "trade": tell_trade,
    "race": tell_race,
    "wish": tell_wish,
    "soup": tell_soup,
    "message": tell_message,
    "song": tell_song,
}

# One story in ten holds a song; the eight other plots are equally likely.
PLOT_WEIGHTS = dict.fromkeys(PLOTS, 9) | {"song": 8}
