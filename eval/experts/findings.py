"""What did the experts of a run come to do? In words and tables: lines for the terminal, a part of report.md."""

from __future__ import annotations

from configs.text import table
from eval.experts.log import DEAD, STARVED, Look

CHOICES = {
    "random": "other experts, drawn at random",
    "all alike": "all experts, each with the same weight",
}


def in_a_line(look: Look) -> str:
    """How evenly the tokens are shared out, and which experts are dead: for the terminal."""
    of_fair = look.of_fair
    layer, expert = divmod(int(of_fair.argmin()), look.experts)
    weakest = f"L{look.layers[layer]} E{expert} with {of_fair.min():.2f} of a fair share"
    return f"experts: the weakest is {weakest}; {dead_in_words(look)}"


def dead_in_words(look: Look) -> str:
    """Which experts get hardly a token."""
    dead = [f"L{layer} E{', E'.join(map(str, experts))}" for layer, experts in look.under(DEAD).items()]
    return f"dead: {'; '.join(dead)}" if dead else "none is dead"


def findings(looks: list[Look]) -> list[str]:
    """Lines of Markdown: the balance of every layer, what the router's choice is worth, and which words go where."""
    last = looks[-1]
    lines = ["## Experts", "", f"{last.experts} in each of {len(last.layers)} layers. {_balanced(last)}", ""]
    lines += [table(("Layer", "weakest", "strongest", "mean weight", f"under {STARVED:g}"), _rows(last)), ""]
    lines += ["Shares are parts of a fair share: 1 = as many tokens as every other expert.", ""]
    if (own := last.loss.get("learned")) is not None:
        lines += [
            f"- Every token sent to {where}: the loss rises by {last.loss[name] - own:.3f} nats, from {own:.3f}."
            for name, where in CHOICES.items()
            if name in last.loss
        ]
        lines += [""]
    if last.words:
        lines += ["The tokens that tell an expert from the others of its layer:", ""]
        rows = [
            (f"L{layer} E{expert}", f"{share:.2f}", " ".join(words))
            for layer, shares, of_layer in zip(last.layers, last.of_fair, last.words, strict=True)
            for expert, (share, words) in enumerate(zip(shares, of_layer, strict=True))
        ]
        lines += [table(("Expert", "share", "tokens"), rows), ""]
    return lines


def _balanced(look: Look) -> str:
    """In a sentence."""
    starved = sum(map(len, look.under(STARVED).values()))
    many = "No expert has" if not starved else f"{starved} {'expert has' if starved == 1 else 'experts have'}"
    return f"{many} less than {STARVED:g} of a fair share of the tokens; {dead_in_words(look)}."


def _rows(look: Look) -> list[tuple[str, ...]]:
    starved = look.under(STARVED)
    return [
        (
            f"L{layer}",
            f"{shares.min():.2f} (E{shares.argmin()})",
            f"{shares.max():.2f} (E{shares.argmax()})",
            f"{sum(s * (w or 0.0) for s, w in zip(look.share[i], look.weight[i], strict=True)):.2f}",
            ", ".join(f"E{expert}" for expert in starved.get(layer, [])) or "none",
        )
        for i, (layer, shares) in enumerate(zip(look.layers, look.of_fair, strict=True))
    ]
