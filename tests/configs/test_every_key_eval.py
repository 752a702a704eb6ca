"""Every key of `eval:` changes what is looked at while training, and never the training itself."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path

import pytest

from eval.hooks.attention import Attention
from tests.configs.every_key import Change, keys_of, shows, together
from tests.configs.observed_run import observed_run
from tests.train.helpers import write_config

WORLD = (
    "data.source={kind: storyworld, documents: 60, validation_documents: 8}",
    "data.tokenizer={kind: bpe, vocab_size: 1024}",
    "data.sequence_length=512",
    "train.tokens_per_step=512",
)
CHATS = (*WORLD, "data.records=conversations")
LOOKING = ("eval.hooks=[attention]", "eval.attention.every=4", "eval.attention.early=[]")
EVALUATED = "evaluated, sampled"
BOTH_HOOKS = "eval.hooks=[{name: validation, every: %s, early: %s}, samples]"

CHANGES = [
    together(Change("eval.hooks", ["validation"], "sampled, first samples")),
    together(
        Change("eval.every", 2, EVALUATED),
        Change("eval.max_tokens", 256, "first validation"),
        Change("eval.final_max_tokens", 512, "last validation"),
        Change("eval.prompts", ["the cat"], "first samples"),
    ),
    together(Change("eval.floor_documents", 3, "floor", WORLD)),
    together(Change("eval.sample_tokens", 20, "first samples")),
    together(Change("eval.temperature", 0.01, "first samples")),
    together(Change("eval.top_p", 0.05, "first samples")),
    together(Change("eval.questions", 3, "asked", CHATS)),
    together(
        Change("eval.attention.every", 2, "looked at", LOOKING),
        Change("eval.attention.texts", ["on mat number"], "labels", LOOKING),
        Change("eval.attention.max_tokens", 9, "map length", LOOKING),
        Change("eval.attention.layers", [1], "layers", LOOKING),
        Change("eval.attention.heads", [0, 2], "heads", LOOKING),
        Change("eval.attention.metrics", ["sink"], "scores", LOOKING),
    ),
    together(Change("eval.attention.early", [1], "looked at", LOOKING)),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Trains and observes. Pictures and viewer, which tests/eval looks at, are not drawn, for time."""
    folder = tmp_path_factory.mktemp("eval")
    attention = {"every": 0, "max_tokens": 12}
    evaluation = {"every": 4, "sample_tokens": 6, "max_tokens": 128, "final_max_tokens": 128, "attention": attention}
    train = {"max_steps": 4, "checkpoint_every": 0, "keep_best": False, "compile": False}
    model = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = write_config(folder, train=train, eval=evaluation, model=model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Attention, "finish", lambda hook, event: None)
        yield partial(observed_run, config, folder=folder / "runs")


@pytest.fixture(scope="module")
def baseline(run):
    return cache(lambda given: run(list(given)))


@shows(*keys_of(CHANGES))
@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_it_changes_what_is_looked_at_and_nothing_else(run, baseline, change):
    after = run(change.overrides)
    change.check(baseline(change.given), after)
    assert after["failures"] == []


@shows("eval.hooks.name", "eval.hooks.every", "eval.hooks.early")
def test_a_hook_with_its_own_cadence(run):
    """Another name is another hook, here one of this file; the other hooks keep eval.every."""
    steps = {"evaluated": [0, 2, 4], "sampled": [0, 4]}
    found = run([BOTH_HOOKS % (2, "[]")])
    assert {key: found[key] for key in steps} == steps
    assert run([BOTH_HOOKS % (0, "[1, 3]")])["evaluated"] == [1, 3, 4]
    del seen[:]
    found = run([f"eval.hooks=[{{name: '{__name__}:note'}}]"])
    assert (seen, found["evaluated"], found["sampled"]) == ([0, 4], [], [])


seen: list[int] = []


def note(event) -> None:
    seen.append(event.step)


@shows("eval.attention.probe_file")
def test_texts_of_a_file_are_looked_at(run, tmp_path):
    file = Path(tmp_path / "probes.yaml")
    file.write_text("texts:\n  - {name: mats, text: the cat sat on mat}\n", encoding="utf-8")
    assert "mats" in run([*LOOKING, f"eval.attention.probe_file={file.as_posix()}"])["maps"]
