"""The stories of the world: one short program each, written once for every pen.

A program keeps the state of its story (who holds the kite, who hides where) in plain variables and says
beats from `beats/<plot>.yaml`. What a later sentence says follows from that state, so a model that
predicts it has to remember what happened.
"""

from .pen import Entity, OneOf, Pen


def three_friends(pen: Pen) -> tuple[Entity, Entity, Entity]:
    return pen.new("friend"), pen.new("friend"), pen.new("friend")


def tell_pass(pen: Pen) -> None:
    """Who holds the toy?"""
    friends = hero, friend, third = three_friends(pen)
    toy = pen.new("thing")
    place = pen.new("place")
    pen.say("pass.opening", hero=hero, toy=toy, place=place)
    found = "Where did {who} find the {what}?|Where was the {what} found?"
    pen.fact("at", what=toy, place=place, who=hero, asked=found)
    pen.fact("has", who=hero, thing=toy)
    pen.fact("did", who=hero, deed="found the {toy}", toy=toy, who_did="Who found the {toy}?")
    pen.say("pass.joy", hero=hero, toy=toy)
    pen.say("aside.day")
    pen.say("pass.friends", hero=hero, friend=friend, third=third)
    holder = hero
    for may_end in (0, 0, 1, 1):
        taker = OneOf(*(someone for someone in friends if someone is not holder))
        weights = {"pass.give": 1, "pass.dusk": may_end}
        if pen.say_either(weights, giver=holder, taker=taker, toy=toy) == "pass.dusk":
            break
        pen.fact("has", who=taker, thing=toy)
        pen.fact("did", who=taker, deed="got the {toy} from {giver}", toy=toy, giver=holder)
        holder = taker.chosen
    else:
        pen.say("pass.dusk")
    pen.say("pass.keeper", holder=holder, toy=toy)
    pen.fact("did", who=holder, deed="took the {toy} home", toy=toy)
    pen.say("pass.back" if holder is hero else "pass.away", hero=hero, holder=holder, toy=toy)


def tell_hide(pen: Pen) -> None:
    """Who hides where and in what clothes, who is seen first, and so who counts next?"""
    seeker, one, two = three_friends(pen)
    spot_of = {one: pen.new("spot"), two: pen.new("spot")}
    clothes_of = {one: pen.new("clothes"), two: pen.new("clothes")}
    pen.say("hide.opening", seeker=seeker)
    for hider in (one, two):
        one_hides(pen, hider, spot_of[hider], clothes_of[hider])
    pen.say_either({"hide.ready": 1, "hide.wrong": 1}, seeker=seeker, wrong=pen.new("spot"))
    seen = OneOf(clothes_of[one], clothes_of[two])
    look = {"seeker": seeker, "wrong": pen.new("spot"), "seen": seen}
    if pen.say_either({"hide.wrong": 1, "hide.seen": 1}, **look) == "hide.wrong":
        pen.say("hide.seen", **look)
    first, last = (one, two) if seen.chosen is clothes_of[one] else (two, one)
    pen.say("hide.first", seeker=seeker, found=first, spot=spot_of[first])
    asked = "Who was found first?|Who was the first to be found?|Who was found by {seeker} first?"
    pen.fact("did", who=first, deed="was found", seeker=seeker, asked=asked)
    pen.say_either({"hide.last": 2, "hide.give_up": 1}, seeker=seeker, last=last, spot=spot_of[last])
    asked = "Who was the last to come out?|Who came out last?"
    pen.fact("did", who=last, deed="came out", asked=asked)
    pen.say("hide.turn", seeker=seeker, found=first)
    asked = "Who had to count after {seeker}?|Who was the next to count?"
    pen.fact("did", who=first, deed="had to count", seeker=seeker, asked=asked)
    pen.say("hide.prize", last=last, spot=spot_of[last])


def one_hides(pen: Pen, hider: Entity, spot: Entity, clothes: Entity) -> None:
    pen.say("hide.hide", hider=hider, spot=spot, clothes=clothes)
    pen.fact("at", what=hider, place=spot, asked="Where did {what} hide?|Where was {what} hiding?")
    pen.fact("has", who=hider, thing=clothes, asked="Who wore the {thing}?|Who had the {thing} on?")


def tell_lost(pen: Pen) -> None:
    """Where was it put down? Each of the three places is as likely."""
    hero, friend, toy = pen.new("friend"), pen.new("friend"), pen.new("thing")
    cast = {"hero": hero, "friend": friend, "toy": toy}
    pen.say("lost.opening", **cast)
    pen.fact("has", who=hero, thing=toy)
    early, middle, late = places = [pen.new("place") for _ in range(3)]
    dropped_at = None
    for places_left, place in zip((2, 1, 0), places, strict=True):
        may_drop = 1 if dropped_at is None else 0
        weights = {"lost.walk": places_left if may_drop else 1, "lost.drop": may_drop}
        if pen.say_either(weights, place=place, **cast) == "lost.drop":
            dropped_at = place
            left = "Where did {who} leave the {what}?|Where was the {what} left behind?"
            pen.fact("at", what=toy, place=place, who=hero, asked=left)
        pen.fact("did", who=hero, deed=f"came {place.texts['to']}")
        pen.fact("at", what=hero, place=place, before=early, asked=LOST_STOPS[places_left])
    assert dropped_at is not None
    pen.say("lost.gone", **cast)
    pen.fact("did", who=hero, deed="missed the {toy}", toy=toy, who_did="Who missed the {toy}?|Who lost the {toy}?")
    pen.say("lost.friend", **cast)
    pen.say("lost.remember", place=dropped_at, **cast)
    way_back = {early: "lost.past_two", middle: "lost.past_one", late: "lost.past_none"}
    pen.say(way_back[dropped_at], late=late, middle=middle)
    pen.say("lost.found", place=dropped_at, **cast)
    pen.fact("has", who=hero, thing=toy)
    pen.say("lost.end", **cast)


LOST_STOPS = (  # by the number of places still to come
    "Where did {what} stop last on the way out?|Where was the last stop of {what}?",
    "Where did {what} stop after {before}?|Where was the second stop of {what}?",
    "Where did {what} stop first?|Where was the first stop of {what}?",
)


def tell_trade(pen: Pen) -> None:
    """Who owns which of three things?"""
    hero, owner, helper = three_friends(pen)
    cast = {"hero": hero, "owner": owner, "helper": helper}
    have, need, wish = pen.new("thing"), pen.new("thing"), pen.new("thing")
    cast |= {"have": have, "need": need, "wish": wish}
    pen.say("trade.opening", **cast)
    pen.fact("has", who=hero, thing=have)
    pen.fact("wants", who=hero, thing=wish)
    pen.say("trade.ask", **cast)
    pen.fact("has", who=owner, thing=wish)
    pen.fact("wants", who=owner, thing=need, item=wish, asked=IN_EXCHANGE)
    pen.say("trade.search", **cast)
    pen.fact("has", who=helper, thing=need)
    swapped = pen.say_either({"trade.swap": 2, "trade.help": 1}, **cast) == "trade.swap"
    if swapped:
        pen.fact("has", who=helper, thing=have)
    pen.fact("has", who=hero, thing=need)
    pen.fact("did", who=helper, deed="gave {hero} the {need}", who_did="Who gave {hero} the {need}?", **cast)
    pen.say("trade.return", **cast)
    paid = pen.say_either({"trade.deal": 2, "trade.gift": 1}, **cast) == "trade.deal"
    if paid:
        pen.fact("has", who=owner, thing=need)
    pen.fact("has", who=hero, thing=wish)
    pen.fact("did", who=owner, deed="gave {hero} the {wish}", who_did="Who gave {hero} the {wish}?", **cast)
    pen.say(f"trade.end_{'swap' if swapped else 'help'}_{'deal' if paid else 'gift'}", **cast)


# What the owner asks for, the hero then needs too. But only the owner wants it for something else.
IN_EXCHANGE = "Who wanted the {thing} in exchange for the {item}?|Who asked for the {thing} in exchange for the {item}?"


def tell_race(pen: Pen) -> None:
    """In which order do they run?"""
    first, second, third = three_friends(pen)
    start, goal, prize = pen.new("place"), pen.new("place"), pen.new("prize")
    early = first
    pen.say("race.opening", start=start, goal=goal, one=first, two=second, three=third)
    pen.fact("at", what="the race", place=start, asked="Where did the race start?|Where was the start of the race?")
    pen.say("race.start", one=first, two=second, three=third)
    for who, place in ((first, "in front"), (second, "second"), (third, "last")):
        pen.fact("did", who=who, deed=f"was {place} at the start", asked=f"Who was {place} at the start?")
    weights = {"race.stop": 1, "race.pass_first": 1, "race.pass_second": 1}
    for _ in range(2):
        event = pen.say_either(weights, leader=first, second=second, third=third)
        if event == "race.stop":
            pen.fact("did", who=first, deed="fell back")
            first, second, third = second, third, first
        elif event == "race.pass_first":
            pen.fact("did", who=second, deed="passed {leader}", leader=first)
            first, second = second, first
        else:
            pen.fact("did", who=third, deed="passed {leader}", leader=second)
            second, third = third, second
    order = {"first": first, "second": second, "third": third}
    pen.say("race.goal", goal=goal, **order)
    pen.fact("at", what="the race", place=goal, asked="Where did the race end?|Where was the end of the race?")
    pen.fact("did", who=first, deed="won the race", asked="Who won the race?|Who came in first?")
    pen.fact("did", who=second, deed="came second", asked="Who came second in the end?|Who was second at the end?")
    pen.fact("did", who=third, deed="came last", asked="Who came last in the end?|Who was last at the end of the race?")
    pen.say("race.prize", first=first, prize=prize)
    pen.fact("has", who=first, thing=prize, asked="Who won the {thing}?|Who was given the {thing}?")
    pen.say("race.stayed_ahead" if first is early else "race.fell_behind", early=early, first=first)
    pen.say("race.share", prize=prize, **order)


def tell_wish(pen: Pen) -> None:
    """Who wished for what?"""
    maker, one, two = three_friends(pen)
    wish_of = {one: pen.new("thing"), two: pen.new("thing")}
    wishes = {"one": one, "two": two, "gift": wish_of[one], "present": wish_of[two]}
    pen.say("wish.opening", maker=maker)
    pen.say("wish.wishes", **wishes)
    for who in (one, two):
        pen.fact("wants", who=who, thing=wish_of[who])
    pen.say("wish.made", maker=maker)
    pen.fact("did", who=maker, who_did="Who made the presents?|Who put the presents into boxes?")
    for who in (one, two):
        pen.fact("has", who=maker, thing=wish_of[who])
    visited = OneOf(one, two)
    pen.say("wish.visit", maker=maker, first=visited)
    first, second = (one, two) if visited.chosen is one else (two, one)
    cast = {"maker": maker, "first": first, "second": second}
    cast |= {"right": wish_of[first], "wrong": wish_of[second]}
    asked = "Who was the first to get a box?|Who got a box first?"
    pen.fact("did", who=first, asked=asked)  # a box and what is in it are got at the same time
    if pen.say_either({"wish.right": 1, "wish.mixed": 1}, **cast) == "wish.mixed":
        pen.fact("has", who=first, thing=wish_of[second])
        pen.say("wish.fix", **cast)
        pen.fact("lost", what=wish_of[second])  # the story does not say whether the first or the maker keeps it
    pen.fact("has", who=first, thing=wish_of[first])
    pen.fact("did", who=first, deed="got the {thing}", thing=wish_of[first])
    pen.say("wish.then", maker=maker, second=second, gift=wish_of[second])
    pen.fact("has", who=second, thing=wish_of[second])
    pen.fact("did", who=second, deed="got the {thing}", thing=wish_of[second])
    pen.say("wish.end", **wishes)
    thanks, giver = pen.new("thing"), OneOf(one, two)
    pen.say("wish.thanks", maker=maker, thanks=thanks, giver=giver)
    asked = "Who gave {maker} the {thing}?|Who thanked {maker} with the {thing}?"
    pen.fact("has", who=giver, thing=thanks, maker=maker, asked=asked)


GAVE = "Who gave {cook} the {thing}?|Who gave away the {thing}?"


def tell_soup(pen: Pen) -> None:
    """Who gave what?"""
    cook, *neighbors = three_friends(pen)
    foods = one, two = pen.new("food"), pen.new("food")
    cast = {"cook": cook, "dish": pen.new("dish")}
    pen.say("soup.opening", one=one, two=two, **cast)
    for food in foods:
        pen.fact("wants", who=cook, thing=food)
    pen.fact("did", who=cook, who_did="Who cooked the {dish}?|Who made the {dish}?", **cast)
    pen.say("soup.go", cook=cook)
    gift = OneOf(*foods)
    pen.say("soup.lend", cook=cook, giver=neighbors[0], gift=gift)
    asked = "Who helped {cook} first?|Who was the first to help {cook}?"
    pen.fact("did", who=neighbors[0], deed="helped {cook}", asked=asked, **cast)
    gifts = (one, two) if gift.chosen is one else (two, one)
    pen.say("soup.lend", cook=cook, giver=neighbors[1], gift=gifts[1])
    asked = "Who helped {cook} last?|Who was the second to help {cook}?"
    pen.fact("did", who=neighbors[1], deed="helped {cook}", asked=asked, **cast)
    for giver, food in zip(neighbors, gifts, strict=True):
        pen.fact("has", who=giver, thing=food, asked=GAVE, **cast)
    if pen.say_either({"soup.extra": 1, "soup.cook": 2}, extra=pen.new("food"), **cast) == "soup.extra":
        pen.say("soup.cook", **cast)
    praised = OneOf(*foods)
    pen.say("soup.taste", asked=praised, **cast)
    giver_of = dict(zip(gifts, neighbors, strict=True))
    owner = giver_of.pop(praised.chosen)
    ((gift_of_other, other),) = giver_of.items()
    pen.say("soup.thanks", cook=cook, owner=owner)
    pen.say("soup.bowls", cook=cook, owner=owner, other=other)
    pen.say("soup.end", cook=cook, other=other, gift=gift_of_other)


def tell_message(pen: Pen) -> None:
    """What was sent, what was heard, and who waits where?"""
    sender, runner, guest = three_friends(pen)
    cast = {"sender": sender, "runner": runner, "guest": guest, "place": pen.new("place")}
    cast |= {"time": pen.new("time"), "thing": pen.new("thing")}
    cast |= {"wrong": pen.new("place"), "other": pen.new("thing")}
    pen.say("message.opening", **cast)
    pen.say("message.order", **cast)
    pen.fact("wants", who=sender, thing=cast["thing"])
    asked = "Where did {what} want {guest} to be?|Where did {what} want to see {guest}?"
    pen.fact("at", what=sender, place=cast["place"], guest=guest, asked=asked)
    sent = "Who sent the message?|Who had a message for {guest}?"
    pen.fact("did", who=sender, deed="called {runner}", runner=runner, guest=guest, who_did=sent)
    pen.say("message.way", past=pen.new("place"), **cast)
    pen.say("aside.day")
    arrives = {"message.right": 2, "message.wrong_place": 1, "message.wrong_thing": 1}
    heard = pen.say_either(arrives, **cast)
    carried = "Who carried the message?|Who took the message to {guest}?"
    pen.fact("did", who=runner, deed="spoke to {guest}", guest=guest, who_did=carried)
    consequences = {
        "message.right": ["message.met"],
        "message.wrong_place": ["message.apart", "message.joined"],
        "message.wrong_thing": ["message.swapped", "message.use"],
    }
    for beat in consequences[heard]:
        pen.say(beat, **cast)
    brought = cast["other" if heard == "message.wrong_thing" else "thing"]
    pen.fact("has", who=guest, thing=brought, asked="Who came with the {thing}?|Who brought the {thing}?")
    if heard == "message.wrong_place":
        pen.fact("at", what=sender, place=cast["place"], asked="Where did {what} wait?")
        pen.fact("at", what=guest, place=cast["wrong"], asked="Where did {what} wait?")
    pen.fact("did", who=guest, deed="came with the {brought}", brought=brought)
    pen.say("message.end", **cast)


def tell_song(pen: Pen) -> None:
    """Which words were sung? A valley, a bird or a friend gives them back."""
    cast = {"singer": pen.new("friend"), "friend": pen.new("friend"), "bird": pen.new("bird")}
    cast |= {"song": pen.new("song")}
    pen.say("song.opening", **cast)
    pen.say("aside.day")
    listener = pen.say_either({"song.valley": 1, "song.bird": 1, "song.teach": 1}, **cast)
    made_up = "Who made up the song?"
    pen.fact("did", who=cast["singer"], deed="sang a song", asked="Who sang the song first?", who_did=made_up)
    pen.say(f"{listener}_back", **cast)
    if listener != "song.valley":
        listening = cast["bird" if listener == "song.bird" else "friend"]
        asked = "Who sang the song after {singer}?|Who learned the song from {singer}?"
        pen.fact("did", who=listening, deed="sang it again", asked=asked, singer=cast["singer"])
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
PLOT_WEIGHTS = {plot: 8 if plot == "song" else 9 for plot in PLOTS}
