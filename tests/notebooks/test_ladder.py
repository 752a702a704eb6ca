"""The exercises of notebooks 12 and 13, and the rungs that notebooks/ladder.py makes."""

from __future__ import annotations

import json
from types import SimpleNamespace

import nbformat
import pytest
import torch

from configs.command import InputError
from notebooks import ladder, one_file, start, steps
from notebooks.checks import ladder as judges
from notebooks.checks import training
from notebooks.execute import SOLUTION
from tests.notebooks import mistakes_training
from tests.notebooks.making import ROOT, refusal

LIST = "[other[seed] - baseline[seed] for seed in baseline if seed in other]"
REACH = "T[len(changes)] * stdev(changes) / len(changes) ** 0.5"
RETURN = "return mean(changes), mean(changes) - reach, mean(changes) + reach"
DIFFERENCE = "better = groups - groups.mean(dim=1, keepdim=True)"
WALK = "is_answer = ids[max(0, i + 1 - len(header)) : i + 1] == header"
WRONG: dict[str, list[tuple[str, str]]] = {
    "12.2": [
        (LIST, "[baseline[seed] - other[seed] for seed in baseline if seed in other]"),
        (LIST, "[other[seed] - baseline[seed] for seed in baseline]"),  # KeyError
        (LIST, "[b - a for a, b in zip(baseline.values(), other.values())]"),
        (LIST, "[abs(other[seed] - baseline[seed]) for seed in baseline if seed in other]"),
        (LIST, "[other[seed] / baseline[seed] for seed in baseline if seed in other]"),
        (LIST, "list(other.values())"),
        (LIST, "[other.get(seed, 0) - baseline[seed] for seed in baseline]"),
        (REACH, "T[len(changes)] * stdev(changes)"),
        (REACH, "T[len(changes)] * stdev(changes) / len(changes)"),
        (REACH, "T[len(changes)] * stdev(changes) / (len(changes) - 1) ** 0.5"),
        (REACH, "1.96 * stdev(changes) / len(changes) ** 0.5"),
        (REACH, "T[3] * stdev(changes) / len(changes) ** 0.5"),
        (REACH, "T[len(changes)] * stdev(changes) ** 2 / len(changes) ** 0.5"),
        (REACH, "T[len(changes)] * stdev(other.values()) / len(other) ** 0.5"),
        (REACH, "T[len(baseline)] * stdev(changes) / len(changes) ** 0.5"),
        (REACH, "stdev(changes) / len(changes) ** 0.5"),
        (RETURN, "return mean(changes)"),
        (RETURN, "return mean(changes), reach"),
        (RETURN, "return mean(changes), mean(changes) + reach, mean(changes) - reach"),
        (RETURN, "return mean(changes), min(changes), max(changes)"),
        (RETURN, "return mean(changes) - reach, mean(changes), mean(changes) + reach"),
        (RETURN, "print(mean(changes))"),
    ],
    "12.4": [
        ("range(ids.shape[1])", "[ids.shape[1] - 1]"),
        ("range(ids.shape[1])", "range(1)"),
        ("range(ids.shape[1])", "range(ids.shape[1] - 1)"),
        ("        changed = ids.clone()", "        changed = ids"),
        ("changed[:, place] = 0", "pass"),
        (".abs()", ""),
        ("> 1e-4", "> 0.1"),
        ("> 1e-4", "> 0"),
        ("moved.any()", "True"),  # IndexError
        ("moved.nonzero()[0]", "moved.nonzero()[-1]"),
        ("place - int(", "place + 1 - int("),
        ("place - int(", "int(moved.sum()) - int("),
        ("max(furthest, place", "min(furthest, place"),
        ("furthest = max(furthest, place - int(moved.nonzero()[0]))", "furthest = place - int(moved.nonzero()[0])"),
        ("    return furthest", "    return furthest > 0"),
        ("    return furthest", "    print(furthest)"),
    ],
    "13.1": [
        ("        if is_answer:", "        if False:"),  # nothing is trained
        ("[-100] * len(ids)", "list(ids)"),
        ("[-100] * len(ids)", "[0] * len(ids)"),
        ("            is_answer = token != end\n", ""),
        (
            "labels[i] = token\n            is_answer = token != end",
            "is_answer = token != end\n            labels[i] = token if is_answer else -100",
        ),
        (WALK, "is_answer = token == header[-1]"),
        (WALK, "is_answer = ids[max(0, i - 1) : i + 1] == header[1:]"),
        (WALK, "is_answer = token == header[0]"),
        (WALK, "is_answer = ids[i : i + len(header)] == header"),  # the header is trained, too
        (WALK, "is_answer = ids[max(0, i + 1 - len(header)) : i + 1] == [1, 5, 3]"),  # the example's
        ("return labels", "return labels[1:] + [-100]"),  # the shift is the loss's
        ("return labels", "return [label != -100 for label in labels]"),
        ("return labels", "return labels[: len(ids) - 1]"),
        ("        if is_answer:", "        if is_answer and -100 not in labels[:i][-1:] + [0]:"),
        ("token != end", "token != 2"),
        ("for i, token in enumerate(ids)", "for i, token in enumerate(ids[:-1])"),
    ],
    "13.2": [
        ("groups.mean(dim=1, keepdim=True)", "rewards.mean()"),
        ("groups.mean(dim=1, keepdim=True)", "groups.mean(dim=0, keepdim=True)"),
        (DIFFERENCE, "better = groups.mean(dim=1, keepdim=True) - groups"),
        (DIFFERENCE, "better = groups"),
        ("rewards.view(-1, group_size)", "rewards.view(group_size, -1).T"),
        ("(groups.std(dim=1, keepdim=True) + 0.0001)", "groups.std(dim=1, keepdim=True)"),
        ("(groups.std(dim=1, keepdim=True) + 0.0001)", "(groups.var(dim=1, keepdim=True) + 0.0001)"),
        ("groups.std(dim=1, keepdim=True)", "groups.std(dim=1, keepdim=True, correction=0)"),
        ("groups.std(dim=1, keepdim=True)", "rewards.std()"),
        (".where(differ, 0.0)", ""),
        ("    if scaled:\n        better", "    if True:\n        better"),
        ("    if scaled:\n        better", "    if not scaled:\n        better"),
        (".flatten()\n", "\n"),
        ("groups.amax(dim=1, keepdim=True) > groups.amin(dim=1, keepdim=True)", "groups.std(dim=1, keepdim=True) != 0"),
        ("better.where(differ, 0.0)", "better.where(differ, float('nan'))"),
        ("return better", "better = better"),
    ],
}
RIGHT = {
    "12.2": """
def paired_difference(baseline, other):
    d = torch.tensor([other[seed] - baseline[seed] for seed in sorted(baseline.keys() & other.keys())])
    reach = T[len(d)] * d.std() / len(d) ** 0.5
    return float(d.mean()), float(d.mean() - reach), float(d.mean() + reach)
""",
    "12.4": """
def looks_ahead(predict, ids):
    distances = [0]
    for place in range(1, ids.shape[1]):
        changed = torch.cat([ids[:, :place], torch.zeros(1, 1, dtype=torch.long), ids[:, place + 1 :]], dim=1)
        for i in range(place):
            if not torch.allclose(predict(changed)[:, i], predict(ids)[:, i], atol=1e-4, rtol=0):
                distances.append(place - i)
    return max(distances)
""",
    "13.1": """
def label_mask(ids, header, end):
    labels, n = torch.full((len(ids),), -100), len(header)
    for i in range(len(ids) - n + 1):
        if ids[i : i + n] == header:
            stop = ids.index(end, i + n) + 1 if end in ids[i + n :] else len(ids)
            labels[i + n : stop] = torch.tensor(ids[i + n : stop])
    return labels
""",
    "13.2": mistakes_training.RIGHT["group_advantage"][0],
}
WRONG_RUNGS = [
    None, 3, {}, [], "model.head_dim: 16",
    {"model.head_dim": 16},  # smaller
    {"model.num_attention_heads": 8},  # larger
    {"model.num_hidden_layers": 3},
    {"model.num_key_value_heads": 1},  # the ladder's mqa
    {"model.norm": "layernorm"},
    {"model.norm": "rmsnorm"},  # nothing
    {"model.num_attention_heads": 4},  # nothing
    {"model.head_dims": 16},
    {"head_dim": 16},
    {"model.head_dim": "sixteen"},
    {"model.hidden_size": 32},
    {"train.max_steps": 9000},
    {"data.source.repeats": 1.0},
    {"seed": 1},
    {"model.rope_theta": 100.0, "train.tokens_per_step": 2048},
]  # fmt: skip
RIGHT_RUNGS = [
    {"model.num_attention_heads": 8, "model.head_dim": 16},
    {"model.rope_theta": 100.0},
    {"train.optimizer.name": "adamw", "train.optimizer.lr": 0.005},
    {"model.hidden_act": "relu"},
    {"model.num_hidden_layers": 3, "model.intermediate_size": 80, "model.head_dim": 26},
    {"model.no_rope_layers": [1, 0]},
]


def cells_of(number: str) -> tuple[str, str, str]:
    """Return the cell, the check and the solution of an exercise."""
    (path,) = (ROOT / "notebooks").glob(f"{number[:2]}_*.ipynb")
    cells = nbformat.read(path, as_version=4).cells
    at = next(i for i, cell in enumerate(cells) if f'"{number}"' in cell.source)
    return cells[at - 1].source, cells[at].source, SOLUTION.search(cells[at + 1].source)[1]


def refused(number: str, answer: str) -> str:
    """Return what the check of an exercise prints about an answer; "" if it accepts it."""
    cell, check, _ = cells_of(number)
    prelude = "import torch\nfrom notebooks.checks import ladder as judges, training\n"
    prelude += "from types import SimpleNamespace\nfrom notebooks.start import check\n"
    return refusal(prelude + cell, answer, check)


@pytest.mark.parametrize("number", WRONG)
def test_a_check_accepts_right_answers_and_refuses_mistakes_with_a_hint(number):
    _, _, solution = cells_of(number)
    for answer in (solution, RIGHT[number]):
        assert refused(number, answer) == "", answer
    accepted = []
    hints = set()
    for right, wrong in WRONG[number]:
        assert solution.count(right) == 1, right
        sentence = refused(number, solution.replace(right, wrong))
        if not sentence:
            accepted.append(wrong)
            continue
        said, hint = sentence.split("\nHint: ")
        assert said.startswith("Not yet. "), wrong
        assert hint in start.HINTS[number].values(), wrong
        hints.add(hint)
    assert len(WRONG[number]) >= 12
    assert len(accepted) <= 0.05 * len(WRONG[number]), accepted
    assert len(hints) >= 3


def test_our_label_mask_is_right():
    training.label_mask(SimpleNamespace(label_mask=steps.label_mask))


def test_a_rung_is_a_new_change_of_the_model_of_the_baselines_size():
    for rung in WRONG_RUNGS:
        with pytest.raises((AssertionError, InputError), match=r"\w+ \w+"):
            judges.own_rung(rung)
    for rung in RIGHT_RUNGS:
        judges.own_rung(rung)


@pytest.fixture
def layer():
    torch.manual_seed(0)
    return one_file.Config(hidden_size=32, intermediate_size=48)


def test_each_rung_takes_away_its_part_alone(layer):
    """Both computed by hand, from the parts of one_file.py."""
    x, ones, zeros = torch.randn(1, 5, 32), torch.ones(5, 8), torch.zeros(5, 8)  # angles of 0
    whole, without = one_file.Layer(layer), ladder.NoResidual(layer)
    without.load_state_dict(whole.state_dict())
    attended = whole.self_attn(whole.input_layernorm(x), ones, zeros)
    fed = whole.post_attention_layernorm(attended)
    fed = whole.mlp.down_proj(torch.nn.functional.silu(whole.mlp.gate_proj(fed)) * whole.mlp.up_proj(fed))
    assert torch.equal(without(x, ones, zeros), fed)
    attention, undivided = one_file.Attention(layer), ladder.NoRoot(layer)
    undivided.load_state_dict(attention.state_dict())
    attention.q_norm.weight.data *= 8**0.5  # a head has 8 numbers
    torch.testing.assert_close(undivided(x, ones, zeros), attention(x, ones, zeros))


def test_the_stored_rungs_are_those_of_the_command():
    stored = json.loads((ROOT / "notebooks" / "ladder_seeds.json").read_text(encoding="utf-8"))["without"]
    assert stored["command"] == "python -m notebooks.ladder"
    assert {run["rung"] for run in stored["runs"]} == set(ladder.RUNGS)
    quick = ladder.train("no-norm", max_steps=2, hidden_size=32, intermediate_size=48)
    assert list(quick) == list(stored["runs"][0])
    assert 3 < quick["new"] < 5  # a blind guess costs ln 64 = 4.2
