"""The stories of the world: one short program each, written once for both pens.

A program keeps the state of its story (who holds the kite, who hides where) in plain variables and says
beats from `beats/<plot>.yaml`. What a later sentence says follows from that state, so whoever wants to
predict it has to remember what happened.
"""

from .pens import OneOf, Pen


def tell_with(pen: Pen) -> str:
    """Choose a plot, tell it with this pen and return the plot's name."""
    plot = pen.decide("plot", PLOT_WEIGHTS, lambda plot: pen.heads(f"{plot}.opening", {}))
    PLOTS[plot](pen)
    return plot


def tell_pass(pen: Pen) -> None:
    """Who holds the toy?"""
    hero, friend, third = friends = [pen.new("friend") for _ in range(3)]
    toy = pen.new("thing")
    pen.say("pass.opening", hero=hero, toy=toy, place=pen.new("place"))
    pen.say("pass.joy", hero=hero, toy=toy)
    pen.say("pass.friends", hero=hero, friend=friend, third=third)
    holder = hero
    for turn in range(4):
        taker = OneOf([someone for someone in friends if someone is not holder])
        if turn < 2:
            pen.say("pass.give", giver=holder, taker=taker, toy=toy)
        elif pen.say_either({"pass.give": 1, "pass.dusk": 1}, giver=holder, taker=taker, toy=toy) == "pass.dusk":
            break
        holder = taker.chosen
    else:
        pen.say("pass.dusk")
    pen.say("pass.keeper", holder=holder, toy=toy)
    pen.say("pass.back" if holder is hero else "pass.away", hero=hero, holder=holder, toy=toy)


def tell_hide(pen: Pen) -> None:
    """Who hides where, who is found first, and so who counts next?"""
    seeker, *hiders = [pen.new("friend") for _ in range(3)]
    spot_of = {hider: pen.new("spot") for hider in hiders}
    pen.say("hide.opening", seeker=seeker)
    for hider in hiders:
        pen.say("hide.hide", hider=hider, spot=spot_of[hider])
    pen.say("hide.ready", seeker=seeker)
    found = OneOf(hiders)
    looks = {"hide.wrong": 1, "hide.noise": 1}
    while pen.say_either(looks, seeker=seeker, wrong=pen.new("spot"), found=found) == "hide.wrong":
        looks = {"hide.wrong": 1, "hide.noise": 2}
    first = found.chosen
    (last,) = (hider for hider in hiders if hider is not first)
    pen.say("hide.first", seeker=seeker, found=first, spot=spot_of[first])
    pen.say_either({"hide.last": 2, "hide.give_up": 1}, seeker=seeker, last=last, spot=spot_of[last])
    pen.say("hide.turn", seeker=seeker, found=first)
    pen.say("hide.prize", last=last, spot=spot_of[last])


def tell_lost(pen: Pen) -> None:
    """Where was it put down?"""
    hero, friend, toy = pen.new("friend"), pen.new("friend"), pen.new("thing")
    pen.say("lost.opening", hero=hero, toy=toy)
    places = [pen.new("place") for _ in range(3)]
    left_at = None
    for n, place in enumerate(places):
        if left_at is not None:
            pen.say("lost.walk", hero=hero, place=place)
        elif n == 2:
            pen.say("lost.drop", hero=hero, toy=toy, place=place)
            left_at = n
        elif pen.say_either({"lost.walk": 2 - n, "lost.drop": 1}, hero=hero, toy=toy, place=place) == "lost.drop":
            left_at = n
    dropped = places[left_at]
    pen.say("lost.gone", hero=hero, toy=toy)
    pen.say("lost.friend", hero=hero, friend=friend)
    pen.say("lost.remember", hero=hero, place=dropped)
    pen.say(("lost.past_two", "lost.past_one", "lost.past_none")[left_at], late=places[2], middle=places[1], hero=hero)
    pen.say("lost.found", hero=hero, friend=friend, toy=toy, place=dropped)
    pen.say("lost.end", hero=hero, friend=friend, toy=toy)


def tell_trade(pen: Pen) -> None:
    """Who owns which of three things?"""
    hero, owner, helper = [pen.new("friend") for _ in range(3)]
    have, need, wish = [pen.new("thing") for _ in range(3)]
    cast = dict(hero=hero, owner=owner, helper=helper, have=have, need=need, wish=wish)
    pen.say("trade.opening", **cast)
    pen.say("trade.ask", **cast)
    pen.say("trade.search", **cast)
    swapped = pen.say_either({"trade.swap": 2, "trade.help": 1}, **cast) == "trade.swap"
    pen.say("trade.return", **cast)
    paid = pen.say_either({"trade.deal": 2, "trade.gift": 1}, **cast) == "trade.deal"
    pen.say(f"trade.end_{'swap' if swapped else 'help'}_{'deal' if paid else 'gift'}", **cast)


def tell_race(pen: Pen) -> None:
    """In which order do they run?"""
    order = [pen.new("friend") for _ in range(3)]
    start, goal = pen.new("place"), pen.new("place")
    lineup = dict(zip(("one", "two", "three"), order))
    pen.say("race.opening", start=start, goal=goal, **lineup)
    pen.say("race.start", **lineup)
    early = order[0]
    for _ in range(3):
        leader, second, third = order
        weights = {"race.stop": 1, "race.pass_first": 1, "race.pass_second": 1}
        event = pen.say_either(weights, leader=leader, second=second, third=third)
        if event == "race.stop":
            order = [second, third, leader]
        elif event == "race.pass_first":
            order = [second, leader, third]
        else:
            order = [leader, third, second]
    first, second, third = order
    prize = pen.new("prize")
    pen.say("race.goal", goal=goal, first=first, second=second, third=third)
    pen.say("race.prize", first=first, prize=prize)
    pen.say("race.stayed_ahead" if early is first else "race.fell_behind", early=early, first=first)
    pen.say("race.share", first=first, second=second, third=third, prize=prize)


def tell_wish(pen: Pen) -> None:
    """Who wished for what?"""
    maker, one, two = [pen.new("friend") for _ in range(3)]
    gift, present = pen.new("thing"), pen.new("thing")
    wish_of = {one: gift, two: present}
    pen.say("wish.opening", maker=maker)
    pen.say("wish.wishes", one=one, two=two, gift=gift, present=present)
    pen.say("wish.made", maker=maker)
    visited = OneOf([one, two])
    pen.say("wish.visit", maker=maker, first=visited)
    first = visited.chosen
    second = two if first is one else one
    cast = dict(maker=maker, first=first, second=second, right=wish_of[first], wrong=wish_of[second])
    if pen.say_either({"wish.right": 1, "wish.mixed": 1}, **cast) == "wish.mixed":
        pen.say("wish.fix", **cast)
    pen.say("wish.then", gift=wish_of[second], **cast)
    pen.say("wish.end", one=one, two=two, gift=gift, present=present)
    pen.say("wish.thanks", maker=maker, thanks=pen.new("thing"), giver=OneOf([one, two]))


def tell_soup(pen: Pen) -> None:
    """Who gave what?"""
    cook, *neighbors = [pen.new("friend") for _ in range(3)]
    one, two, dish = pen.new("food"), pen.new("food"), pen.new("dish")
    pen.say("soup.opening", cook=cook, one=one, two=two, dish=dish)
    pen.say("soup.go", cook=cook)
    gift = OneOf([one, two])
    pen.say("soup.lend", cook=cook, giver=neighbors[0], gift=gift)
    rest = two if gift.chosen is one else one
    giver_of = {gift.chosen: neighbors[0], rest: neighbors[1]}
    pen.say("soup.lend", cook=cook, giver=neighbors[1], gift=rest)
    if pen.say_either({"soup.extra": 1, "soup.cook": 2}, cook=cook, extra=pen.new("food"), dish=dish) == "soup.extra":
        pen.say("soup.cook", cook=cook, dish=dish)
    praised = OneOf([one, two])
    # Who gave the praised food is settled only when the sentence says which food it is.
    pen.say("soup.taste", cook=cook, asked=praised)
    owner = giver_of[praised.chosen]
    (other,) = (giver for giver in neighbors if giver is not owner)
    pen.say("soup.thanks", cook=cook, owner=owner)
    pen.say("soup.bowls", cook=cook, owner=owner, other=other)
    pen.say("soup.end", cook=cook, other=other, gift=two if praised.chosen is one else one)


def tell_message(pen: Pen) -> None:
    """What was sent, what was heard, and who waits where?"""
    sender, runner, guest = [pen.new("friend") for _ in range(3)]
    place, time, thing = pen.new("place"), pen.new("time"), pen.new("thing")
    wrong, other = pen.new("place"), pen.new("thing")
    cast = dict(sender=sender, runner=runner, guest=guest, place=place, time=time, thing=thing)
    cast |= dict(wrong=wrong, other=other)
    pen.say("message.opening", **cast)
    pen.say("message.order", **cast)
    pen.say("message.way", past=pen.new("place"), **cast)
    weights = {"message.right": 2, "message.wrong_place": 1, "message.wrong_thing": 1}
    heard = pen.say_either(weights, **cast)
    if heard == "message.right":
        pen.say("message.met", **cast)
    elif heard == "message.wrong_place":
        pen.say("message.apart", **cast)
        pen.say("message.joined", **cast)
    else:
        pen.say("message.swapped", **cast)
        pen.say("message.use", **cast)
    pen.say("message.end", **cast)


def tell_song(pen: Pen) -> None:
    """Which words were sung? A valley, a bird or a friend gives them back."""
    singer, friend, bird, song = pen.new("friend"), pen.new("friend"), pen.new("bird"), pen.new("song")
    cast = dict(singer=singer, friend=friend, bird=bird, song=song)
    pen.say("song.opening", **cast)
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

# One story in ten holds a song; the other plots are equally likely.
PLOT_WEIGHTS = {plot: 8.0 if plot == "song" else 9.0 for plot in PLOTS}
