"""Several adapters on one base, switched in a chat."""

import pytest
import torch

from data.tokenizer import load_tokenizer
from model import load, save
from model.config import LoraConfig
from model.lora import adapted, add_adapters, weights_hash
from tests.conftest import random_model, tiny_config
from tests.eval.test_chat import runs, said  # noqa: F401  # fixtures

FEW = ("--temperature", 0, "--max-new-tokens", 6)


@pytest.fixture
def adapters(runs, tmp_path):  # noqa: F811
    """Two directories of adapters beside the run on texts: a ends its turns as a chat, b does not."""
    for seed, (name, ends) in enumerate((("a", [2, 5]), ("b", 2))):
        lm = load(runs / "texts")
        torch.manual_seed(seed)
        add_adapters(lm, LoraConfig(rank=2 + seed), str(runs / "texts/checkpoints/step_00000010"), weights_hash(lm))
        for layer in adapted(lm).values():
            torch.nn.init.normal_(layer.lora_B.weight)
        lm.config = lm.config.model_copy(update={"eos_token_id": ends})
        save(lm, tmp_path / name)
        load_tokenizer(runs / "texts").save(tmp_path / name)
    return tmp_path


def test_each_answers_as_if_it_were_opened_alone(runs, said, adapters):  # noqa: F811
    alone = {name: said(adapters / name, *FEW, lines=["Tiko saw"])[1] for name in "ab"}
    alone["base"] = said(runs / "texts", *FEW, lines=["Tiko saw"])[1]
    assert len(set(alone.values())) == 3
    given = [text for name in "ab" for text in ("--adapter", f"{name}={adapters / name}")]
    lines = ["Tiko saw", "/adapter b", "Tiko saw", "/adapter base", "Tiko saw", "/adapter a", "Tiko saw", "/adapter"]
    code, out, remarks = said(runs / "texts", *given, *FEW, lines=lines)
    assert (code, out) == (0, alone["a"] + alone["b"] + alone["base"] + alone["a"])
    assert "adapters in use: b; a new conversation (base, a, b)" in remarks
    assert "adapters in use: a (base, a, b)" in remarks


def test_what_cannot_be_is_one_line(runs, said, adapters):  # noqa: F811
    torch.manual_seed(7)
    save(random_model(tiny_config(vocab_size=320, max_position_embeddings=128)), adapters / "other")
    load_tokenizer(runs / "texts").save(adapters / "other")
    for run, given, message in (
        (runs / "texts", "a", "--adapter a: give NAME=RUN"),
        (runs / "texts", f"base={adapters / 'a'}", "a name of its own other than 'base'"),
        (runs / "texts", f"a={runs / 'chats'}", "holds a whole model, not adapters"),
        (runs / "texts", f"a={adapters / 'nowhere'}", "is neither a run"),
        (adapters / "other", f"a={adapters / 'a'}", "these adapters belong to another base"),
    ):
        code, out, problem = said(run, "--adapter", given)
        assert (code, out, len(problem.splitlines())) == (2, "", 1), problem
        assert message in problem
    assert "start with --adapter NAME=RUN" in said(runs / "texts", lines=["/adapter a"])[2]
    asked = said(runs / "texts", "--adapter", f"a={adapters / 'a'}", lines=["/adapter c"])[2]
    assert "there are no adapters named 'c': use base, a" in asked
