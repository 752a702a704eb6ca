"""Directories as they stand on the Hub: opened with their own tokenizer and its settings, and talked to."""

import json

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from configs.command import InputError
from data import load_tokenizer
from eval.chat.session import open_conversation
from model import save
from tests.conftest import random_model, tiny_config


def added(content):
    return {"__type": "AddedToken", "content": content, "lstrip": False, "normalized": False, "rstrip": False,
            "single_word": False, "special": True}  # fmt: skip


# tokenizer_config.json, as far as it says anything about tokens; its special tokens; the roles that follow
REAL = {
    "Qwen3": (
        {"add_bos_token": False, "bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>",
         "unk_token": None, "model_max_length": 131072, "tokenizer_class": "Qwen2Tokenizer"},
        ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        ("<|endoftext|>", "<|im_end|>", "<|endoftext|>"),
    ),
    "Llama 3 Instruct": (
        {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>", "clean_up_tokenization_spaces": True,
         "model_input_names": ["input_ids", "attention_mask"], "tokenizer_class": "PreTrainedTokenizerFast"},
        ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"],
        ("<|begin_of_text|>", "<|eot_id|>", "<|eot_id|>"),
    ),
    "SmolLM2 Instruct": (
        {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>", "unk_token": None},
        ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        ("<|im_start|>", "<|im_end|>", "<|im_end|>"),
    ),
    "TinyLlama": (
        {"bos_token": added("<s>"), "eos_token": added("</s>"), "pad_token": None, "unk_token": added("<unk>"),
         "legacy": False, "model_max_length": 1000000000000000019884624838656, "sp_model_kwargs": {}},
        ["<unk>", "<s>", "</s>"],
        ("<s>", "</s>", "</s>"),
    ),
    "no settings at all": (None, ["<|pad|>", "<|bos|>", "<|eos|>"], ("<|bos|>", "<|eos|>", "<|pad|>")),
}  # fmt: skip


@pytest.fixture
def directory(tmp_path, request):
    """A directory with the special tokens and the settings of one of REAL."""
    settings, specials, _ = REAL[request.param]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    backend.add_special_tokens(specials)
    ends = [backend.token_to_id(token) for token in specials[1:]]
    save(random_model(tiny_config(vocab_size=320, eos_token_id=ends)), tmp_path)
    backend.save(str(tmp_path / "tokenizer.json"))
    if settings is not None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    return tmp_path, REAL[request.param][2]


@pytest.mark.parametrize("directory", REAL, indirect=True)
def test_a_foreign_tokenizer_has_the_roles_that_its_settings_say(directory):
    path, roles = directory
    tokenizer = load_tokenizer(path)
    assert tuple(tokenizer.roles[role] for role in ("bos_token", "eos_token", "pad_token")) == roles
    assert tokenizer.eos_id in tokenizer.stop_ids
    assert tokenizer.decode(tokenizer.encode("Füße 猫")) == "Füße 猫"


@pytest.mark.parametrize("directory", REAL, indirect=True)
def test_a_foreign_model_can_be_talked_to(directory):
    talk = open_conversation(directory[0], device="cpu", max_new_tokens=4, temperature=1.0)
    assert talk.is_chat == ("<|im_end|>" in load_tokenizer(directory[0]).backend.get_vocab())
    "".join(talk.answer("Hello"))


@pytest.mark.parametrize("directory", ["Qwen3"], indirect=True)
def test_settings_that_name_an_unknown_token_are_refused(directory):
    (directory[0] / "tokenizer_config.json").write_text('{"eos_token": "<|no|>"}')
    with pytest.raises(InputError, match=r"tokenizer.json: the tokenizer has no <\|no\|> token"):
        load_tokenizer(directory[0])
