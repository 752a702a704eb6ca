"""Notebooks 09 and 14: their checks refuse learners' mistakes, and twins differ in one thing."""

from __future__ import annotations

import re
from functools import partial

import pytest
import torch

from eval.attention import inside
from eval.load_model import open_model
from notebooks import start, twins
from notebooks.checks import caches, looking
from notebooks.checks.compare import is_value
from storyworld import tell
from tests.notebooks.test_cell_answers import cells_of

# a change (right, wrong) of the notebook's solution, or a whole answer
WRONG: dict[str, list[str | tuple[str, str]]] = {
    "09.1": [
        ("store[layer] = k, v", "store[0] = k, v"),
        ("store[layer] = k, v", "pass"),
        ("store[layer] = k, v", "store[layer] = v, k"),
        ("store[layer] = k, v", "store.setdefault(layer, (k, v))"),
        ("if layer in store", "if store"),
        ("if layer in store", "if layer not in store"),
        ("return k, v", "return v, k"),
        ("return k, v", "return k"),
        ("return k, v", "return k[:, :, -1:], v[:, :, -1:]"),
        ("[keys, k], dim=2", "[k, keys], dim=2"),
        ("[values, v], dim=2", "[v, values], dim=2"),
        ("[values, v], dim=2", "[values, k], dim=2"),
        ("[keys, k], dim=2", "[keys, k], dim=1"),
        ("[keys, k], dim=2", "[keys, k], dim=0"),
    ],
    "09.2": [
        "lambda x, count: x[:, :, -count:]",
        "lambda x, count: x[:, :, :count]",
        "lambda x, count: x[:, :, x.shape[2] - count :]",
        "lambda x, count: x[:, -count:]",
        "lambda x, count: x[:, :, count:]",
        "lambda x, count: x[:, :, -count - 1 :]",
        "lambda x, count: x[..., -count:]",
        "lambda x, count: x[:, :, -max(1, count) :]",
        "lambda x, count: x[:, :, -count:] if count < x.shape[2] else x",
        "lambda x, count: x[:, :, max(0, x.shape[1] - count) :]",
        "lambda x, count: x[:, :, abs(x.shape[2] - count) :]",
        "lambda x, count: x[:, :, max(1, x.shape[2] - count) :]",
    ],
    "09.3": [
        "(90 * 100, 90)", "(90 * 100, 99)", "(100 * 101 // 2, 99)", "(90 * 10, 99)", "(4905, 100)", "(4905, 90)",
        "(4905, 89)", "(sum(10 + i for i in range(91)), 99)", "(sum(range(90)), 99)",
        "(sum(11 + i for i in range(90)), 99)", "(4905 + 10, 99)", "(99, 4905)",
    ],
    "09.4": [
        "lambda N, H_kv, D: N / D",
        "lambda N, H_kv, D: N / (H_kv * D)",
        "lambda N, H_kv, D: N / (2 * D)",
        "lambda N, H_kv, D: N / (2 * H_kv)",
        "lambda N, H_kv, D: N / 2",
        "lambda N, H_kv, D: N * 2 * H_kv * D",
        "lambda N, H_kv, D: 2 * H_kv * D / N",
        "lambda N, H_kv, D: 4 * N / (2 * H_kv * D)",
        "lambda N, H_kv, D: N / (8 * H_kv * D)",
        "lambda N, H_kv, D: N / (2 * 16 * D)",
        "lambda N, H_kv, D: N / (2 * H_kv * 64)",
        "lambda N, H_kv, D: N - 2 * H_kv * D",
    ],
    "14.1": [
        "lambda stream: lm.lm_head(stream)",
        "lambda stream: lm.model.norm(lm.lm_head(stream))",
        "lambda stream: lm.model.norm(stream)",
        "lambda stream: lm.lm_head(lm.model.norm(lm.model.norm(stream) * 2 + 1))",
        "lambda stream: lm.lm_head(lm.model.norm(stream)).softmax(-1)",
        "lambda stream: lm.lm_head(lm.model.norm(stream))[0]",
        "lambda stream: lm.lm_head(lm.model.norm(stream[:, :, -1]))",
        "lambda stream: lm.lm_head(lm.model.norm(stream)).argmax(-1)",
        "lambda stream: lm.model.norm(stream) @ lm.lm_head.weight",
        "lambda stream: lm.lm_head(stream / stream.norm(dim=-1, keepdim=True))",
        "lambda stream: lm.lm_head(lm.model.norm(stream.flip(0)))",
        "lambda stream: lm.lm_head(lm.model.norm(stream.mean(0)))",
    ],
    "14.2": [
        ("/ divisor", ""),
        ("/ divisor", "* divisor"),
        ("@ direction", ""),
        ("@ direction", "@ direction.abs()"),
        ("weight[:, mine]", "weight[mine]"),
        ("weight[:, mine] @ z[mine]", "weight @ z"),
        ("z[mine]", "z[:D]"),
        ("weight[:, mine]", "weight[:, :D]"),
        ("D * head, D * (head + 1)", "head, head + D"),
        ("D * head, D * (head + 1)", "D * head, D * head + 1"),
        ("D * head, D * (head + 1)", "D * (head + 1), D * (head + 2)"),
        ("D * head, D * (head + 1)", "head, None, 4"),  # every fourth number
        ("return ", ""),
    ],
    "14.3": [
        f'story2.format(first="{first}", second="{second}")'
        for first, second in [
            ("Bemvi", "Dirul"), ("Dirul", "Bemvi"), ("Dirvi", "Bemul"), ("Bemul", "Bemvi"), ("Dirul", "Dirvi"),
            ("Bemul", "Dirul"), ("Bemul", "Dirna"), ("Bemvi", "Dirvi"), ("Bemna", "Dirvi"), ("bemul", "dirvi"),
            ("Bem", "Dir"), ("", ""),
        ]
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def notebook():
    """Return the variables of the two notebooks that their checks and answers need."""
    with torch.no_grad():
        lm, tokenizer = open_model(start.shipped("small"), "cpu")
        torch.manual_seed(0)
        opening, *more = tell(0, 6, "validation").text.split("Dirul")[:3]
        story2 = "{first}".join([opening, *more]).replace("Bemvi", "{second}") + "Dir"
        text = story2.format(first="Dirul", second="Bemvi")
        ids = torch.tensor([[tokenizer.bos_id, *tokenizer.encode(text)]])
        twin, _ = twins.exchanged(tokenizer, ids, "Dirul", "Bemvi")
        right, other = tokenizer.encode(" Dirul")[1], tokenizer.encode(" Dirna")[1]
        passed = inside.passing(lm, ids, [*lm.model.layers, lm.model.norm, lm.attention_modules()[1].o_proj])
        streams = torch.stack([given for given, _ in passed[:3]])
        variables = {
            "torch": torch,
            "lm": lm,
            "story2": story2,
            "D": lm.config.head_size,
            "o_proj": lm.attention_modules()[1].o_proj,
            "z": passed[3][0][0, -1],
            "direction": (lm.lm_head.weight[right] - lm.lm_head.weight[other]) * lm.model.norm.weight,
            "divisor": streams[-1, 0, -1].pow(2).mean().sqrt(),
        }
        of_heads = inside.direct_logit_attribution(lm, ids, right, other).heads[1, :, 0, -1]
        story = ids[:, :61]
        judges = {
            "09.1": partial(caches.keep_all, lm=lm, story=story),
            "09.2": caches.last_tokens,
            "09.3": partial(is_value, expected=caches.tokens_read(lm, story[:, :10], 90), tolerance=0),
            "09.4": caches.even_tokens,
            "14.1": partial(looking.my_lens, lm=lm, ids=ids, streams=streams),
            "14.2": partial(looking.head_adds, of_heads=of_heads),
            "14.3": partial(looking.twin_story, tokenizer=tokenizer, twin=twin),
        }
    return variables, judges


@pytest.mark.parametrize("number", WRONG)
def test_a_check_accepts_the_solution_and_refuses_at_least_twelve_mistakes(number, notebook):
    variables, judges = notebook
    check, solution = cells_of(number[:2], number)
    name = re.search(r'check\("[^"]+", (\w+)', check)[1]

    def refused(code: str) -> bool:
        own = dict(variables)
        exec(code, own)
        try:
            with torch.no_grad():
                judges[number](own[name])
        except Exception:
            return True
        return False

    assert not refused(solution)
    for mistake in WRONG[number]:
        answer = f"{name} = {mistake}"
        if isinstance(mistake, tuple):
            right, wrong = mistake
            assert solution.count(right) == 1, right
            answer = solution.replace(right, wrong)
        assert refused(answer), answer
    assert len(WRONG[number]) >= 12


def test_twins_of_a_story_differ_only_where_they_should(notebook):
    lm = notebook[0]["lm"]
    _, tokenizer = open_model(start.shipped("small"), "cpu")
    made = [twins.both_twins(tell(0, index, "validation"), tokenizer) for index in range(20)]
    found = [pair for pair in made if pair is not None]
    assert len(found) >= 5
    for pair in found:
        changed = pair.ids != pair.what_follows
        assert set(pair.ids[changed].tolist()) == {pair.right}
        assert set(pair.what_follows[changed].tolist()) == {pair.other}
        swapped = pair.ids != pair.who
        before = pair.ids[swapped].unique().tolist()
        assert before == pair.who[swapped].unique().tolist()
        assert len(before) == 2
        assert torch.equal(pair.ids[0, -1], pair.who[0, -1])
    with torch.no_grad():
        shares = twins.brought_back(lm, tokenizer, stories=20)
    assert {values.shape[1:] for values in shares.values()} == {(2, 4)}


def test_without_its_weights_the_large_model_is_left_out(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(twins, "RUNS", tmp_path)
    assert twins.smollm2() is None
    assert capsys.readouterr().out.startswith("SmolLM2 is not here")


def test_a_cache_that_keeps_everything_changes_nothing(notebook):
    lm = notebook[0]["lm"]
    variables = dict(notebook[0])
    exec(cells_of("09", "09.1")[1], variables)
    story = torch.arange(40).view(1, 40)
    cache = caches.YourCache(variables["keep_all"])
    torch.testing.assert_close(caches.read(lm, story, cache), caches.read(lm, story), atol=1e-4, rtol=1e-4)
    assert cache.store[0][0].shape[2] == sum(caches.PIECES)
