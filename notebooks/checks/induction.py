"""Check the steps that readers write in notebook 07. Each is tested after our own earlier steps."""

from __future__ import annotations

from collections.abc import Callable

from eval.attention import capture
from eval.attention.controls import copied, token_losses
from eval.attention.metrics import previous_token, score
from notebooks import by_hand
from notebooks.by_hand import built, fields, letters, right, tokens

Step = Callable[..., None]


def look_back(step: Step) -> None:
    maps = capture(built(step), by_hand.repeated().input_ids).weights[0]  # (B, H, T, T), of layer 0
    places = {f"{d} places back": maps.diagonal(-d, -2, -1).mean() for d in range(2, 5)}
    places["itself"] = maps.diagonal(0, -2, -1).mean()
    places["the token before"] = previous_token(maps).min()
    most = max(places, key=lambda name: float(places[name]))
    share = places["the token before"]
    found = f"After my_look_back a token gives {share:.0%} to the token before"
    wanted = f"and must give more than 90%. It gives the most to {most}: {places[most]:.0%}."
    assert share > 0.9, f"{found}, {wanted}"


def hand_over(step: Step) -> None:
    text = "·" + letters[5:40]
    before = fields(built(by_hand.look_back), text)
    after = fields(built(by_hand.look_back, step), text)
    for name, field in (("TOKEN", 0), ("NEXT", 2)):
        changed = (after[field] - before[field]).abs().max()
        found = f"my_hand_over changes the field {name} by {changed:.2g}"
        assert changed < 1e-3, f"{found}, and must leave it as it is."
    largest, where = after[1, 1:].max(1)  # of BEFORE, without "·"
    found = f"After my_hand_over, BEFORE holds {largest.min():.2g}"
    assert largest.min() > 0.5, f"{found}, and must hold nearly 1."
    wrong = (where != tokens(text)[0, :-1]).sum()
    assert wrong == 0, f"BEFORE names the wrong letter at {wrong} of {len(where)} places."


def match(step: Step) -> None:
    twice = by_hand.repeated()
    lm = built(by_hand.look_back, by_hand.hand_over, step)
    induction = score(capture(lm, twice.input_ids), twice)["induction"][1, 0]  # of layer 1's head
    found = f"After my_match, the head of layer 1 gives {induction:.0%} to what followed last time"
    assert induction > 0.9, f"{found}, and must give more than 90%."
    share = right(lm, twice)
    predicted = f"But only {share:.0%} of the second copy is predicted."
    assert share > 0.95, f"{found}. That is right. {predicted}"


def rest(step: Step) -> None:
    twice = by_hand.repeated()
    lm = built(by_hand.look_back, by_hand.hand_over, by_hand.match, step)
    induction = score(capture(lm, twice.input_ids), twice)["induction"][1, 0]
    found = f"After my_rest the head gives {induction:.0%} to what followed last time"
    assert induction > 0.9, f"{found}: a match must still win."
    share = right(lm, twice)
    found = f"After my_rest only {share:.0%} of the second copy is right"
    assert share > 0.95, f"{found}: a match must still win."
    loss = token_losses(lm, twice)[copied(twice)[0]].mean()
    found = f"After my_rest the first copy costs {loss:.2f} nats a token"
    assert loss < 4.2, f"{found}, and must cost 4.16, a blind guess."
