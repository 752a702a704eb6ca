"""The stories of the world: one short program each, written once for every pen.

A program keeps the state of its story (who holds the kite, who hides where) in plain variables and says
beats from `beats/<plot>.yaml`. What a later sentence says follows from that state, so a model that
predicts it has to remember what happened. What is true after a beat stands there, too.
"""

from .pen import Entity, OneOf, Pen

LOST_STOPS = (  # by the number of places still to come
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
    """Who holds the toy?"""
    friends = holder, friend, third = three_friends(pen)
    cast = {"hero": holder, "toy": pen.new("thing"), "place": pen.new("place")}
    pen.say("pass.opening", "pass.joy", "aside.day", "pass.friends", friend=friend, third=third, **cast)
    for may_end in (0, 0, 1, 1):
        taker = OneOf(*(someone for someone in friends if someone is not holder))
        weights = {"pass.give": 1, "pass.dusk": may_end}
        if pen.say_either(weights, giver=holder, taker=taker, **cast) == "pass.dusk":
            break
        holder = taker.chosen
    else:
        pen.say("pass.dusk")
    pen.say("pass.keeper", "pass.back" if holder is cast["hero"] else "pass.away", holder=holder, **cast)


def tell_hide(pen: Pen) -> None:
    """Who hides where and in what clothes, who is seen first, and so who counts next?"""
    seeker, one, two = three_friends(pen)
    spot_of = {one: pen.new("spot"), two: pen.new("spot")}
    clothes_of = {one: pen.new("clothes"), two: pen.new("clothes")}
    pen.say("hide.opening", seeker=seeker)
    for hider in (one, two):
        pen.say("hide.hide", hider=hider, spot=spot_of[hider], clothes=clothes_of[hider])
    pen.say_either({"hide.ready": 1, "hide.wrong": 1}, seeker=seeker, wrong=pen.new("spot"))
    seen = OneOf(clothes_of[one], clothes_of[two])
    cast = {"seeker": seeker, "wrong": pen.new("spot"), "seen": seen}
    if pen.say_either({"hide.wrong": 1, "hide.seen": 1}, **cast) == "hide.wrong":
        pen.say("hide.seen", **cast)
    first, last = (one, two) if seen.chosen is clothes_of[one] else (two, one)
    pen.say("hide.first", seeker=seeker, found=first, spot=spot_of[first])
    pen.say_either({"hide.last": 2, "hide.give_up": 1}, seeker=seeker, last=last, spot=spot_of[last])
    pen.say("hide.turn", seeker=seeker, found=first)
    pen.say("hide.prize", last=last, spot=spot_of[last])


def tell_lost(pen: Pen) -> None:
    """Where was it put down? Each of the three places is as likely."""
    cast = pen.cast(hero="friend", friend="friend", toy="thing")
    pen.say("lost.opening", **cast)
    early, middle, late = places = [pen.new("place") for _ in range(3)]
    dropped_at: Entity | None = None
    for places_left, place in zip((2, 1, 0), places, strict=True):
        weights = {"lost.walk": 1, "lost.drop": 0} if dropped_at else {"lost.walk": places_left, "lost.drop": 1}
        if pen.say_either(weights, place=place, **cast) == "lost.drop":
            dropped_at = place
        pen.fact("did", who=cast["hero"], deed=f"came {place.texts['to']}")
        pen.fact("at", what=cast["hero"], place=place, before=early, asked=LOST_STOPS[places_left])
    assert dropped_at is not None
    way_back = {early: "lost.past_two", middle: "lost.past_one", late: "lost.past_none"}[dropped_at]
    cast |= {"place": dropped_at, "late": late, "middle": middle}
    pen.say("lost.gone", "lost.friend", "lost.remember", way_back, "lost.found", "lost.end", **cast)


def tell_trade(pen: Pen) -> None:
    """Who owns which of three things?"""
    cast = pen.cast(hero="friend", owner="friend", helper="friend", have="thing", need="thing", wish="thing")
    pen.say("trade.opening", "trade.ask", "trade.search", **cast)
    swapped = pen.say_either({"trade.swap": 2, "trade.help": 1}, **cast).removeprefix("trade.")
    pen.say("trade.return", **cast)
    paid = pen.say_either({"trade.deal": 2, "trade.gift": 1}, **cast).removeprefix("trade.")
    pen.say(f"trade.end_{swapped}_{paid}", **cast)


def tell_race(pen: Pen) -> None:
    """In which order do they run?"""
    early, *_ = first, second, third = three_friends(pen)
    start, goal, prize = pen.new("place"), pen.new("place"), pen.new("prize")
    pen.say("race.opening", "race.start", start=start, goal=goal, one=first, two=second, three=third)
    weights = {"race.stop": 1, "race.pass_first": 1, "race.pass_second": 1}
    for _ in range(2):
        event = pen.say_either(weights, leader=first, second=second, third=third)
        first, second, third = {
            "race.stop": (second, third, first),
            "race.pass_first": (second, first, third),
            "race.pass_second": (first, third, second),
        }[event]
    ahead = "race.stayed_ahead" if first is early else "race.fell_behind"
    cast = {"first": first, "second": second, "third": third, "early": early, "goal": goal, "prize": prize}
    pen.say("race.goal", "race.prize", ahead, "race.share", **cast)


def tell_wish(pen: Pen) -> None:
    """Who wished for what?"""
    maker, one, two = three_friends(pen)
    wish_of = {one: pen.new("thing"), two: pen.new("thing")}
    wishes = {"one": one, "two": two, "gift": wish_of[one], "present": wish_of[two]}
    pen.say("wish.opening", "wish.wishes", "wish.made", maker=maker, **wishes)
    visited = OneOf(one, two)
    pen.say("wish.visit", maker=maker, first=visited)
    first, second = (one, two) if visited.chosen is one else (two, one)
    cast = {"maker": maker, "first": first, "second": second, "right": wish_of[first], "wrong": wish_of[second]}
    if pen.say_either({"wish.right": 1, "wish.mixed": 1}, **cast) == "wish.mixed":
        pen.say("wish.fix", **cast)
    pen.say("wish.then", maker=maker, second=second, gift=wish_of[second])
    pen.say("wish.end", "wish.thanks", maker=maker, thanks=pen.new("thing"), giver=OneOf(one, two), **wishes)


def tell_soup(pen: Pen) -> None:
    """Who gave what?"""
    cook, *neighbors = three_friends(pen)
    foods = one, two = pen.new("food"), pen.new("food")
    cast = {"cook": cook, "dish": pen.new("dish")}
    pen.say("soup.opening", "soup.go", one=one, two=two, **cast)
    gift = OneOf(*foods)
    pen.say("soup.lend", cook=cook, giver=neighbors[0], gift=gift)
    pen.fact("did", who=neighbors[0], deed="helped {cook}", cook=cook, asked=HELPED_FIRST)
    gifts = (one, two) if gift.chosen is one else (two, one)
    pen.say("soup.lend", cook=cook, giver=neighbors[1], gift=gifts[1])
    pen.fact("did", who=neighbors[1], deed="helped {cook}", cook=cook, asked=HELPED_LAST)
    for giver, food in zip(neighbors, gifts, strict=True):
        pen.fact("has", who=giver, thing=food, cook=cook, asked=GAVE)
    if pen.say_either({"soup.extra": 1, "soup.cook": 2}, extra=pen.new("food"), **cast) == "soup.extra":
        pen.say("soup.cook", **cast)
    praised = OneOf(*foods)
    pen.say("soup.taste", asked=praised, **cast)
    first = praised.chosen is gifts[0]
    owner, other = neighbors if first else reversed(neighbors)
    pen.say("soup.thanks", "soup.bowls", "soup.end", owner=owner, other=other, gift=gifts[first], **cast)


def tell_message(pen: Pen) -> None:
    """What was sent, what was heard, and who waits where?"""
    cast = pen.cast(sender="friend", runner="friend", guest="friend", place="place", time="time", thing="thing")
    cast |= pen.cast(wrong="place", other="thing")
    cast["past"] = pen.new("place")
    pen.say("message.opening", "message.order", "message.way", "aside.day", **cast)
    heard = pen.say_either({"message.right": 2, "message.wrong_place": 1, "message.wrong_thing": 1}, **cast)
    consequences = {
        "message.right": ["message.met"],
        "message.wrong_place": ["message.apart", "message.joined"],
        "message.wrong_thing": ["message.swapped", "message.use"],
    }
    pen.say(*consequences[heard], "message.end", **cast)


def tell_song(pen: Pen) -> None:
    """Which words were sung? A valley, a bird or a friend gives them back."""
    cast = pen.cast(singer="friend", friend="friend", bird="bird", song="song")
    pen.say("song.opening", "aside.day", **cast)
    listener = pen.say_either({"song.valley": 1, "song.bird": 1, "song.teach": 1}, **cast)
    pen.say(f"{listener}_back", **cast)
    if pen.say_either({"song.again": 1, f"{listener}_end": 2}, **cast) == "song.again":
        pen.say(f"{listener}_end", **cast)


TELLERS = tell_pass, tell_hide, tell_lost, tell_trade, tell_race, tell_wish, tell_soup, tell_message, tell_song
PLOTS = {teller.__name__.removeprefix("tell_"): teller for teller in TELLERS}

# One story in ten holds a song; the eight other plots are equally likely.
PLOT_WEIGHTS = {plot: 8 if plot == "song" else 9 for plot in PLOTS}
