"""An old transformers opens Headlight's models: the same logits, ids and conversations.

HEADLIGHT_OLD_TRANSFORMERS names a Python that has one; docs/ecosystem.md explains how to make it.
"""

import os

import pytest
import torch
from packaging.version import Version
from safetensors.torch import load_file

from data.chat import segments
from data.reading.records import conversation_of
from model import generate, load, save
from tests.conftest import random_model
from tests.elsewhere import ask_other
from tests.model.files.export_models import SENTENCES, model, save_with_tokenizer, taught, tokenizer
from tests.model.files.test_families import PARTS, drawn

OLD = os.environ.get("HEADLIGHT_OLD_TRANSFORMERS")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not OLD, reason="HEADLIGHT_OLD_TRANSFORMERS names a Python with transformers 4"),
]
# before, a window in some layers was computed as in others, and there was no smollm3
OLDEST = "4.53.0"
SINCE = dict.fromkeys(PARTS, OLDEST) | {"ministral": "4.57.1"}
KINDS = ("bpe", "byte", "char")
DRAWN = 8  # models of each family; the first has the first value of everything
PROMPTS = ["Once there was a fox named Tiko, and the", "It's 20", "A bird"]
TEXTS = [*SENTENCES[:2], "Eyjafjallajökull é 中文 🦊  user\n\n  two  spaces\t", "", " ", "a , b ."]
CALL = {"name": "weather", "arguments": {"city": "Köln", "days": 2}}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"city": "<é>"}}}
CHATS = [
    [{"role": "user", "content": "Who has the apples?"}, {"role": "assistant", "content": "Tiko."}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Rain in Köln?"},
     {"role": "assistant", "content": "Let me look.", "reasoning_content": "I need it.", "tool_calls": [CALL]},
     {"role": "tool", "content": "dry"}, {"role": "assistant", "content": "No."}],
]  # fmt: skip
RECORDS = [{"messages": messages, **tools} for messages in CHATS for tools in ({}, {"tools": [TOOL]})]
IDS = torch.arange(48).mul(37).remainder(191).add(1).view(2, 24)


@pytest.fixture(scope="module")
def answered(tmp_path_factory):
    """The folder of the models, in FAMILY/NUMBER and in KIND of tokenizer, and what the old one
    says of them.
    """
    place = tmp_path_factory.mktemp("old")
    torch.manual_seed(0)
    for family in PARTS:
        for number in range(DRAWN):
            save(random_model(drawn(family, number)), place / family / str(number))
    known = taught(model())
    for kind in KINDS:
        save_with_tokenizer(known, place / kind, kind)
    request = {
        "models": {f"{family}/{n}": str(place / family / str(n)) for family in PARTS for n in range(DRAWN)},
        "with_tokenizer": {kind: str(place / kind) for kind in KINDS},
        "ids": IDS.tolist(),
        "prompts": PROMPTS,
        "tokens": 12,
        "texts": TEXTS,
        "chats": [{"conversation": record["messages"], "tools": record.get("tools")} for record in RECORDS],
    }
    return place, ask_other(OLD, "in_transformers.py", request, place / "answer.json")


def test_this_version_is_one_that_we_support(answered):
    assert Version(OLDEST) <= Version(answered[1]["transformers"]) < Version("5")


@pytest.mark.parametrize("number", range(DRAWN))
@pytest.mark.parametrize("family", PARTS)
def test_logits_are_equal(answered, family, number):
    """Or the model is refused. Experts and the layers of gpt2 add up in another order there, and
    another torch has other kernels: 1e-4 is allowed then, of logits of about 10.
    """
    place, answer = answered
    problem = answer["problems"][f"{family}/{number}"]
    ours = load(place / family / str(number))
    if Version(answer["transformers"]) < Version(SINCE[family]):
        assert f"model type `{family}`" in problem
    elif family == "olmo2" and ours.config.rope_scaling is not None:  # transformers 4 has one form of it, OLMo 1's
        assert "`rope_scaling` must be a dictionary with two fields" in problem
    else:
        assert problem == ""
        theirs = load_file(place / family / str(number) / "logits.safetensors")["logits"]
        exact = family not in ("qwen3_moe", "gpt2") and answer["torch"] == torch.__version__
        with torch.no_grad():
            torch.testing.assert_close(theirs, ours(IDS), rtol=0, atol=0 if exact else 1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_texts_conversations_and_greedy_answers_are_the_same(answered, kind):
    """A batch of prompts is padded on the left, and an answer that ends early on the right."""
    lm = load(answered[0] / kind)
    tokens = tokenizer(kind)
    theirs = answered[1]["texts"][kind]
    assert theirs["ids"] == [[tokens.bos_id, *tokens.encode(text)] for text in TEXTS]
    assert theirs["decoded"] == [tokens.decode(ids, skip_special_tokens=False) for ids in theirs["ids"]]
    assert theirs["roles"] == [tokens.bos_id, tokens.eos_id, tokens.pad_id, 64]
    assert theirs["chats"] == ["".join(part.text for part in segments(conversation_of(record))) for record in RECORDS]
    for prompt, written in zip(PROMPTS, theirs["written"], strict=True):
        ids = torch.tensor([[tokens.bos_id, *tokens.encode(prompt)]])
        ours = generate(lm, ids, max_new_tokens=12, temperature=0)[0, ids.shape[1] :].tolist()
        assert written == ours + [tokens.pad_id] * (12 - len(ours))
