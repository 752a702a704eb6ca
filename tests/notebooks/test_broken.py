"""The break-it lab: every script breaks what it says, nothing else, and the answers are about these
scripts.
"""

from __future__ import annotations

import importlib
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from configs.command import InputError
from eval.hooks import Hooks
from eval.hooks.held_out import Samples
from model import LanguageModel, ModelConfig, attention, masks
from model.masks import MaskSpec
from notebooks.broken import config_of
from notebooks.broken.judge import answers, judge
from tests.notebooks.making import ROOT, environment
from train import loop

BREAKABLE = [
    (LanguageModel, "forward"), (LanguageModel, "set_attn_implementation"), (torch.amp, "GradScaler"),
    (masks, "causal"), (MaskSpec, "of_layers"), (Hooks, "run"), (loop, "lr_factor"), (attention, "apply_rotary"),
    (Samples, "evaluate"),
]  # fmt: skip
SCRIPTS = sorted(path.stem for path in (ROOT / "notebooks" / "broken").glob("[1-9].py"))
NUMBERS = list(answers()["trainings"])


@pytest.fixture
def script(monkeypatch):
    """number -> the module; what its break_it changes is put back after the test."""
    for owner, name in BREAKABLE:
        monkeypatch.setattr(owner, name, getattr(owner, name))
    return lambda number: importlib.import_module(f"notebooks.broken.{number}")


def small_model(**changes) -> LanguageModel:
    torch.manual_seed(0)
    shape = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    lm = LanguageModel(ModelConfig(**shape, **{"num_key_value_heads": "mha", **changes}))
    for parameter in lm.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return lm.eval()


def tokens() -> torch.Tensor:
    return torch.randint(50, (2, 9), generator=torch.Generator().manual_seed(1))


def test_1_asks_for_the_token_after_the_next_one(script):
    lm = small_model()
    ids = tokens()
    logits = lm(ids)
    script(1).break_it()
    loss_sum, count = lm(ids, labels=ids)
    expected = torch.nn.functional.cross_entropy(logits[:, :-2].flatten(0, 1), ids[:, 2:].flatten(), reduction="sum")
    torch.testing.assert_close(loss_sum, expected)
    assert count == 2 * 7


def test_2_reads_other_heads_in_training_than_in_evaluation(script):
    ids = tokens()
    healthy = small_model()
    script(2).break_it()
    broken = small_model()
    with torch.no_grad():
        torch.testing.assert_close(broken(ids), healthy(ids))
    assert (broken(ids) - healthy(ids)).abs().max() > 0.1
    # with its key/value heads the other way round the healthy one agrees
    for layer in healthy.attention_modules():
        for weight in (layer.k_proj.weight, layer.v_proj.weight):
            weight.data = weight.data.unflatten(0, (4, -1)).flip(0).flatten(0, 1)
    torch.testing.assert_close(broken(ids), healthy(ids))


@pytest.mark.parametrize("number", SCRIPTS)
def test_the_first_line_of_a_training_does_not_name_its_fault(monkeypatch, number):
    shapes = []

    def train(number, break_it, *changes):
        shapes.append(config_of(number, *changes).model.in_words())

    monkeypatch.setattr("notebooks.broken.train", train)
    runpy.run_path(str(ROOT / "notebooks" / "broken" / f"{number}.py"), run_name="__main__")
    assert shapes == [config_of(0).model.in_words()]


def test_3_overflows_where_a_gradient_is_large(script):
    script(3).break_it()
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    weight = torch.nn.Parameter(torch.ones(2))
    scaler.scale((weight * torch.tensor([0.01, 1e-4])).sum()).backward()
    scaler.unscale_(torch.optim.SGD([weight], lr=0.1))
    assert weight.grad.isinf().tolist() == [True, False]
    assert weight.grad[1].item() == pytest.approx(1e-4, rel=1e-3)


# one place in each of two layers
@pytest.mark.parametrize(("breaks", "first"), [(False, 5), (True, 3)])
def test_4_sees_one_token_too_far(script, breaks, first):
    if breaks:
        script(4).break_it()
    lm = small_model()
    ids = tokens()
    other = ids.clone()
    other[:, 5] = (ids[:, 5] + 1) % 50
    with torch.no_grad():
        changed = (lm(ids) - lm(other)).abs().amax(dim=(0, 2)) > 1e-4
    assert int(changed.nonzero()[0]) == first


def test_5_evaluates_with_a_head_of_its_own_and_ties_it_again(script, monkeypatch):
    lm = small_model(tie_word_embeddings=True)
    seen = []
    monkeypatch.setattr(Hooks, "run", lambda self, event: seen.append(event.lm.lm_head.weight.detach().clone()))
    script(5).break_it()
    Hooks.run(None, SimpleNamespace(lm=lm))
    assert not torch.allclose(seen[0], lm.model.embed_tokens.weight)
    assert lm.lm_head.weight is lm.model.embed_tokens.weight


def test_6_has_ten_times_the_rate(script):
    config = config_of(6)
    healthy = [loop.lr_factor(config, step) for step in (0, 700, 1199)]
    script(6).break_it()
    assert [loop.lr_factor(config, step) for step in (0, 700, 1199)] == [10 * factor for factor in healthy]


@pytest.mark.parametrize("breaks", [False, True])
def test_7_depends_on_where_a_text_stands(script, breaks):
    if breaks:
        script(7).break_it()
    lm = small_model()
    ids = tokens()
    places = torch.arange(9)[None]
    with torch.no_grad():
        moved = (lm(ids, position_ids=places) - lm(ids, position_ids=places + 5)).abs().max()
    assert (moved > 0.05) == breaks


def test_8_pads_on_the_right(script, monkeypatch, tmp_path):
    module = script(8)
    rows = []
    monkeypatch.setattr(module, "generate", lambda lm, ids, *given, **options: rows.append(ids) or ids)
    tokenizer = SimpleNamespace(begin=lambda prompt: [1, *map(ord, prompt)], pad_id=0, decode=lambda ids: str(ids))
    settings = SimpleNamespace(prompts=["abcd", "ab"], temperature=0.0, top_p=None, sample_tokens=3)
    module.break_it()
    Samples().evaluate(SimpleNamespace(eval_config=settings, tokenizer=tokenizer, lm=None, step=1, directory=tmp_path))
    assert rows[0].tolist() == [[1, 97, 98, 99, 100], [1, 97, 98, 0, 0]]
    assert len((tmp_path / "samples.jsonl").read_text(encoding="utf-8").splitlines()) == 2


def test_every_script_has_an_answer_and_there_are_more_causes_than_scripts():
    causes = answers()["causes"]
    trainings = answers()["trainings"]
    assert sorted(trainings) == SCRIPTS
    assert len({training["cause"] for training in trainings.values()}) == len(trainings)
    assert {training["cause"] for training in trainings.values()} < set(causes)


@pytest.mark.parametrize("number", NUMBERS)
def test_one_cause_is_right_and_no_other_gives_it_away(capsys, number):
    training = answers()["trainings"][number]
    causes = answers()["causes"]
    signs = answers()["signs"]
    assert len(set(signs.values())) == len(causes)
    for letter in causes:
        code = judge(number, letter.upper())
        said = capsys.readouterr().out
        assert (code, training["why"].strip() in said) == ((0, True) if letter == training["cause"] else (1, False))
        assert (causes[training["cause"]] in said) == (letter == training["cause"])
        # each wrong letter has a sentence of its own
        assert (signs[letter] in said) == (letter != training["cause"])


@pytest.mark.parametrize("given", [("9",), ("3", "zz"), ("3", "a", "b"), ("three",)])
def test_what_does_not_exist_is_refused(given):
    with pytest.raises(InputError):
        judge(*given)


def test_the_list_names_every_cause(capsys):
    assert judge() == 0
    said = capsys.readouterr().out
    assert all(words in said for words in answers()["causes"].values())


@pytest.mark.slow
@pytest.mark.parametrize("command", [["-m", "notebooks.broken", "3"], ["notebooks/broken/3.py"]])
def test_a_broken_training_runs_and_its_name_is_a_number(tmp_path, command):
    tiny = ["train.max_steps=2", "train.tokens_per_step=256", "data.source.documents=60", "data.sequence_length=128"]
    tiny += ["data.source.validation_documents=5", "eval.hooks=[]", f"output_dir={tmp_path.as_posix()}"]
    line = [sys.executable, *command, *tiny, "data.tokenizer.kind=byte", "train.device=cpu"]
    result = subprocess.run(line, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "skipped" in Path(tmp_path / "broken-3" / "metrics.jsonl").read_text(encoding="utf-8")
